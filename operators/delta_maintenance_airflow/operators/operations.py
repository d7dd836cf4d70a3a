"""The operators of single operations, made from the records of the operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, get_origin

from delta_maintenance.operations.core.flags import FlagField
from delta_maintenance.operations.core.registry import BUILT_IN, AnyOperation, find, operations
from delta_maintenance_airflow.operators.base import (
    DeltaMaintenanceOperator,
    DeltaReportingOperator,
)
from delta_maintenance_airflow.operators.descriptions import class_name, describe
from delta_maintenance_airflow.operators.spark_base import DeltaJobOperator, DeltaSparkOperator

Operator = type[DeltaMaintenanceOperator]

_BUILT_IN = {class_name(name): name for name in BUILT_IN}
_BASES: Mapping[str, Operator] = {
    base.__name__: base
    for base in (
        DeltaMaintenanceOperator,
        DeltaReportingOperator,
        DeltaJobOperator,
        DeltaSparkOperator,
    )
}


def operator_named(name: str) -> Operator | None:
    """Returns the operator with that name; None if no operation has one."""
    if name in _BUILT_IN:
        return _operator(find(_BUILT_IN[name]))
    # Operations of other distributions, which are searched only for a name that is not built in.
    records = (record for record in operations() if class_name(record.name) == name)
    return next(map(_operator, records), None)


@cache
def _operator(record: AnyOperation) -> Operator:
    description = describe(record)
    bases = tuple(_BASES[name] for name in description.bases)
    fields = [name for base in bases for name in base.template_fields]
    mappings = [field.name for field in description.subjects if get_origin(field.kind) is Mapping]
    return type(
        description.name,
        bases,
        {
            # The package from which a Dag imports it.
            "__module__": __name__.rpartition(".")[0],
            "__doc__": description.docstring,
            "__init__": _init(description.subjects, bases[0]),
            "operation": record.name,
            "template_fields": tuple(dict.fromkeys((*fields, *record.subjects))),
            "template_fields_renderers": {
                **{
                    name: kind
                    for base in bases
                    for name, kind in base.template_fields_renderers.items()
                },
                **dict.fromkeys(mappings, "json"),
            },
        },
    )


def _init(subjects: Iterable[FlagField], base: Operator) -> Callable[..., None]:
    """Returns an initialiser that takes the subjects of the operation as separate arguments."""

    def initialise(self: Any, **kwargs: Any) -> None:
        values = {field.name: kwargs.pop(field.name, None) for field in subjects}
        base.__init__(self, **kwargs)
        for name, value in values.items():
            setattr(self, name, value)

    # Airflow reads the required and the mappable arguments from the signature.
    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(field.name, keyword, default=empty if field.is_required else None)
            for field in subjects
        ),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
    signature = inspect.Signature(parameters)
    initialise.__signature__ = signature  # type: ignore[attr-defined]  # inspect.signature reads it
    return initialise

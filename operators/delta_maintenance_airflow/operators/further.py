"""Operators for operations without a class in `operations`, generated from their records."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from delta_maintenance.operations.core.registry import AnyOperation, operations
from delta_maintenance_airflow.operators import operations as written_operators
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator
from delta_maintenance_airflow.operators.reporting import DeltaReportingOperator
from delta_maintenance_airflow.operators.spark_base import DeltaJobOperator, DeltaSparkOperator

Operator = type[DeltaMaintenanceOperator]


def class_name(operation: str) -> str:
    """Returns `DeltaTouchOperator` for the operation `touch`."""
    return f"Delta{''.join(word.capitalize() for word in operation.split('-'))}Operator"


def operator_named(name: str) -> Operator | None:
    """Returns the operator with that name; None if no operation has one.

    An operation with a class in `operations` has no other operator.
    """
    written = {kind.operation for kind in vars(written_operators).values() if _is_operator(kind)}
    further = (record for record in operations() if record.name not in written)
    return next((_operator(each) for each in further if class_name(each.name) == name), None)


def _is_operator(value: object) -> bool:
    return isinstance(value, type) and "operation" in vars(value)


@cache
def _operator(record: AnyOperation) -> Operator:
    bases = _bases(record)
    inherited = (field for base in bases for field in base.template_fields)
    options = ", ".join(f"`{field.name}`" for field in fields(record.options))
    return type(
        class_name(record.name),
        bases,
        {
            # The package from which a Dag imports it.
            "__module__": __name__.rpartition(".")[0],
            "__doc__": f"{record.title}: {record.summary}.\n\n"
            f"`options` are fields of `{record.options.__name__}`: {options}.",
            "__init__": _init(record, bases[0]),
            "operation": record.name,
            "template_fields": tuple(dict.fromkeys((*inherited, *record.subjects))),
        },
    )


def _bases(record: AnyOperation) -> tuple[Operator, ...]:
    found: list[Operator] = []
    if record.report is not None:
        found.append(DeltaReportingOperator)
    if record.spark is not None:
        found.append(DeltaSparkOperator if record.chooses_engine else DeltaJobOperator)
    return tuple(found) or (DeltaMaintenanceOperator,)


def _init(record: AnyOperation, base: Operator) -> Callable[..., None]:
    """Returns an initialiser that takes the subjects of the operation as separate arguments."""

    def initialise(self: Any, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name, None) for name in record.subjects}
        base.__init__(self, **kwargs)
        for name, value in given.items():
            setattr(self, name, value)

    # Airflow reads the required and the mappable arguments from the signature.
    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(name, keyword, default=empty if name in record.required else None)
            for name in record.subjects
        ),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
    own = inspect.Signature(parameters)
    initialise.__signature__ = own  # type: ignore[attr-defined]  # inspect.signature reads it
    return initialise

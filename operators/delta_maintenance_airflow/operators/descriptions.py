"""Name, bases, arguments and docstring of the operator of an operation, from its record.

Also read by the tools that write the reference and the stub, so it does not import Airflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.registry import AnyOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDescription:
    """The parts of a generated class."""

    name: str
    """Such as `DeltaCleanLogOperator`."""
    bases: tuple[str, ...]
    """The names of the base classes."""
    subjects: tuple[FlagField, ...]
    """The fields of the Options that are arguments."""
    docstring: str


def class_name(operation: str) -> str:
    """Returns `DeltaCleanLogOperator` for the operation `clean-log`."""
    return f"Delta{''.join(word.capitalize() for word in operation.split('-'))}Operator"


def describe(record: AnyOperation) -> OperatorDescription:
    """Describes the operator of an operation."""
    flags = {field.name: field for field in flag_fields(record.options)}
    bases = tuple(_bases(record))
    subjects = tuple(flags.pop(name) for name in record.subjects)
    return OperatorDescription(
        name=class_name(record.name),
        bases=bases,
        subjects=subjects,
        docstring=_docstring(record, bases, subjects, flags.values()),
    )


def _bases(record: AnyOperation) -> Iterator[str]:
    if record.report is not None:
        yield "DeltaReportingOperator"
    if record.spark is not None:
        yield "DeltaSparkOperator" if record.chooses_engine else "DeltaJobOperator"
    elif record.report is None:
        yield "DeltaMaintenanceOperator"


def _docstring(
    record: AnyOperation,
    bases: Iterable[str],
    subjects: Iterable[FlagField],
    options: Iterable[FlagField],
) -> str:
    succeeded = [f"`{name}`" for name, outcome in record.outcomes.items() if outcome.succeeded]
    failed = [f"`{name}`" for name, outcome in record.outcomes.items() if not outcome.succeeded]
    statuses = f"`status` is {_either(succeeded)}."
    if failed:
        statuses += f" A task that ends with the status {_either(failed)} fails."
    report = f"; the report has {record.report}" if record.report is not None else ""
    owners = " and ".join(f"`{name}`" for name in bases)
    parameters = [f":param {field.name}: {field.flag.help}. (templated)" for field in subjects]
    options = [field for field in options if field.name != "engine"]
    listed = [f"- `{field.name}`: {field.flag.help}" for field in options]
    named_fields = {"engine", *record.subjects, *(field.name for field in options)}
    other_fields = [
        f"`{field.name}`" for field in fields(record.options) if field.name not in named_fields
    ]
    listed += (
        [f"- {' and '.join(other_fields)}: see `{record.options.__name__}`"] if other_fields else []
    )
    return "\n\n".join(
        paragraph
        for paragraph in (
            record.description,
            f"{statuses} Takes the parameters of {owners}{', and:' if parameters else ''}{report}"
            + ("" if parameters else "."),
            "\n".join(parameters),
            f"`options` are fields of `{record.options.__name__}`:" if listed else "",
            "\n".join(listed),
        )
        if paragraph
    )


def _either(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last

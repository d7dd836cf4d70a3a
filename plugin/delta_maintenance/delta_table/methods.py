"""One method for each operation, made from its record.

`methods.pyi` states the same signatures for editors and type checkers; `tools/method_stubs.py`
writes it, and a test compares them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from inspect import Parameter, Signature
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from delta_maintenance import clock
from delta_maintenance.address import Address, is_catalog_name
from delta_maintenance.catalogs.reference import with_access
from delta_maintenance.delta_table.parts import ExecutionParts
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, closest
from delta_maintenance.ledger.one_operation import delivering_to, recording
from delta_maintenance.operations.core.context import RunContext, options_for
from delta_maintenance.operations.core.flags import FlagField, flag_fields, has_field
from delta_maintenance.operations.core.given_options import (
    read_value,
    replace_flags,
    require_use_of_quiet,
)
from delta_maintenance.operations.core.operation import load
from delta_maintenance.operations.core.registry import BUILT_IN, AnyOperation, find, known, names
from delta_maintenance.policies.promises.for_operation import (
    POLICY_HELP,
    Promises,
    rule_options_over,
)

if TYPE_CHECKING:
    from delta_maintenance.table.read.table import Table

_logger = logging.getLogger("delta_maintenance")
_WIDTH = 72
"""The width of docstrings: `help` indents them by up to 8 columns."""


class OperationMethods:
    """Base class with a method for each operation; the table comes from the subclass."""

    def _execution_parts(self) -> ExecutionParts:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        record = None if name.startswith("_") else known(name.replace("_", "-"))
        if record is None:
            meant = closest(name, dir(self))
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text if meant is None else f"{text}. Did you mean: {meant!r}?")
        return partial(operation_method(record), self)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *map(_method_name, names())}


def operation_method(record: AnyOperation) -> Callable[..., Any]:
    """Returns the method for an operation."""
    flags = {field.name: field for field in flag_fields(record.options)}
    signature = Signature(
        [Parameter("self", Parameter.POSITIONAL_ONLY), *_parameters(record, flags.values())],
        return_annotation=f"{record.result.__name__} | {record.plan.__name__}",
    )

    def method(self: OperationMethods, /, *args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(self, *args, **kwargs).arguments
        except TypeError as error:
            problem = _with_suggestion(str(error), kwargs, signature)
            raise TypeError(f"{method.__name__}() {problem}") from None
        settings = {
            name: arguments.get(name) for name in ("dry_run", "version", "report", "policy")
        }
        with _naming_options(record):
            values = {
                name: read_value(flags[name], arguments[name], name=name)
                for name in flags
                if name in arguments
            }
            options = record.options(**values).validated()
            require_use_of_quiet(options)
            return _run(self, record, options, **settings)

    method.__name__ = _method_name(record.name)
    method.__qualname__ = f"DeltaTable.{method.__name__}"
    method.__doc__ = _docstring(record, flags.values())
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


@contextmanager
def _naming_options(record: AnyOperation) -> Iterator[None]:
    """Replaces the flags in errors of the block by names of options."""
    try:
        yield
    except DeltaMaintenanceError as error:
        error.problem = replace_flags(error.problem, record.name)
        error.remedy = error.remedy and replace_flags(error.remedy, record.name)
        raise


def annotation(field: FlagField) -> str:
    """The type of a parameter, as it is written in a signature."""
    kind = field.kind
    if kind is timedelta:
        text = "timedelta | str"
    elif kind is datetime:
        text = "datetime | str"
    elif field.is_size:
        text = "int | str"
    else:
        text = _type_text(kind)
    return f"{text} | None" if field.may_be_none else text


def _type_text(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(_double_quoted, arguments))}]"
    if origin is tuple:
        return f"Sequence[{_type_text(arguments[0])}]"
    if origin is not None and issubclass(origin, Mapping):
        return f"Mapping[{', '.join(map(_type_text, arguments))}]"
    return str(kind.__name__)


def _double_quoted(value: str) -> str:
    return f'"{value}"'


def _parameters(record: AnyOperation, fields: Iterable[FlagField]) -> list[Parameter]:
    options = [
        Parameter(
            field.name,
            Parameter.POSITIONAL_OR_KEYWORD if field.flag.positional else Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.is_required else field.default,
            annotation=annotation(field),
        )
        for field in sorted(fields, key=lambda field: not field.flag.positional)
    ]
    settings: dict[str, tuple[str, Any]] = {"dry_run": ("bool", False)}
    if record.takes_version:
        settings["version"] = ("int | None", None)
    if record.report is not None:
        settings["report"] = ("str | None", None)
    if record.keeps_for_holders:
        settings["policy"] = ("str | None", None)
    return options + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in settings.items()
    ]


def _docstring(record: AnyOperation, fields: Iterable[FlagField]) -> str:
    parameters = {field.name: field.flag.help for field in fields}
    parameters["dry_run"] = "change nothing, and return the Plan"
    if record.takes_version:
        parameters["version"] = "the version to work on, by default the latest"
    if record.report is not None:
        parameters["report"] = f"the address of a new Parquet file with {record.report}"
    if record.keeps_for_holders:
        parameters["policy"] = f"a policy file; {POLICY_HELP}"
    described = [
        fill(
            f"{name}: {text}",
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
        for name, text in parameters.items()
    ]
    return "\n".join([fill(record.description, _WIDTH), "", "Options:", *described])


def _with_suggestion(problem: str, given: Iterable[str], signature: Signature) -> str:
    """Returns the problem with the arguments of a call, and the keyword that was meant."""
    if "positional" in problem:
        return f"{problem}; give the options by their names"
    unknown = next((name for name in given if name not in signature.parameters), "")
    meant = closest(unknown, signature.parameters)
    return problem if meant is None else f"{problem}. Did you mean {meant!r}?"


def _run(
    subject: OperationMethods,
    record: AnyOperation,
    options: Any,
    *,
    dry_run: bool | None,
    version: int | None,
    report: str | None,
    policy: str | None,
) -> Any:
    parts, plan_only = subject._execution_parts(), bool(dry_run)
    table, storage_options = parts.table, parts.storage_options
    access = record.access(options, plan_only=plan_only)
    kind = table.store.address.kind
    options_at = partial(options_for, given=storage_options, kind=kind)
    promises = Promises(
        record=record,
        address=table.uri,
        catalog_name=parts.name if is_catalog_name(parts.name) else None,
        options_at=options_at,
        rule_options=rule_options_over(storage_options),
        policy=policy,
        warn=_warn,
    )
    options, promised_options_at = promises.keep(options, table)
    context = RunContext(
        engine=_engine(record, table, with_access(storage_options, access), parts.spark, options),
        plan_only=plan_only,
        version=version,
        report=report,
        storage_options=promised_options_at,
        warn=_warn,
    )
    deliver = delivering_to(parts.ledger, done_by="python", options=options_at, warn=_warn)
    with recording(record, deliver, name=lambda: parts.name, plans=plan_only) as operation_run:
        operation_run.measure(table.store)
        time = None
        if deliver is not None and context.engine is not None:
            time = load("delta_maintenance.spark.session:TaskTime")(parts.spark)
        try:
            prepared = record.prepare(table, options, context)
            if prepared is not None and plan_only:
                operation_run.document = prepared.plan
            elif prepared is None or (record.needs_job(prepared.plan) and context.engine is None):
                remedy = "give DeltaTable a session (spark=…)"
                if prepared is None or record.only_spark(prepared.plan) is None:
                    remedy += ", or choose engine='local'"
                raise InvalidRequestError(f"this {record.name} needs Spark", remedy=remedy)
            else:
                operation_run.document = prepared.apply()
            return operation_run.document
        except DeltaMaintenanceError as error:
            raise error.locate(table=table.uri) from error.__cause__
        finally:
            if time is not None and (seconds := time.seconds):
                operation_run.worked_on_spark(seconds)


def _engine(
    record: AnyOperation, table: Table, storage_options: Mapping[str, str], spark: Any, options: Any
) -> Any:
    local = has_field(options, "engine") and options.engine == "local"
    if spark is None or record.spark is None or local:
        return None
    session = load("delta_maintenance.spark.session:JobSession")(
        spark=spark,
        # Executors have working directories of their own.
        table_uri=str(Address.parse(table.uri).absolute()),
        storage_options=storage_options,
        new_id=clock.new_id,
    )
    return load(record.spark.engine)(session)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        _logger.warning("%s", replace_flags(warning))


def _method_name(operation: str) -> str:
    return operation.replace("-", "_")


for _name in BUILT_IN:
    setattr(OperationMethods, _method_name(_name), operation_method(find(_name)))

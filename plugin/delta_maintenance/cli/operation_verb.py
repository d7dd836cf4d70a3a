"""The verb of an operation: reads flags into Options, prints the Plan or the Result."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args, get_origin

from delta_maintenance import clock
from delta_maintenance.cli.arguments import (
    ArgumentParser,
    Verbs,
    add_spark,
    add_table,
    add_verb,
    at_least,
    key_value,
    open_table,
)
from delta_maintenance.cli.output import ProgressLine, print_facts, print_json, warn
from delta_maintenance.cli.spark_launcher import absolute, missing_spark, run_spark_job
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.ledger.one_operation import OneOperation, delivering_to, recording
from delta_maintenance.operations.core.context import RunContext, options_for
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.flags import FlagField, Group, flag_fields, has_field
from delta_maintenance.operations.core.given_options import read_value, require_use_of_quiet
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation
from delta_maintenance.policies.promises.for_operation import (
    POLICY_HELP,
    Promises,
    rule_options_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delta_maintenance.address import Access
    from delta_maintenance.operations.core.context import FileListing
from delta_maintenance.operations.core.outcome import Conclusion

_LINES_AT_ONCE = 1024


def add_parser(verbs: Verbs, record: AnyOperation) -> None:
    """Adds the verb of an operation to the command line."""
    parser = add_verb(
        verbs,
        record.name,
        purpose=record.purpose,
        summary=record.summary,
        description=f"{record.description} {record.prints}",
        json_help="print the Result, with --dry-run the Plan and the exact lists behind it, as one "
        "JSON document",
        example=_example(record),
    )
    add_table(parser)
    add_flags(parser, record)
    if record.takes_version:
        parser.group("work").add_argument(
            "--version", metavar="N", type=int, help="the version to work on, by default the latest"
        )
    if record.report is not None:
        parser.group("output").add_argument(
            "--report",
            metavar="URI",
            help=f"a new Parquet file with {record.report}, in any store and outside of the table, "
            "written before anything is changed",
        )
    parser.add_argument("--dry-run", action="store_true", help="only print the plan and its reason")
    parser.group("output").add_argument(
        "--ledger", metavar="URI", help="add a row to this ledger, which is created if it is new"
    )
    if record.spark is not None:
        add_spark(parser)
    parser.set_defaults(
        run=partial(run, record),
        version=None,
        report=None,
        policy=None,
        access=partial(_access, record),
    )
    if record.keeps_for_holders:
        parser.group("safety").add_argument("--policy", metavar="FILE", help=POLICY_HELP)


def run(record: AnyOperation, arguments: argparse.Namespace) -> None:
    """Plans, and applies the plan unless this is a dry run."""
    deliver = delivering_to(
        arguments.ledger,
        done_by="cli",
        options=lambda _: dict(arguments.storage_options),
        warn=warn,
    )
    with recording(
        record,
        deliver,
        name=lambda: arguments.catalog_name or arguments.table,
        plans=arguments.dry_run,
    ) as row:
        _run(_Verb(record, arguments, row))


def _run(verb: _Verb) -> None:
    record, arguments = verb.record, verb.arguments
    options = read_flags(arguments, record.options)
    dry_run, spark = arguments.dry_run, record.spark
    table = open_table(arguments)
    given = dict(arguments.storage_options)
    promises = Promises(
        record=record,
        address=arguments.table,
        catalog_name=arguments.catalog_name,
        options_at=partial(options_for, given=given, kind=table.store.address.kind),
        rule_options=rule_options_over(given),
        policy=arguments.policy,
        warn=warn,
    )
    options, storage_options = promises.keep(options, table)
    if spark is not None and not dry_run and _asks_for_spark(options) and spark.skips_plan(options):
        verb.conclude(verb.submit(options))
        return
    verb.row.measure(table.store)
    with ProgressLine() as progress:
        context = RunContext(
            started=verb.row.started,
            progress=progress,
            plan_only=dry_run,
            version=arguments.version,
            report=arguments.report,
            storage_options=storage_options,
            warn=warn,
        )
        prepared = record.prepare(table, options, context)
        in_process = prepared is not None and not record.needs_job(prepared.plan)
        if prepared is not None and in_process and not dry_run:
            result = prepared.apply()
    if prepared is None:
        verb.conclude(verb.submit(options))
    elif dry_run:
        verb.conclude(prepared.plan, prepared.listing)
        if not in_process:
            problem = missing_spark(arguments, only_spark=record.only_spark(prepared.plan))
            warn([] if problem is None else [f"the run needs Spark, and {problem}"])
    else:
        verb.conclude(result if in_process else verb.submit(options, prepared.plan))


def _access(record: AnyOperation, arguments: argparse.Namespace) -> Access:
    options = read_flags(arguments, record.options)
    return record.access(options, plan_only=arguments.dry_run)


class _Verb:
    """The execution of one command line."""

    def __init__(
        self, record: AnyOperation, arguments: argparse.Namespace, row: OneOperation
    ) -> None:
        self.record = record
        self.arguments = arguments
        self.row = row

    def submit(self, options: Any, plan: Any = None) -> Any:
        """Returns the Result of a Spark job, or its Plan for a dry run. The job plans again."""
        from delta_maintenance.submission.job_report import split_task_seconds

        record, arguments = self.record, self.arguments
        assert record.spark is not None
        report = arguments.report
        job = {
            "version": plan.version if plan is not None and record.spark.pins_version else None,
            "options": _for_job(options, plan).to_json(),
            "plan_only": arguments.dry_run,
            "report_uri": None if report is None else absolute(report),
        }
        only_spark = None if plan is None else record.only_spark(plan)
        document, seconds = split_task_seconds(
            run_spark_job(record.name, job, arguments, only_spark=only_spark)
        )
        self.row.worked_on_spark(seconds)
        return (record.plan if arguments.dry_run else record.result).from_json(document)

    def conclude(self, document: Any, listing: FileListing | None = None) -> None:
        """Prints a Plan or a Result, and raises the error that it implies."""
        record, arguments = self.record, self.arguments
        self.row.document = document
        name = arguments.catalog_name
        if arguments.json:
            catalog_name = {} if name is None else {"catalog_name": name}
            _print_document({**catalog_name, **document.to_json()}, listing)
        else:
            facts = record.facts(document)
            facts = facts if name is None else {"catalog name": name, **facts}
            freed = self.row.find_freed
            if freed is not None:
                from delta_maintenance.operations.core.freed import freed_text

                facts = {**facts, "frees": freed_text(freed, clock.now())}
            print_facts(record.heading(document), facts)
            if listing is not None:
                _print_lines(listing.lines(reported=arguments.report is not None))
        conclusion = self._conclusion(document)
        if conclusion.outcome is Outcome.WAITING:
            warn([str(conclusion)])
        error = conclusion.error(table=document.table, version=document.version)
        if error is not None:
            raise error

    def _conclusion(self, document: Any) -> Conclusion:
        if self.arguments.dry_run:
            return self.record.conclusion_of_plan(document)
        return self.record.conclusion(document)


def _asks_for_spark(options: Any) -> bool:
    return has_field(options, "engine") and options.engine == "spark"


def _for_job(options: Any, plan: Any) -> Any:
    """Returns the Options for a job that applies the plan of this process."""
    if has_field(options, "engine"):
        options = replace(options, engine="spark")
    if has_field(options, "operation_id") and options.operation_id is None:
        operation_id = getattr(plan, "operation_id", None)
        if operation_id is not None:
            # The ID was generated with the plan, so no commit before the plan can have it.
            options = replace(options, operation_id=operation_id, operation_since=plan.planned_at)
    return options


def _print_lines(lines: Iterable[str]) -> None:
    lines, is_terminal = iter(lines), sys.stdout.isatty()
    while chunk := [*islice(lines, _LINES_AT_ONCE)]:
        if not all(map(str.isascii, chunk)):
            chunk = [_printable_line(line) for line in chunk]
        if is_terminal:
            chunk = [*map(_aligned_line, chunk)]
        chunk.append("")
        sys.stdout.write("\n".join(chunk))


def _printable_line(line: str) -> str:
    # Tabs are separators, and names of files may contain any character.
    cells = (cell if cell.isascii() else printable(cell) for cell in line.split("\t", 2))
    return "\t".join(cells)


def _aligned_line(line: str) -> str:
    """Returns a line of a list of files for a terminal: the size, the reason and the path."""
    size, reason, path = line.split("\t", 2)
    return f"{size_text(int(size)) if size else '':>10}  {reason:<17}  {path}"


def _print_document(document: dict[str, Any], listing: FileListing | None) -> None:
    """Prints the JSON of a document, and streams the lists behind it, which may have millions of
    items.
    """
    if listing is None:
        print_json(document)
        return
    sys.stdout.write(json.dumps(document, indent=2).removesuffix("\n}"))
    for name, items in listing.json_lists():
        sys.stdout.write(f',\n  "{name}": [')
        comma = ""
        for item in items:
            sys.stdout.write(f"{comma}\n    {json.dumps(item)}")
            comma = ","
        sys.stdout.write("\n  ]" if comma else "]")
    sys.stdout.write("\n}\n")


def _example(record: AnyOperation) -> str:
    words = [record.name, record.example_table]
    for field in flag_fields(record.options):
        if field.is_required or field.flag.example is not None:
            value = field.flag.example or (field.choices or (_settings(field)["metavar"],))[0]
            words += [field.spelling, value]
    return shlex.join([*words, *([] if record.effects.only_reads else ["--dry-run"])])


def add_flags(parser: ArgumentParser, record: AnyOperation) -> None:
    """Adds a flag for each field that has one; omitted values are None."""
    fields = [*flag_fields(record.options)]
    names = {field.name: field.spelling for field in fields}
    for field in fields:
        group: Group = "common" if field.is_required else field.flag.group
        action = parser.group(group).add_argument(
            field.spelling,
            dest=field.name,
            required=field.is_required and not field.flag.positional,
            help=_help(field, names),
            **_settings(field),
        )
        if field.flag.positional:
            parser.by_position.append(action)
        if field.name in record.subjects:
            parser.subjects.append(action)


def read_flags(arguments: argparse.Namespace, options: type[Record]) -> Any:
    """Builds the Options from parsed flags. Raises `InvalidRequestError` for invalid values."""
    values = {}
    for field in flag_fields(options):
        value = getattr(arguments, field.name)
        if value is not None:
            values[field.name] = _value(field, value)
    read = options(**values).validated()
    require_use_of_quiet(read)
    return read


def _help(field: FlagField, names: Mapping[str, str]) -> str:
    """Returns the help of a flag; `names` are those of all flags, by the names of the fields."""
    # argparse would interpret `%` as a format.
    text = field.flag.help.replace("%", "%%")
    text = re.sub(r"`([^`]*)`", lambda code: names.get(code[1], code[1]), text)
    is_repeatable = _item(field.kind) is not None or _is_mapping(field.kind)
    return f"{text}; repeatable" if is_repeatable else text


def _settings(field: FlagField) -> dict[str, Any]:
    """Returns the arguments of `add_argument` that follow from the type of a field."""
    kind, item = field.kind, _item(field.kind)
    if kind is bool:
        if field.default is False:
            return {"action": "store_const", "const": True}
        return {"action": argparse.BooleanOptionalAction}
    if item is not None:
        repeated = {"action": "append", "type": _parser(item, _least(item))}
        return {**repeated, "metavar": field.flag.metavar or _metavar(item)}
    if _is_mapping(kind):
        return {"action": "append", "type": key_value, "metavar": field.flag.metavar or "K=V"}
    if field.choices is not None:
        return {"choices": field.choices}
    metavar = field.name.upper() if field.flag.positional else _metavar(kind)
    if field.is_size:
        return {"metavar": "SIZE"}
    return {"type": _parser(kind, field.least), "metavar": field.flag.metavar or metavar}


def _parser(kind: Any, minimum: int | None) -> Any:
    bare = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    if bare is int:
        return int if minimum is None else partial(at_least, minimum)
    return str


def _metavar(kind: Any) -> str:
    bare = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    return {int: "N", timedelta: "DURATION", datetime: "TIME"}.get(bare, "TEXT")


def _least(kind: Any) -> int | None:
    metadata = getattr(kind, "__metadata__", ())
    return next((constraint.least for constraint in metadata if hasattr(constraint, "least")), None)


def _item(kind: Any) -> Any:
    """Returns the type of the items of a field; None for a single value."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _value(field: FlagField, value: Any) -> Any:
    if _is_mapping(field.kind):
        mapping = dict(value)
        if len(mapping) < len(value):
            raise InvalidRequestError(
                f"a name is set twice by {field.spelling}", remedy="give it one value"
            )
        return mapping
    return read_value(field, value, name=field.spelling)

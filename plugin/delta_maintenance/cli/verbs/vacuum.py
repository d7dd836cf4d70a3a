"""`vacuum`: delete files that no retained version of the table needs."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_engine, add_verb, at_least, open_table
from delta_maintenance.cli.output import (
    Progress,
    count_text,
    print_fields,
    print_json,
    printable,
    size_text,
    warn,
)
from delta_maintenance.cli.spark_launcher import absolute, run_spark_job
from delta_maintenance.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_maintenance.operations.vacuum import (
        Survey,
        VacuumOptions,
        VacuumPlan,
        VacuumResult,
    )

_ROWS_AT_ONCE = 10_000


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "vacuum",
        summary="delete files that no retained version of the table needs",
        description="Delete data files, deletion vectors and change data files to which neither "
        "the table nor any\nversion of its retention refers, and which are older than that "
        "retention themselves. The log is\nread again before every few thousand deletions. Prints "
        "what was deleted, with --dry-run the exact\nlist of what would be, and why.",
        json_help="print the Result, with --dry-run the Plan and every file, as one JSON document",
    )
    parser.add_argument(
        "--mode",
        choices=("full", "lite", "inventory"),
        help="full, the default, lists the table's folder; lite takes the log's word for what was "
        "removed, and finds nothing else; inventory takes a list from elsewhere",
    )
    parser.add_argument(
        "--inventory",
        metavar="URI",
        help="for that mode: a Parquet file, a folder of them or a Delta table, with the columns "
        "path, length, isDir and modificationTime",
    )
    parser.add_argument(
        "--retention",
        metavar="I",
        help="for how long removed files stay, such as '30 days'; by default the table's "
        "delta.deletedFileRetentionDuration, but a week at least. Shorter takes both flags below",
    )
    parser.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="files that the table's own retention, or the last week, covers may go",
    )
    parser.add_argument(
        "--no-other-writers",
        action="store_true",
        help="nobody writes to the table or reads older versions of it meanwhile",
    )
    parser.add_argument(
        "--keep-version",
        dest="keep_versions",
        metavar="N",
        action="append",
        default=[],
        type=partial(at_least, 0),
        help="a version of which every file stays, whatever its age; repeatable",
    )
    parser.add_argument(
        "--foreign-files",
        action="store_true",
        help="files go too whose names are not those of Delta's files, such as a readme",
    )
    parser.add_argument(
        "--allow-large-delete",
        action="store_true",
        help="more than 1,000 files may go that are more than half of all",
    )
    parser.add_argument(
        "--ignore-missing-files",
        action="store_true",
        help="go on where files of the table are not there",
    )
    parser.add_argument(
        "--log-commits",
        action=argparse.BooleanOptionalAction,
        help="commit VACUUM START and VACUUM END; by default everywhere but on S3",
    )
    parser.add_argument(
        "--other-writers",
        choices=("conditional_put", "spark", "none"),
        help="who else commits to a table on S3, if --log-commits is given for one",
    )
    parser.add_argument(
        "--report",
        metavar="URI",
        help="a new Parquet file for the exact list of files, written before anything is deleted",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be deleted, and why"
    )
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Surveys, and unless this is a dry run deletes."""
    # Before the table is opened: what comes later must not look older than it is.
    now = clock.now()
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import vacuum
    from delta_maintenance.operations.vacuum.report import write_report

    options = _options(arguments)
    storage_options = dict(arguments.storage_options)
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    if vacuum.engine_for(snapshot, options) == "spark":
        _run_on_spark(options, arguments)
        return
    survey = vacuum.survey(snapshot, options, now=now, storage_options=storage_options)
    if arguments.report is not None:
        write_report(
            survey.found.batches(),
            arguments.report,
            table=table.store,
            storage_options=storage_options or None,
        )
    if arguments.dry_run:
        _print_survey(survey, arguments)
        return
    with Progress() as progress:
        result = vacuum.apply(
            table,
            survey.plan,
            now=clock.now(),
            new_id=clock.new_id,
            progress=progress,
            surveyed=survey,
        )
    _print_result(result, arguments)
    _require_complete(result)


def _run_on_spark(options: VacuumOptions, arguments: argparse.Namespace) -> None:
    """The job surveys by itself; the exact list is in its report, if one was asked for."""
    from delta_maintenance.operations.vacuum import VacuumPlan, VacuumResult

    job = {
        "options": {**options.to_json(), "engine": "spark"},
        "plan_only": arguments.dry_run,
        "report_uri": None if arguments.report is None else absolute(arguments.report),
    }
    document = run_spark_job("vacuum", job, arguments)
    if not arguments.dry_run:
        result = VacuumResult.from_json(document)
        _print_result(result, arguments)
        _require_complete(result)
    elif arguments.json:
        print_json(document)
    else:
        _print_plan(VacuumPlan.from_json(document))


def _require_complete(result: VacuumResult) -> None:
    if result.status == "partly":
        raise StorageError(
            _failure(result),
            version=result.version,
            remedy="see the Result for the first of them, and run again",
        )


def _options(arguments: argparse.Namespace) -> VacuumOptions:
    from delta_maintenance.operations.vacuum import VacuumOptions
    from delta_maintenance.protocol.features.properties import parse_interval

    given = {
        "mode": arguments.mode,
        "inventory": arguments.inventory,
        "retention": None if arguments.retention is None else parse_interval(arguments.retention),
        "allow_short_retention": arguments.allow_short_retention,
        "no_other_writers": arguments.no_other_writers,
        "keep_versions": tuple(arguments.keep_versions),
        "foreign_files": arguments.foreign_files,
        "allow_large_delete": arguments.allow_large_delete,
        "ignore_missing_files": arguments.ignore_missing_files,
        "log_commits": arguments.log_commits,
        "other_writers": arguments.other_writers,
        "engine": arguments.engine,
    }
    return VacuumOptions(
        **{k: value for k, value in given.items() if value is not None}
    ).validated()


def _failure(result: VacuumResult) -> str:
    if result.stopped is not None:
        return f"{count_text(result.deleted, 'file')} deleted, then: {result.stopped}"
    if result.lost:
        return f"{count_text(len(result.lost), 'file')} came back into use after they were deleted"
    return f"{count_text(result.failed, 'file')} could not be deleted"


def _print_survey(survey: Survey, arguments: argparse.Namespace) -> None:
    if arguments.json:
        _print_document(survey)
        return
    _print_plan(survey.plan)
    if arguments.report is None:
        for rows in _rows(survey):
            lines = (f"{size}\t{reason}\t{_shown(path)}\n" for path, size, reason in rows)
            sys.stdout.write("".join(lines))
    for path in sorted(survey.found.directories):
        sys.stdout.write(f"\tempty-directory\t{_shown(path)}/\n")


def _rows(survey: Survey) -> Iterator[Iterator[tuple[str, int, str]]]:
    """Path, size and reason of every file, some thousands at a time."""
    from delta_maintenance.operations.vacuum.report import with_labels

    for table in survey.found.batches():
        for batch in with_labels(table).to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield zip(*(batch[name].to_pylist() for name in _LISTED), strict=True)


_LISTED = ("path", "size", "reason")


def _shown(path: str) -> str:
    return path if path.isascii() else printable(path)


def _print_document(survey: Survey) -> None:
    """The Plan with the lists behind it, file by file: there may be millions."""
    document = survey.plan.to_json() | {"directory_list": sorted(survey.found.directories)}
    sys.stdout.write(json.dumps(document, indent=2).removesuffix("\n}"))
    sys.stdout.write(',\n  "file_list": [')
    comma = ""
    for rows in _rows(survey):
        for row in rows:
            sys.stdout.write(f"{comma}\n    {json.dumps(dict(zip(_LISTED, row, strict=True)))}")
            comma = ","
    sys.stdout.write("\n  ]\n}\n")


def _print_plan(plan: VacuumPlan) -> None:
    fields: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
        "engine": plan.engine,
        "retention": plan.retention,
        "reason": plan.reason,
        "files": f"{plan.files:,} of {plan.listed:,} ({size_text(plan.bytes)})",
    }
    for group in plan.groups:
        fields[group.reason] = f"{count_text(group.count, 'file')} ({size_text(group.bytes)})"
    fields["empty directories"] = plan.directories or None
    fields["stay"] = [f"{group.count:,}: {group.why}" for group in plan.kept]
    fields["needs --allow-large-delete"] = plan.large
    fields["commits"] = "VACUUM START and VACUUM END" if plan.logs_commits else None
    fields["notes"] = plan.notes
    print_fields("vacuum, dry run", fields)


def _print_result(result: VacuumResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    fields: dict[str, object] = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "deleted": f"{count_text(result.deleted, 'file')} ({size_text(result.bytes)})",
        "empty directories": result.directories or None,
        "came into use meanwhile": result.spared or None,
        "stopped": result.stopped,
        "failures": result.failures,
        "brought back after deletion": result.lost,
        "VACUUM START": result.start_version,
        "VACUUM END": result.end_version,
        "notes": result.notes,
    }
    print_fields("vacuum", fields)

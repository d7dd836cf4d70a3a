"""`compact-log`: put the commits after a checkpoint into fewer files."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_engine, add_verb, at_least, open_table
from delta_maintenance.cli.output import Progress, count_text, print_fields, print_json, warn
from delta_maintenance.cli.spark_launcher import run_spark_job
from delta_maintenance.errors import DeltaMaintenanceError

if TYPE_CHECKING:
    from delta_maintenance.operations.compact_log import CompactLogPlan, CompactLogResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "compact-log",
        summary="put the commits after a checkpoint into fewer files",
        description="Write log compactions, each of which readers may read in place of the "
        "commits it covers.\nAdds no version and deletes nothing; each is read back and compared "
        "before any reader can see\nit. Prints what was written, with --dry-run what would be, "
        "and why.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--commits-per-file",
        metavar="N",
        type=partial(at_least, 2),
        help="commits that one compaction stands for, by default 10",
    )
    parser.add_argument(
        "--from",
        dest="first_version",
        metavar="N",
        type=partial(at_least, 0),
        help="the first version to cover, by default the one after the newest checkpoint",
    )
    parser.add_argument(
        "--to",
        dest="last_version",
        metavar="N",
        type=partial(at_least, 0),
        help="the last version that may be covered, by default the latest",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="let the last compaction stand for fewer commits; without, the last ones wait until "
        "there are enough of them",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be written, and why"
    )
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import compact_log

    given = {
        name: getattr(arguments, name)
        for name in ("commits_per_file", "first_version", "last_version", "partial", "engine")
    }
    options = compact_log.CompactLogOptions(
        **{name: value for name, value in given.items() if value is not None}
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = compact_log.plan(snapshot, options, now=clock.now())
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    if plan.engine == "spark" and not plan.is_noop:
        # The job plans anew, and so that it covers no version that came since.
        job = {"options": {**options.to_json(), "engine": "spark", "last_version": plan.version}}
        result = compact_log.CompactLogResult.from_json(
            run_spark_job("compact-log", job, arguments)
        )
    else:
        with Progress() as progress:
            result = compact_log.apply(table, plan, progress=progress, snapshot=snapshot)
    _print_result(result, arguments)
    if result.failures:
        first = result.failures[0]
        raise DeltaMaintenanceError(
            f"{count_text(len(result.failures), 'window')} could not be compacted: {first.reason}",
            file=first.path,
            remedy="see the Result for each of them",
        )


def _print_plan(plan: CompactLogPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    print_fields(
        "compact-log, dry run",
        {
            "table": plan.table,
            "version": plan.version,
            "windows": [f"{w.first_version} to {w.last_version}" for w in plan.windows],
            "reason": plan.reason,
            "log bytes": plan.log_bytes,
            "engine": plan.engine,
            "notes": plan.notes,
        },
    )


def _print_result(result: CompactLogResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    windows = [
        f"{w.first_version} to {w.last_version}: {w.status}" + (f", {w.reason}" if w.reason else "")
        for w in result.windows
    ]
    print_fields(
        "compact-log",
        {
            "table": result.table,
            "version": result.version,
            "status": result.status,
            "windows": windows,
            "bytes written": result.bytes_written,
            "notes": result.notes,
        },
    )

"""`backfill-row-ids`: give row IDs to every file of a table, and enable row tracking."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_engine, add_verb, at_least, open_table
from delta_maintenance.cli.output import Progress, count_text, print_fields, print_json, warn
from delta_maintenance.cli.spark_launcher import run_spark_job
from delta_maintenance.cli.table_change import add_operation_id
from delta_maintenance.errors import DeltaMaintenanceError

if TYPE_CHECKING:
    from delta_maintenance.operations.backfill_row_ids import (
        BackfillRowIdsPlan,
        BackfillRowIdsResult,
    )

_SHOWN = 10
"""Files that cannot be counted, for people; `--json` has more."""


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "backfill-row-ids",
        summary="give row IDs to every file, and enable row tracking",
        description="Let the table support row tracking, commit its files anew with row IDs, some "
        "at a time, and\nenable row tracking once every live file has them. Others may write "
        "meanwhile; a run that\nends anywhere is continued by the next one. Prints what was done, "
        "with --dry-run what would\nbe, and why.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--files-per-commit",
        metavar="N",
        type=partial(at_least, 1),
        help="files that one commit gives row IDs to, by default 22000",
    )
    parser.add_argument(
        "--other-writers",
        choices=("conditional_put", "spark", "none"),
        help="who else commits to a table on S3, which has to be said: writers that put "
        "conditionally (delta-rs, Trino and the like), Delta Spark, or nobody",
    )
    add_operation_id(parser)
    parser.add_argument(
        "--convert-draft",
        action="store_true",
        help="convert a table of a draft of row tracking of 2023 to today's",
    )
    parser.add_argument(
        "--lift-suspension",
        action="store_true",
        help="unset delta.rowTrackingSuspended, which somebody who is dropping the feature sets",
    )
    parser.add_argument(
        "--no-checkpoint",
        dest="checkpoint",
        action="store_const",
        const=False,
        help="write no checkpoint behind the batches; the next reader replays them all",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be done, and why"
    )
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import backfill_row_ids

    given = {
        "files_per_commit": arguments.files_per_commit,
        "engine": arguments.engine,
        "other_writers": arguments.other_writers,
        "operation_id": arguments.operation_id,
        "operation_since": arguments.operation_since,
        "checkpoint": arguments.checkpoint,
        "convert_draft": arguments.convert_draft,
        "lift_suspension": arguments.lift_suspension,
    }
    options = backfill_row_ids.BackfillRowIdsOptions(
        **{name: value for name, value in given.items() if value is not None}
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = backfill_row_ids.plan(snapshot, options, now=clock.now())
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    if plan.engine == "spark":
        job = {"options": {**options.to_json(), "engine": "spark"}}
        result = backfill_row_ids.BackfillRowIdsResult.from_json(
            run_spark_job("backfill-row-ids", job, arguments)
        )
    else:
        with Progress() as progress:
            result = backfill_row_ids.apply(table, plan, progress=progress, snapshot=snapshot)
    _print_result(result, arguments)
    if result.problem is not None:
        raise DeltaMaintenanceError(
            f"{count_text(result.num_commits, 'commit')} made, then: {result.problem}",
            version=result.version,
            remedy="see the Result, and run again to go on",
        )


def _print_plan(plan: BackfillRowIdsPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    fields: dict[str, object] = {"table": plan.table, "version": plan.version}
    if not plan.is_noop:
        fields |= {
            "row tracking": plan.state,
            "files": plan.num_files,
            "files to backfill": plan.files_to_backfill,
            "rows to backfill": plan.rows_to_backfill,
            "footers to read": plan.files_to_count or None,
            "engine": plan.engine,
            "commits": plan.num_commits,
        }
    print_fields("backfill-row-ids, dry run", fields | {"reason": plan.reason, "notes": plan.notes})


def _print_result(result: BackfillRowIdsResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    print_fields(
        "backfill-row-ids",
        {
            "table": result.table,
            "version": result.version,
            "status": result.status,
            "commits": result.num_commits,
            "files backfilled": result.files_backfilled,
            "high-water mark": result.high_water_mark,
            "checkpoint": result.checkpoint,
            "problem": result.problem,
            "uncounted": result.uncounted[:_SHOWN],
            "notes": result.notes,
        },
    )

"""`clean-log`: cut off the history that the table's retention no longer asks for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb, open_table
from delta_maintenance.cli.output import (
    Progress,
    count_text,
    print_fields,
    print_json,
    size_text,
    warn,
)
from delta_maintenance.errors import StorageError

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log import CleanLogPlan, CleanLogResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "clean-log",
        summary="cut off history that the table's retention no longer asks for",
        description="Delete what of the log is older than the newest checkpoint that the "
        "retention covers: commits,\ncheckpoints of every kind, checksums, compactions, sidecars "
        "that nothing refers to, and what\ndead writers left. That checkpoint is read before "
        "anything goes, and what is left is whole\nwhenever it stops. Prints what was deleted, "
        "with --dry-run what would be, and why.",
        json_help="print the Result, with --dry-run the Plan and every name, as one JSON document",
    )
    parser.add_argument(
        "--log-retention",
        metavar="I",
        help="how far the history is to go back, such as '60 days'; by default the table's "
        "delta.logRetentionDuration. Shorter than that, or than a day, takes both flags below",
    )
    parser.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="history that the table's own retention, or the last day, covers may go",
    )
    parser.add_argument(
        "--no-other-writers",
        action="store_true",
        help="nobody writes to the table or reads its history meanwhile",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be deleted, and why"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import clean_log
    from delta_maintenance.protocol.features.properties import parse_interval

    retention = arguments.log_retention
    options = clean_log.CleanLogOptions(
        log_retention=None if retention is None else parse_interval(retention),
        allow_short_retention=arguments.allow_short_retention,
        no_other_writers=arguments.no_other_writers,
    )
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = clean_log.plan(snapshot, options, now=clock.now())
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    with Progress() as progress:
        result = clean_log.apply(
            table, plan, now=clock.now(), new_id=clock.new_id, progress=progress
        )
    _print_result(result, arguments)
    if result.failed:
        raise StorageError(
            f"{count_text(result.failed, 'file')} could not be deleted, and nothing after",
            version=result.version,
            remedy="see the Result for the first of them, and run again",
        )


def _print_plan(plan: CleanLogPlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    fields: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
        "oldest version": plan.oldest_version,
        "reason": plan.reason,
    }
    for group in plan.groups:
        fields[group.kind] = [
            f"{count_text(group.count, 'file')} ({size_text(group.bytes)}): {group.because}",
            group.first if group.count == 1 else f"{group.first} to {group.last}",
            *([f"{group.kept} stays: {group.kept_because}"] if group.kept else ()),
        ]
    if plan.needs_classic_name:
        fields["first"] = "the cut-off checkpoint gets an equal that clients without V2 can see"
    fields["notes"] = plan.notes
    print_fields("clean-log, dry run", fields)


def _print_result(result: CleanLogResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    fields: dict[str, object] = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "oldest version": result.oldest_version,
    }
    for group in result.groups:
        fields[group.kind] = f"{group.deleted:,} of {group.planned:,} deleted"
    fields["compatible checkpoint"] = result.compatible_checkpoint
    fields["hint updated"] = result.hint_updated or None
    fields["failures"] = result.failures
    fields["notes"] = result.notes
    print_fields("clean-log", fields)

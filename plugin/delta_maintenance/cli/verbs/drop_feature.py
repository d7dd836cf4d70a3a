"""`drop-feature`: take a table feature out of a table, so that more clients may use it."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb, at_least, open_table
from delta_maintenance.cli.output import Progress, print_fields, print_json, warn
from delta_maintenance.cli.table_change import (
    add_commit_options,
    cut_off_text,
    options_of,
    protocol_text,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.drop_feature import DropFeaturePlan, DropFeatureResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "drop-feature",
        summary="take a table feature out, so that more clients may use the table",
        description="Switch a table feature off, take its traces out of the table, prove from the "
        "log that none is\nleft, and drop it from the protocol. Versions before stay and are kept "
        "from clients that would\nmisread them, or are cleaned away. Run again, it ends what an "
        "earlier run began. Prints what\nwas done, with --dry-run what would be, and why.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--feature",
        metavar="NAME",
        required=True,
        help="the table feature, by its name in the protocol",
    )
    parser.add_argument(
        "--truncate-history",
        action="store_true",
        help="clean versions that used the feature away, instead of protecting them by "
        "checkpointProtection. That takes a second run, once they are older than the table's "
        "delta.dropFeatureTruncateHistory.retentionDuration, by default a day",
    )
    parser.add_argument(
        "--files-per-commit",
        metavar="N",
        type=lambda text: at_least(1, text),
        help="files that one commit adds again without row IDs, by default 22000",
    )
    add_commit_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import drop_feature

    options = drop_feature.DropFeatureOptions(
        **options_of(
            arguments,
            feature=arguments.feature,
            truncate_history=arguments.truncate_history,
            files_per_commit=arguments.files_per_commit,
        )
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot()
    warn(snapshot.warnings)
    plan = drop_feature.plan(snapshot, options, now=clock.now(), new_id=clock.new_id)
    if arguments.dry_run:
        _print_plan(plan, arguments)
        return
    with Progress() as progress:
        result = drop_feature.apply(
            table, plan, now=clock.now, new_id=clock.new_id, progress=progress
        )
    _print_result(result, arguments)
    if result.status == "waiting":
        warn([f"{result.feature} is not dropped yet: run again {_when(result.ready_at)}"])


def _print_plan(plan: DropFeaturePlan, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(plan.to_json())
        return
    before, after = plan.protocol_before, plan.protocol_after
    fields: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
        "ends": plan.ends,
        "ready at": _text(plan.ready_at),
        "reason": plan.reason,
        "protocol": protocol_text(before),
        "becomes": None if after == before else protocol_text(after),
        "steps": [f"{step.kind}: {step.detail}" for step in plan.steps],
        "in the way": plan.history_traces,
        "opened to": plan.opened_to,
        "cut off": [cut_off_text(cut) for cut in plan.cut_off],
        "notes": plan.notes,
    }
    print_fields("drop-feature, dry run", fields)


def _print_result(result: DropFeatureResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(result.to_json())
        return
    fields: dict[str, object] = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "ready at": _text(result.ready_at),
        "commits": [f"{commit.version}: {commit.kind}" for commit in result.commits],
        "checkpoints": ", ".join(map(str, result.checkpoints)),
        "oldest version": result.cleaned.oldest_version if result.cleaned else None,
        "notes": result.notes,
    }
    print_fields("drop-feature", fields)


def _when(ready_at: datetime | None) -> str:
    return "once history is old enough" if ready_at is None else f"at {_text(ready_at)} or later"


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.strftime("%Y-%m-%dT%H:%M:%SZ")

"""What the verbs that change protocol and properties share on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from delta_maintenance.errors import CommitConflictError

if TYPE_CHECKING:
    from delta_maintenance.operations.add_constraint import AddConstraintPlan, AddConstraintResult
    from delta_maintenance.operations.set_properties import SetPropertiesPlan, SetPropertiesResult
    from delta_maintenance.operations.table_change.models import CutOff, ProtocolVersions
    from delta_maintenance.operations.upgrade_protocol import (
        UpgradeProtocolPlan,
        UpgradeProtocolResult,
    )

OTHER_WRITERS = ("conditional_put", "spark", "none")


def add_commit_options(parser: argparse.ArgumentParser) -> None:
    """`--other-writers`, `--operation-id`, `--operation-since` and `--dry-run`."""
    parser.add_argument(
        "--other-writers",
        choices=OTHER_WRITERS,
        help="who else commits to a table on S3, which has to be said: writers that put "
        "conditionally (delta-rs, Trino and the like), Delta Spark, or nobody",
    )
    add_operation_id(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only say what would be changed, and who would be cut off",
    )


def add_operation_id(parser: argparse.ArgumentParser) -> None:
    """`--operation-id` and `--operation-since`."""
    parser.add_argument(
        "--operation-id",
        metavar="ID",
        help="the name of this task in the history; run again under it, it ends as done",
    )
    parser.add_argument(
        "--operation-since",
        metavar="TIME",
        help="when this task began for the first time (ISO 8601, with a zone): spares a look for "
        "its ID at what was committed before",
    )


def plan_fields(
    plan: UpgradeProtocolPlan | SetPropertiesPlan | AddConstraintPlan,
) -> dict[str, object]:
    """What people are told of any plan."""
    before, after = plan.protocol_before, plan.protocol_after
    return {
        "table": plan.table,
        "version": plan.version,
        "reason": plan.reason,
        "protocol": protocol_text(before),
        "becomes": None if after == before else protocol_text(after),
        "added features": plan.added_features,
        "properties": [
            f"{change.name}: {_value(change.before)} → {_value(change.after)}"
            for change in plan.changes
        ],
        "cut off": [cut_off_text(cut) for cut in plan.cut_off],
        "notes": plan.notes,
    }


def protocol_text(protocol: ProtocolVersions) -> str:
    """`reader 3, writer 7: columnMapping, deletionVectors`."""
    versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
    features = protocol.writer_features
    return versions if features is None else f"{versions}: {', '.join(features) or 'no features'}"


def raise_conflict(
    result: UpgradeProtocolResult | SetPropertiesResult | AddConstraintResult,
) -> None:
    """Ends the command with the status of a conflict where the result is one."""
    if result.status == "conflict":
        raise CommitConflictError(result.problem or "others were quicker", version=result.version)


def options_of(arguments: argparse.Namespace, **given: Any) -> dict[str, Any]:
    """The options that were given, those of every commit among them."""
    given |= {
        "other_writers": arguments.other_writers,
        "operation_id": arguments.operation_id,
        "operation_since": arguments.operation_since,
    }
    return {name: value for name, value in given.items() if value is not None}


def _value(text: str | None) -> str:
    return "(not set)" if text is None else text


def cut_off_text(cut: CutOff) -> str:
    """`delta-rs 1.0: writing ends (checkpointProtection)`."""
    parts = [
        f"{what} {fate}"
        for what, fate in (("reading", cut.reading), ("writing", cut.writing))
        if fate in ("ends", "may end")
    ]
    why = f" ({', '.join(cut.features)})" if cut.features else ""
    return f"{cut.client}: {', '.join(parts)}{why}"

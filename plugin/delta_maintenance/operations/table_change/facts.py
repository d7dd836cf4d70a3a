"""Facts about changes of protocol and metadata, for people."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Amounts
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.table_change.options import (
    ChangePlan,
    ChangeResult,
    CutOff,
    ProtocolVersions,
)

OUTCOMES = {
    "committed": Outcome.DONE,
    "already-done": Outcome.DONE,
    "nothing-to-do": Outcome.NOTHING_TO_DO,
    "conflict": Outcome.CONFLICT,
}
"""Outcomes of the statuses that these operations share."""

DECISIVE = (
    "table_id",
    "changes",
    "protocol_before",
    "protocol_after",
    "added_features",
    "converted_domains",
)
"""Fields of a plan that must equal those of the approved plan."""


def plan_facts(plan: ChangePlan) -> dict[str, object]:
    """The changes, and the affected clients."""
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


def raises_protocol(plan: ChangePlan) -> bool:
    """Whether a plan changes the protocol, which should be approved."""
    return not plan.is_noop and plan.protocol_before != plan.protocol_after


def planned_amounts(plan: ChangePlan) -> Amounts:
    """One commit, if the plan changes anything."""
    return Amounts(commits=1)


def commits_of(status: str) -> Amounts:
    """One commit, if one was made."""
    return Amounts(commits=int(status == "committed"))


def conclusion(result: ChangeResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with the reason of a conflict and its remedy."""
    return Conclusion(outcome=outcome, problem=result.problem)


def protocol_text(protocol: ProtocolVersions) -> str:
    """Formats a protocol like `reader 3, writer 7: columnMapping, deletionVectors`."""
    versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
    features = protocol.writer_features
    return versions if features is None else f"{versions}: {', '.join(features) or 'no features'}"


def cut_off_text(cut: CutOff) -> str:
    """Formats a client like `delta-rs 1.0: writing ends (checkpointProtection)`."""
    parts = [
        f"{what} {fate}"
        for what, fate in (("reading", cut.reading), ("writing", cut.writing))
        if fate in ("ends", "may end")
    ]
    why = f" ({', '.join(cut.features)})" if cut.features else ""
    return f"{cut.client}: {', '.join(parts)}{why}"


def _value(text: str | None) -> str:
    return "(not set)" if text is None else text

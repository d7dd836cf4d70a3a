"""Options, Plan and Result of operations that change protocol or properties, and their facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.operation import Amounts
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Record

if TYPE_CHECKING:
    from delta_maintenance.protocol.actions.model import Protocol


Status = Literal["committed", "already-done", "nothing-to-do", "conflict"]
"""`conflict`: others changed the table since it was planned, and nothing was written."""
Fate = Literal["stays", "ends", "may end", "was closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(Record):
    """A protocol as in the log; a list is None if the protocol has no such list."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, protocol: Protocol) -> ProtocolVersions:
        """Converts the protocol of a snapshot."""
        return cls(
            min_reader_version=protocol.min_reader_version,
            min_writer_version=protocol.min_writer_version,
            reader_features=protocol.reader_features,
            writer_features=protocol.writer_features,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange(Record):
    """A change of one table property."""

    name: str
    before: str | None
    """None if it was not set."""
    after: str | None
    """None if it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff(Record):
    """A client that loses access to the table, or may lose it."""

    client: str
    reading: Fate
    writing: Fate
    features: tuple[str, ...]
    """The features that the client lacks; empty if a protocol version is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(Record):
    """Options that these operations share."""

    other_writers: flags.OtherWritersField = None
    quiet: flags.QuietField = None
    operation_id: flags.OperationId = None
    """By default each plan has a new ID."""
    operation_since: flags.OperationSince = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan(Plan):
    """The planned change, and the affected clients."""

    table: str
    table_id: str | None
    version: int
    planned_at: datetime
    operation_id: str
    options: ChangeOptions
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence."""
    changes: tuple[PropertyChange, ...]
    """Including changes that follow from others."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    added_features: tuple[str, ...]
    """Without features that were already implied."""
    cut_off: tuple[CutOff, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult(Result):
    """The change that was made."""

    status: Status
    attempts: int = 0
    """Versions tried."""
    added_features: tuple[str, ...] = ()
    problem: str | None = None
    """The reason of a conflict, and the remedy."""


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


def change_facts(plan: ChangePlan) -> dict[str, object]:
    """The changes, and the affected clients."""
    before, after = plan.protocol_before, plan.protocol_after
    return {
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
    clauses = [
        f"{access} {fate}"
        for access, fate in (("reading", cut.reading), ("writing", cut.writing))
        if fate in ("ends", "may end")
    ]
    why = f" ({', '.join(cut.features)})" if cut.features else ""
    return f"{cut.client}: {', '.join(clauses)}{why}"


def _value(text: str | None) -> str:
    return "(not set)" if text is None else text

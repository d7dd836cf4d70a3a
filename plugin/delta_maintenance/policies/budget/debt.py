"""What a due operation brings in a day, in the units of the ledger, and its place in a budget.

All gains are counted in requests of readers, by fixed rates of exchange, so that they can be
compared: reading 8 MiB takes about as long as one more request, and storing a GiB for a day costs
about as much as 2,000 requests by the price lists of the large clouds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from delta_maintenance.operations.core.assessment import AssessedOperation, WorkPart
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.policies.budget.choice import DueWork, Part, Stage
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance.policies.measuring import ExpectedCost
from delta_maintenance.policies.models import Assessment

_BYTES_A_REQUEST = 8 << 20
_REQUESTS_A_GIB_DAY = 2_000.0
_DAY = timedelta(days=1)
_REPAIRS = frozenset({"fsck", "publish"})
"""What finds damage, or frees writers that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Record):
    """What readers and the store are spared in a day once an operation is done."""

    requests: float = 0.0
    """Requests of readers."""
    bytes_read: float = 0.0
    """Bytes that readers no longer open."""
    bytes_stored: float = 0.0
    """Bytes that are no longer stored."""

    @property
    def in_requests(self) -> float:
        """The gain in requests, by the rates of exchange."""
        stored = self.bytes_stored / (1 << 30) * _REQUESTS_A_GIB_DAY
        return self.requests + self.bytes_read / _BYTES_A_REQUEST + stored


def gain_of(due: AssessedOperation, health: TableHealth, *, readers: int) -> Gain:
    """Returns the gain of an operation on a table that each reader opens once a commit, and at
    least once a day.
    """
    opened = max(1, readers) * max(1.0, health.commits_a_day)
    spared_commits = (due.commits_to_replay or 0) - (due.commits_to_replay_after or 0)
    spared_bytes = 0.0
    if spared_commits > 0 and health.commits_since_checkpoint:
        share = min(1.0, spared_commits / health.commits_since_checkpoint)
        spared_bytes = share * health.bytes_since_checkpoint
    return Gain(
        requests=opened * (max(0, spared_commits) + due.saves_files),
        bytes_read=opened * spared_bytes,
        bytes_stored=due.reclaims_bytes,
    )


def due_work(
    assessment: Assessment, due: AssessedOperation, table: PolicyTable, expected: ExpectedCost
) -> DueWork:
    """Returns a due operation as a budget sees it."""
    health = assessment.health
    assert health is not None, "only a table that was read has due operations"
    gain = gain_of(due, health, readers=len(table.rules.readers)).in_requests
    # Somebody approves the whole.
    divided = () if due.needs_approval else due.parts
    parts = divided or (WorkPart(bytes=due.bytes_to_read, saves_files=due.saves_files),)
    read = sum(part.bytes for part in parts)
    saved = sum(part.saves_files for part in parts)
    return DueWork(
        table=assessment.name,
        operation=due.operation,
        stage=_stage_of(due, health),
        due_since=due.due_since or assessment.assessed_at,
        interval=max(_DAY, _interval_of(table, due)),
        parts=tuple(
            Part(
                gain=gain * (part.saves_files / saved if saved else 1 / len(parts)),
                cost={
                    unit: cost * (part.bytes / read if read else 1 / len(parts))
                    for unit, cost in expected.costs.items()
                },
            )
            for part in parts
        ),
        owner=assessment.owner,
        band=(expected.least, expected.most),
    )


def _stage_of(due: AssessedOperation, health: TableHealth) -> Stage:
    record = known(due.operation)
    # Every reader of a table without a checkpoint opens all its commits.
    is_first_checkpoint = due.operation == "checkpoint" and health.checkpoint_version is None
    if due.operation in _REPAIRS or is_first_checkpoint:
        return "repair"
    is_upkeep = record is not None and (record.purpose == "log" or record.effects.changes_table)
    return "log" if is_upkeep else "files"


def _interval_of(table: PolicyTable, due: AssessedOperation) -> timedelta:
    record = known(due.operation)
    key = None if record is None or record.policy is None else record.policy.key
    # A property adds a rule with the defaults.
    rules = table.rules if due.rule_from is None else Rules(**{str(key): True})
    every = getattr(rules.value(str(key)), "every", None)
    return every if isinstance(every, timedelta) else _DAY

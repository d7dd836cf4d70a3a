"""What a due operation brings in a day, what may happen while it waits, and its place in a budget.

All gains are counted in requests of readers, by fixed rates of exchange, so that they can be
compared: reading 8 MiB takes about as long as one more request, and storing a GiB for a day costs
about as much as 2,000 requests by the price lists of the large clouds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from delta_maintenance.operations.core.assessment import AssessedOperation, WorkPart
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.policies.budget.choice import DueWork, Gain, Part
from delta_maintenance.policies.budget.estimates import REWRITING
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance.policies.measuring import ExpectedCost
from delta_maintenance.policies.models import Assessment

_BYTES_A_REQUEST = 8 << 20
_REQUESTS_A_GIB_DAY = 2_000.0
_SECONDS_A_FILE, _SECONDS_A_BYTE = 0.01, 1 / 60e6
"""What opening a file of the log takes, and reading it."""
_DAY = timedelta(days=1)
_SOON = timedelta(days=2)
"""Before the end of a retention."""
_RISKS = {"fsck": "damage may go unseen", "publish": "writers may have to wait"}


def gain_of(due: AssessedOperation, health: TableHealth, *, readers: int) -> Gain:
    """Returns the gain of an operation on a table that each reader opens once a commit, and at
    least once a day.
    """
    opened = max(1, readers) * max(1.0, health.commits_a_day)
    spared_commits = max(0, (due.commits_to_replay or 0) - (due.commits_to_replay_after or 0))
    spared_bytes = 0.0
    if health.commits_since_checkpoint:
        share = min(1.0, spared_commits / health.commits_since_checkpoint)
        spared_bytes = share * health.bytes_since_checkpoint
    seconds = _SECONDS_A_FILE * spared_commits + _SECONDS_A_BYTE * spared_bytes
    return Gain(
        data_files=opened * due.saves_files,
        log_files=opened * spared_commits,
        log_bytes=opened * spared_bytes,
        seconds_to_open=opened * seconds,
        stored_bytes=due.reclaims_bytes,
    )


def in_requests(gain: Gain) -> float:
    """Returns a gain in requests, by the rates of exchange."""
    stored = gain.stored_bytes / (1 << 30) * _REQUESTS_A_GIB_DAY
    return gain.data_files + gain.log_files + gain.log_bytes / _BYTES_A_REQUEST + stored


def risk_of(due: AssessedOperation, health: TableHealth) -> str | None:
    """Returns what may happen while an operation waits, as a clause; None if readers and the store
    are only not spared anything yet.
    """
    if due.operation == "checkpoint" and health.checkpoint_version is None:
        return "every reader opens all commits"
    oldest = health.oldest_commit_since_checkpoint
    if due.operation == "checkpoint" and oldest is not None:
        age = health.measured_at - oldest
        # Compared by age, because the retention may end after the last instant of the calendar.
        if age > health.log_retention - min(_SOON, health.log_retention / 4):
            verb = "ends" if age < health.log_retention else "ended"
            ends = oldest + health.log_retention
            return f"the log retention of commits that readers need {verb} on {ends:%Y-%m-%d}"
    if due.operation == "upgrade-protocol":
        return "what needs the feature is blocked"
    return _RISKS.get(due.operation)


def due_work(
    assessment: Assessment, due: AssessedOperation, table: PolicyTable, expected: ExpectedCost
) -> DueWork:
    """Returns a due operation as a budget sees it."""
    health = assessment.health
    assert health is not None, "only a table that was read has due operations"
    spares = gain_of(due, health, readers=len(table.rules.readers))
    gain, risk = in_requests(spares), risk_of(due, health)
    costs, divided = expected.costs, due.parts
    if due.needs_approval:
        # Somebody approves the whole. Until then a rewrite is only planned, from the log.
        divided = ()
        costs = {} if due.operation in REWRITING else costs
    parts = divided or (WorkPart(bytes=due.bytes_to_read, saves_files=due.saves_files),)
    read = sum(part.bytes for part in parts)
    saved = sum(part.saves_files for part in parts)
    return DueWork(
        table=assessment.name,
        operation=due.operation,
        stage="repair" if risk is not None else "log" if _is_upkeep(due) else "files",
        due_since=due.due_since or assessment.assessed_at,
        interval=max(_DAY, _interval_of(table, due)),
        parts=tuple(
            Part(
                gain=gain * (part.saves_files / saved if saved else 1 / len(parts)),
                cost={
                    unit: cost * (part.bytes / read if read else 1 / len(parts))
                    for unit, cost in costs.items()
                },
            )
            for part in parts
        ),
        owner=assessment.owner,
        band=(expected.least, expected.most),
        spares=spares,
        risk=risk,
        note="asks for approval" if due.needs_approval else None,
    )


def begun_elsewhere(work: DueWork) -> DueWork:
    """Returns what another run has begun, which is booked already. Only if it was killed is there
    something to do.
    """
    gain = sum(part.gain for part in work.parts)
    return replace(work, parts=(Part(gain=gain, cost={}),), note="begun by another run")


def _is_upkeep(due: AssessedOperation) -> bool:
    record = known(due.operation)
    return record is not None and (record.purpose == "log" or record.effects.changes_table)


def _interval_of(table: PolicyTable, due: AssessedOperation) -> timedelta:
    record = known(due.operation)
    key = None if record is None or record.policy is None else record.policy.key
    # A property adds a rule with the defaults.
    rules = table.rules if due.rule_from is None else Rules(**{str(key): True})
    every = getattr(rules.value(str(key)), "every", None)
    return every if isinstance(every, timedelta) else _DAY

"""All tables by what the last assessments kept: tiers, those with the most, and what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.operations.holds.held_back import HeldBack
from delta_maintenance_airflow.health_page import formats
from delta_maintenance_airflow.health_page.anomalies import (
    ANOMALIES,
    TIERS,
    Anomaly,
    Tier,
    anomaly_of,
    tier_of,
)
from delta_maintenance_airflow.health_page.approvals import WaitingPlan
from delta_maintenance_airflow.health_page.rows import TableRow

MOST = 10
"""The length of the lists of tables with the most of something."""
SHOWN = 8
"""The most that is shown of each kind of waiting, and the most failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The tables whose worst anomaly is this one."""

    anomaly: Anomaly
    rows: tuple[TableRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The number of tables by tier, and their anomalies, the worst first."""

    counts: dict[Tier, int]
    found: tuple[Found, ...]


def tiers_of(rows: Sequence[TableRow]) -> Tiers:
    """Sorts tables by their worst anomaly."""
    judged = [(row, anomaly_of(row)) for row in rows]
    counted = Counter(tier_of(row, anomaly) for row, anomaly in judged)
    by_key: dict[str, list[TableRow]] = {}
    for row, anomaly in judged:
        if anomaly is not None:
            by_key.setdefault(anomaly.key, []).append(row)
    return Tiers(
        counts={tier: counted[tier] for tier in TIERS},
        found=tuple(
            Found(anomaly=each, rows=tuple(by_key[each.key]))
            for each in ANOMALIES
            if each.key in by_key
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The tables with the most of something."""

    key: str
    title: str
    rows: tuple[tuple[TableRow, int], ...]
    text: Callable[[int], str]


def tops_of(rows: Sequence[TableRow]) -> tuple[Top, ...]:
    """The tables with the most dead bytes, bytes of log to open, and small files."""
    return (
        _top("dead-bytes", "Dead bytes", rows, lambda h: h.reclaimable_bytes),
        _top("replay-bytes", "Log to open", rows, lambda h: h.bytes_to_open),
        _top("small-files", "Small files", rows, lambda h: h.small_files),
    )


WaitKind = Literal["needs-approval", "blocked", "will-ask", "held", "scheduled"]
WAIT_KINDS: tuple[WaitKind, ...] = get_args(WaitKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that waits."""

    kind: WaitKind
    row: TableRow
    what: str
    why: str
    held_by: str = ""
    until: datetime | None = None
    """From when on it may run, as far as that depends on time alone."""
    plan: WaitingPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What waits of one kind."""

    kind: WaitKind
    rows: tuple[Wait, ...]
    """The first ones."""
    total: int


def waits_of(rows: Sequence[TableRow]) -> tuple[Waits, ...]:
    """What waits, by kind: held files with the most bytes first, all others with the next first."""
    found: dict[WaitKind, list[Wait]] = {kind: [] for kind in WAIT_KINDS}
    for row in rows:
        for wait in _operations(row):
            found[wait.kind].append(wait)
    waits = {kind: (sorted(each, key=_next_at)[:SHOWN], len(each)) for kind, each in found.items()}
    held = [(row, each) for row in rows for each in row.held if each.bytes]
    held.sort(key=lambda pair: -pair[1].bytes)
    # Texts are made for what is shown only.
    waits["held"] = ([_held(row, each) for row, each in held[:SHOWN]], len(held))
    return tuple(
        Waits(kind=kind, rows=tuple(some), total=total)
        for kind, (some, total) in waits.items()
        if total
    )


def failures_of(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """Tables and patterns that fail and that nobody has acknowledged, the oldest failure first."""
    failed = [row for row in rows if row.status in ("failed", "unreadable")]
    return tuple(
        sorted(
            failed,
            key=lambda row: (row.failing_since is None, row.failing_since or 0, row.name),
        )
    )


def _top(
    key: str,
    title: str,
    rows: Sequence[TableRow],
    number: Callable[[TableHealth], int],
) -> Top:
    numbers = [(row, number(row.health)) for row in rows if row.health is not None]
    numbers = [pair for pair in numbers if pair[1]]
    numbers.sort(key=lambda pair: -pair[1])
    return Top(
        key=key,
        title=title,
        rows=tuple(numbers[:MOST]),
        text=formats.count if key == "small-files" else formats.size,
    )


def _operations(row: TableRow) -> Iterator[Wait]:
    if row.entry is None or row.assessment is None:
        return
    known = {each.operation: each for each in row.assessment.operations}
    put_off = {each.operation: each for each in row.entry.put_off}
    for operation, status, plan in row.asked:
        if plan is not None:
            held_by = ", ".join(formats.holder(each.holder) for each in plan.plan.held)
            yield Wait(
                kind="needs-approval",
                row=row,
                what=operation,
                why=plan.plan.reason,
                held_by=held_by,
                plan=plan,
            )
        elif status == "will-ask":
            yield Wait(kind="will-ask", row=row, what=operation, why=known[operation].reason)
        elif status == "blocked":
            answer, each = put_off.get(operation), known[operation]
            if answer is None or each.status == "blocked":
                why, until = each.reason, each.due_at
            else:
                by = f" by {answer.by}" if answer.by else ""
                why, until = f"{answer.answer}{by}: {each.reason}", answer.until
            yield Wait(kind="blocked", row=row, what=operation, why=why, until=until)
    for each in row.assessment.operations:
        if each.status == "not-due" and each.due_at is not None:
            yield Wait(
                kind="scheduled", row=row, what=each.operation, why=each.reason, until=each.due_at
            )


def _next_at(wait: Wait) -> float:
    return wait.until.timestamp() if wait.until is not None else float("inf")


def _held(row: TableRow, held: HeldBack) -> Wait:
    files = f"{formats.count(held.files)} {'file' if held.files == 1 else 'files'}"
    purpose = formats.purpose(held)
    return Wait(
        kind="held",
        row=row,
        what="deletion",
        why=f"{files}, {formats.size(held.bytes)}" + (f": {purpose}" if purpose else ""),
        held_by=formats.holder(held.holder),
        until=held.until,
    )

"""Chooses which due operations of many tables a run does first, within a budget.

The order is that of gain over cost. The gain of an operation is what readers are spared in a day,
in one unit for all operations; its cost is the share of the budget that it takes, in the unit of
the budget of which it takes most. Neither depends on other tables, so a further table moves no two
others against each other.

Repairs come first, and upkeep of the log that takes a small share of the budget is done before
files are rewritten. So that nothing waits for ever, operations whose deadlines could not be kept
otherwise are done in the order of their deadlines, each by its first part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Literal

from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.definition.budget import Unit

Stage = Literal["repair", "log", "files"]
Why = Literal["repair", "deadline", "log", "gain", "order"]

CHEAP_SHARE = 0.01
"""The share of the budget up to which upkeep of the log goes before rewriting of files."""
_PLANNED_SHARE = 0.75
"""The share of later budgets that is planned for deadlines. Work grows while it waits."""
_FAR = timedelta(days=10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Record):
    """What readers and the store are spared in a day once an operation is done."""

    data_files: float = 0.0
    """Data files that readers no longer open."""
    log_files: float = 0.0
    """Files of the log that readers no longer open."""
    log_bytes: float = 0.0
    """The bytes of these files."""
    seconds_to_open: float = 0.0
    """The time that readers no longer need for these files."""
    stored_bytes: float = 0.0
    """Bytes that are no longer stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    """A part of an operation that can be run by itself, after the parts before it."""

    gain: float
    """What readers are spared in a day."""
    cost: dict[Unit, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork(Record):
    """An operation that is due on a table."""

    table: str
    operation: str
    stage: Stage
    due_since: Instant
    interval: timedelta
    """The shortest time between two runs of the operation, by the policy."""
    parts: tuple[Part, ...]
    """In the order in which the operation does them; one part if it cannot be bounded."""
    owner: str | None = None
    band: tuple[float, float] = (1.0, 1.0)
    """Between which factors of its expected costs it is likely to take."""
    spares: Gain = Gain()
    """The gain of all parts, in its units."""
    risk: str | None = None
    """What may happen while a repair waits, as a clause."""
    note: str | None = None
    """Why it takes less than usual, and spares nothing yet, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent until the next run."""

    limits: Mapping[Unit, float]
    """Greater than 0. Units that are not named are not limited."""
    most_intervals: float
    """How many of its intervals a due operation waits at most, if the budget permits it."""
    every: timedelta
    """The time between two runs with such a budget."""
    owner_limits: Mapping[str, Mapping[Unit, float]] = field(default_factory=dict)
    """What may be spent for the tables of an owner, by the units of `limits`; maybe nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenWork(Record):
    """Parts of an operation that fit into the budget."""

    work: DueWork
    parts: int
    """The number of parts, from the first one on."""
    why: Why
    """`order` if nothing was compared, because costs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredWork(Record):
    """An operation of which no part is chosen."""

    work: DueWork
    better: int
    """The number of chosen operations whose first parts have a greater gain for their cost."""
    needs: float
    """The share of a limit that the first parts take that are worth most together."""
    left: float
    """The share of this limit that was left for it."""
    unit: Unit | None = None
    """The unit of the limit; None if nothing was left at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChoice(Record):
    """What a run does, in this order, and what it defers."""

    chosen: tuple[ChosenWork, ...]
    deferred: tuple[DeferredWork, ...]
    """By falling gain over cost."""
    spent: dict[Unit, float]
    """The expected cost of what is chosen."""
    keeps_deadlines: bool
    """Whether the budget suffices for all deadlines of the operations that are due now."""
    spared: Gain = Gain()
    """The gain of what is chosen and done by this run."""


def choose(work: Sequence[DueWork], budget: Budget, *, now: datetime) -> BudgetChoice:
    """Chooses among the due operations. Pure."""
    return _Choosing(work, budget, now).choice()


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive parts that are worth most together: a segment of the concave hull."""

    parts: int
    gain: float
    cost: Mapping[Unit, float]
    share: float

    @property
    def rate(self) -> float:
        return self.gain / self.share if self.share > 0 else float("inf")


def _times(number: float, interval: timedelta) -> timedelta:
    """Returns a multiple of an interval, at most `_FAR`: no instant is that far away."""
    return _FAR if number >= _FAR / interval else number * interval


class _Choosing:
    def __init__(self, work: Sequence[DueWork], budget: Budget, now: datetime) -> None:
        # So that equal rates have the same order in each step, whatever the order of the tables.
        self._work = sorted(work, key=lambda item: (item.due_since, item.table, item.operation))
        self._budget, self._now = budget, now
        self._runs = [self._runs_of(item.parts) for item in self._work]
        self._taken = [0] * len(work)
        """The number of runs of parts that were taken, of each operation."""
        self._why: dict[int, Why] = {}
        """In the order in which operations were chosen first."""
        self._spent: dict[Unit, float] = dict.fromkeys(budget.limits, 0.0)
        self._owner_spent: dict[str, dict[Unit, float]] = {
            owner: dict.fromkeys(budget.limits, 0.0) for owner in budget.owner_limits
        }

    def choice(self) -> BudgetChoice:
        for at in self._by_rate(stage="repair"):
            while self._take_next(at, "repair", over=True):
                pass
        keeps_deadlines = self._meet_deadlines()
        for at in self._by_rate(stage="log"):
            while self._next_share(at) <= CHEAP_SHARE and self._take_next(at, "log"):
                pass
        self._take_by_rate()
        return BudgetChoice(
            chosen=tuple(
                ChosenWork(work=self._work[at], parts=self._parts_taken(at), why=why)
                for at, why in self._why.items()
            ),
            deferred=self._deferred_work(),
            spent=self._spent,
            keeps_deadlines=keeps_deadlines,
            spared=self._spared(),
        )

    def _runs_of(self, parts: Sequence[Part]) -> list[_Run]:
        """Joins parts until each run has a lower rate than the one before it."""
        hull: list[_Run] = []
        for part in parts:
            run = _Run(1, part.gain, part.cost, self._share_of(part.cost))
            while hull and hull[-1].rate < run.rate:
                before = hull.pop()
                cost = {
                    unit: before.cost.get(unit, 0.0) + run.cost.get(unit, 0.0)
                    for unit in {**before.cost, **run.cost}
                }
                gain = before.gain + run.gain
                run = _Run(before.parts + run.parts, gain, cost, self._share_of(cost))
            hull.append(run)
        return hull

    def _share_of(self, cost: Mapping[Unit, float]) -> float:
        limits = self._budget.limits
        return max((cost.get(unit, 0.0) / limit for unit, limit in limits.items()), default=0.0)

    def _by_rate(self, *, stage: Stage) -> list[int]:
        rows = [at for at, item in enumerate(self._work) if item.stage == stage and item.parts]
        return sorted(rows, key=lambda at: -self._runs[at][0].rate)

    def _meet_deadlines(self) -> bool:
        """Takes the first parts that must be done now so that all deadlines can be kept.

        Later runs have the same budget. What is due by each deadline, less what all runs until
        then can do without this one, must be done now: in the order of the deadlines, because the
        order of these parts does not matter for later ones. Among deadlines before the same run,
        the greatest gain over cost comes first.
        """
        waiting = sorted(
            (self._later_runs(item), -self._runs[at][0].rate, at)
            for at, item in enumerate(self._work)
            if item.parts and not self._taken[at]
        )
        # What exceeds a budget by itself takes that of one run, whenever it is done.
        shares = [min(1.0, self._share_of(self._work[at].parts[0].cost)) for *_, at in waiting]
        needed = overdue = 0.0
        for (later_runs, *_), until in zip(waiting, accumulate(shares), strict=True):
            needed = max(needed, until - _PLANNED_SHARE * later_runs)
            overdue = max(overdue, until - later_runs - 1)
        taken = 0.0
        for (*_, at), share in zip(waiting, shares, strict=True):
            if taken >= needed:
                break
            parts = self._work[at].parts
            whole = self._runs[at]
            self._runs[at] = [*self._runs_of(parts[:1]), *self._runs_of(parts[1:])]
            if self._take_next(at, "deadline", over=True):
                taken += share
            else:
                self._runs[at] = whole
        return overdue <= 0

    def _later_runs(self, item: DueWork) -> int:
        """The runs after this one until a deadline; one that passes before them is due in this."""
        wait = _times(self._budget.most_intervals, item.interval)
        return max(0, (item.due_since - self._now + wait) // self._budget.every)

    def _take_by_rate(self) -> None:
        heap = [
            (-runs[taken].rate, at)
            for at, (runs, taken) in enumerate(zip(self._runs, self._taken, strict=True))
            if taken < len(runs)
        ]
        heapify(heap)
        while heap:
            _, at = heappop(heap)
            if self._take_next(at, "gain") and self._taken[at] < len(self._runs[at]):
                heappush(heap, (-self._runs[at][self._taken[at]].rate, at))

    def _next_share(self, at: int) -> float:
        taken = self._taken[at]
        return self._runs[at][taken].share if taken < len(self._runs[at]) else float("inf")

    def _take_next(self, at: int, why: Why, *, over: bool = False) -> bool:
        """Takes the next parts of an operation if they fit; with `over`, if anything is left."""
        if self._taken[at] == len(self._runs[at]):
            return False
        cost = self._runs[at][self._taken[at]].cost
        for spent, limits in self._accounts(at):
            for unit, limit in limits.items():
                left = limit - spent[unit]
                if limit <= 0 or (left <= 0 if over else cost.get(unit, 0.0) > left):
                    return False
        self._taken[at] += 1
        self._why.setdefault(at, why)
        for spent, _ in self._accounts(at):
            for unit in spent:
                spent[unit] += cost.get(unit, 0.0)
        return True

    def _accounts(self, at: int) -> Iterator[tuple[dict[Unit, float], Mapping[Unit, float]]]:
        """What was spent of the limits, and of those for the owner, and these limits."""
        yield self._spent, self._budget.limits
        owner = self._work[at].owner or ""
        if owner in self._owner_spent:
            yield self._owner_spent[owner], self._budget.owner_limits[owner]

    def _obstacle(self, at: int) -> tuple[float, float, Unit]:
        """Returns the share of a limit that an operation needs, the share that is left for its
        table, and the unit: the one of which most is missing.
        """
        cost = self._runs[at][0].cost
        return max(
            (
                (cost.get(unit, 0.0) / limit, max(0.0, (limits[unit] - spent[unit]) / limit), unit)
                for spent, limits in self._accounts(at)
                for unit, limit in self._budget.limits.items()
            ),
            key=lambda obstacle: obstacle[0] - obstacle[1],
        )

    def _spared(self) -> Gain:
        total = dict.fromkeys((each.name for each in fields(Gain)), 0.0)
        for at in (at for at in self._why if self._work[at].note is None):
            item, taken = self._work[at], self._parts_taken(at)
            whole = sum(part.gain for part in item.parts)
            share = sum(part.gain for part in item.parts[:taken]) / whole if whole else 1.0
            for name in total:
                total[name] += share * getattr(item.spares, name)
        return Gain(**total)

    def _parts_taken(self, at: int) -> int:
        return sum(run.parts for run in self._runs[at][: self._taken[at]])

    def _deferred_work(self) -> tuple[DeferredWork, ...]:
        rates = sorted(self._runs[at][0].rate for at in self._why)
        waiting = [at for at, runs in enumerate(self._runs) if runs and not self._taken[at]]
        waiting.sort(key=lambda at: -self._runs[at][0].rate)
        return tuple(
            DeferredWork(
                work=self._work[at],
                better=len(rates) - bisect_right(rates, self._runs[at][0].rate),
                needs=needs,
                left=left,
                unit=unit,
            )
            for at in waiting
            for needs, left, unit in (self._obstacle(at),)
        )

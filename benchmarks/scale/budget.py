"""Simulates the merging of small files of 1,000 tables within budgets, against three known rules.

`python -m benchmarks.scale.budget --seeds 5` prints what each rule spares the readers. A day has
commits, a night of merging, and reads, which open all files of a table. All rules see the same
commits, and know what a plan knows: the small files of each partition.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from delta_maintenance.policies.budget.choice import Budget, DueWork, Part, choose

Numbers = npt.NDArray[np.float64]
DAYS = 60
TABLES = 1_000
SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Budgets, as shares of what doing all that is due each night takes on average."""
MOST_INTERVALS = 14.0
_MIN_SAVED = 10
_TARGET, _MOST_OF_BIN = 128.0, 256.0
"""Of a new file, and of the files that are merged together, in MB."""
_START = datetime(2026, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)


@dataclass
class World:
    """Tables with their partitions, one after another in flat columns."""

    owner: npt.NDArray[np.int64]
    """The table of each partition."""
    files: Numbers
    """Small files of each partition."""
    megabytes: Numbers
    """Their size."""
    large: Numbers
    """Files of each partition that are no longer small."""
    commits: Numbers
    """Of each table, a day."""
    files_a_commit: Numbers
    file_megabytes: Numbers
    readers: Numbers
    """Reads of each table a day."""
    due_since: list[int | None]
    merged_on: npt.NDArray[np.int64]
    spent: Numbers
    """Seconds of each table so far."""
    chance: np.random.Generator


def world(seed: int, tables: int = TABLES) -> World:
    """Makes tables whose rates and sizes differ by orders of magnitude, as those of users do."""
    chance = np.random.default_rng(seed)
    partitions = np.where(chance.random(tables) < 0.4, 1, chance.integers(2, 60, tables))
    owner = np.repeat(np.arange(tables), partitions)
    count = len(owner)
    return World(
        owner=owner,
        files=chance.poisson(chance.lognormal(1.5, 1.0, count)).astype(float),
        megabytes=chance.lognormal(2.5, 1.2, count),
        large=chance.poisson(chance.lognormal(1.0, 1.0, count)).astype(float),
        commits=chance.lognormal(2.5, 1.5, tables).clip(0.1, 1_000),
        files_a_commit=chance.lognormal(1.0, 0.8, tables).clip(1, 50),
        file_megabytes=chance.lognormal(0.5, 1.3, tables).clip(0.01, 60),
        readers=chance.lognormal(2.5, 1.8, tables).clip(0.05, 20_000),
        due_since=[None] * tables,
        merged_on=np.full(tables, -1),
        spent=np.zeros(tables),
        chance=chance,
    )


def commit(state: World) -> None:
    """Adds the files of a day. Most commits write to the newest partition of their table."""
    tables = len(state.commits)
    added = state.chance.poisson(state.commits * state.files_a_commit)
    last = np.searchsorted(state.owner, np.arange(tables), side="right") - 1
    first = np.searchsorted(state.owner, np.arange(tables), side="left")
    late = state.chance.binomial(added, 0.3)
    at = np.repeat(first, late) + (
        state.chance.random(int(late.sum())) * np.repeat(last - first + 1, late)
    ).astype(np.int64)
    new = np.bincount(at, minlength=len(state.owner)).astype(float)
    new[last] += added - late
    state.files += new
    state.megabytes += new * state.file_megabytes[state.owner]


def cost_of(files: Any, megabytes: Any) -> Any:
    """Seconds of CPU time for merging files: by bytes, and for each file."""
    return megabytes / 30 + 0.02 * files


OPENING_SECONDS = 1.0
"""For reading the log of a table, and its commit."""


@dataclass(frozen=True)
class Candidate:
    """A table that is due, and the partitions that a plan would merge, the best first."""

    table: int
    partitions: npt.NDArray[np.int64]
    """Of each bin: a partition has several if its small files are large together."""
    portions: Numbers
    """The portion of the small files of the partition that each bin has."""
    saved: Numbers
    seconds: Numbers

    @property
    def total(self) -> float:
        """Seconds of all partitions."""
        return OPENING_SECONDS + float(self.seconds.sum())


def candidates(state: World, day: int) -> Iterator[Candidate]:
    """The tables that are due, as the rule of a policy finds them."""
    after = np.maximum(1, np.ceil(state.megabytes / _TARGET))
    saved = np.where(state.files > 1, state.files - after, 0).clip(0)
    seconds = cost_of(state.files, state.megabytes)
    useful = np.flatnonzero(saved > 0)
    bins = np.ceil(state.megabytes / _MOST_OF_BIN).clip(1, 128).astype(np.int64)
    order = useful[np.lexsort((-saved[useful] / seconds[useful], state.owner[useful]))]
    order = np.repeat(order, bins[order])
    portions, saved, seconds = 1 / bins, saved / bins, seconds / bins
    owners = state.owner[order]
    starts = np.searchsorted(owners, np.arange(len(state.commits) + 1))
    for table in range(len(state.commits)):
        rows = order[starts[table] : starts[table + 1]]
        if saved[rows].sum() < _MIN_SAVED or state.merged_on[table] == day:
            state.due_since[table] = None
            continue
        if state.due_since[table] is None:
            state.due_since[table] = day
        yield Candidate(table, rows, portions[rows], saved[rows], seconds[rows])


def merge(state: World, day: int, candidate: Candidate, parts: int) -> None:
    """Merges the first partitions of a candidate."""
    bins, portions = candidate.partitions[:parts], candidate.portions[:parts]
    merged = np.bincount(bins, portions, len(state.owner))
    rows = np.flatnonzero(merged > 0)
    done = merged[rows]
    full = np.floor(state.megabytes[rows] * done / _TARGET)
    rest = state.megabytes[rows] * done - full * _TARGET
    state.large[rows] += full
    is_whole = done > 0.999
    state.files[rows] = np.where(is_whole, 0, state.files[rows] * (1 - done)) + (rest > 0)
    state.megabytes[rows] = np.where(is_whole, 0, state.megabytes[rows] * (1 - done)) + rest
    state.merged_on[candidate.table], state.due_since[candidate.table] = day, None
    state.spent[candidate.table] += OPENING_SECONDS + float(candidate.seconds[:parts].sum())


Rule = Callable[[World, Sequence[Candidate], int, float], Iterator[tuple[Candidate, int]]]


def ours(
    state: World, due: Sequence[Candidate], day: int, seconds: float, *, knows_readers: bool = True
) -> Iterator[tuple[Candidate, int]]:
    """The choice of `delta_maintenance.policies.budget.choice`.

    Where the readers of a table are not known, one for each commit is assumed.
    """
    work = []
    for candidate in due:
        reads = float((state.readers if knows_readers else state.commits)[candidate.table])
        parts = [
            Part(gain=reads * saved, cost={"cpu_seconds": cost})
            for saved, cost in zip(
                candidate.saved.tolist(), candidate.seconds.tolist(), strict=True
            )
        ]
        first = parts[0].cost["cpu_seconds"] + OPENING_SECONDS
        parts[0] = Part(gain=parts[0].gain, cost={"cpu_seconds": first})
        since = state.due_since[candidate.table]
        assert since is not None
        work.append(
            DueWork(
                table=str(candidate.table),
                operation="optimize",
                stage="files",
                due_since=_START + since * _DAY,
                interval=_DAY,
                parts=tuple(parts),
            )
        )
    budget = Budget(limits={"cpu_seconds": seconds}, most_intervals=MOST_INTERVALS, every=_DAY)
    by_table = {candidate.table: candidate for candidate in due}
    for chosen in choose(work, budget, now=_START + day * _DAY).chosen:
        yield by_table[int(chosen.work.table)], chosen.parts


def autocomp(
    state: World, due: Sequence[Candidate], day: int, seconds: float
) -> Iterator[tuple[Candidate, int]]:
    """LinkedIn's rule: 0.7 of the files saved less 0.3 of the cost, both over their range.

    Tables without partitions that are written all day have no gain, since merging them conflicts.
    """
    if not due:
        return
    tables = np.array([candidate.table for candidate in due])
    gain = np.array([candidate.saved.sum() for candidate in due])
    cost = np.array([candidate.total for candidate in due])
    single = np.bincount(state.owner, minlength=len(state.commits))[tables] == 1
    gain = np.where(single & (state.commits[tables] > 100), 0, gain)

    def scaled(values: Numbers) -> Numbers:
        width = float(np.ptp(values))
        return (values - values.min()) / width if width else values * 0

    score = 0.7 * scaled(gain) - 0.3 * scaled(cost)
    order = np.argsort(-score, kind="stable")
    yield from _whole(due, [at for at in order.tolist() if gain[at] > 0], seconds)


def amoro_waiting(
    state: World, due: Sequence[Candidate], day: int, seconds: float
) -> Iterator[tuple[Candidate, int]]:
    """Amoro's balanced rule: the table that was merged longest ago first."""
    order = sorted(range(len(due)), key=lambda at: state.merged_on[due[at].table])
    yield from _whole(due, order, seconds)


def amoro_quota(
    state: World, due: Sequence[Candidate], day: int, seconds: float
) -> Iterator[tuple[Candidate, int]]:
    """Amoro's quota rule: the table that has used the least time so far first."""
    order = sorted(range(len(due)), key=lambda at: state.spent[due[at].table])
    yield from _whole(due, order, seconds)


def _whole(
    due: Sequence[Candidate], order: Sequence[int], seconds: float
) -> Iterator[tuple[Candidate, int]]:
    """Whole tables in this order, as long as they fit."""
    for at in order:
        if due[at].total <= seconds:
            seconds -= due[at].total
            yield due[at], len(due[at].partitions)


RULES: dict[str, Rule] = {
    "ours": ours,
    "ours, readers unknown": partial(ours, knows_readers=False),
    "AutoComp": autocomp,
    "Amoro, waiting": amoro_waiting,
    "Amoro, quota": amoro_quota,
}


@dataclass(frozen=True)
class Played:
    """What a rule has done in a world."""

    opened: float
    """Files that readers opened, in all days."""
    seconds: float
    longest_wait: int
    """In days, of a table that was due."""
    most_seconds: float
    """In a night."""
    never: int
    """Tables that were due, and never merged."""


def play(seed: int, rule: Rule | None, seconds: float, tables: int = TABLES) -> Played:
    """Plays all days; without a rule, nothing is merged."""
    state = world(seed, tables)
    opened = spent = most = 0.0
    longest, ever_due = 0, np.zeros(tables, bool)
    for day in range(DAYS):
        commit(state)
        if rule is not None:
            due = list(candidates(state, day))
            ever_due[[candidate.table for candidate in due]] = True
            before = float(state.spent.sum())
            for candidate, parts in list(rule(state, due, day, seconds)):
                merge(state, day, candidate, parts)
            waits = [day - since for since in state.due_since if since is not None]
            longest = max(longest, *waits) if waits else longest
            most = max(most, float(state.spent.sum()) - before)
        files = np.bincount(state.owner, state.files + state.large, len(state.commits))
        opened += float((files * state.readers).sum())
    spent = float(state.spent.sum())
    never = int((ever_due & (state.merged_on < 0)).sum())
    return Played(opened, spent, longest, most, never)


def main() -> None:
    """Prints the gain of each rule at each budget, in the median of the seeds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--budgets", type=float, nargs="+", default=SHARES)
    arguments = parser.parse_args()
    for share in arguments.budgets:
        rows = []
        for seed in range(arguments.seeds):
            nothing = play(seed, None, 0, arguments.tables)
            everything = play(seed, amoro_waiting, float("inf"), arguments.tables)
            seconds = share * everything.seconds / DAYS
            rows.append(
                {
                    name: (nothing.opened - outcome.opened, outcome, seconds)
                    for name, rule in RULES.items()
                    for outcome in [play(seed, rule, seconds, arguments.tables)]
                }
            )
        best = [max(row[name][0] for name in row if "ours" not in name) for row in rows]
        ratios = [
            np.median([row[name][0] / other for row, other in zip(rows, best, strict=True)])
            for name in RULES
            if "ours" in name
        ]
        print(
            f"budget {share:.2f}: gain over the best other rule {ratios[0]:.2f}, "
            f"and {ratios[1]:.2f} with unknown readers"
        )
        for name in RULES:
            outcomes = [row[name][1] for row in rows]
            print(
                f"  {name:21} gain {np.median([row[name][0] for row in rows]):.3g}"
                f"  longest wait {max(outcome.longest_wait for outcome in outcomes)} days"
                f"  never {max(outcome.never for outcome in outcomes)}"
                f"  most in a night "
                f"{max(row[name][1].most_seconds / row[name][2] for row in rows):.2f}"
            )


if __name__ == "__main__":
    main()

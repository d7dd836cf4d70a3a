"""The account of a budget: what the operations of a day have taken, also in other processes.

Each operation has an empty file in the state folder, whose name says what it is expected to take
and, once it has ended, what it took. The file is put before the operation begins, and the others
are listed after that: of two processes that begin at the same time, at least one sees the other.
The file of a process that was killed stays, with what was expected.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from delta_maintenance import clock
from delta_maintenance.address import digest_of
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.policies.budget.estimates import UNITS
from delta_maintenance.policies.definition.budget import BudgetRule, Unit
from delta_maintenance.policies.state_files import BUDGET_FOLDER
from delta_maintenance.storage import Store

T = TypeVar("T")
Costs = Mapping[Unit, float]
_log = logging.getLogger(__name__)
_NAME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)\.(?P<run>\w+)\.(?P<owner>\w+)\.(?P<id>[\w-]+)"
    r"\.(?P<state>begun|ended)\.(?P<costs>[\d.e+-]+(_[\d.e+-]+)*)\.spent"
)
_TRIES = 5
"""How often an operation is booked at most: of many at the same time, all may find too little."""
_DAYS = timedelta(days=2)
"""The time after which files are deleted: runs of a budget end before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What one operation takes, as its file says."""

    day: str
    run: str
    owner: str
    id: str
    state: str = "begun"
    costs: tuple[float, ...]

    @property
    def work(self) -> str:
        """The digest of the table and the operation."""
        return self.id.partition("-")[0]

    @property
    def name(self) -> str:
        costs = "_".join(f"{cost:.6g}" for cost in self.costs)
        return f"{self.day}.{self.run}.{self.owner}.{self.id}.{self.state}.{costs}.spent"

    @classmethod
    def parse(cls, name: str) -> _Entry | None:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        try:
            costs = tuple(float(cost) for cost in match["costs"].split("_"))
        except ValueError:
            return None
        if len(costs) < len(UNITS):
            return None
        values = {key: match[key] for key in ("day", "run", "owner", "id", "state")}
        return cls(**values, costs=costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The state of an account. Work is named by its digest."""

    left: dict[Unit, float]
    """What is left of the limits; units without a limit are left out."""
    left_by_owner: dict[str, dict[Unit, float]]
    """The same for the tables of each owner that has a share."""
    booked: frozenset[str]
    """What the run has booked, which may still look due."""
    begun_elsewhere: frozenset[str]
    """What other runs have begun today; they may have been killed."""


@dataclass(slots=True, kw_only=True)
class BudgetAccount:
    """The account of one run over the tables of a policy."""

    rule: BudgetRule
    run_id: str
    store: Store | None = None
    """The state folder; without it, only the operations of this process count."""
    now: clock.Clock = clock.now
    new_id: clock.NewId = clock.new_id
    _own: dict[str, _Entry] = field(default_factory=dict)
    """Of this process, by ID."""
    _listed_last: dict[str, _Entry] = field(default_factory=dict)
    """Also those of others."""

    def left(self, owner: str | None = None) -> dict[Unit, float]:
        """Returns what is left of the limits for the tables of an owner; units without a limit are
        left out.
        """
        return self._left(self._entries(), owner, _day(self.now()))

    def balance(self) -> Balance:
        """Returns what is left and what is booked, from one listing."""
        entries, run, today = self._entries(), digest_of(self.run_id), _day(self.now())
        own = frozenset(entry.work for entry in entries if entry.run == run)
        begun = (entry for entry in entries if entry.state == "begun" and entry.day == today)
        return Balance(
            left=self._left(entries, None, today),
            left_by_owner={owner: self._left(entries, owner, today) for owner in self.rule.owners},
            booked=own,
            begun_elsewhere=frozenset(entry.work for entry in begun) - own,
        )

    def begin(self, expected: Costs, *, owner: str | None, work: str = "") -> str | None:
        """Books what an operation is expected to take; returns its ID in the account.

        `work` names the table and the operation. None if nothing is left of a limit, so that the
        operation must wait.
        """
        for _ in range(_TRIES):
            entry = _Entry(
                day=_day(self.now()),
                run=digest_of(self.run_id),
                owner=digest_of(owner or ""),
                id=f"{digest_of(work)}-{self.new_id()}",
                costs=tuple(expected.get(unit, 0.0) for unit in UNITS),
            )
            if self._book(entry, owner):
                return entry.id
            if any(left <= 0 for left in self.left(owner).values()):
                break
        return None

    def _book(self, entry: _Entry, owner: str | None) -> bool:
        self._put(entry)
        others = [other for other in self._entries() if other.id != entry.id]
        # Of the day of the entry, although midnight may have passed since.
        if all(left > 0 for left in self._left(others, owner, entry.day).values()):
            return True
        self.cancel(entry.id)
        return False

    def cancel(self, id: str) -> None:
        """Removes what was booked for an operation that has not begun."""
        entry = self._own.pop(id)
        self._shared(lambda store: store.delete(f"{BUDGET_FOLDER}/{entry.name}"))

    def end(self, id: str, taken: Costs) -> None:
        """Books what an operation took in place of what was booked when it began; units that are
        left out stay as they are.
        """
        begun = self._own[id]
        costs = tuple(map(taken.get, UNITS, begun.costs))
        ended = _Entry(
            day=begun.day, run=begun.run, owner=begun.owner, id=id, state="ended", costs=costs
        )
        self._put(ended)
        self._shared(lambda store: store.delete(f"{BUDGET_FOLDER}/{begun.name}"))

    def _left(self, entries: list[_Entry], owner: str | None, today: str) -> dict[Unit, float]:
        rule, run = self.rule, digest_of(self.run_id)
        share, place = rule.owners.get(owner or ""), digest_of(owner or "")
        left: dict[Unit, float] = {}
        for limits, booked in (
            (rule.day.amounts(), [entry for entry in entries if entry.day == today]),
            (rule.run.amounts(), [entry for entry in entries if entry.run == run]),
        ):
            accounts = [(1.0, booked)]
            if share is not None:
                accounts.append((share, [entry for entry in booked if entry.owner == place]))
            for part, entries_of in accounts:
                for unit, limit in limits.items():
                    spent = sum(entry.costs[UNITS.index(unit)] for entry in entries_of)
                    left[unit] = min(left.get(unit, limit), part * limit - spent)
        return left

    def _entries(self) -> list[_Entry]:
        """The operations of these days, those that have ended by what they took."""
        listed = self._shared(lambda store: {entry.id: entry for entry in self._list(store)})
        if listed is not None:
            self._listed_last = listed
        return [*{**self._listed_last, **self._own}.values()]

    def _list(self, store: Store) -> Iterator[_Entry]:
        oldest = _day(self.now() - _DAYS)
        ended = []
        for file in store.list_from(BUDGET_FOLDER):
            entry = _Entry.parse(file.path.rpartition("/")[2])
            if entry is not None and entry.day < oldest:
                # Not by who only looks, such as a dry run.
                if self._own:
                    store.delete(file.path)
            elif entry is not None and entry.state == "ended":
                ended.append(entry)
            elif entry is not None:
                yield entry
        yield from ended

    def _put(self, entry: _Entry) -> None:
        self._shared(lambda store: store.put(f"{BUDGET_FOLDER}/{entry.name}", b""))
        self._own[entry.id] = entry

    def _shared(self, request: Callable[[Store], T]) -> T | None:
        """Returns the answer of the state folder. Work does not wait for one that fails: from then
        on, the operations of this process count, and those of others that were listed last.
        """
        if self.store is None:
            return None
        try:
            return request(self.store)
        except DeltaMaintenanceError as error:
            _log.warning("the budget counts only this process from now on: %s", error)
            self.store = None
            return None


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"

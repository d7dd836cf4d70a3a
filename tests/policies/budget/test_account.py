"""The account of a budget, shared by processes that begin, end and are killed at any point."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, count, repeat
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from delta_maintenance.address import digest_of
from delta_maintenance.errors import StorageError
from delta_maintenance.policies.budget.account import BudgetAccount, _Entry
from delta_maintenance.policies.budget.account import _log as account_log
from delta_maintenance.policies.definition.budget import BudgetRule
from delta_maintenance.storage import FileStatus, MemoryStore
from tests.support.suite.play import examples

NOW = datetime(2026, 11, 30, 23, tzinfo=UTC)
LIMIT = 10


def account(store: MemoryStore | None, run_id: str = "run", **limits: Any) -> BudgetAccount:
    budget = BudgetRule.model_validate(limits or {"day": {"processor_time": f"{LIMIT} s"}})
    numbers = count()
    return BudgetAccount(
        rule=budget,
        run_id=run_id,
        store=store,
        now=lambda: NOW,
        new_id=lambda: f"{run_id}-{next(numbers)}",
    )


def works(of: BudgetAccount) -> tuple[frozenset[str], frozenset[str]]:
    balance = of.balance()
    return balance.booked, balance.begun_elsewhere


def begin(of: BudgetAccount, seconds: float, owner: str | None = None) -> str | None:
    return of.begin({"cpu_seconds": seconds}, owner=owner)


class Processes(RuleBasedStateMachine):
    """Three processes, which know of each other by the folder alone."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.started = 0
        self.accounts = [self.start() for _ in range(3)]
        self.begun: dict[str, tuple[int, float]] = {}
        self.booked: dict[str, float] = {}

    def start(self) -> BudgetAccount:
        self.started += 1
        return account(self.store, f"run{self.started}")

    @rule(process=st.integers(0, 2), seconds=st.floats(0.1, 8))
    def begin(self, process: int, seconds: float) -> None:
        spent = sum(self.booked.values())
        booked = begin(self.accounts[process], seconds)
        assert (booked is not None) == (spent < LIMIT - 1e-4), (spent, booked)
        if booked is not None:
            self.begun[booked], self.booked[booked] = (process, seconds), seconds

    @rule(share=st.floats(0, 1), data=st.data())
    def end(self, share: float, data: st.DataObject) -> None:
        if self.begun:
            booked = data.draw(st.sampled_from(sorted(self.begun)))
            process, seconds = self.begun.pop(booked)
            self.accounts[process].end(booked, {"cpu_seconds": share * seconds})
            self.booked[booked] = share * seconds

    @rule(process=st.integers(0, 2))
    def kill(self, process: int) -> None:
        """What it has begun stays booked."""
        self.accounts[process] = self.start()
        self.begun = {name: by for name, by in self.begun.items() if by[0] != process}

    @invariant()
    def the_budget_is_exceeded_by_at_most_one_operation(self) -> None:
        spent = sum(self.booked.values())
        assert spent <= LIMIT + max(self.booked.values(), default=0) + 1e-4
        left = account(self.store, "reader").left()["cpu_seconds"]
        assert abs(left - (LIMIT - spent)) < 1e-3, (left, spent)


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=examples(50), deadline=None)


class Interrupted(MemoryStore):
    """Lets another process do something before a listing."""

    def __init__(self) -> None:
        super().__init__()
        self.before_listing: Any = None

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        pending, self.before_listing = self.before_listing, None
        if pending is not None:
            pending()
        return super().list_from(directory, start)


def test_of_two_that_begin_at_the_same_time_at_most_one_exceeds_the_budget() -> None:
    store = Interrupted()
    first, second = account(store, "first"), account(store, "second")
    outcomes: list[str | None] = []
    store.before_listing = lambda: outcomes.append(begin(second, 11))
    outcomes.append(begin(first, 11))
    assert sum(outcome is not None for outcome in outcomes) <= 1


def test_of_two_that_see_each_other_one_begins() -> None:
    """Both find too little left, and remove what they booked."""

    class Removing(Interrupted):
        def delete(self, path: str) -> None:
            super().delete(path)
            if other._own:
                other.cancel("w-1")

    store = Removing()
    first, other = account(store, "first"), account(store, "other")
    store.before_listing = lambda: other._put(
        _Entry(day=f"{NOW:%F}", run="other", owner="o", id="w-1", costs=(11.0,) * 5)
    )
    assert begin(first, 11) is not None
    assert begin(account(store, "late"), 1) is None


def test_what_begins_at_midnight_counts_for_the_day_on_which_something_is_left() -> None:
    store = MemoryStore()
    assert begin(account(store), 10) is not None
    late = account(store, "late")
    clock = chain([NOW], repeat(NOW + timedelta(hours=1)))
    late.now = lambda: next(clock)
    assert begin(late, 5) is not None
    assert account(store).left() == {"cpu_seconds": 0}
    assert late.left() == {"cpu_seconds": LIMIT - 5}


def test_what_took_more_than_expected_counts_and_limits_of_a_run_hold_over_its_tasks() -> None:
    store = MemoryStore()
    one = account(store, "run", run={"requests": 100})
    other_task = account(store, "run", run={"requests": 100})
    other_task.new_id = lambda: "other"
    booked = one.begin({"requests": 1.0}, owner=None)
    assert booked is not None
    one.end(booked, {"requests": 500.0})
    assert other_task.begin({"requests": 1.0}, owner=None) is None
    assert account(store, "another", run={"requests": 100}).left() == {"requests": 100}


def test_an_owner_has_at_most_its_share_and_leaves_the_rest_to_others() -> None:
    store = MemoryStore()
    limits = {"day": {"processor_time": "10 s"}, "owners": {"sales": 0.3}}
    of = account(store, "run", **limits)
    assert begin(of, 3, "sales") and begin(of, 1, "sales") is None
    assert of.left("sales")["cpu_seconds"] == 0 and of.left("finance")["cpu_seconds"] == 7
    assert begin(of, 6, "finance")


def test_a_day_begins_at_midnight_and_old_files_are_deleted() -> None:
    store = MemoryStore()
    of = account(store)
    assert begin(of, 10) and begin(of, 1) is None
    of.now = lambda: NOW + timedelta(hours=1)
    assert begin(of, 1)
    later = account(store)
    later.now = lambda: NOW + timedelta(days=4)
    assert later.left()["cpu_seconds"] == LIMIT
    assert len([*store.list_from("budget")]) == 2, "nothing is deleted by looking"
    assert begin(later, 1)
    assert len([*store.list_from("budget")]) == 1


def test_files_of_others_in_the_folder_are_left_alone() -> None:
    store = MemoryStore()
    costs = ("x", "e", "1.2.3_0_0_0_0", "7_7")
    booked = [f"2026-11-30.a.b.c{number}.begun.{of}.spent" for number, of in enumerate(costs)]
    for name in ("2026-11-30.spent", "notes.txt", *booked):
        store.put(f"budget/{name}", b"")
    assert account(store).left()["cpu_seconds"] == LIMIT
    assert len([*store.list_from("budget")]) == 6


def test_work_does_not_wait_for_a_folder_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            raise StorageError("the disk is full")

    said: list[str] = []
    # Other tests configure the logging of the process.
    monkeypatch.setattr(account_log, "warning", lambda text, *values: said.append(text % values))
    of = account(Full())
    assert begin(of, 10) is not None
    assert begin(of, 1) is None, "it still counts its own"
    assert said == ["the budget counts only this process from now on: the disk is full"]


def test_what_others_had_booked_counts_after_the_folder_fails() -> None:
    class Failing(MemoryStore):
        fails = False

        def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
            if self.fails:
                raise StorageError("no route to the host")
            return super().list_from(directory, start)

    store = Failing()
    assert begin(account(store, "other"), 6) is not None
    of = account(store)
    assert of.left()["cpu_seconds"] == 4
    store.fails = True
    assert begin(of, 5) is not None and begin(of, 5) is None


def test_what_has_not_begun_is_left_to_others() -> None:
    of = account(store := MemoryStore())
    booked = begin(of, 10)
    assert booked is not None
    of.cancel(booked)
    assert of.left() == account(store, "other").left() == {"cpu_seconds": LIMIT}
    assert [*store.list_from("budget")] == []


def test_without_a_folder_only_this_process_counts() -> None:
    of = account(None)
    assert begin(of, 10) is not None and begin(of, 1) is None
    assert begin(account(None), 10) is not None


def test_what_runs_have_booked_is_known_while_it_may_look_due() -> None:
    store = MemoryStore()
    ended, running = account(store, "ended"), account(store, "running")
    booked = ended.begin({"cpu_seconds": 1.0}, owner=None, work="t optimize")
    assert booked is not None
    ended.end(booked, {"cpu_seconds": 1.0})
    assert running.begin({"cpu_seconds": 1.0}, owner=None, work="t vacuum") is not None
    reader = account(store, "reader")
    optimize, vacuum = frozenset({digest_of("t optimize")}), frozenset({digest_of("t vacuum")})
    assert works(ended) == (optimize, vacuum)
    assert works(running) == (vacuum, frozenset()) and works(reader) == (frozenset(), vacuum)
    reader.now = lambda: NOW + timedelta(days=1)
    assert works(reader) == (frozenset(), frozenset()), "a run was killed on the day before"

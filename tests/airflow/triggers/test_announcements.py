"""Versions that were announced are announced again until a run has dealt with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations.position import Position
from delta_maintenance.policies import AssessmentStore, Leases, MaintainedVersion
from delta_maintenance.storage import MemoryStore
from delta_maintenance_airflow.triggers import announcements
from delta_maintenance_airflow.triggers.announcements import Announcements, CommitWatcher, Notice
from tests.support.tables.assessed_tables import NOW, assessment, run_result

ORDERS = "s3://lake/sales/orders"
OTHER = "s3://lake/sales/users"
IDLE = timedelta(seconds=110)
"""The longest time from the end of all other work to the event, so that the last commit is
maintained within two minutes."""


class Scene:
    """A watcher of one table, the folder of assessments, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now = NOW
        self.version = 4
        self.sent: list[int] = []
        """The announced versions, each as often as it was announced."""
        self.memory = MemoryStore()
        self.memory.now_ms = lambda: epoch_millis(self.now)
        self.store = AssessmentStore("memory://assessments")
        self.store.store = self.memory
        self.leases = Leases(self.memory, now=lambda: self.now)
        monkeypatch.setattr(announcements, "assessment_store", lambda: self.store)
        monkeypatch.setattr(announcements, "leases", lambda _: self.leases)
        self.restart(Position(version=4, announced=4))
        self.work(OTHER)

    def restart(self, position: Position) -> None:
        """The triggerer starts, with a stored position."""
        self.announcements = Announcements(now=lambda: self.now)
        self.watcher = CommitWatcher(ORDERS, position=position)
        self.position = position
        if (announced := self.watcher.recall_event()) is not None:
            self.announcements.record(ORDERS, announced)

    def commit(self) -> None:
        """Another writer commits, and the watcher announces it."""
        event = {"status": "changed", "table": ORDERS, "from_version": self.version}
        self.version += 1
        self.send(event | {"to_version": self.version})

    def send(self, event: dict[str, object]) -> None:
        self.sent.append(self.version)
        seen = Notice(Position(version=self.version, announced=self.version), event)
        self.position = self.announcements.record(ORDERS, seen)

    def pass_time(self, time: timedelta, *, polled: bool = True) -> None:
        """The triggerer polls the table, and sends what is overdue."""
        end, step = self.now + time, max(timedelta(seconds=5), time / 500)
        while self.now < end:
            self.now += step
            self.upkeep(polled=polled)

    def upkeep(self, *, polled: bool = True) -> None:
        if polled:
            told = self.position.announced
            seen = Notice(Position(version=max(self.version, told), announced=told))
            self.position = self.announcements.record(ORDERS, seen)
        overdue = self.announcements.overdue({ORDERS: ORDERS})
        for seen in self.loop.run_until_complete(overdue).values():
            assert seen.event is not None and seen.event["to_version"] == seen.position.announced
            self.send(seen.event)

    def work(self, uri: str = ORDERS, *, version: int | None = None, **changes: object) -> None:
        """A run on a table ends that began at a version."""
        mark = MaintainedVersion(version=version or self.version, started_at=self.now)
        result = run_result(**{"uri": uri, "maintained": mark, **changes})
        self.store.save(assessment(uri=uri, assessed_at=self.now, health=None), result)

    @property
    def is_open(self) -> bool:
        return self.position.maintained is not None


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with asyncio.Runner() as runner:
        yield Scene(monkeypatch, runner.get_loop())


def test_an_event_without_a_run_is_sent_again_and_one_with_a_run_is_not(scene: Scene) -> None:
    scene.commit()
    scene.pass_time(IDLE)
    assert scene.sent == [5, 5] and scene.is_open
    scene.work()
    scene.pass_time(timedelta(days=1))
    assert scene.sent == [5, 5] and not scene.is_open


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 4},
        {"maintained": None},
        {"uri": OTHER},
        # The run on a table that was there before.
        {"version": 9},
    ],
    ids=["began-before", "no-run-by-the-policy", "another-table", "replaced-table"],
)
def test_other_runs_do_not_count(scene: Scene, changes: dict[str, Any]) -> None:
    scene.commit()
    scene.work(**changes)
    scene.pass_time(IDLE)
    assert scene.sent == [5, 5]


def test_a_run_that_could_not_read_the_table_counts_until_the_next_commit(scene: Scene) -> None:
    scene.commit()
    scene.now += timedelta(seconds=10)
    unread = MaintainedVersion(version=None, started_at=scene.now)
    scene.work(maintained=unread)
    scene.pass_time(timedelta(hours=1))
    assert scene.sent == [5]
    scene.commit()
    scene.pass_time(IDLE)
    assert scene.sent == [5, 6, 6]


def test_a_table_in_use_is_announced_when_its_lease_is_free(scene: Scene) -> None:
    with scene.leases.held("orders", holder="a long run", uri=ORDERS):
        scene.commit()
        for _ in range(60):
            scene.pass_time(timedelta(minutes=1))
            scene.leases.renew("orders", holder="a long run", uri=ORDERS)
        assert scene.sent == [5]
    scene.pass_time(IDLE)
    assert scene.sent == [5, 5]


def test_an_event_that_nobody_takes_is_sent_ever_less_often(scene: Scene) -> None:
    scene.commit()
    scene.pass_time(timedelta(hours=2))
    assert 5 < len(scene.sent) < 15
    before = len(scene.sent)
    scene.pass_time(timedelta(days=1))
    assert 20 < len(scene.sent) - before < 30
    # Such as the first run after a Dag was paused.
    scene.work(OTHER)
    before = len(scene.sent)
    scene.pass_time(IDLE)
    assert len(scene.sent) - before == 1


def test_a_table_that_cannot_be_polled_is_not_announced_again(scene: Scene) -> None:
    scene.commit()
    scene.pass_time(timedelta(hours=1), polled=False)
    assert scene.sent == [5]


def test_a_folder_without_entries_is_not_that_of_the_tasks(scene: Scene) -> None:
    for file in list(scene.memory.list_from("")):
        scene.memory.delete(file.path)
    scene.commit()
    scene.pass_time(timedelta(hours=1))
    assert scene.sent == [5]


def test_a_restarted_triggerer_still_announces_what_is_behind(scene: Scene) -> None:
    scene.commit()
    scene.restart(scene.position)
    scene.pass_time(IDLE)
    assert scene.sent == [5, 5]
    scene.work()
    scene.pass_time(timedelta(minutes=1))
    scene.restart(scene.position)
    scene.pass_time(timedelta(hours=1))
    assert scene.sent == [5, 5]


def test_a_later_event_covers_what_is_behind(scene: Scene) -> None:
    scene.commit()
    scene.commit()
    assert scene.position.maintained == 4
    scene.work(version=5)
    scene.pass_time(IDLE)
    assert scene.sent == [5, 6, 6] and scene.position.maintained == 4
    scene.work(version=6)
    scene.pass_time(timedelta(hours=1))
    assert scene.sent == [5, 6, 6]


def test_another_table_at_the_address_is_announced_from_its_first_version(scene: Scene) -> None:
    scene.commit()
    scene.version = 0
    scene.send({"status": "changed", "table": ORDERS, "from_version": -1, "to_version": 0})
    assert scene.position == Position(version=0, announced=0, maintained=-1)


@pytest.mark.parametrize("seed", range(6))
def test_the_last_commit_is_maintained_two_minutes_after_everything_is_idle(
    scene: Scene, seed: int
) -> None:
    """Commits, dropped events, other runs and a table in use, in any order; then silence."""
    random = Random(seed)
    busy = timedelta(minutes=random.choice([3, 20, 90, 300]))
    end, handled = scene.now + busy, 0

    def take_events(*, dropped: float, during: Callable[[], bool]) -> None:
        nonlocal handled
        new, handled = len(scene.sent) - handled, len(scene.sent)
        if new and random.random() >= dropped and not during():
            scene.work(version=random.randint(scene.version - 1, scene.version))

    while scene.now < end:
        with ExitStack() as stack:
            in_use = random.random() < 0.5
            if in_use:
                lease = scene.leases.held("orders", holder="another", uri=ORDERS)
                stack.enter_context(lease)
            if random.random() < 0.3:
                scene.commit()
            scene.pass_time(timedelta(seconds=random.choice([5, 30, 100])))
            take_events(dropped=0.7, during=lambda held=in_use: held)
        # Others work until the end.
        scene.work(OTHER)
    if seed % 2:
        # Otherwise the last commit may have waited for hours.
        scene.commit()
    take_events(dropped=1.0, during=lambda: False)
    idle_since, events = scene.now, len(scene.sent)
    while scene.is_open:
        scene.pass_time(timedelta(seconds=5))
        if len(scene.sent) > events:
            scene.work()
            break
        assert scene.now - idle_since < IDLE
    # Own commits of maintenance are no events, and nothing is announced any more.
    events = len(scene.sent)
    scene.version += 3
    scene.pass_time(timedelta(hours=1))
    assert len(scene.sent) == events and not scene.is_open

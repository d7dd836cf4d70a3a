"""The common parts of all actors: an inaccurate clock, a failing store, and tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from delta_maintenance.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.storage.core import FileStatus, Put
from delta_maintenance.table.read.log_view import VanishedFileError
from tests.simulation.ledger import SKEW_MS
from tests.simulation.world import HINT, HOUR_MS, LOG, OWN_ENGINE, World, is_commit
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.stores.interleaving import Schedule, ScheduledStore

LONGEST_TASK_MS = 20 * HOUR_MS
"""The longest time of a task: writers that exceed the shortest retention cannot be protected."""
EXPECTED = (
    CommitConflictError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
    VanishedFileError,
)
"""The allowed errors of a task on a table that others change; its effect is then none, or a
harmless part."""
FAULTS = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.CRASH_WITHIN,
    Fault.FAILURE,
    Fault.LOST_ANSWER,
)
_TRIES = 3
_ASTRAY = 0.02
"""The share of commits that stay in flight for long, without an answer to their writer."""
_LAST_WORDS = 0.05
"""The share of commits after which their process dies."""
_ARRIVES = 0.05
"""The probability that a commit in flight arrives at a request of any actor."""


class Actor:
    """Runs one task after the other, and each task again if it died."""

    def __init__(
        self,
        name: str,
        world: World,
        schedule: Schedule,
        *,
        tasks: int,
        breaks_ms: Sequence[int] = (),
    ) -> None:
        """`breaks_ms` are the times that may pass before each task."""
        self.name = name
        self.world = world
        self.schedule = schedule
        self.chance = schedule.random
        self.tasks = tasks
        self.breaks_ms = breaks_ms
        self.skew = timedelta(milliseconds=self.chance.randint(-SKEW_MS, SKEW_MS))
        self.crashes = 0
        self.faults = 0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.world.now_ms / 1000, UTC) + self.skew

    def work(self) -> None:
        for number in range(self.tasks):
            while self.world.hold:
                self.schedule.pause()
            if self.breaks_ms:
                self.rest(self.chance.choice(self.breaks_ms))
            self.world.at_work[self.name] = self.world.now_ms
            self.run(f"task-{self.name}-{number}")
            del self.world.at_work[self.name]
            self.world.wanted_back.pop(self.name, None)
            self.schedule.pause()

    def rest(self, duration_ms: int) -> None:
        """Waits while others work; if all actors wait, the next one of them wakes."""
        world = self.world
        wakes_ms = world.resting[self.name] = world.now_ms + duration_ms
        while world.now_ms < wakes_ms:
            if len(world.resting) == self.schedule.num_alive:
                world.now_ms = max(world.now_ms, min(world.resting.values()))
            self.schedule.pause()
        del world.resting[self.name]

    def run(self, task: str) -> None:
        raise NotImplementedError

    def attempts(self, *, longest: int) -> Iterator[tuple[int, ActorStore | FaultStore]]:
        """A store for each attempt; one of its requests may fail, except in the last attempt."""
        for number in range(_TRIES):
            store = ActorStore(self.world, self.schedule)
            if number == _TRIES - 1 or self.chance.random() < 0.6:
                yield number, store
            else:
                at = self.chance.randrange(longest)
                yield number, FaultStore(store, at=at, fault=self.chance.choice(FAULTS))

    def tried(self, store: ActorStore | FaultStore, attempt: Callable[[], None]) -> bool:
        """Whether the attempt has ended so that no other one is needed."""
        try:
            attempt()
        except SimulatedCrash:
            self.crashes += 1
            return False
        except EXPECTED:
            return True
        except CorruptTableError:
            # A checkpoint of the commit that was overwritten contradicts the log.
            if not self.world.ledger.overwritten:
                raise
            return True
        except (StorageError, CommitUnknownError):
            assert isinstance(store, FaultStore) or store.astray, "nothing failed"
            self.faults += 1
            return False
        return True


class Calendar(Actor):
    """Lets hours and days pass. During the longer leaps, no actor is in the middle of a task."""

    def run(self, task: str) -> None:
        world = self.world
        del world.at_work[self.name]
        for _ in range(self.chance.randrange(60)):
            self.schedule.pause()
        while world.late:
            # Days later its version could have been cleaned up, and recreated by it.
            world.deliver()
        if self.chance.random() < 0.5:
            latest = min((t + LONGEST_TASK_MS for t in world.at_work.values()), default=None)
            leap = self.chance.randrange(LONGEST_TASK_MS)
            world.now_ms += leap if latest is None else min(leap, max(0, latest - world.now_ms))
        else:
            world.hold = True
            while world.at_work:
                self.schedule.pause()
            world.now_ms += self.chance.randrange(LONGEST_TASK_MS, 4 * world.data_retention_ms)
            world.hold = False
        world.at_work[self.name] = world.now_ms


class ActorStore(ScheduledStore):
    """One actor's view of the table. Each request takes some time."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        super().__init__(world.store, schedule)
        self._world = world
        self._seen = 0
        """The newest version when the log was last listed."""
        self._listed_ms = 0
        self._hint = -1
        self.astray = False
        """Whether a commit is in flight, so that its outcome is unknown."""
        self.brought_back: set[str] = set()
        """Files that were in use again just before this actor deleted them."""

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        files = super().list_from(directory, start)
        if directory == "_delta_log":
            self._listed_ms = self._world.now_ms
        self._pass_time()
        if directory == "_delta_log":
            self._seen = len(self._world.ledger.states) - 1
        return files

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self._pass_time()
        if path == HINT:
            self._hint = json.loads(data)["version"]
        return data

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if is_commit(path) and OWN_ENGINE in data:
            self._world.judge_quiet(self._listed_ms)
        fate = self._world.chance.random() if is_commit(path) else 1.0
        if fate >= _ASTRAY:
            put = super().put_if_absent(path, data)
            if fate < _ASTRAY + _LAST_WORDS:
                raise SimulatedCrash
            return put
        self._schedule.pause()
        self._world.late.append((path, data))
        self.astray = True
        raise CommitUnknownError("the commit is under way", file=path)

    def put(self, path: str, data: bytes) -> None:
        if path == HINT:
            version = json.loads(data)["version"]
            assert version >= self._hint, "the hint was moved backwards"
            named = f"{LOG}{version:020d}.checkpoint"
            files = [status.path for status in self._world.store.list_from("_delta_log")]
            assert any(file.startswith(named) for file in files), "the hint names no checkpoint"
        super().put(path, data)

    def delete(self, path: str) -> None:
        self._schedule.pause()
        if path.startswith(LOG):
            self._store.delete(path)
        elif self._world.delete(path, seen=self._seen):
            self.brought_back.add(path)

    def _pass_time(self) -> None:
        self._world.now_ms += self._world.chance.randrange(2_000)
        if self._world.late and self._world.chance.random() < _ARRIVES:
            self._world.deliver()

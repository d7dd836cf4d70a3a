"""In random histories beside a careless Delta Spark, exactly the lost commits are called so."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.clock import instant
from delta_maintenance.errors import CommitUnknownError, CorruptTableError, DeltaMaintenanceError
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.evidence.overwritten_commits import states_of, verify_guarded
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.segment import list_log
from tests.support.logs.beside_spark import ENGINE, SteppedStore
from tests.support.logs.transactions import append, commit
from tests.support.suite.play import some
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder, log_text

SEEDS = 1000
CHUNK = 100
STEPS = 25
MINUTE = 60_000
Key = tuple[int, str]
"""The version and the `txnId` of a commit."""


class Killed(BaseException):
    """The process has ended."""


class RecordingStore(SteppedStore):
    """Knows which commits of ours it created, and which of them it replaced."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.created: dict[int, tuple[str, bytes]] = {}
        self.replaced: set[Key] = set()
        self.unmarked: set[str] = set()
        self.txn_id = ""
        self.loses_answers = False

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._note(f"put {path}")
        fault = self.chance.random() if self.loses_answers else 1.0
        outcome = Put.EXISTS if fault < 0.1 else MemoryStore.put_if_absent(self, path, data)
        if outcome is Put.DONE and path.endswith(".json"):
            self.created[version_of(path)] = (self.txn_id, data)
        if fault < 0.2:
            self.unmarked |= {self.txn_id} if path.endswith(".landed") else set()
            raise CommitUnknownError("the answer was lost")
        return outcome

    def read(self, path: str) -> bytes:
        if self.loses_answers and self.chance.random() < 0.1:
            raise CommitUnknownError("the answer was lost")
        return super().read(path)

    def replace(self, version: int, data: bytes) -> None:
        """Puts a commit of Delta Spark without a condition."""
        path = f"_delta_log/{version:020d}.json"
        txn_id, own = self.created.get(version, ("", b""))
        if own and MemoryStore.stat(self, path) is not None and MemoryStore.read(self, path) == own:
            self.replaced.add((version, txn_id))
        MemoryStore.put(self, path, data)


def version_of(path: str) -> int:
    return int(path.rpartition("/")[2].split(".")[0])


class History:
    """One random history, with what is known of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = RecordingStore(self.chance)
        self.table = TableBuilder(self.store)
        self.table.commit([log.protocol(), log.metadata(), log.add("first")])
        self.store.now_ms = lambda: self.store.clock_ms
        self.store.clock_ms += 60 * MINUTE
        self.acknowledged: set[Key] = set()
        self.cleaned: set[int] = set()
        self.forgotten: set[Key] = set()
        self.checked: list[int] = []
        """Versions that drivers of Delta Spark will put, because they did not exist."""
        self.operation_ids = [f"task-{number}" for number in range(3)]
        self.noticed = 0

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.commit, 8),
            (self.spark_checks, 4),
            (self.spark_puts, 5),
            (self.wait, 4),
            (self.clean, 1),
            (self.verify, 2),
            (self.forget, 1),
        ]
        choices, weights = zip(*steps, strict=True)
        self.chance.choices(choices, weights)[0]()
        self.check()

    def newest(self) -> int:
        return max(list_log(self.store).commits)

    def commit(self) -> None:
        """Commits, unless the process is killed at a request, or a put of Spark comes before it."""
        store, chance = self.store, self.chance
        quiet = chance.choice([timedelta(), timedelta(minutes=1), timedelta(minutes=10)])
        store.txn_id = f"txn-{chance.getrandbits(40)}"
        options: dict[str, Any] = {"other_writers": "spark", "quiet": quiet}
        if chance.random() < 0.4:
            options |= {"operation_id": chance.choice(self.operation_ids), "planned_version": 0}
        txn = append(self.table, store.txn_id, new_id=lambda: store.txn_id, **options)
        left = [chance.randrange(12)]
        kills, races = chance.random() < 0.3, chance.random() < 0.5

        def step(request: str) -> None:
            left[0] -= 1
            if left[0] == 0 and kills:
                raise Killed
            if left[0] == 0 and races:
                self.spark_puts()

        store.before, store.loses_answers = step, chance.random() < 0.3
        try:
            outcome = commit(txn)
            if isinstance(outcome, Landed):
                self.acknowledged.add((outcome.version, store.txn_id))
        except (DeltaMaintenanceError, Killed):
            pass
        store.before, store.loses_answers = lambda request: None, False

    def spark_checks(self) -> None:
        self.checked.append(self.newest() + 1)

    def spark_puts(self) -> None:
        if self.checked:
            version = self.checked.pop(self.chance.randrange(len(self.checked)))
            if version not in self.cleaned:
                info = log.commit_info(engineInfo=ENGINE)
                name = f"spark-{self.chance.getrandbits(40)}"
                self.store.replace(version, log_text([info, log.add(name)]))

    def wait(self) -> None:
        self.store.clock_ms += self.chance.choice([1, 1000, MINUTE, 11 * MINUTE, 25 * 60 * MINUTE])

    def clean(self) -> None:
        record = find("checkpoint")
        context = RunContext.at(instant(self.store.clock_ms))
        try:
            record.prepare(Table(self.store), record.options(), context).apply()
        except CorruptTableError:
            # A commit was overwritten; if it is not one of ours, a checkpoint shows that.
            return
        for version in list_log(self.store).commits:
            if version < self.newest():
                self.store.delete(f"_delta_log/{version:020d}.json")
                self.cleaned.add(version)

    def verify(self) -> None:
        before = self.states()
        try:
            verify_guarded(self.store)
        except CorruptTableError as error:
            assert "overwritten" in before.values() and "was overwritten by" in error.problem
            self.noticed += 1
            return
        assert "overwritten" not in before.values()
        # What it deleted was sound, or nobody was told that it had been committed.
        for key in before.keys() - self.states().keys():
            self.forgotten.add(key)

    def forget(self) -> None:
        record = find("fsck")
        options = record.options(forget_overwritten_commits=True)
        context = RunContext.at(instant(self.store.clock_ms))
        lost = {key for key, state in self.states().items() if state == "overwritten"}
        record.prepare(Table(self.store), options, context).apply()
        assert "overwritten" not in self.states().values()
        self.forgotten |= lost

    def states(self) -> dict[Key, str]:
        listing = list_log(self.store)
        return {
            (guard.version, str(guard.copy.file.uuid)): state
            for guard, state in states_of(self.store, listing.guarded, listing.commits)
        }

    def check(self) -> None:
        states = self.states()
        named = {key for key, state in states.items() if state == "overwritten"}
        assert named <= self.store.replaced, "a sound commit is called overwritten"
        told = {
            (version, txn_id)
            for version, txn_id in self.store.replaced & self.acknowledged
            if version not in self.cleaned and txn_id not in self.store.unmarked
        }
        assert told - self.forgotten <= named, "an overwritten commit is not noticed"
        assert not {*states.values()} - {"sound", "overwritten", "uncertain", "deleted"}


@pytest.mark.cases
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_exactly_the_lost_commits_are_called_overwritten(first: int) -> None:
    replaced = noticed = 0
    seeds = range(first, first + CHUNK)
    for seed in seeds:
        # A sample ends when it has reached what the histories are about.
        if seed >= first + len(some(seeds, 8)) and replaced and noticed:
            break
        history = History(seed)
        for _ in range(STEPS):
            try:
                history.step()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        replaced += len(history.store.replaced)
        noticed += history.noticed
    assert replaced and noticed

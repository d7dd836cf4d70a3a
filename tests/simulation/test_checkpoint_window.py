"""A clean-up at every moment between the survey of an incremental checkpoint and its hint.

Another process publishes a newer checkpoint before any request of the tested one, and a clean-up
deletes the superseded sidecars before any later request. The random schedules of
`test_sidecar_races` hardly ever reach these moments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import checkpoint, clean_log
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointPlan
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Checkpoint, Snapshot, Table, list_log
from tests.simulation.spark_clean_up import DAY_MS, SIDECARS, spark_clean_up
from tests.support.faults.fault_store import FaultStore, Step
from tests.support.stores.interleaving import Schedule, ScheduledStore, single_threaded
from tests.support.tables.actions import Action, add, features, metadata, remove
from tests.support.tables.table_builder import EPOCH_MS, LOG, log_text

RETENTION_DAYS = 2
PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.logRetentionDuration": f"interval {RETENTION_DAYS} days",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_DAYS} days",
}
WINDOW = 7
"""The number of requests from the last check of the log before publishing to the hint."""
Cleaner = Literal["spark, interrupted", "ours"]


class Steps(Schedule):
    """Does something before the requests of a certain number, counted from 0."""

    def __init__(self) -> None:
        super().__init__(0)
        self.start()

    def start(self, *before: tuple[int, Callable[[], None]]) -> None:
        """Counts from 0 again."""
        self.number = 0
        self._before = before

    def pause(self) -> None:
        number, self.number = self.number, self.number + 1
        self._do(lambda at: at == number)

    def end(self) -> None:
        """Does what would have come later."""
        self._do(lambda at: at >= self.number)

    def _do(self, wanted: Callable[[int], bool]) -> None:
        for at, work in self._before:
            if wanted(at):
                work()


class Stage:
    """A checkpoint of version 1, and version 3, of which an incremental one is planned.

    Version 2 has expired. With `young`, the last version has not. The clock of the process that
    writes checkpoints is slow, so that it takes sidecars of an expired version over all the same:
    the checks around the publication are needed.
    """

    def __init__(self, *, young: bool) -> None:
        self.is_slow = True
        self.now_ms = EPOCH_MS
        self.store = MemoryStore()
        self.store.now_ms = lambda: self.now_ms
        self.states: list[frozenset[str]] = []
        self.numbers = 0
        lines = [features("v2Checkpoint"), metadata(configuration=PROPERTIES)]
        self.commit([*lines, *(add(f"f{n}") for n in range(4))], {f"f{n}" for n in range(4)})
        self.commit([add("f4"), add("f5")], {"f4", "f5"})
        self.write(self.snapshot(), self.plan(self.snapshot(), "never"))
        self.now_ms += 5 * DAY_MS
        expired_ms = self.now_ms - 3 * DAY_MS
        self.commit([add("f7")], {"f7"}, at_ms=expired_ms)
        self.superseding = self.snapshot()
        at_ms = self.now_ms if young else expired_ms + 1
        self.commit([remove("f7"), add("f8")], {"f8"}, gone="f7", at_ms=at_ms)

    def commit(
        self, lines: list[Action], added: set[str], *, gone: str = "", at_ms: int | None = None
    ) -> None:
        before, self.now_ms = self.now_ms, at_ms if at_ms is not None else self.now_ms
        self.store.put_if_absent(f"{LOG}/{len(self.states):020}.json", log_text(lines))
        self.now_ms = before
        last = self.states[-1] if self.states else frozenset()
        self.states.append((last | added) - {gone})

    def snapshot(self) -> Snapshot:
        return Table(self.store).snapshot()

    def plan(self, snapshot: Snapshot, incremental: str) -> CheckpointPlan:
        options = CheckpointOptions(
            actions_per_sidecar=3,
            incremental=incremental,  # type: ignore[arg-type]  # validated by the operation
        )
        return checkpoint.plan(snapshot, options, context=RunContext.at(self.writer_now()))

    def write(self, snapshot: Snapshot, plan: CheckpointPlan) -> str:
        result = checkpoint.apply(
            Table(snapshot.log.store),
            plan,
            context=RunContext.at(self.writer_now(), new_id=self.new_id),
            snapshot=snapshot,
        )
        return "incremental" if result.incremental else "full"

    def new_id(self) -> str:
        self.numbers += 1
        return f"00000000-0000-4000-8000-{self.numbers:012d}"

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def writer_now(self) -> datetime:
        """The time on the clock of the process that writes checkpoints."""
        return datetime.fromtimestamp(EPOCH_MS / 1000, UTC) if self.is_slow else self.now()

    def supersede(self) -> None:
        self.write(self.superseding, self.plan(self.superseding, "never"))

    def cleaning(self, cleaner: Cleaner) -> Iterator[str]:
        if cleaner == "ours":
            with suppress(DeltaMaintenanceError):
                plan = clean_log.plan(self.snapshot(), context=RunContext.at(self.now()))
                clean_log.apply(
                    Table(self.store), plan, context=RunContext.at(self.now(), new_id=self.new_id)
                )
            return iter(())
        return spark_clean_up(self.store, now_ms=self.now_ms, retention_days=RETENTION_DAYS)

    def check(self) -> None:
        """Every checkpoint is whole, and every version that is left can be read."""
        there = {status.path for status in self.store.list_from(SIDECARS)}
        listing = list_log(self.store)
        for files in listing.checkpoints:
            opened = Checkpoint(self.store, files, open_sidecars=False)
            missing = set(opened.sidecar_paths) - there
            assert not missing, f"{files.name} has lost {missing}"
        oldest = 0 if 0 in listing.commits else listing.checkpoints[0].version
        for version in range(oldest, len(self.states)):
            found = Table(self.store).snapshot(version=version).live_files()["path"].to_pylist()
            assert frozenset(found) == self.states[version], version


def played(cleaner: Cleaner, first: int, then: int) -> tuple[str, int]:
    """How the checkpoint ended, and how many requests it took."""
    stage, steps = Stage(young=True), Steps()
    snapshot = Table(ScheduledStore(stage.store, steps)).snapshot()
    plan = stage.plan(snapshot, "always")
    cleaning: list[Iterator[str]] = []

    def begin() -> None:
        stage.supersede()
        if cleaner == "spark, interrupted":
            cleaning.append(stage.cleaning(cleaner))
            next(cleaning[0], None)

    def finish() -> None:
        for _ in cleaning[0] if cleaning else stage.cleaning(cleaner):
            pass

    steps.start((first, begin), (then, finish))
    try:
        ending = stage.write(snapshot, plan)
    except DeltaMaintenanceError as error:
        ending = type(error).__name__
    requests = steps.number
    steps.end()
    stage.check()
    return ending, requests


@pytest.mark.conformance("CLEAN-08", "CLEAN-10", "CKPT-25")
@pytest.mark.parametrize("cleaner", ["spark, interrupted", "ours"])
def test_a_clean_up_at_any_moment_loses_no_sidecar(
    cleaner: Cleaner, count_cases: Callable[[str, int], None]
) -> None:
    endings = Counter[str]()
    with single_threaded():
        _, requests = played(cleaner, 10_000, 10_000)
        for first in range(requests + 1):
            # Before the last checks of the log, the end of the clean-up matters little.
            within = first >= requests - WINDOW and cleaner != "ours"
            last = requests if within else first
            for then in range(first, last + 1):
                try:
                    endings[played(cleaner, first, then)[0]] += 1
                except Exception as error:
                    raise AssertionError(f"before requests {first} and {then}") from error
    for ending, number in endings.items():
        count_cases(f"clean-ups within a checkpoint, {ending}", number)
    assert endings["incremental"] and endings["full"]


def test_a_deleted_sidecar_is_detected_until_the_last_check() -> None:
    def deleted_at(number: int) -> tuple[list[Step], str, set[str]]:
        """The requests, the deleted sidecar, and those that checkpoints of version 3 name."""
        stage, steps = Stage(young=True), Steps()
        trial = FaultStore(stage.store)
        snapshot = Table(ScheduledStore(trial, steps)).snapshot()
        plan, base = stage.plan(snapshot, "always"), snapshot.log.checkpoint
        assert plan.incremental and base is not None
        trial.trace.clear()
        deleted = base.sidecar_paths[0]
        steps.start((number, lambda: stage.store.delete(deleted)))
        stage.write(snapshot, plan)
        named = set[str]()
        for files in list_log(stage.store, first_version=3).checkpoints:
            named |= set(Checkpoint(stage.store, files, open_sidecars=False).sidecar_paths)
        return trial.trace, deleted, named

    with single_threaded():
        requests, taken_over, named = deleted_at(10_000)
        assert taken_over in named
        published = next(
            n for n, step in enumerate(requests) if step.kind == "create" and "000003." in step.path
        )
        last_look = max(n for n, step in enumerate(requests) if step == Step("list_from", SIDECARS))
        assert published < last_look
        for number in range(last_look + 1):
            _, deleted, named = deleted_at(number)
            assert named and deleted not in named, number


@pytest.mark.parametrize(("young", "version"), [(False, 3), (True, 1)])
def test_a_checkpoint_of_or_after_an_old_version_is_written_in_full(
    young: bool, version: int
) -> None:
    stage = Stage(young=young)
    stage.is_slow = False
    plan = stage.plan(stage.snapshot(), "auto")
    assert not plan.incremental
    assert (
        f"log retention of version {version}, {RETENTION_DAYS} days, ends within 1 day"
        in plan.reason
    )

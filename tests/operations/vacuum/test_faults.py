"""Wherever a vacuum stops, all needed files still exist, and the next run completes it.

Every step fails once in every way; a seeded state machine interleaves writers, restores,
checkpoints and two vacuums; and a process is killed in the middle.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumResult, VacuumSurvey
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Skip, Store
from delta_maintenance.table.read import Table
from tests.support.faults import every_fault
from tests.support.faults.every_fault import Files, files_of, play_faults
from tests.support.faults.fault_store import FaultStore
from tests.support.suite.play import examples
from tests.support.tables.actions import add, deletion_vector, features, metadata, remove
from tests.support.tables.table_builder import LOG
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
WEEK = timedelta(days=7)


def build() -> Files:
    table = Folder(first=[features("deletionVectors"), metadata()])
    table.log(add("live.parquet", dv=deletion_vector()), add("p/a.parquet"), add("p/b.parquet"))
    table.log(remove("p/a.parquet", deletionTimestamp=days_ago(20)), days=20)
    table.checkpoint()
    table.log(remove("p/b.parquet", deletionTimestamp=days_ago(2)), days=2)
    table.file("live.parquet", VECTOR, "p/a.parquet", "p/b.parquet", "orphan.parquet")
    table.file("young.parquet", days=1)
    return files_of(table.store)


NEEDED = {"live.parquet", VECTOR, "p/b.parquet", "young.parquet"}
DEAD = {"p/a.parquet", "orphan.parquet"}


def store_of(files: Files) -> MemoryStore:
    return every_fault.store_of(files, now_ms=lambda: epoch_millis(NOW))


def run(store: Store, **options: Any) -> VacuumResult:
    table = Table(store)
    surveyed = vacuum.survey(table.snapshot(), VacuumOptions(**options), now=NOW)
    return vacuum.apply(table, surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)


def data_of(store: Store) -> set[str]:
    return {path for path in files_of(store) if not path.startswith(LOG)}


@pytest.mark.conformance("VAC-19")
@pytest.mark.parametrize("mode", ["full", "lite"])
def test_a_fault_at_any_step_leaves_what_is_needed(mode: str, count_cases: Any) -> None:
    files = build()
    trial = FaultStore(store_of(files))
    assert run(trial, mode=mode).status == "vacuumed"
    assert any(step.path == "orphan.parquet" for step in trial.trace) == (mode == "full")
    played = 0
    for outcome in play_faults(lambda store: run(store, mode=mode), lambda: store_of(files)):
        played += 1
        if not outcome.is_new:
            continue
        store, where = outcome.store, outcome.where
        left = data_of(store)
        assert left >= NEEDED and left <= NEEDED | DEAD, where
        version = Table(store).snapshot().version
        for old in range(4):
            Table(store).snapshot(version=old).live_files()
        assert run(store).status in ("vacuumed", "nothing-to-do"), where
        assert data_of(store) == NEEDED, where
        assert Table(store).snapshot().version >= version
    count_cases(f"faults of a vacuum, {mode}", played)


class Broken(MemoryStore):
    """Fails on the n-th page of a listing, having given the others."""

    pages = 3
    broken: int | None = None

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        for batch in super().list_tree(directory, skip=skip):
            size = max(1, batch.num_rows // self.pages)
            for page in range(0, batch.num_rows, size):
                if page // size == self.broken:
                    raise DeltaMaintenanceError("the page is lost")
                yield batch.slice(page, size)


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_failing_page_fails_the_listing(page: int) -> None:
    store = Broken()
    for path, (data, modified_ms) in build().items():
        store.now_ms = lambda modified_ms=modified_ms: modified_ms
        store.put(path, data)
    before = data_of(store)
    store.broken = page
    with pytest.raises(DeltaMaintenanceError, match="the page is lost"):
        run(store)
    store.broken = None
    assert data_of(store) == before


class Vacuums(RuleBasedStateMachine):
    """Writers, restores and vacuums in any order: all files of retained versions exist.

    A model records the files of every version, and when it was superseded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.table = Folder(first=[features("deletionVectors"), metadata()])
        self.live: dict[str, str | None] = {}
        """Each live path with the prefix of its deletion vector."""
        self.places: dict[str, str] = {}
        """The name of the file that each path of the log refers to."""
        self.versions: list[tuple[datetime, dict[str, str | None]]] = [(self.now, {})]
        self.pending: list[tuple[VacuumSurvey, datetime]] = []
        self.in_flight: set[str] = set()
        self.count = 0

    def store(self) -> MemoryStore:
        assert isinstance(self.table.store, MemoryStore)
        self.table.store.now_ms = lambda: epoch_millis(self.now)
        return self.table.store

    def commit(self, actions: list[Any], live: dict[str, str | None]) -> None:
        version = self.table.open().latest_version() + 1
        self.table.commit(actions, version=version, at_ms=epoch_millis(self.now))
        self.live = live
        self.versions.append((self.now, live))

    @initialize()
    def begin(self) -> None:
        self.store()

    @rule(
        vector=st.booleans(),
        folder=st.sampled_from(["p", "_former", "sub/.h"]),
        encoded=st.sampled_from([0, 1, 2]),
    )
    def append(self, vector: bool, folder: str, encoded: int) -> None:
        """Writes no name, the name in the log, or both with percent-encoding, as engines do."""
        name = f"{folder}={self.count % 3}/f {self.count}.parquet"
        self.count += 1
        written = quote(name, safe="/=") if encoded else name
        self.places[written] = quote(written, safe="/=") if encoded == 2 else name
        self.store().put(self.places[written], b"x")
        dv = None
        if vector:
            dv = f"x{self.count}"
            self.store().put(vector_path(dv), b"v")
        self.commit([add(written, dv=descriptor(dv))], {**self.live, written: dv})

    @rule()
    def write_without_committing(self) -> None:
        name = f"p=0/flight-{self.count}.parquet"
        self.count += 1
        self.store().put(name, b"x")
        self.in_flight.add(name)

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        if not self.in_flight:
            return
        name = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.in_flight.discard(name)
        if name in data_of(self.table.store):
            self.commit([add(name)], {**self.live, name: None})

    @rule(data=st.data(), replace_vector=st.booleans())
    def delete(self, data: st.DataObject, replace_vector: bool) -> None:
        if not self.live:
            return
        path = data.draw(st.sampled_from(sorted(self.live)))
        dv = self.live[path]
        gone = remove(path, dv=descriptor(dv), deletionTimestamp=epoch_millis(self.now))
        live = {p: v for p, v in self.live.items() if p != path}
        actions = [gone]
        if replace_vector:
            new = f"y{self.count}"
            self.count += 1
            self.store().put(vector_path(new), b"v")
            actions.append(add(path, dv=descriptor(new)))
            live[path] = new
        self.commit(actions, live)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """To a version of which every file is retained, as a careful engine would."""
        recent = [
            live
            for (_, live), (ended, _) in zip(self.versions, self.versions[1:], strict=False)
            if self.now - ended < WEEK
        ]
        if not recent:
            return
        wanted = data.draw(st.sampled_from(recent))
        millis = epoch_millis(self.now)
        actions = [
            remove(path, dv=descriptor(dv), deletionTimestamp=millis)
            for path, dv in self.live.items()
            if wanted.get(path, "absent") != dv
        ]
        actions += [
            add(path, dv=descriptor(dv))
            for path, dv in wanted.items()
            if self.live.get(path, "absent") != dv
        ]
        if actions:
            self.commit(actions, dict(wanted))

    @rule(days=st.sampled_from([1, 3, 8]))
    def wait(self, days: int) -> None:
        # A writer that takes longer than the retention fails, which is documented.
        self.now += timedelta(days=days)
        if days >= 7:
            self.in_flight.clear()
        else:
            flights = files_of(self.table.store)
            old = epoch_millis(self.now - WEEK)
            self.in_flight = {name for name in self.in_flight if flights[name][1] > old}

    @rule(mode=st.sampled_from(["full", "lite"]))
    def plan(self, mode: str) -> None:
        self.store()
        options = VacuumOptions(mode=mode, ignore_missing_files=True)
        surveyed = vacuum.survey(self.table.open().snapshot(), options, now=self.now)
        self.pending.append((surveyed, self.now))

    @rule()
    def carry_out(self) -> None:
        """Possibly after commits of others, and possibly concurrently with another vacuum."""
        if not self.pending:
            return
        surveyed, _ = self.pending.pop(0)
        self.store()
        with suppress(DeltaMaintenanceError):
            vacuum.apply(
                Table(self.table.store),
                surveyed.plan,
                context=RunContext.at(self.now),
                surveyed=surveyed,
            )
            self._note_commits()

    @rule()
    def checkpoint(self) -> None:
        version = self.table.open().latest_version()
        if version in self.table.commits:
            with suppress(FileExistsError):
                self.table.checkpoint(version)

    def _note_commits(self) -> None:
        newest = self.table.open().latest_version()
        for version in range(max(self.table.commits) + 1, newest + 1):
            self.table.commits[version] = []
            self.versions.append((self.now, self.live))

    @invariant()
    def everything_retained_is_there(self) -> None:
        there = data_of(self.table.store)
        for number, (_, live) in enumerate(self.versions):
            ended = self.versions[number + 1][0] if number + 1 < len(self.versions) else None
            if ended is not None and self.now - ended >= WEEK:
                continue
            for path, dv in live.items():
                assert self.places.get(path, path) in there, (number, path)
                assert dv is None or vector_path(dv) in there, (number, dv)
        assert self.in_flight <= there


def descriptor(prefix: str | None) -> Any:
    return None if prefix is None else deletion_vector(f"{prefix}^-aqEH.-t@S}}K{{vb[*k^")


def vector_path(prefix: str) -> str:
    return f"{prefix}/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


TestVacuums = pytest.mark.conformance("VAC-03", "VAC-04", "VAC-06", "VAC-17")(Vacuums.TestCase)
TestVacuums.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

KILLED = textwrap.dedent(
    """
    import sys
    from datetime import UTC, datetime
    from delta_maintenance import open_table
    from delta_maintenance.operations import vacuum
    from delta_maintenance.operations.core import RunContext
    from delta_maintenance.operations.vacuum import deletion as data_deletion
    data_deletion._BATCH = 25
    now = datetime.now(UTC)
    table = open_table(sys.argv[1])
    options = vacuum.VacuumOptions(allow_large_delete=True)
    surveyed = vacuum.survey(table.snapshot(), options, now=now)
    # The next batch begins when the parent says so: it may not get a turn for a long time.
    step = lambda what, done, total, **_: (print(done, flush=True), sys.stdin.readline())
    context = RunContext.at(now, progress=step)
    vacuum.apply(table, surveyed.plan, context, surveyed=surveyed)
    """
)


@pytest.mark.process
def test_a_killed_run_leaves_what_is_needed(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    seed = random.Random(11)
    table = Folder(tmp_path / "t", now=now)
    live = [f"p={n % 5}/live-{n}.parquet" for n in range(20)]
    dead = [f"p={n % 5}/dead-{n}.parquet" for n in range(1500)]
    table.log(*(add(path) for path in live))
    table.file(*live, *dead)
    table.file("young.parquet", days=0)
    for rounds in (1, 3):
        before = len(table.files())
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "t")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        for _ in range(rounds):
            assert process.stdout.readline()
            process.stdin.write(b"\n")
            process.stdin.flush()
        time.sleep(seed.uniform(0.0, 0.01))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
        left = table.files()
        assert len(left) < before
        assert left >= {*live, "young.parquet"}
        assert table.open().snapshot().live_files().num_rows == len(live)
    assert vacuum.apply(
        table.open(),
        (planned := table.survey(allow_large_delete=True)).plan,
        context=RunContext.at(now),
        surveyed=planned,
    ).status in ("vacuumed", "nothing-to-do")
    assert table.files() == {*live, "young.parquet"}

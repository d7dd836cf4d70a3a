"""Whatever happens to a process or its store during a checkpoint, the table stays sound."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table, hinted_version
from tests.support.faults.every_fault import distinct_faults
from tests.support.faults.fault_store import FaultStore, SimulatedCrash
from tests.support.logs.checkpointing import (
    KEEP_TOMBSTONES,
    NOW,
    SHAPES,
    as_checkpointed,
    files_of,
    on_disk,
    state_of,
    write,
)
from tests.support.tables.actions import (
    add,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

pytestmark = pytest.mark.cases

HINT = "_delta_log/_last_checkpoint"
CLASSIC = "_delta_log/00000000000000000003.checkpoint.parquet"


def build() -> TableBuilder:
    """Four versions; a checkpoint of 1, to which the hint points, and a damaged one of 2."""
    table = TableBuilder()
    supported = features("v2Checkpoint", "deletionVectors")
    table.commit([supported, metadata(configuration=KEEP_TOMBSTONES)])
    table.commit([add("a"), add("b", dv=deletion_vector()), txn("app", 1)])
    table.checkpoint()
    table.hint(1)
    table.commit([remove("a"), add("c"), domain("d", "x")])
    table.zero(table.checkpoint()[0])
    table.commit([add("d"), remove("b", dv=deletion_vector()), add("b"), txn("app", 2)])
    return table


class World:
    """A table of which every run gets a copy, and what each version of it holds."""

    def __init__(self) -> None:
        table = build()
        self.files = files_of(table.store)
        self.states = [
            as_checkpointed(state_of(table.open().snapshot(version=version)))
            for version in range(table.version + 1)
        ]
        self._sound: set[object] = set()

    def copy(self) -> MemoryStore:
        return store_of(self.files)

    def check(self, store: Store, kind: str, per_sidecar: int) -> None:
        """Every version opens as ever, nothing of the table has been touched, and a rerun works.

        The files are all that a later process sees, so each outcome is looked at once.
        """
        left = files_of(store)
        outcome = (kind, per_sidecar, frozenset(left.items()))
        if outcome in self._sound:
            return
        self._sound.add(outcome)
        untouched = {path: data for path, data in self.files.items() if path != HINT}
        assert {path: left[path] for path in untouched} == untouched
        self.check_versions(store)
        again = store_of(left)
        result = write(Table(again), kind, per_sidecar, new_id=ids("again"))
        assert result.status in ("written", "nothing-to-do")
        assert Table(again).snapshot().log.segment.base_version == 3
        self.check_versions(again)

    def check_versions(self, store: Store) -> None:
        for version, state in enumerate(self.states):
            snapshot = Table(store).snapshot(version=version)
            assert as_checkpointed(state_of(snapshot)) == state, f"version {version}"
            assert snapshot.warnings == (), "a checkpoint is visible that cannot be used"
        latest = Table(store).snapshot()
        assert latest.version == len(self.states) - 1
        hint = hinted_version(store)
        assert hint in (1, latest.log.segment.base_version), "the hint came before its checkpoint"


def store_of(files: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(now_ms=lambda: EPOCH_MS)
    for path, data in files.items():
        store.put(path, data)
    return store


def ids(run: str) -> NewId:
    """Deterministic ids; two runs never share one."""
    numbers = iter(range(10**9))
    digits = run.encode().hex()[:8].ljust(8, "0")
    return lambda: f"{digits}-0000-4000-8000-{next(numbers):012}"


@pytest.fixture(scope="module")
def world() -> World:
    return World()


EXHAUSTIVE = [shape for shape in SHAPES if shape[1] in (0, 3) or shape[0] == "classic"]


@pytest.mark.conformance("CKPT-25", "CKPT-27", "LAST-09", "PQ-04")
@pytest.mark.parametrize(("kind", "per_sidecar"), EXHAUSTIVE)
def test_no_fault_at_any_step_harms_the_table(
    world: World, kind: str, per_sidecar: int, count_cases: Callable[[str, int], None]
) -> None:
    trial = FaultStore(world.copy())
    write(Table(trial), kind, per_sidecar, new_id=ids("first"))
    cases = list(distinct_faults(trial.trace))
    for at, fault in cases:
        files = world.copy()
        store = FaultStore(files, at=at, fault=fault)
        try:
            write(Table(store), kind, per_sidecar, new_id=ids("first"))
        except (SimulatedCrash, DeltaMaintenanceError):
            # Any other exception would be an error in our own handling of the fault.
            assert len(store.trace) > at, "it failed before its fault"
        else:
            assert not store.crashed, f"{fault} at {store.trace[at]} was swallowed"
        world.check(files, kind, per_sidecar)
    count_cases("faults injected into checkpoints", len(cases))


@pytest.mark.conformance("CKPT-25", "LAST-09", "PQ-04")
@pytest.mark.parametrize(("kind", "per_sidecar"), SHAPES)
def test_sidecars_come_before_the_checkpoint_and_the_hint_after_it(
    world: World, kind: str, per_sidecar: int
) -> None:
    store = FaultStore(world.copy())
    result = write(Table(store), kind, per_sidecar)
    writes = [
        step for step in store.trace if step.kind not in ("list_from", "stat", "read", "open")
    ]
    assert [step.kind for step in writes] == ["create"] * (result.sidecars + 1) + ["put"]
    assert all("/_sidecars/" in step.path for step in writes[: result.sidecars])
    assert [step.path for step in writes[result.sidecars :]] == [result.path, HINT]


class Rival(FaultStore):
    """Lets another writer act at the moment before a file becomes visible."""

    def __init__(self, store: Store, act: Callable[[str], None]) -> None:
        super().__init__(store)
        self._act = act

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with super().create(path) as sink:
            yield sink
            self._act(path)


@pytest.mark.conformance("CKPT-29", "CKPT-25")
@pytest.mark.parametrize("kind", ["classic", "v2-classic"])
def test_whoever_loses_the_race_for_the_classic_name_leaves_the_winner_alone(
    world: World, kind: str
) -> None:
    files = world.copy()
    rival = store_of(world.files)
    write(Table(rival), "classic")
    winner = rival.read(CLASSIC)
    store = Rival(files, lambda path: files.put(path, winner) if path == CLASSIC else None)
    result = write(Table(store), kind, 3)
    assert (result.status, result.path, result.hint_updated) == ("already-there", CLASSIC, False)
    assert result.notes == ("another writer's checkpoint of this version came first",)
    assert files.read(CLASSIC) == winner
    assert files.read(HINT) == world.files[HINT]
    world.check_versions(files)


@pytest.mark.conformance("CKPT-29", "CKPT-32")
@pytest.mark.parametrize("damage", [b"PAR1", b"PAR1 no more"])
def test_a_winner_that_cannot_be_read_is_reported_and_left_alone(
    world: World, damage: bytes
) -> None:
    files = world.copy()
    store = Rival(files, lambda path: files.put(path, damage))
    with pytest.raises(RefusedError) as refusal:
        write(Table(store), "classic")
    assert refusal.value.file == CLASSIC
    assert "fsck --repair" in str(refusal.value)
    assert files.read(CLASSIC) == damage
    assert as_checkpointed(state_of(Table(files).snapshot())) == world.states[3]


@pytest.mark.conformance("CKPT-29")
def test_a_commit_during_the_run_stays_the_newest_version(world: World) -> None:
    files = world.copy()
    builder = TableBuilder(files)
    builder.commits = {version: [] for version in range(4)}
    store = Rival(files, lambda path: None if builder.version > 3 else added(builder))
    assert write(Table(store), "classic").version == 3
    snapshot = Table(files).snapshot()
    assert (snapshot.version, snapshot.log.segment.base_version) == (4, 3)
    assert "late" in snapshot.live_files()["path"].to_pylist()


def added(builder: TableBuilder) -> None:
    builder.commit([add("late")])


@pytest.mark.conformance("CKPT-29", "CKPT-27")
@pytest.mark.parametrize("kind", ["classic", "v2-classic", "v2-json", "v2-parquet"])
def test_writers_at_the_same_time_do_no_harm(world: World, tmp_path: Path, kind: str) -> None:
    root = on_disk(world.copy(), tmp_path)
    start = threading.Barrier(4)

    def run(number: int) -> str:
        table = Table(LocalStore(root))
        snapshot = table.snapshot()
        options = checkpoint.CheckpointOptions(kind=kind, actions_per_sidecar=2)  # type: ignore[arg-type]
        plan = checkpoint.plan(snapshot, options, context=RunContext.at(NOW))
        start.wait()
        return checkpoint.apply(table, plan, context=RunContext.at(NOW), snapshot=snapshot).status

    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(run, range(4)))
    named_by_uuid = kind in ("v2-json", "v2-parquet")
    assert outcomes.count("written") == (4 if named_by_uuid else 1)
    assert set(outcomes) <= {"written", "already-there"}
    world.check_versions(LocalStore(root))


CHILD = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.logs.checkpointing import SHAPES, write
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.segment import (hinted_version)
from delta_maintenance.table.read.table import Table

for seed in sys.stdin:
    chance = random.Random(seed)
    child = os.fork()
    if not child:
        while True:
            kind, per_sidecar = chance.choice(SHAPES)
            write(Table(LocalStore(sys.argv[1])), kind, per_sidecar, version=chance.randrange(4))
            for path in Path(sys.argv[1], "_delta_log").glob("*.checkpoint.*"):
                # Work for ever: the damaged checkpoint stays.
                if path.stat().st_size and not path.name.startswith(f"{1:020}."):
                    path.unlink()
    time.sleep(chance.uniform(0.01, 0.25))
    os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.conformance("CKPT-25")
@pytest.mark.process
def test_killed_processes_leave_a_sound_table(
    world: World, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    root = on_disk(world.copy(), tmp_path / "table")
    repository = Path(__file__).parents[3]
    (tmp_path / "tmp").mkdir()
    kills = 15
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(tmp_path / "tmp"), "PATH": ""},
    ) as fork_server:
        assert fork_server.stdin is not None and fork_server.stdout is not None
        for seed in range(kills):
            print(seed, file=fork_server.stdin, flush=True)
            assert fork_server.stdout.readline() == "9\n", "the child ended by itself"
            world.check_versions(LocalStore(root))
        fork_server.stdin.close()
    for path in (root / "_delta_log").glob("*3.checkpoint.*"):
        path.unlink()
    assert write(Table(LocalStore(root))).status == "written"
    world.check_versions(LocalStore(root))
    count_cases("processes killed in the middle of checkpoints", kills)

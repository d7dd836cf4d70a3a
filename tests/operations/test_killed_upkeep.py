"""Processes killed in the middle of a vacuum, a clean-up and a compaction of the log.

Simulated crashes let a process run to the end of its `with` blocks; `kill -9` does not. Each
process here dies directly before or after one of its calls that change the disk.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import clean_log, compact_log, fsck, vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.logs.checkpointing import State, as_checkpointed, state_of
from tests.support.tables.actions import add, deletion_vector, features, metadata, remove
from tests.support.tables.vacuum_tables import Folder

KILLS = 7
ForkServer = Callable[[str, Path, int], int | None]
VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
LAST = 13
OLDEST = 9
"""The oldest version that a clean-up keeps."""
NEEDED = {f"f{LAST}", f"f{LAST - 1}", "vectored", VECTOR, "young"}
"""Files that the versions of the last week need, and files of a possible writer."""

FORK_SERVER = """
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.operations.test_killed_upkeep import OPERATIONS

def dying(call, of, at):
    def run(*arguments, **options):
        with lock:
            of.append(call)
            if len(of) == at and at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*arguments, **options)
            finally:
                # Also behind a call that fails, as where there is nothing to unlink.
                if len(of) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
    return run

lock = threading.Lock()
for line in sys.stdin:
    operation, root, at, told = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        calls = []
        for name in ("link", "replace", "rmdir", "unlink"):
            setattr(os, name, dying(getattr(os, name), calls, int(at)))
        OPERATIONS[operation](root)
        Path(told).write_text(str(len(calls)))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def vacuumed(root: str) -> str:
    table, now = Table(LocalStore(root)), clock.now()
    options = vacuum.VacuumOptions(allow_large_delete=True)
    return vacuum.apply(
        table,
        vacuum.plan(table.snapshot(), options, context=RunContext.at(now)),
        context=RunContext.at(now),
    ).status


def cleaned(root: str) -> str:
    table, now = Table(LocalStore(root)), clock.now()
    return clean_log.apply(
        table,
        clean_log.plan(table.snapshot(), context=RunContext.at(now)),
        context=RunContext.at(now),
    ).status


def compacted(root: str) -> str:
    table = Table(LocalStore(root))
    options = compact_log.CompactLogOptions(commits_per_file=3)
    planned = compact_log.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return compact_log.apply(table, planned).status


OPERATIONS = {"vacuum": vacuumed, "clean-log": cleaned, "compact-log": compacted}


def build(root: Path, now: datetime, *, checkpoints: bool) -> Folder:
    """A version every three days, each with another file; the last one two days ago."""
    first = [features("deletionVectors", "v2Checkpoint"), metadata(), add("f0")]
    table = Folder(root, now=now, first=first)
    table.log(add("vectored", dv=deletion_vector()), add("f1"), remove("f0"), days=57)
    for version in range(2, LAST + 1):
        days = 60 - 3 * version if version < LAST else 2
        gone_ms = epoch_millis(now) - days * 86_400_000
        gone = remove(f"f{version - 1}", deletionTimestamp=gone_ms)
        table.log(add(f"f{version}"), gone, days=days)
    if checkpoints:
        table.v2_checkpoint(4, sidecars=2)
        table.checkpoint(OLDEST)
    table.file(*(f"f{version}" for version in range(LAST + 1)), "vectored", VECTOR)
    table.file(*(f"p={number % 3}/orphan-{number}" for number in range(9)))
    table.file("young", days=0)
    return table


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Runs an operation in a process that dies at one of its calls, or counts the calls."""
    told = tmp_path_factory.mktemp("told") / "calls"
    with subprocess.Popen(
        [sys.executable, "-c", FORK_SERVER, str(Path(__file__).parents[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": ""},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def run(operation: str, root: Path, at: int) -> int | None:
            print(operation, root, at, told, sep="\t", file=lines, flush=True)
            answer = answers.readline()
            assert answer in ("-9\n", "0\n"), answer
            return int(told.read_text()) if answer == "0\n" else None

        yield run
        lines.close()


def states(root: Path, oldest: int) -> list[State]:
    """Returns every version from `oldest` on, as far as a checkpoint stores it."""
    table = Table(LocalStore(root))
    return [as_checkpointed(state_of(table.snapshot(version=v))) for v in range(oldest, LAST + 1)]


def commits(root: Path) -> list[int]:
    """The versions of the commits that are there."""
    log = root / "_delta_log"
    return sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())


def names(root: Path) -> set[str]:
    """Every file but what a run leaves of itself: its commits, and temporary files."""
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    own = {f"_delta_log/{commit_name(version)}" for version in range(LAST + 1, LAST + 9)}
    return {name for name in files - own if not name.endswith(".tmp")}


@pytest.mark.conformance("CLEAN-10", "CLEAN-11", "COMP-11", "VAC-03", "VAC-04", "VAC-06")
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_killed_process_leaves_every_retained_version(
    fork_server: ForkServer, tmp_path: Path, operation: str, count_cases: Callable[[str, int], None]
) -> None:
    build(tmp_path / "t", clock.now(), checkpoints=operation != "compact-log")
    oldest = OLDEST if operation == "clean-log" else 0
    before = states(tmp_path / "t", oldest)
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(tmp_path / "t", undisturbed)
    calls = fork_server(operation, undisturbed, 0)
    assert calls is not None and calls > KILLS
    for kill in range(KILLS):
        root = tmp_path / f"{kill}"
        shutil.copytree(tmp_path / "t", root)
        at = 1 + kill * (calls - 1) // (KILLS - 1)
        assert fork_server(operation, root, at) is None, f"call {at} was not reached"
        for finished in (False, True):
            assert states(root, oldest) == before
            assert names(root) >= NEEDED
            kept = commits(root)
            assert kept == list(range(kept[0], kept[-1] + 1))
            assert (
                fsck.plan(Table(LocalStore(root)), context=RunContext.at(clock.now())).status
                != "corrupt"
            )
            if not finished:
                OPERATIONS[operation](str(root))
        assert names(root) == names(undisturbed)
    count_cases(f"processes killed in the middle of {operation}", KILLS)

"""Real processes that write, checkpoint and clean one log at once, until SIGKILL ends them.

The simulation plays orders of calls; here the operating system does, and nothing is cleaned up on
the way out. `DELTA_MAINTENANCE_SIDECAR_KILLS` sets the number of rounds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import checkpoint, clean_log
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Checkpoint, LogListing, Table, list_log
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import EPOCH_MS, LOG, log_text

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_SIDECAR_KILLS", "4"))
LIVE = 30
"""Every version adds a file and removes the one that came so many versions before it."""
AGED_SECONDS = 1.5 * 86_400
PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
}

FORK_SERVER = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from tests.operations.checkpoint.test_incremental_processes import ROLES, warm_up

def checkpoints(root):
    names = os.listdir(os.path.join(root, "_delta_log"))
    return {name for name in names if ".checkpoint." in name and not name.startswith(".")}

# Forked processes shall not spend their time on imports.
warm_up()
for line in sys.stdin:
    root, seconds = line.rstrip("\\n").split("\\t")
    children, before = [], checkpoints(root)
    for role in (*ROLES, "keep"):
        child = os.fork()
        if not child:
            while True:
                ROLES[role](root)
        children.append(child)
    end = time.monotonic() + float(seconds)
    # On a busy machine, a checkpoint may take longer.
    while time.monotonic() < end or not (
        checkpoints(root) - before or time.monotonic() > end + 120
    ):
        time.sleep(0.01)
    for child in children:
        os.kill(child, signal.SIGKILL)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""


def begin(root: Path) -> None:
    """Creates the table."""
    lines = [features("v2Checkpoint"), metadata(configuration=PROPERTIES), add("f0")]
    LocalStore(str(root)).put_if_absent(f"{LOG}/{commit_name(0)}", log_text(lines))


def write(root: str) -> None:
    """Commits the next version."""
    store = LocalStore(root)
    version = max(list_log(store).commits) + 1
    gone = version - LIVE
    lines = [add(f"f{version}")]
    lines += [remove(f"f{gone}", deletionTimestamp=EPOCH_MS)] if gone >= 0 else []
    store.put_if_absent(f"{LOG}/{commit_name(version)}", log_text(lines))
    time.sleep(0.02)


def keep(root: str) -> bool:
    """Writes a checkpoint of the newest version; says whether it took sidecars over."""
    try:
        table = Table(LocalStore(root))
        snapshot = table.snapshot()
        for incremental in ("always", "auto"):
            options = CheckpointOptions(actions_per_sidecar=4, incremental=incremental)
            try:
                plan = checkpoint.plan(snapshot, options, context=RunContext.at(clock.now()))
            except RefusedError:
                continue
            return checkpoint.apply(table, plan, snapshot=snapshot).incremental
    except DeltaMaintenanceError:
        # A log that changes while it is read may have to be read again.
        pass
    return False


def clean(root: str) -> None:
    """Cleans the log up."""
    try:
        table = Table(LocalStore(root))
        clean_log.apply(
            table,
            clean_log.plan(table.snapshot(), context=RunContext.at(clock.now())),
            context=RunContext.at(clock.now()),
        )
    except DeltaMaintenanceError:
        pass


def warm_up() -> None:
    """Loads what the roles need."""
    with tempfile.TemporaryDirectory() as root:
        begin(Path(root))
        for role in ROLES.values():
            role(root)


ROLES = {"write": write, "keep": keep, "clean": clean}


def age(root: Path) -> None:
    """Everything in the log is some days older than it was; nobody is at work."""
    for path in (root / LOG).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - AGED_SECONDS
            os.utime(path, (then, then))


def is_half_cleaned(listing: LogListing) -> bool:
    """Whether a clean-up that was killed left a checkpoint without the commits after it."""
    oldest = max(listing.commits)
    while oldest - 1 in listing.commits:
        oldest -= 1
    return oldest > 0 and listing.checkpoints[0].version < oldest - 1


def require_sidecars(store: LocalStore, listing: LogListing) -> None:
    there = {status.path for status in store.list_from(f"{LOG}/_sidecars")}
    for files in listing.checkpoints:
        missing = set(Checkpoint(store, files, open_sidecars=False).sidecar_paths) - there
        assert not missing, f"{files.name} has lost {missing}"


def require_whole(root: Path) -> None:
    """Every checkpoint has its sidecars, and the versions at and around it are right."""
    store = LocalStore(str(root))
    listing = list_log(store)
    require_sidecars(store, listing)
    if is_half_cleaned(listing):
        # As designed: its commits go first, and an older checkpoint is left until the next time.
        clean(str(root))
        listing = list_log(store)
        require_sidecars(store, listing)
    first = 0 if 0 in listing.commits else listing.checkpoints[0].version
    last = max(listing.commits)
    versions = {v + more for v in (f.version for f in listing.checkpoints) for more in (-1, 0, 1)}
    for version in sorted({first, last, *versions}):
        if first <= version <= last:
            found = Table(store).snapshot(version=version).live_files()["path"].to_pylist()
            wanted = {f"f{n}" for n in range(max(0, version - LIVE + 1), version + 1)}
            assert sorted(found) == sorted(wanted), version


@pytest.fixture
def fork_server() -> Iterator[Callable[[Path, float], list[int]]]:
    """Lets a process of each role work for some seconds, and until a checkpoint is written, and
    kills them all.
    """
    with subprocess.Popen(
        [sys.executable, "-c", FORK_SERVER, str(Path(__file__).parents[3])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": ""},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def run(root: Path, seconds: float) -> list[int]:
            print(root, seconds, sep="\t", file=lines, flush=True)
            return [int(code) for code in answers.readline().split()]

        yield run
        lines.close()


@pytest.mark.conformance("CLEAN-08", "CLEAN-10", "CKPT-25")
def test_killed_processes_lose_no_sidecar(
    fork_server: Callable[[Path, float], list[int]],
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
) -> None:
    chance = random.Random(ROUNDS)
    begin(tmp_path)
    incremental = 0
    for number in range(ROUNDS):
        codes = fork_server(tmp_path, chance.uniform(0.3, 1.0))
        assert set(codes) == {-9}, "a process ended by itself"
        require_whole(tmp_path)
        # The newest checkpoint may be too old for the first one, or have no file in common.
        for _ in range(2):
            write(str(tmp_path))
            incremental += keep(str(tmp_path))
        if number % 3 == 2:
            # So that the log stays short, however far the killed ones came.
            clean(str(tmp_path))
        require_whole(tmp_path)
        age(tmp_path)
    count_cases("processes killed beside incremental checkpoints", 4 * ROUNDS)
    assert incremental, "no sidecar was ever taken over"
    assert not (tmp_path / LOG / commit_name(0)).exists(), "nothing was ever cleaned up"

"""Every verb killed with `kill -9` right after it made something visible in the table.

`DELTA_MAINTENANCE_KILLS` is the number of kills of each verb. The call after which a process dies
is drawn from all calls by which the verb changes a name below the root: links, replacements,
deletions and removed directories, but not those of temporary files. The judge replays the commits
by itself and reads the rows with PyArrow.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkpointing import as_checkpointed, state_of
from rewrites.data_files import inline_vector, parquet
from tests.properties.model import State, replay
from vacuum_tables import Folder, days_ago

from delta_maintenance import clock
from delta_maintenance.operations import fsck
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing.actions import add, features, metadata, remove

KILLS = int(os.environ.get("DELTA_MAINTENANCE_KILLS", "2"))
ROWS = 5
DELETED = (1, 3)
"""Positions that the deletion vector of one file takes away."""
VERSIONS = 14
OLDEST = 9
"""The oldest version of the retention."""
VERBS = {
    "checkpoint": ("checkpoint", "TABLE", "--kind", "v2-parquet", "--actions-per-sidecar", "4"),
    "checkpoint classic": ("checkpoint", "TABLE", "--kind", "classic"),
    "checksum": ("checksum", "TABLE"),
    "compact-log": ("compact-log", "TABLE", "--commits-per-file", "3"),
    "clean-log": ("clean-log", "TABLE"),
    "vacuum": ("vacuum", "TABLE", "--allow-large-delete"),
    "vacuum lite": ("vacuum", "TABLE", "--mode", "lite", "--allow-large-delete"),
    "fsck": ("fsck", "TABLE", "--repair"),
    "backfill-row-ids": ("backfill-row-ids", "TABLE", "--files-per-commit", "3"),
    "upgrade-protocol": ("upgrade-protocol", "TABLE", "--feature", "changeDataFeed"),
    "drop-feature": ("drop-feature", "TABLE", "--feature", "v2Checkpoint"),
    "set-properties": ("set-properties", "TABLE", "--set", "delta.checkpointInterval=7"),
    "add-constraint": ("add-constraint", "TABLE", "positive", "id >= 0"),
    "optimize": ("optimize", "TABLE"),
    "purge": ("purge", "TABLE"),
    "run": ("run", "POLICY"),
}
POLICY = """
version: 1
tables:
  - name: t
    uri: ROOT
    checkpoint: {max_commits: 3}
    compact_log: true
    clean_log: true
    vacuum: {every: 1 days}
"""
NURSERY = """
import os, signal, sys, threading
from pathlib import Path
from delta_maintenance.cli import main
import delta_maintenance.policies.run, pyarrow.parquet, pyarrow.acero
from delta_maintenance.operations.core.registry import operations
operations()

def add_constraint(root):
    # The command starts Spark to check the rows; here they satisfy the constraint anyway.
    from delta_maintenance import clock, open_table
    from delta_maintenance.operations import add_constraint
    from delta_maintenance.operations.add_constraint import CheckedRows
    table = open_table(root)
    options = add_constraint.AddConstraintOptions(name="positive", expression="id >= 0")
    planned = add_constraint.plan(table.snapshot(), options, now=clock.now())
    add_constraint.apply(table, planned, engine=lambda *_, **__: CheckedRows())
    return 0

def dying(name, call, root, made, at):
    def run(*arguments, **options):
        with lock:
            answer = call(*arguments, **options)
            if is_visible(name, arguments, options, root):
                made.append(name)
                if len(made) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return answer
    return run

def is_visible(name, arguments, options, root):
    target = os.fspath(arguments[1 if name in ("link", "replace") else 0])
    parent = options.get("dst_dir_fd", options.get("dir_fd"))
    if parent is not None:
        target = os.path.join(os.readlink(f"/proc/self/fd/{parent}"), target)
    return os.path.realpath(os.path.dirname(target)).startswith(root) and target[-4:] != ".tmp"

lock = threading.RLock()
for line in sys.stdin:
    root, at, told, *words = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        made = []
        for name in ("link", "replace", "rmdir", "unlink"):
            setattr(os, name, dying(name, getattr(os, name), os.path.realpath(root), made, int(at)))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        status = add_constraint(root) if words[0] == "add-constraint" else main.main(words)
        Path(told).write_text(f"{status} {len(made)}")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Nursery = Callable[[str, Path, int], tuple[int, int] | None]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Runs a verb in a process that is killed, or returns its exit status and changes."""
    scratch = tmp_path_factory.mktemp("nursery")
    told, policy = scratch / "told", scratch / "policy.yaml"
    errors = (scratch / "stderr").open("w+")
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def run(verb: str, root: Path, at: int) -> tuple[int, int] | None:
            policy.write_text(POLICY.replace("ROOT", str(root)))
            places = {"TABLE": str(root), "POLICY": str(policy)}
            words = [places.get(word, word) for word in VERBS[verb]]
            print(root, at, told, *words, sep="\t", file=lines, flush=True)
            answer = answers.readline()
            assert answer in ("-9\n", "0\n"), f"{answer} {(scratch / 'stderr').read_text()}"
            if answer == "-9\n":
                return None
            status, made = map(int, told.read_text().split())
            return status, made

        yield run
        lines.close()
    errors.close()


def build(root: Path, now: datetime, *, damaged: bool) -> None:
    """A version every four days, with files to merge, to purge and to delete."""
    first = [features("deletionVectors", "v2Checkpoint"), metadata()]
    table = Folder(root, now=now, first=first)
    for version in range(1, VERSIONS):
        days = 60 - 4 * version
        name = f"part-{version:05}-c000.snappy.parquet"
        data = parquet(pa.table({"id": range(ROWS * version, ROWS * (version + 1))}))
        lines = [add(name, size=len(data), stats=json.dumps({"numRecords": ROWS}))]
        if version == 2:
            lines[0]["add"]["deletionVector"] = inline_vector(DELETED)
        dead = f"part-{version:05}-dead.c000.snappy.parquet"
        lines += [add(dead, size=1, stats='{"numRecords":1}')]
        if version > 1:
            gone = f"part-{version - 1:05}-dead.c000.snappy.parquet"
            lines += [remove(gone, deletionTimestamp=days_ago(days, now))]
        table.log(*lines, days=days)
        table.file(name, data=data, days=days)
        table.file(dead, days=days, data=parquet(pa.table({"id": [-version]})))
    table.log(remove(dead, deletionTimestamp=days_ago(1, now)), days=1)
    for number in range(4):
        table.file(f"left/over-{number}/part-0000{number}-c000.snappy.parquet")
    for number in range(4):
        table.touch(f"left/over-{number}", days_ago(40, now))
    table.touch("left", days_ago(40, now))
    table.checkpoint(4)
    table.checkpoint(OLDEST)
    if damaged:
        log = root / "_delta_log"
        whole = log / f"{OLDEST:020}.checkpoint.parquet"
        whole.write_bytes(whole.read_bytes()[:100])
        (log / "_last_checkpoint").write_text('{"version":')
        empty = log / f"{11:020}.checkpoint.parquet"
        empty.touch()
        os.utime(empty, (0, 0))


def commits(root: Path) -> dict[int, bytes]:
    """Each commit, as its file has it."""
    log = root / "_delta_log"
    return {int(path.stem): path.read_bytes() for path in log.glob("*.json") if path.stem.isdigit()}


class Judge:
    """The table before anything was run on it, and what must still be true of it."""

    def __init__(self, root: Path) -> None:
        self.texts = commits(root)
        self.latest = max(self.texts)
        states = self._states(self.texts)
        self.rows = self._rows(root, states[-1])
        assert len(self.rows) == ROWS * (VERSIONS - 1) - len(DELETED)

    def check(self, root: Path) -> int:
        """The latest version; fails where something is lost."""
        found = commits(root)
        assert all(self.texts[v] == text for v, text in found.items() if v <= self.latest)
        kept = sorted(found)
        assert kept == list(range(kept[0], kept[-1] + 1)) and kept[0] <= OLDEST
        states = self._states(self.texts | found)
        assert self._rows(root, states[-1]) == self.rows
        table = Table(LocalStore(root))
        for version in {OLDEST, self.latest, kept[-1]}:
            read = as_checkpointed(state_of(table.snapshot(version=version)))
            own = as_checkpointed(states[version])
            assert (read.live, read.protocol, read.metadata) == (
                own.live,
                own.protocol,
                own.metadata,
            )
            # Checkpoints may leave expired tombstones out.
            assert read.tombstones.items() <= own.tombstones.items()
        (young, _), *_ = [
            key for key in states[self.latest].tombstones if f"{VERSIONS - 1:05}" in key[0]
        ]
        assert (root / young).is_file(), "the file of an unexpired tombstone is gone"
        return kept[-1]

    def _states(self, texts: dict[int, bytes]) -> list[State]:
        actions = [[json.loads(line) for line in texts[v].splitlines()] for v in sorted(texts)]
        return [replay(actions[: version + 1]) for version in range(len(actions))]

    def _rows(self, root: Path, state: State) -> list[int]:
        rows: list[int] = []
        for (path, _), file in state.live.items():
            values = pq.read_table(root / path, columns=["id"])["id"].to_pylist()
            gone = DELETED if "deletionVector" in file else ()
            rows += [value for at, value in enumerate(values) if at not in gone]
        return sorted(rows)


@pytest.mark.process
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_killed_after_a_visible_change_loses_nothing_and_the_next_run_completes(
    nursery: Nursery, tmp_path: Path, verb: str, count_cases: Callable[[str, int], None]
) -> None:
    whole = tmp_path / "t"
    build(whole, clock.now(), damaged=verb == "fsck")
    judge = Judge(whole)
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(whole, undisturbed)
    done = nursery(verb, undisturbed, 0)
    assert done is not None and done[0] == 0 and done[1] > 0, done
    judge.check(undisturbed)
    chance = random.Random(f"kill {verb}")
    for kill in range(KILLS):
        root = tmp_path / f"killed-{kill}"
        shutil.copytree(whole, root)
        kill_once(nursery, judge, verb, root, chance.randint(1, done[1]))
        shutil.rmtree(root)
    count_cases(f"kills right after a visible change, {verb}", KILLS)


def kill_once(nursery: Nursery, judge: Judge, verb: str, root: Path, at: int) -> None:
    """Kills the verb after its change number `at`, and lets another run finish its work."""
    assert nursery(verb, root, at) is None, f"change {at} was not reached"
    judge.check(root)
    again = nursery(verb, root, 0)
    assert again is not None and again[0] == 0, (at, again)
    judge.check(root)
    assert fsck.plan(Table(LocalStore(root)), now=clock.now()).status != "corrupt", at

"""Kills of a verb with `kill -9` right after it made something visible in the table.

The call after which a process dies is drawn from all calls by which the verb changes a name below
the root: links, replacements, deletions and removed directories, but not those of temporary files.
The judge replays the commits by itself and reads the rows with PyArrow.

    python -m tests.operations.visible_kills --first 0 --cases 1200 --log kills.log

plays 50 kills of each verb: kill `n` is that of verb `n % 24`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance import clock
from delta_maintenance.operations import fsck, keep_version
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.deleted_rows import DeletedRows
from delta_maintenance.table.read import Table
from tests.operations.verb_fork_server import VERBS, ForkServer, fork_server
from tests.properties.model import State, replay
from tests.support.logs.checkpointing import as_checkpointed, state_of
from tests.support.rewrites.data_files import inline_vector, parquet
from tests.support.suite import seed_runs
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.vacuum_tables import Folder, days_ago

ROWS = 5
DELETED = (1, 3)
"""Positions that the deletion vector of one file takes away."""
VERSIONS = 14
OLDEST = 9
"""The oldest version of the retention."""
HELD = 6
"""The version that a held table keeps."""
_DAY = 24 * 60 * 60
EXPIRED = timedelta(days=30)
"""The age from which on the verb `expire` removes rows."""
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": "long", "nullable": True, "metadata": {}}
            for name in ("id", "at")
        ],
    }
)


def build(root: Path, now: datetime, *, damaged: bool) -> None:
    """A version every four days, with files to merge, to purge and to delete.

    The rows of a file are a day apart, so one file has expired rows and others.
    """
    allowed = {"delta.enableDeletionVectors": "true"}
    first = [
        features("deletionVectors", "v2Checkpoint"),
        metadata(schema=SCHEMA, configuration=allowed),
    ]
    table = Folder(root, now=now, first=first)
    for version in range(1, VERSIONS):
        days = 60 - 4 * version
        name = f"part-{version:05}-c000.snappy.parquet"
        ids = range(ROWS * version, ROWS * (version + 1))
        times = [int(now.timestamp()) - days * _DAY + at * _DAY for at in range(ROWS)]
        data = parquet(pa.table({"id": ids, "at": times}))
        stats = {
            "numRecords": ROWS,
            "minValues": {"at": times[0]},
            "maxValues": {"at": times[-1]},
            "nullCount": {"at": 0},
        }
        lines = [add(name, size=len(data), stats=json.dumps(stats))]
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
        rows = self._rows(root, states[-1])
        assert len(rows) == ROWS * (VERSIONS - 1) - len(DELETED)
        self.rows = [each for each, _ in rows]
        limit = (clock.now() - EXPIRED).timestamp()
        self.unexpired = [each for each, time in rows if time >= limit]
        assert 0 < len(self.unexpired) < len(rows)
        self.held = {path for path, _ in states[HELD].live} if _has_holder(root) else set()
        assert not self.held or self.held - {path for path, _ in states[-1].live}

    def check(self, root: Path, *, expires: bool = False, ended: bool = False) -> int:
        """The latest version; fails where something is lost.

        `expires` allows that expired rows are gone, and demands it after an undisturbed end.
        """
        found = commits(root)
        assert all(self.texts[v] == text for v, text in found.items() if v <= self.latest)
        kept = sorted(found)
        assert kept == list(range(kept[0], kept[-1] + 1)) and kept[0] <= OLDEST
        states = self._states(self.texts | found)
        rows = [each for each, _ in self._rows(root, states[-1])]
        if not expires:
            assert rows == self.rows
        elif ended:
            assert rows == self.unexpired
        else:
            assert set(self.unexpired) <= set(rows) <= set(self.rows), rows
        assert all((root / path).is_file() for path in self.held), "a held file is gone"
        table = Table(LocalStore(root))
        for version in {OLDEST, self.latest, kept[-1], *([HELD] if self.held else [])}:
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

    def _rows(self, root: Path, state: State) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for (path, _), file in state.live.items():
            data = pq.read_table(root / path)
            vector = file.get("deletionVector")
            descriptor = vector and DeletionVectorDescriptor.from_json(vector)
            gone = set(DeletedRows(LocalStore(root)).of(descriptor, data.num_rows))
            values = zip(data["id"].to_pylist(), data["at"].to_pylist(), strict=True)
            rows += [value for at, value in enumerate(values) if at not in gone]
        return sorted(rows)


def _has_holder(root: Path) -> bool:
    return (root / "_delta_log" / "_kept_versions").is_dir()


@contextmanager
def kills(scratch: Path) -> Iterator[Kills]:
    """Starts the process that forks the processes to be killed."""
    with fork_server(scratch) as verbs:
        yield Kills(verbs, scratch)


@dataclass(frozen=True)
class Subject:
    """A table before a verb runs on it."""

    root: Path
    judge: Judge
    changes: int
    """The number of visible changes that the verb makes."""


class Kills:
    """Kills verbs, each on a copy of a table that is built once."""

    def __init__(self, fork_server: ForkServer, scratch: Path) -> None:
        self._fork_server = fork_server
        self._scratch = scratch
        self._judges: dict[str, Judge] = {}
        self._subjects: dict[str, Subject] = {}

    def kill(self, verb: str, number: int) -> None:
        """Kills the verb after one of its changes, and lets another run finish its work."""
        subject = self._subject(verb)
        at = random.Random(f"kill {verb} {number}").randint(1, subject.changes)
        expires = verb.startswith("expire")
        with self._copy(subject.root) as root:
            assert self._fork_server(verb, root, at) is None, f"change {at} was not reached"
            subject.judge.check(root, expires=expires)
            again = self._fork_server(verb, root, 0)
            assert again is not None and again.status == 0, (at, again)
            subject.judge.check(root, expires=expires, ended=True)
            status = fsck.plan(Table(LocalStore(root)), context=RunContext.at(clock.now())).status
            assert status != "corrupt", at

    def _subject(self, verb: str) -> Subject:
        if verb not in self._subjects:
            kind = kind_of(verb)
            whole = self._scratch / f"whole-{kind}"
            if kind not in self._judges:
                build_kind(kind, whole)
                self._judges[kind] = Judge(whole)
            judge = self._judges[kind]
            with self._copy(whole) as undisturbed:
                done = self._fork_server(verb, undisturbed, 0)
                assert done is not None and done.status == 0 and done.count > 0, done
                judge.check(undisturbed, expires=verb.startswith("expire"), ended=True)
            self._subjects[verb] = Subject(whole, judge, done.count)
        return self._subjects[verb]

    @contextmanager
    def _copy(self, whole: Path) -> Iterator[Path]:
        root = self._scratch / "copy"
        shutil.copytree(whole, root)
        try:
            yield root
        finally:
            shutil.rmtree(root)


def kind_of(verb: str) -> str:
    """The kind of table on which a verb has work to do."""
    if verb == "fsck":
        return "damaged"
    return "held" if verb.endswith(" held") else "neglected"


def build_kind(kind: str, root: Path) -> None:
    """Builds a table of a kind."""
    build(root, clock.now(), damaged=kind == "damaged")
    if kind == "held":
        now = RunContext.at(clock.now())
        options = keep_version.KeepVersionOptions(name="audit", keep=HELD)
        table = Table(LocalStore(root))
        keep_version.apply(table, keep_version.plan(table.snapshot(), options, now), now)


_open = ExitStack()


def _prepare() -> seed_runs.Play:
    scratch = _open.enter_context(tempfile.TemporaryDirectory(prefix="kills-"))
    ours = _open.enter_context(kills(Path(scratch)))

    def play(seed: int) -> list[str]:
        number, verb = divmod(seed, len(VERBS))
        try:
            ours.kill(list(VERBS)[verb], number)
        except AssertionError as error:
            return [f"{list(VERBS)[verb]}: {str(error)[:100]} | {error}"]
        return []

    return play


if __name__ == "__main__":
    everything = 50 * len(VERBS)
    sys.exit(seed_runs.main("visible_kills", _prepare, cases=everything, end=_open.close))

"""One table and the invariants that hold at any moment.

The snapshots of the library are compared with the states of the ledger.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import unquote

from delta_maintenance.errors import VersionNotFoundError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus, Put, Store
from delta_maintenance.table.read import Table
from tests.properties.model import Key, State, state_of
from tests.simulation.ledger import SKEW_MS, Ledger
from tests.support.tables.actions import Action

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LOG = "_delta_log/"
HINT = f"{LOG}_last_checkpoint"
UNCONDITIONAL = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
"""The `engineInfo` of commits that may overwrite others."""
OWN_ENGINE = b'"engineInfo":"delta-maintenance/'
_COMMIT = re.compile(rf"{LOG}(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}(\d{{20}})\.checkpoint\..*")
_COMPACTION = re.compile(rf"{LOG}(\d{{20}})\.(\d{{20}})\.compacted\.json")
_HINTS = (HINT, f"{LOG}_last_vacuum_info")


class World:
    """The table in its store, the current time, and the judge of both."""

    def __init__(self, chance: random.Random, *, data_retention_ms: int, now_ms: int) -> None:
        self.chance = chance
        self.now_ms = now_ms
        self.data_retention_ms = data_retention_ms
        self.ledger = Ledger()
        self.store = _Witness(self)
        self.oldest = 0
        """The first version that must open: earlier history may have been deleted."""
        self.truncated = False
        """Whether a task truncates the history, which takes a day."""
        self.hold = False
        """Whether a leap in time is due, for which all actors must be between tasks."""
        self.at_work: dict[str, int] = {}
        """The start of the current task of each actor."""
        self.wanted_back: dict[str, set[str]] = {}
        """Files that each writer has seen and is about to restore."""
        self.quiet_ms = 0
        """How long no other writer may have committed before a commit of this library."""
        self.resting: dict[str, int] = {}
        """The time until which each actor waits that lets time pass."""
        self.late: list[tuple[str, bytes]] = []
        """Commits in flight."""
        self.checks = 0
        self._numbers = 0
        self._checked: set[str] = set()

    def new_id(self) -> str:
        """A UUID that depends on the seed."""
        self._numbers += 1
        digits = f"{self.chance.getrandbits(64):016x}{self._numbers:016x}"
        return "-".join(re.fullmatch("(.{8})(.{4})(.{4})(.{4})(.{12})", digits).groups())  # type: ignore[union-attr]

    def judge_quiet(self, listed_ms: int) -> None:
        """Checks that no other writer had committed in the quiet window when an actor of ours that
        is about to commit last listed the log."""
        commits = zip(self.ledger.times_ms, self.ledger.texts, strict=True)
        foreign_ms = max(ms for ms, text in commits if ms <= listed_ms and OWN_ENGINE not in text)
        age_ms = self.now_ms - foreign_ms
        assert age_ms >= self.quiet_ms, f"another writer committed {age_ms} ms ago"

    def deliver(self) -> None:
        """Lets a commit arrive that was in flight."""
        self.store.put_if_absent(*self.late.pop())

    def delete(self, path: str, *, seen: int) -> bool:
        """Deletes a data file for an actor whose last listing of the log showed version `seen`.

        Returns whether the file came into use after that. Such a file is kept, as is one that is
        about to: no vacuum can prevent this, and users who restore a table must restore files that
        are gone from a backup.
        """
        ledger = self.ledger
        before_ms = self.now_ms + SKEW_MS - self.data_retention_ms
        for state in ledger.states[seen:]:
            if path in files_of(state.live.values()):
                assert state is not ledger.states[seen], f"{path} is in use, and was deleted"
                return True
        young = [r for r in ledger.latest.tombstones.values() if _deleted_at(r) > before_ms]
        assert path not in files_of(young), f"{path} is in an unexpired tombstone, and was deleted"
        status = self.store.stat(path)
        assert status is None or status.modified_ms <= before_ms, f"{path} is young"
        if not any(path in files for files in self.wanted_back.values()):
            self.store.delete(path)
        return False

    def advance_promise(self) -> None:
        """Removes versions from the judge that no retention requires any more."""
        configuration = (self.ledger.latest.metadata or {})["configuration"]
        days = int(configuration["delta.logRetentionDuration"].split()[1])
        kept_ms = DAY_MS if self.truncated else days * DAY_MS
        gone_ms = self.now_ms - kept_ms + 2 * SKEW_MS
        old = [v for v, time in enumerate(self.ledger.times_ms) if time <= gone_ms]
        self.oldest = max(self.oldest, max(old, default=0))

    def check(self, *, every_version: bool = False) -> None:
        """The invariants that hold between any two steps of any actor."""
        self.checks += 1
        self.advance_promise()
        paths = [status.path for status in self.store.list_from("_delta_log")]
        self._check_commits(paths)
        self._check_files()
        versions = set(self._versions_to_open(paths))
        if every_version:
            versions |= set(range(len(self.ledger.states)))
        for version in sorted(versions):
            for hidden in self._ways(paths, version, every_version):
                self._check_version(version, hidden)
        self._checked.update(paths)

    def _check_commits(self, paths: Collection[str]) -> None:
        found = {int(m[1]): p for p in paths if (m := _COMMIT.fullmatch(p))}
        newest = len(self.ledger.texts) - 1
        assert max(found) == newest
        assert sorted(found) == list(range(min(found), newest + 1)), f"gap in {sorted(found)}"
        assert min(found) <= self.oldest, "a commit is gone that is to be kept"
        for version, path in found.items():
            assert self.store.read(path) == self.ledger.texts[version], f"{path} was changed"

    def _check_files(self) -> None:
        latest = self.ledger.latest
        before_ms = self.now_ms + SKEW_MS - self.data_retention_ms
        young = [r for r in latest.tombstones.values() if _deleted_at(r) > before_ms]
        for path in files_of([*latest.live.values(), *young]):
            assert self.store.stat(path) is not None, f"{path} is gone"

    def _versions_to_open(self, paths: Collection[str]) -> Iterator[int]:
        newest = len(self.ledger.states) - 1
        yield newest
        yield self.oldest
        yield self.chance.randint(self.oldest, newest)
        for path in paths:
            if path not in self._checked and _last_version(path) >= 0:
                yield max(self.oldest, _last_version(path))

    def _ways(
        self, paths: Collection[str], version: int, every_one: bool
    ) -> Collection[frozenset[str]]:
        """Sets of files of the log that a reader of the version does not need."""
        hints = frozenset({HINT})
        compactions = frozenset(p for p in paths if _COMPACTION.fullmatch(p))
        ways = [frozenset[str](), hints, compactions, hints | compactions]
        if f"{LOG}{0:020d}.json" in paths:
            checkpoints = frozenset(p for p in paths if _CHECKPOINT.fullmatch(p))
            ways += [checkpoints | hints, checkpoints | hints | compactions]
        if not every_one:
            return [self.chance.choice(ways)]
        # Without files that are absent, or newer than the version, many of these sets are equal.
        present = {p for p in paths if p == HINT or _last_version(p) <= version}
        return dict.fromkeys(way & present for way in ways)

    def _check_version(self, version: int, hidden: frozenset[str]) -> None:
        try:
            snapshot = Table(Without(self.store, hidden)).snapshot(version=version)
        except VersionNotFoundError:
            assert version < self.oldest, f"version {version} is to be kept, and is gone"
            return
        assert snapshot.warnings == (), snapshot.warnings
        found, expected = _standing(state_of(snapshot)), _standing(self.ledger.states[version])
        before_ms = self.now_ms + SKEW_MS - self.data_retention_ms
        kept = {
            key: remove
            for key, remove in expected.tombstones.items()
            if key in found.tombstones or _deleted_at(remove) > before_ms
        }
        wanted = replace(expected, tombstones=kept)
        assert found == wanted, f"version {version} without {set(hidden)}: {found} is no {wanted}"


class Without(Store):
    """A store without some files, for readers."""

    def __init__(self, store: Store, hidden: Collection[str]) -> None:
        self.address = store.address
        self._store, self._hidden = store, hidden

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        files = self._store.list_from(directory, start)
        return (status for status in files if status.path not in self._hidden)

    def stat(self, path: str) -> FileStatus | None:
        return None if path in self._hidden else self._store.stat(path)

    def read(self, path: str) -> bytes:
        if path in self._hidden:
            raise FileNotFoundError(path)
        return self._store.read(path)

    def open(self, path: str) -> BinaryIO:
        if path in self._hidden:
            raise FileNotFoundError(path)
        return self._store.open(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        raise AssertionError("a reader writes nothing")

    put = create = delete = put_if_absent  # type: ignore[assignment]


class _Witness(MemoryStore):
    """The store of the table, which records each commit at the moment when it is made."""

    def __init__(self, world: World) -> None:
        super().__init__(now_ms=lambda: world.now_ms)
        self._world = world

    def put_if_absent(self, path: str, data: bytes) -> Put:
        put = super().put_if_absent(path, data)
        if put is Put.DONE and (match := _COMMIT.fullmatch(path)):
            self._world.ledger.take(int(match[1]), data, now_ms=self._world.now_ms)
            self._world.advance_promise()
        return put

    def put(self, path: str, data: bytes) -> None:
        match = _COMMIT.fullmatch(path)
        if match and f'"{UNCONDITIONAL}"'.encode() in data:
            if self.put_if_absent(path, data) is Put.EXISTS:
                super().put(path, data)
                self._world.ledger.overwrite(int(match[1]), data, now_ms=self._world.now_ms)
            return
        assert match is None, f"{path} was put without a condition"
        assert path in _HINTS or path.endswith(".tmp") or self.stat(path) is None, (
            f"{path} was overwritten"
        )
        super().put(path, data)


def _last_version(path: str) -> int:
    """The version of a checkpoint, or the last one of a compaction; -1 for other files."""
    match = _CHECKPOINT.fullmatch(path) or _COMPACTION.fullmatch(path)
    return int(match.groups()[-1]) if match else -1


def is_commit(path: str) -> bool:
    """Whether the file is a commit of the log."""
    return _COMMIT.fullmatch(path) is not None


def files_of(actions: Collection[Action]) -> set[str]:
    """The data files and deletion vector files that these file actions name."""
    found = set()
    for action in actions:
        found.add(unquote(action["path"]))
        vector = action.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            found.add(vector_path(vector["pathOrInlineDv"]))
    return found


def vector_path(text: str) -> str:
    """The file of a `u` vector: a prefix, and a UUID in Z85."""
    prefix, digits = text[:-20], text[-20:]
    blocks = [digits[at : at + 5] for at in range(0, 20, 5)]
    value = "".join(f"{_z85(block):08x}" for block in blocks)
    parts = (value[:8], value[8:12], value[12:16], value[16:20], value[20:])
    name = f"deletion_vector_{'-'.join(parts)}.bin"
    return f"{prefix}/{name}" if prefix else name


Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _standing(state: State) -> State:
    """The state without the parts that checkpoints lack, and without those that only they have."""

    def standing(files: Mapping[Key, Action], passing: Collection[str]) -> dict[Key, Action]:
        return {
            key: {name: value for name, value in file.items() if name not in passing}
            for key, file in files.items()
        }

    passing = ("dataChange", "stats_parsed", "partitionValues_parsed")
    return replace(
        state,
        live=standing(state.live, passing),
        tombstones=standing(state.tombstones, (*passing, "stats")),
    )


def _z85(block: str) -> int:
    value = 0
    for digit in block:
        value = value * 85 + Z85.index(digit)
    return value


def _deleted_at(remove: Action) -> int:
    return int(remove.get("deletionTimestamp", 0))

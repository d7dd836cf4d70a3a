"""One table, all commits to it, and the invariants that hold at any moment.

The judge shares no code with the library: it records commits as they arrive and replays them with
dicts, one action at a time. The snapshots of the library are compared with the result.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO
from urllib.parse import unquote

from delta_maintenance.errors import VersionNotFoundError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus, Put, Store
from delta_maintenance.table.read import Table
from tests.properties.model import Key, State, state_of
from tests.support.tables.actions import Action, dv_id

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SKEW_MS = 120_000
"""The most that the clock of an actor may be wrong."""
LOG = "_delta_log/"
HINT = f"{LOG}_last_checkpoint"
MARK = "delta.rowTracking"
UNCONDITIONAL = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
"""The `engineInfo` of commits that may overwrite others."""
OWN_ENGINE = b'"engineInfo":"delta-maintenance/'
_COMMIT = re.compile(rf"{LOG}(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}(\d{{20}})\.checkpoint\..*")
_COMPACTION = re.compile(rf"{LOG}(\d{{20}})\.(\d{{20}})\.compacted\.json")
_HINTS = (HINT, f"{LOG}_last_vacuum_info")


@dataclass(frozen=True)
class Effect:
    """The effect of a commit on the rows of the table, as intended by its writer."""

    inserted: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class Ledger:
    """All commits, and the state after each. Every commit is checked when it arrives."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.states: list[State] = []
        self.times_ms: list[int] = []
        """The time when the store received each commit."""
        self.operations: list[str] = []
        self.owners: dict[str, int] = {}
        """The version of each transaction id."""
        self.tasks: dict[str, int] = {}
        """The version of each operation id that stands for one commit."""
        self.rows_of: dict[str, frozenset[str]] = {}
        """The rows of each data file, by its path in the log."""
        self.deleted_by: dict[str, frozenset[str]] = {}
        """The rows that each deletion vector removes, by its unique ID."""
        self.effects: dict[str, Effect] = {}
        """Declared by writers before they commit, by transaction ID. Other commits move no row."""
        self.row_ids: dict[str, tuple[int, int]] = {}
        """The base row ID and commit version of each path, while row tracking is enabled."""
        self.overwritten: dict[str, int] = {}
        """The version of each transaction ID whose commit another one replaced. From the first one
        on, files and rows need not be as their writers intended."""
        self._given: list[tuple[int, int]] = []
        self._mark = -1
        self.in_commit_ms: int | None = None

    @property
    def latest(self) -> State:
        return self.states[-1]

    def rows(self, state: State) -> frozenset[str]:
        """The rows of the table; each is in one file."""
        rows = self.rows_of_files(state)
        assert len(rows) == len(set(rows)), "a row stands in two live files"
        return frozenset(rows)

    def rows_of_files(self, state: State) -> list[str]:
        """The rows of all live files, also where files have rows in common."""
        rows: list[str] = []
        for path, vector in state.live:
            rows += self.rows_of[path] - self.deleted_by.get(vector or "", frozenset())
        return rows

    def take(self, version: int, text: bytes, *, now_ms: int) -> None:
        assert version == len(self.states), f"version {version} was committed out of its turn"
        lines = [json.loads(line) for line in text.splitlines()]
        info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
        before = self.latest if self.states else State()
        after = State(
            before.protocol,
            before.metadata,
            dict(before.txns),
            dict(before.domains),
            dict(before.live),
            dict(before.tombstones),
        )
        after.apply(lines)
        adds = [line["add"] for line in lines if "add" in line]
        removes = [line["remove"] for line in lines if "remove" in line]
        operation = info["operation"]
        self._own(version, info)
        if not self.overwritten:
            if version:
                self._judge_protocol(before, after, operation)
                self._judge_files(before, after, removes, info)
            self._judge_time(before, after, lines[0], now_ms)
            self._judge_row_ids(version, after, adds)
        self.texts.append(text)
        self.states.append(after)
        self.times_ms.append(now_ms)
        self.operations.append(operation)

    def overwrite(self, version: int, text: bytes, *, now_ms: int) -> None:
        """Takes a commit in the place of another one, and again those that follow it."""
        later = list(zip(self.texts[version + 1 :], self.times_ms[version + 1 :], strict=True))
        for by_version in (self.texts, self.states, self.times_ms, self.operations):
            del by_version[version:]
        gone = {name: at for name, at in self.owners.items() if at >= version}
        self.overwritten |= {name: at for name, at in gone.items() if at == version}
        self.owners = {name: at for name, at in self.owners.items() if at < version}
        self.tasks = {name: at for name, at in self.tasks.items() if at < version}
        self.take(version, text, now_ms=now_ms)
        for later_text, later_ms in later:
            self.take(len(self.states), later_text, now_ms=later_ms)

    def intended_rows(self) -> frozenset[str]:
        """The rows that the remaining commits inserted, without those that they deleted."""
        rows = frozenset[str]()
        for name in sorted(self.owners, key=self.owners.__getitem__):
            effect = self.effects.get(name, Effect())
            rows = (rows | effect.inserted) - effect.deleted
        return rows

    def _own(self, version: int, info: Mapping[str, Any]) -> None:
        owner = self.owners.setdefault(info["txnId"], version)
        assert owner == version, f"versions {owner} and {version} are one transaction"
        task = info.get("operationId", "")
        # Files that lost their row IDs in the meantime may get others from the same task.
        if task.startswith("task") and "/batch" not in task:
            first = self.tasks.setdefault(task, version)
            assert first == version, f"versions {first} and {version} are the same task"

    def _judge_protocol(self, before: State, after: State, operation: str) -> None:
        assert before.protocol and after.protocol
        assert before.metadata and after.metadata
        assert before.metadata["id"] == after.metadata["id"]
        if operation == "DROP FEATURE":
            return
        for name in ("minReaderVersion", "minWriterVersion"):
            assert after.protocol[name] >= before.protocol[name], "the protocol was lowered"
        # The only legacy versions here are 1 and 2.
        implied: Mapping[str, tuple[str, ...]]
        implied = {"readerFeatures": (), "writerFeatures": ("appendOnly", "invariants")}
        for name in implied:
            listed = set(before.protocol.get(name, implied[name]))
            lost = listed - set(after.protocol.get(name, listed))
            assert not lost, f"{operation} lost the features {lost}"

    def _judge_files(
        self, before: State, after: State, removes: list[Action], info: Mapping[str, Any]
    ) -> None:
        if info["operation"] != "Deletion Vector Tombstones":
            for remove in removes:
                key = remove["path"], dv_id(remove)
                assert key in before.live, f"{key} was removed, and was not there"
        paths = [path for path, _ in after.live]
        assert len(paths) == len(set(paths)), "a path is live with two deletion vectors"
        effect = self.effects.get(info["txnId"], Effect())
        rows = self.rows(after)
        wanted = (self.rows(before) | effect.inserted) - effect.deleted
        assert rows == wanted, f"rows lost: {wanted - rows}, rows too many: {rows - wanted}"

    def _judge_time(self, before: State, after: State, first: Action, now_ms: int) -> None:
        previous = self.in_commit_ms
        self.in_commit_ms = None
        if is_on(after, "delta.enableInCommitTimestamps") and has(after, "inCommitTimestamp"):
            self.in_commit_ms = first["commitInfo"]["inCommitTimestamp"]
            if previous is None and self.times_ms:
                previous = self.times_ms[-1]
            assert previous is None or self.in_commit_ms > previous, "time stood still"
            latest = max(now_ms + SKEW_MS, (previous or 0) + 1)
            assert self.in_commit_ms <= latest, f"{self.in_commit_ms - latest} ms ahead of time"

    def _judge_row_ids(self, version: int, after: State, adds: list[Action]) -> None:
        if not has(after, "rowTracking"):
            self.row_ids, self._given, self._mark = {}, [], -1
            return
        suspended = is_on(after, "delta.rowTrackingSuspended")
        for add in adds:
            base, since = add.get("baseRowId"), add.get("defaultRowCommitVersion")
            if suspended and base is None:
                self.row_ids.pop(add["path"], None)
                continue
            assert base is not None and since is not None, f"{add['path']} has no row IDs"
            if add["path"] in self.row_ids:
                assert self.row_ids[add["path"]] == (base, since), "row IDs changed"
                continue
            assert since == version, "new row IDs are of another version"
            end = base + len(self.rows_of[add["path"]])
            clash = [(b, e) for b, e in self._given if base < e and b < end]
            assert not clash, f"row IDs {base} to {end} were given before: {clash}"
            self._given.append((base, end))
            self.row_ids[add["path"]] = base, since
        if MARK in after.domains:
            mark = json.loads(after.domains[MARK])["rowIdHighWaterMark"]
            assert mark >= self._mark, "the high-water mark fell"
            self._mark = mark
        assert self._mark >= max((end - 1 for _, end in self._given), default=-1)
        if is_on(after, "delta.enableRowTracking"):
            lacking = [key for key, add in after.live.items() if add.get("baseRowId") is None]
            assert not lacking, f"row tracking is enabled, and {lacking} have no row IDs"


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


def is_on(state: State, name: str) -> bool:
    return bool((state.metadata or {})["configuration"].get(name) == "true")


def has(state: State, feature: str) -> bool:
    """Whether the protocol lists the feature."""
    return feature in (state.protocol or {}).get("writerFeatures", ())


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

"""A table with kept versions, streams and clones, and everything that may delete its files.

Every holder was promised versions or files. After each step the world compares the store with these
promises, by paths that it wrote down itself when the promise was made.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError, VersionNotFoundError
from delta_maintenance.operations import (
    checkpoint,
    clean_log,
    erasure_report,
    expire,
    keep_version,
    purge,
    vacuum,
)
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import ErasureReportOptions
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.holds import Holders, Reader
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.protocol.vacuum import deletion_vector_paths
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader
from delta_maintenance.table.read import Snapshot, Table
from tests.support.tables.actions import Action, add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

TABLE_ID = "6b4d8fd0-5bd6-4cf2-9f4c-b6f2ab4f9b3e"
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("day", "date"))
        ],
    }
)
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.logRetentionDuration": "interval 7 days",
}
LIMIT = timedelta(days=20)
STEPS = int(os.environ.get("DELTA_MAINTENANCE_STEPS", "25"))


@dataclass(slots=True)
class Stream:
    """A query that has read all versions before `unread`."""

    address: str
    unread: int
    in_snapshot: bool
    batch: int = 0


@dataclass(slots=True)
class World:
    """One table, its holders, and what they were promised."""

    seed: int
    random: random.Random = field(init=False)
    now: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows: dict[int, date] = field(default_factory=dict)
    """The live rows: the day of each ID."""
    ids_of: dict[str, list[int]] = field(default_factory=dict)
    keeps: dict[str, tuple[datetime | None, frozenset[str], int]] = field(default_factory=dict)
    """The end, the files and the version of each kept version."""
    streams: list[Stream] = field(default_factory=list)
    clones: dict[str, frozenset[str]] = field(default_factory=dict)
    """The files of the table that each clone needs, by the address of the clone."""
    commits: dict[int, frozenset[str]] = field(default_factory=dict)
    """The files that each commit adds or removes."""
    told: dict[str, int] = field(default_factory=dict)
    address: str = ""
    store: MemoryStore = field(init=False)
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.address = f"memory://promises-{self.seed}/table"
        self.store = self._store(self.address)
        self.table = Table(self.store)
        self._commit(
            [
                features("deletionVectors"),
                metadata(id=TABLE_ID, schema=SCHEMA, configuration=PROPERTIES),
            ]
        )
        self.append()

    # Writers

    def append(self) -> None:
        """Adds up to three files; the statistics of some are missing."""
        self._commit([self._new_file() for _ in range(self.random.randint(1, 3))])

    def delete(self) -> None:
        """Removes a file."""
        live = self._live()
        if len(live) > 1:
            path = self.random.choice(live)
            self._commit([self._removed(path)])
            self._forget([path])

    def replace(self) -> None:
        """Merges two files into a new one, as a compaction does."""
        live = self._live()
        if len(live) < 2:
            return
        merged = self.random.sample(live, 2)
        ids = [each for path in merged for each in self._ids_in(path)]
        made = self._file({each: self.rows[each] for each in ids}, data_change=False)
        self._commit([*(self._removed(path, data_change=False) for path in merged), made])

    # Holders

    def keep(self) -> None:
        """Keeps a version, if it is still complete."""
        name = f"keep-{len(self.keeps)}"
        version = self.random.randint(0, self._latest())
        until = self.now + timedelta(days=self.random.randint(1, 40))
        options = KeepVersionOptions(
            name=name, keep=version, until=until if self.random.random() < 0.7 else None
        )
        try:
            planned = keep_version.plan(self.table.snapshot(), options, self._context())
            keep_version.apply(self.table, planned, self._context())
        except (RefusedError, VersionNotFoundError):
            return
        self.keeps[name] = (options.until, self._files_at(version), version)

    def release(self) -> None:
        """Releases a kept version."""
        if self.keeps:
            name = self.random.choice(sorted(self.keeps))
            options = KeepVersionOptions(name=name, release=True)
            planned = keep_version.plan(self.table.snapshot(), options, self._context())
            keep_version.apply(self.table, planned, self._context())
            # The name is not used again.
            self.keeps[name] = (self.now, frozenset(), 0)

    def start_stream(self) -> None:
        """A query begins with the latest version as a whole."""
        address = f"memory://promises-{self.seed}/stream-{len(self.streams)}"
        stream = Stream(address=address, unread=self._latest(), in_snapshot=True)
        self._store(address).put("metadata", b'{"id":"x"}')
        self.streams.append(stream)
        self._write_offset(stream, committed=False)

    def advance_stream(self) -> None:
        """A query reads some versions."""
        if not self.streams:
            return
        stream = self.random.choice(self.streams)
        store = self._store(stream.address)
        store.put(f"commits/{stream.batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        stream.batch += 1
        # After the snapshot of a version, a query goes on with the next one.
        least = stream.unread + stream.in_snapshot
        stream.unread = max(least, self.random.randint(0, self._latest()) + 1)
        stream.in_snapshot = False
        self._write_offset(stream, committed=self.random.random() < 0.7)

    def clone(self) -> None:
        """Clones the latest version."""
        address = f"memory://promises-{self.seed}/clone-{len(self.clones)}"
        made = TableBuilder(self._store(address))
        files = self._files_at(self._latest())
        paths = [f"{self.address}/{path}" for path in sorted(files) if path.endswith(".parquet")]
        # A clone refers to whole files here: its rows do not matter.
        made.commit(
            [features("deletionVectors"), metadata(schema=SCHEMA), *(add(path) for path in paths)],
            at_ms=epoch_millis(self.now),
        )
        self.clones[address] = frozenset(path for path in files if path.endswith(".parquet"))

    # Maintenance

    def vacuum(self) -> None:
        """Deletes files."""
        mode = self.random.choice(("full", "full", "lite"))
        options = VacuumOptions(mode=mode, holders=self._holders(), log_commits=False)
        try:
            planned = vacuum.plan(self.table.snapshot(), options, self._context())
        except RefusedError as error:
            # Commits that no vacuum went through were cleaned up.
            assert mode == "lite", error
            return
        self._tell("vacuumed files", vacuum.apply(self.table, planned, self._context()).deleted)
        self._tell("held files", sum(each.files for each in planned.held))

    def clean_log(self) -> None:
        """Deletes history."""
        checkpoint.apply(
            self.table, checkpoint.plan(self.table.snapshot(), context=self._context())
        )
        options = CleanLogOptions(holders=self._holders(clones=False))
        planned = clean_log.plan(self.table.snapshot(), options, self._context())
        done = clean_log.apply(self.table, planned, self._context())
        self._tell("cleaned log files", sum(group.deleted for group in done.groups))
        self._tell("held log files", sum(each.files for each in planned.held))

    def expire(self) -> None:
        """Removes old rows, by deletion vectors in files with others."""
        mixed = self.random.choice(("leave", "deletion-vectors", "rewrite"))
        options = ExpireOptions(
            column="day", older_than=LIMIT, mixed=mixed, allow_large_delete=True
        )
        context = self._context()
        planned = expire.plan(self.table.snapshot(), options, context)
        expire.apply(self.table, planned, context)
        limit = (self.now - LIMIT).date()
        left = self._live_ids()
        lost = {each: day for each, day in self.rows.items() if each not in left}
        assert all(day < limit for day in lost.values()), f"younger rows were lost: {lost}"
        self.rows = {each: self.rows[each] for each in left}
        self._tell("expired rows", len(lost))

    def purge(self) -> None:
        """Rewrites files without deleted rows."""
        planned = purge.plan(self.table.snapshot(), context=self._context())
        purge.apply(self.table, planned, self._context())

    def report(self) -> None:
        """Looks for a row that is gone or live, and compares with every file in the store."""
        wanted = self.random.randrange(max(self.ids) + 1) if self.ids else 0
        options = ErasureReportOptions(where=f"id = {wanted}", holders=self._holders(clones=False))
        planned = erasure_report.plan(self.table.snapshot(), options, self._context())
        found = erasure_report.apply(self.table, planned, self._context())
        there = sum(
            pc.sum(pc.equal(pq.read_table(io.BytesIO(self.store.read(path)))["id"], wanted)).as_py()
            for path in self._stored()
            if path.endswith(".parquet") and not path.startswith("_delta_log/")
        )
        # Statistics in the log can have the value longer than the files.
        assert sum(each.rows for each in found.places if each.place != "log") == there
        assert found.status == ("remains" if found.places else "erased")
        self._tell(found.status, 1)

    def wait(self) -> None:
        """Some days pass."""
        self.now += timedelta(days=self.random.choice((1, 3, 8, 15)))

    # Promises

    def check(self) -> None:
        """Compares the store with every promise."""
        self.note_commits()
        stored = self._stored()
        latest = self._latest()
        assert self._live_ids() == set(self.rows)
        self._require(stored, self._files_at(latest), "the latest version")
        for name, (until, files, version) in self.keeps.items():
            if until is None or until > self.now:
                self._require(stored, files, f"{name} of version {version}")
                assert self._files_at(version) == files
        for stream in self.streams:
            if stream.in_snapshot:
                self._require(stored, self._files_at(stream.unread), stream.address)
            for version in range(stream.unread + stream.in_snapshot, latest + 1):
                assert f"_delta_log/{version:020}.json" in stored, f"{stream} lost {version}"
                self._require(stored, self.commits[version], f"{stream}, version {version}")
        for address, files in self.clones.items():
            self._require(stored, files, address)

    def note_commits(self) -> None:
        """Remembers the files of new commits, before a clean-up deletes the commits."""
        for version in range(max(self.commits, default=-1) + 1, self._latest() + 1):
            lines = self.store.read(f"_delta_log/{version:020}.json").splitlines()
            actions = [json.loads(line) for line in lines]
            self.commits[version] = frozenset(
                action[kind]["path"]
                for action in actions
                for kind in ("add", "remove")
                if kind in action
            )

    @staticmethod
    def _require(stored: Iterable[str], files: frozenset[str], holder: str) -> None:
        lost = files.difference(stored)
        assert not lost, f"{holder} lost {sorted(lost)}"

    # Parts

    @property
    def ids(self) -> set[int]:
        """Every ID that was ever written."""
        return {each for ids in self.ids_of.values() for each in ids}

    def _store(self, address: str) -> MemoryStore:
        store = MemoryStore(Address.parse(address))
        store.now_ms = lambda: epoch_millis(self.now)
        return store

    def _context(self) -> RunContext:
        return RunContext.at(self.now)

    def _holders(self, *, clones: bool = True) -> Holders:
        readers = tuple(
            Reader(kind="stream", name=stream.address, address=stream.address)
            for stream in self.streams
        )
        return Holders(readers=readers, clones=tuple(self.clones) if clones else ())

    def _write_offset(self, stream: Stream, *, committed: bool) -> None:
        offset = {
            "sourceVersion": 1,
            "reservoirId": TABLE_ID,
            "reservoirVersion": stream.unread,
            "index": -1,
            "isStartingVersion": stream.in_snapshot,
        }
        text = "\n".join(("v1", '{"batchWatermarkMs":0}', json.dumps(offset)))
        store = self._store(stream.address)
        store.put(f"offsets/{stream.batch}", text.encode())
        if committed:
            store.put(f"commits/{stream.batch}", b'v1\n{"nextBatchWatermarkMs":0}')

    def _new_file(self) -> Action:
        first = max(self.ids, default=-1) + 1
        count = self.random.randint(1, 4)
        days = {
            each: (self.now - timedelta(days=self.random.randint(0, 40))).date()
            for each in range(first, first + count)
        }
        self.rows.update(days)
        return self._file(days)

    def _file(self, days: dict[int, date], *, data_change: bool = True) -> Action:
        path = f"f{len(self.ids_of)}.parquet"
        self.ids_of[path] = list(days)
        sink = io.BytesIO()
        ids = pa.array(list(days), pa.int64())
        pq.write_table(pa.table({"id": ids, "day": pa.array(list(days.values()))}), sink)
        self.store.put(path, sink.getvalue())
        stats = {
            "numRecords": len(days),
            "minValues": {"day": str(min(days.values()))},
            "maxValues": {"day": str(max(days.values()))},
            "nullCount": {"day": 0},
        }
        known = self.random.random() < 0.8
        return add(
            path,
            size=len(sink.getvalue()),
            modificationTime=epoch_millis(self.now),
            dataChange=data_change,
            stats=json.dumps(stats if known else {"numRecords": len(days)}),
        )

    def _removed(self, path: str, *, data_change: bool = True) -> Action:
        (found,) = (
            row
            for row in self.table.snapshot().live_files().select(["path", "dv"]).to_pylist()
            if row["path"] == path
        )
        assert found["dv"] is None
        at = epoch_millis(self.now)
        return remove(path, deletionTimestamp=at, dataChange=data_change)

    def _commit(self, actions: list[Action]) -> None:
        builder = TableBuilder(self.store)
        version = self._latest() + 1
        builder.commit(actions, version=version, at_ms=epoch_millis(self.now))
        # The builder sets the clock of the store.
        self.store.now_ms = lambda: epoch_millis(self.now)

    def _forget(self, paths: list[str]) -> None:
        for path in paths:
            for each in self._ids_in(path):
                self.rows.pop(each, None)

    def _ids_in(self, path: str) -> list[int]:
        return [each for each in self.ids_of[path] if each in self.rows]

    def _latest(self) -> int:
        names = [path for path in self._stored() if path.startswith("_delta_log/0")]
        return max((int(name[11:31]) for name in names if name.endswith(".json")), default=-1)

    def _live(self) -> list[str]:
        """The live files of the writers, without those that have deleted rows."""
        live = self.table.snapshot().live_files().select(["path", "dv"]).to_pylist()
        return sorted(
            each["path"] for each in live if each["dv"] is None and each["path"] in self.ids_of
        )

    def _stored(self) -> set[str]:
        return {path for batch in self.store.list_tree() for path in batch["path"].to_pylist()}

    def _files_at(self, version: int) -> frozenset[str]:
        return frozenset(
            path
            for row in self.table.snapshot(version=version).live_files().to_pylist()
            for path in (row["path"], *_vector_file(row["dv"]))
        )

    def _live_ids(self) -> set[int]:
        return live_ids(self.table)

    def _tell(self, what: str, number: int) -> None:
        self.told[what] = self.told.get(what, 0) + number


def live_ids(table: Table) -> set[int]:
    """Returns the IDs of the live rows."""
    return set(ids_in(table.snapshot()))


def ids_in(snapshot: Snapshot) -> list[int]:
    """Returns the IDs of the rows of a version, in no order."""
    layout = RowLayout.of(snapshot, {"id"}, zone=UTC)
    reader = RowReader(snapshot.log.store, layout)
    found: list[int] = []
    for batch in snapshot.log.scan(fields={"add": FILES.names, "remove": ()}):
        columns = [
            batch.adds[name]
            if name in batch.adds.column_names
            else pa.nulls(batch.adds.num_rows, FILES.field(name).type)
            for name in FILES.names
        ]
        files = pa.table(columns, schema=FILES)
        for number in range(files.num_rows):
            for rows in reader.read(files, number):
                found += rows.columns[0].to_pylist()
    return found


def _vector_file(unique_id: str | None) -> list[str]:
    """The file of a deletion vector with a relative path."""
    if unique_id is None or not unique_id.startswith("u"):
        return []
    text = unique_id[1:].rpartition("@")[0] or unique_id[1:]
    vector = pa.array(
        [{"storageType": "u", "pathOrInlineDv": text, "offset": 1, "sizeInBytes": 1}],
        pa.struct(
            [
                ("storageType", pa.string()),
                ("pathOrInlineDv", pa.string()),
                ("offset", pa.int32()),
                ("sizeInBytes", pa.int32()),
            ]
        ),
    )
    relative, _ = deletion_vector_paths(vector)
    return [*relative.to_pylist()]


_HARMLESS = {
    World.append: 5,
    World.delete: 2,
    World.replace: 3,
    World.keep: 2,
    World.release: 1,
    World.start_stream: 1,
    World.advance_stream: 3,
    World.clone: 1,
    World.report: 2,
    World.wait: 6,
}
_MAINTENANCE = {World.vacuum: 4, World.clean_log: 3, World.expire: 3, World.purge: 2}
_ACTIONS = _HARMLESS | _MAINTENANCE


def play(seed: int) -> World:
    """Plays one schedule, and checks all promises after each step that may break one."""
    world = World(seed)
    world.check()
    for number in range(1, STEPS + 1):
        (act,) = world.random.choices([*_ACTIONS], weights=[*_ACTIONS.values()])
        act(world)
        if act in _MAINTENANCE or number == STEPS:
            world.check()
        else:
            world.note_commits()
    return world

"""Building Delta logs file by file: commits, checkpoints, compactions, hints, and damage.

The builder shares only the names of files with the tested code. It reconciles with plain dicts,
writes JSON and Parquet directly and checks nothing, so that it can also write invalid logs.
Everything is deterministic: commits are one minute apart, starting at `EPOCH_MS`.

    table = TableBuilder()
    table.commit([protocol(), metadata(), add("a")])
    table.commit([remove("a"), add("b")])
    table.checkpoint()
    assert table.open().snapshot().live_files()["path"].to_pylist() == ["b"]
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.delta_log.file_names import (
    LAST_CHECKPOINT,
    SIDECAR_DIRECTORY,
    Encoding,
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
    multipart_checkpoint_name,
    uuid_checkpoint_name,
)
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read import Table
from tests.support.tables.actions import Action, checkpoint_metadata, dv_id, sidecar

LOG = "_delta_log"
EPOCH_MS = 1_700_000_000_000
"""The time of version 0, in milliseconds since 1970-01-01 UTC."""
MINUTE_MS = 60_000
UUID = "00000000-0000-4000-8000-000000000000"

Line = Action | str | bytes
"""A line of a log: an action, or text that is written unchanged."""

Reshape = Callable[[pa.Table], pa.Table]


def log_text(lines: Iterable[Line]) -> bytes:
    """The lines of a commit, its actions written the way Delta Spark writes them."""
    return b"".join(_line(line) + b"\n" for line in lines)


def log_table(actions: Sequence[Action]) -> pa.Table:
    """The actions as the rows of a checkpoint: one column per action, one row per action."""
    present = dict.fromkeys(name for action in actions for name in action)
    names = [*_COLUMNS, *(name for name in present if name not in _COLUMNS)]
    columns = {}
    for name in names:
        if name not in present and name in _V2_COLUMNS:
            continue
        values = [action.get(name) for action in actions]
        columns[name] = _column(values, _COLUMNS.get(name, {}))
    return pa.table(columns)


def parquet_bytes(table: pa.Table, *, rows_per_group: int | None = None) -> bytes:
    """The table as one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows_per_group or max(1, table.num_rows))
    return sink.getvalue()


class TableBuilder:
    """A log under construction, in its own store in memory unless one is given."""

    def __init__(self, store: Store | str | os.PathLike[str] | None = None) -> None:
        if store is None:
            store = MemoryStore()
        self.store: Store = store if isinstance(store, Store) else open_store(store)
        self.commits: dict[int, list[Action]] = {}
        """The actions of every commit, without raw text."""

    @property
    def version(self) -> int:
        """The newest version, -1 before the first commit."""
        return max(self.commits, default=-1)

    def open(self) -> Table:
        """The table, opened with the library."""
        return Table(self.store)

    def commit(
        self, lines: Sequence[Line] = (), *, version: int | None = None, at_ms: int | None = None
    ) -> int:
        """Writes the next commit, or `version`, and returns its version.

        `at_ms` is the time of the file.
        """
        actions = [line for line in lines if isinstance(line, dict)]
        return self.commit_bytes(log_text(lines), actions, version=version, at_ms=at_ms)

    def commit_bytes(
        self,
        data: bytes,
        actions: Sequence[Action] = (),
        *,
        version: int | None = None,
        at_ms: int | None = None,
    ) -> int:
        """Writes the bytes of a commit; `actions` are its known actions."""
        version = self.version + 1 if version is None else version
        self.commits[version] = list(actions)
        at_ms = EPOCH_MS + version * MINUTE_MS if at_ms is None else at_ms
        self.write(commit_name(version), data, at_ms=at_ms)
        return version

    def state(self, version: int | None = None) -> list[Action]:
        """The actions in effect at a version with its tombstones: the contents of a checkpoint."""
        return [
            action
            for action in self.reconciled(0, self.version if version is None else version)
            if not action.get("domainMetadata", {}).get("removed")
        ]

    def reconciled(self, first: int, last: int) -> list[Action]:
        """The newest action of each key among some commits: the contents of a log compaction."""
        newest: dict[tuple[object, ...], Action] = {}
        for version in range(first, last + 1):
            for line in self.commits.get(version, ()):
                for name, value in line.items():
                    if name in _KEYS and value is not None:
                        newest[_KEYS[name](value)] = {name: value}
        return list(newest.values())

    def checkpoint(
        self,
        version: int | None = None,
        *,
        actions: Sequence[Action] | None = None,
        parts: int = 1,
        reshape: Reshape | None = None,
        rows_per_group: int | None = None,
    ) -> list[str]:
        """Writes a V1 checkpoint and returns the names of its files.

        Writes `actions`, by default the state of the version, to the parts in turn. `reshape` may
        change the columns before they are written.
        """
        version = self.version if version is None else version
        actions = self.state(version) if actions is None else actions
        names = []
        for part in range(parts):
            table = log_table(actions[part::parts])
            data = parquet_bytes(
                reshape(table) if reshape else table, rows_per_group=rows_per_group
            )
            names.append(
                classic_checkpoint_name(version)
                if parts == 1
                else multipart_checkpoint_name(version, part + 1, parts)
            )
            self.write(names[-1], data)
        return names

    def v2_checkpoint(
        self,
        version: int | None = None,
        *,
        actions: Sequence[Action] | None = None,
        sidecars: int = 0,
        encoding: Encoding = "json",
        uuid: str | None = UUID,
        reshape: Reshape | None = None,
    ) -> list[str]:
        """Writes a V2 checkpoint and returns the names of its files, the top-level one first.

        Without `uuid` it has the classic name. Without `sidecars` the file actions are inline.
        """
        version = self.version if version is None else version
        actions = self.state(version) if actions is None else actions
        files = [action for action in actions if action.keys() & {"add", "remove"}]
        others = [action for action in actions if not action.keys() & {"add", "remove"}]
        names = []
        for number in range(sidecars):
            names.append(f"{SIDECAR_DIRECTORY}/{version}-{uuid or 'classic'}-{number}.parquet")
            table = log_table(files[number::sidecars]).select(["add", "remove"])
            data = parquet_bytes(reshape(table) if reshape else table)
            self.write(names[-1], data)
            others.append(sidecar(names[-1].rpartition("/")[2], len(data)))
        top = [checkpoint_metadata(version), *others, *([] if sidecars else files)]
        name = (
            classic_checkpoint_name(version)
            if uuid is None
            else uuid_checkpoint_name(version, uuid, encoding)
        )
        self.manifest(name, top)
        return [name, *names]

    def manifest(self, name: str, actions: Sequence[Action]) -> str:
        """Writes the top-level file of a checkpoint under `name`, which decides its encoding."""
        json_wanted = name.endswith(".json")
        self.write(name, log_text(actions) if json_wanted else parquet_bytes(log_table(actions)))
        return name

    def compaction(self, first: int, last: int, *, lines: Sequence[Line] | None = None) -> str:
        """Writes a log compaction, by default a correct one, and returns its name."""
        name = compaction_name(first, last)
        self.write(name, log_text(self.reconciled(first, last) if lines is None else lines))
        return name

    def hint(self, hint: Mapping[str, Any] | str | bytes | int) -> None:
        """Writes `_last_checkpoint`: text, an object, or just a version."""
        if isinstance(hint, int):
            hint = {"version": hint, "size": 1}
        text = json.dumps(hint) if isinstance(hint, Mapping) else hint
        self.write(LAST_CHECKPOINT, text.encode() if isinstance(text, str) else text)

    def checksum(self, version: int, content: Mapping[str, Any] | bytes) -> None:
        """Writes `N.crc`."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.write(checksum_name(version), data)

    def write(self, name: str, data: bytes, *, at_ms: int = EPOCH_MS) -> None:
        """Writes any file of the log; `name` is relative to `_delta_log`."""
        path = f"{LOG}/{name}"
        if isinstance(self.store, MemoryStore):
            self.store.now_ms = lambda: at_ms
        self.store.put(path, data)
        if isinstance(self.store, LocalStore):
            instant = at_ms * 1_000_000
            os.utime(Path(self.store.root) / path, ns=(instant, instant))

    def read(self, name: str) -> bytes:
        """A file of the log."""
        return self.store.read(f"{LOG}/{name}")

    def names(self) -> list[str]:
        """The files directly in `_delta_log`."""
        return [status.path.removeprefix(f"{LOG}/") for status in self.store.list_from(LOG)]

    def drop(self, *names: str) -> None:
        """Deletes files of the log."""
        for name in names:
            self.store.delete(f"{LOG}/{name}")

    def zero(self, name: str) -> None:
        """Empties a file, as a crash can leave it."""
        self.write(name, b"")

    def truncate(self, name: str, keep: int) -> None:
        """Truncates a file to `keep` bytes; a negative number counts from its end."""
        self.write(name, self.read(name)[:keep])

    def garbage(self, name: str, *, at: int = 0, size: int | None = None) -> None:
        """Overwrites `size` bytes from `at` on, by default all remaining ones."""
        data = self.read(name)
        at = at % len(data)
        end = len(data) if size is None else at + size
        noise = bytes((37 * index + 11) % 251 for index in range(end - at))
        self.write(name, data[:at] + noise + data[end:])


_KEYS: Mapping[str, Callable[[Any], tuple[object, ...]]] = {
    "protocol": lambda _: ("protocol",),
    "metaData": lambda _: ("metaData",),
    "txn": lambda value: ("txn", value["appId"]),
    "domainMetadata": lambda value: ("domainMetadata", value["domain"]),
    "add": lambda value: ("file", value["path"], dv_id(value)),
    "remove": lambda value: ("file", value["path"], dv_id(value)),
}

_MAP = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_DV = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "add": {
        "path": pa.string(),
        "partitionValues": _MAP,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "tags": _MAP,
        "deletionVector": _DV,
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
        "clusteringProvider": pa.string(),
        "stats": pa.string(),
    },
    "remove": {
        "path": pa.string(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _MAP,
        "size": pa.int64(),
        "deletionVector": _DV,
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
    },
    "metaData": {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct([("provider", pa.string()), ("options", _MAP)]),
        "schemaString": pa.string(),
        "partitionColumns": _LIST,
        "configuration": _MAP,
        "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": _LIST,
        "writerFeatures": _LIST,
    },
    "domainMetadata": {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()},
    "checkpointMetadata": {"version": pa.int64(), "tags": _MAP},
    "sidecar": {
        "path": pa.string(),
        "sizeInBytes": pa.int64(),
        "modificationTime": pa.int64(),
        "tags": _MAP,
    },
}
_V2_COLUMNS = ("checkpointMetadata", "sidecar")


def _line(line: Line) -> bytes:
    if isinstance(line, dict):
        line = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
    return line.encode() if isinstance(line, str) else line


def _column(values: Sequence[Mapping[str, Any] | None], known: Mapping[str, pa.DataType]) -> Any:
    """A struct column; fields without a known type get the type that Arrow infers."""
    names = dict.fromkeys([*known, *(name for value in values if value for name in value)])
    children = {}
    for name in names:
        items = [value.get(name) if value else None for value in values]
        wanted = known.get(name, _MAP if name == "tags" else None)
        children[name] = pa.array([_pairs(item, wanted) for item in items], wanted)
    mask = pa.array([value is None for value in values], pa.bool_())
    fields = [pa.field(name, child.type) for name, child in children.items()]
    return pa.StructArray.from_arrays(list(children.values()), fields=fields, mask=mask)


def _pairs(item: Any, wanted: pa.DataType | None) -> Any:
    # Arrow expects the items of a map as pairs.
    if isinstance(item, Mapping) and wanted == _MAP:
        return list(item.items())
    if isinstance(item, Mapping) and wanted is not None and "options" in item:
        return {**item, "options": list(item["options"].items())}
    return item

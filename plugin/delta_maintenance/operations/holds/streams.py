"""The positions of readers: of Structured Streaming, and of consumers that write them to a file.

A streaming query writes `offsets/N` to its checkpoint folder before it reads batch N, and
`commits/N` after it. A restarted query asks its sources for the last batch again, even if that was
committed, and executes it again if not. It therefore needs its tables from the end of the batch
before that one. The first line of a file of offsets is the version of its format, the second the
metadata of the batch. Each further line is the offset of one source: its JSON, or `-` before the
source has read anything. In version 2 of the format, the ID of the source and a colon precede it.

Another consumer writes the last version that it has read: the number alone, or JSON such as
`{"version": 41, "table_id": "…"}`. With the ID of the table, a file that was mistaken for that of
another table is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import object_with_unique_keys
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import FileStatus

_NOTHING = "-"
_FORMATS = ("v1", "v2")
_KEYS = (("reservoirId", "reservoirVersion"), ("tableId", "tableVersion"))
"""The keys for the table and its version: of Delta, and of Delta Sharing."""
_SOURCE_VERSIONS = (1, 3)
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOffset:
    """The position of a source that reads a Delta table."""

    table_id: str
    version: int
    """The version that is read next, or that is read in part."""
    in_snapshot: bool
    """Whether the source still reads this version as a whole, with which every stream begins that
    is not told a version. Later versions are read by their changes."""


def parse_offsets(data: bytes) -> dict[str, TableOffset | None]:
    """Returns the offset of each source that reads a Delta table, or None before it has read
    anything. The keys are the IDs or the positions of the sources; other sources are left out.

    Raises `ValueError`, with one clause that states the problem.
    """
    try:
        version, _, *lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except ValueError:
        raise ValueError("it is incomplete") from None
    if version not in _FORMATS:
        raise ValueError(f"its format {version[:20]!r} is not known")
    if not lines:
        raise ValueError("it names no source")
    return dict(_sources(lines, named=version == "v2"))


def _sources(lines: list[str], *, named: bool) -> Iterator[tuple[str, TableOffset | None]]:
    for number, line in enumerate(lines):
        name, text = str(number), line
        if named:
            name, colon, text = line.partition(":")
            if not colon:
                raise ValueError(f"line {number + 3} names no source")
        if text == _NOTHING:
            yield name, None
            continue
        try:
            value: Any = json.loads(text, object_pairs_hook=object_with_unique_keys)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number + 3} is not JSON with unique keys") from None
        keys = next((keys for keys in _KEYS if isinstance(value, dict) and keys[0] in value), None)
        if keys is not None:
            try:
                yield name, _offset(value, *keys)
            except ValueError as error:
                raise ValueError(f"line {number + 3} {error}") from None


def _offset(value: Mapping[str, Any], table: str, version: str) -> TableOffset:
    if value.get("sourceVersion") not in _SOURCE_VERSIONS:
        raise ValueError("has a format of offsets that is not known")
    table_id, at = value[table], value.get(version)
    in_snapshot = value.get("isStartingVersion")
    if not isinstance(table_id, str) or not isinstance(in_snapshot, bool):
        raise ValueError("is not the offset of a Delta table")
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at <= _MOST:
        raise ValueError("has no version of the table")
    return TableOffset(table_id=table_id, version=at, in_snapshot=in_snapshot)


_MOST_BYTES = 16 << 20
_MOST_POSITION_BYTES = 1 << 16
"""The most bytes of the file to which a consumer writes its last version."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """How far a reader has read a table."""

    needs: int | None
    """The oldest version that the reader may open, and whose later commits it may read; None if
    that is not known."""
    doubt: str | None = None
    """Why the files contradict themselves, as a clause."""
    unread: int
    """The oldest version that it has not read completely."""
    in_snapshot: bool = False
    """Whether it still reads that version as a whole."""
    changed_ms: int
    """When it last recorded progress, in milliseconds since 1970-01-01 UTC."""

    @property
    def newest(self) -> int:
        """The newest version that it has read, or reads; -1 if there is none."""
        return self.unread if self.in_snapshot else self.unread - 1

    @property
    def text(self) -> str:
        """Such as `has read up to version 41`."""
        if self.in_snapshot:
            return f"reads version {self.unread} as a whole"
        return f"has read up to version {self.newest}" if self.unread else "has read no version"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What a checkpoint folder says of one table."""

    position: StreamPosition | None
    """None if the query has read nothing of the table."""
    is_of_others: bool
    """Whether all sources of the query read something else."""


def read_stream(store: Store, table_id: str) -> StreamState:
    """Reads a checkpoint folder, of which `store` is the root. At most five requests, unless the
    query removes the files meanwhile.

    `table_id` is the ID in the table's metadata. Raises `RefusedError`, which names the file, if
    the folder is not that of a query, or is damaged.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _read(store, table_id)
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise _damage(f"{error.filename or error} is listed and cannot be read") from None
    raise AssertionError


def _read(store: Store, table_id: str) -> StreamState:
    offsets, commits = _batches(store, "offsets"), _batches(store, "commits")
    started = store.stat("metadata")
    if not offsets:
        if commits:
            raise _damage("the folder has committed batches and no offsets", file="offsets")
        if started is None:
            raise _damage("there is no checkpoint of a stream")
        return StreamState(position=None, is_of_others=False)
    newest = max(offsets)
    before = _before(newest, offsets, commits)
    ends = _read_offsets(store, newest)
    starts = _read_offsets(store, before) if before is not None else {}
    mine = [
        source
        for source in {**ends, **starts}
        if any(_is_of(needed.get(source), table_id) for needed in (ends, starts))
    ]
    if not mine:
        offsets_by_source = {**starts, **ends}
        idle = None in offsets_by_source.values()
        return StreamState(position=None, is_of_others=not idle)
    done = ends if newest in commits else starts
    unread = min((_next_of(source, done, ends, table_id) for source in mine), key=_version)
    needs = [_oldest_needed(starts.get(source), ends.get(source), table_id) for source in mine]
    known_needs = [needed for needed in needs if needed is not None]
    goes_back = any(_goes_back(starts.get(source), ends.get(source)) for source in mine)
    is_known = len(known_needs) == len(needs) and not goes_back
    return StreamState(
        position=StreamPosition(
            needs=min(known_needs) if is_known else None,
            doubt="its last offsets go back to an earlier version" if goes_back else None,
            unread=unread.version,
            in_snapshot=unread.in_snapshot,
            changed_ms=_newest_time((*offsets.values(), *commits.values())),
        ),
        is_of_others=False,
    )


def _before(
    newest: int, offsets: dict[int, FileStatus], commits: dict[int, FileStatus]
) -> int | None:
    """Returns the batch at whose end a restarted query begins; None if that is its start."""
    older = [batch for batch in offsets if batch < newest]
    done = max((batch for batch in commits if batch < newest), default=None)
    if done is None and newest in commits:
        done = newest - 1
    if done is None:
        if older and 0 not in offsets:
            raise _damage("no batch is recorded as committed", file="commits")
        # The first batch may be executed again.
        return None
    before = max((batch for batch in older if batch <= done), default=None)
    if before is None and newest > 0:
        raise _damage("the offsets of this batch are missing", file=f"offsets/{done}")
    return before


def _oldest_needed(start: TableOffset | None, end: TableOffset | None, table_id: str) -> int | None:
    """Returns the oldest version that a source may open; None if that is not recorded.

    A reader of the change feed needs the files that its first commit removes, so that the version
    before this commit must stay as well.
    """
    if _is_of(start, table_id) and start is not None:
        return start.version if start.in_snapshot else max(start.version - 1, 0)
    if end is not None and end.in_snapshot:
        return end.version
    return None


def _goes_back(start: TableOffset | None, end: TableOffset | None) -> bool:
    """Returns whether a batch ends before it starts, so that neither says what will be read."""
    if start is None or end is None or start.table_id != end.table_id:
        return False
    # A version is read as a whole before the changes after it.
    return (end.version, not end.in_snapshot) < (start.version, not start.in_snapshot)


def _next_of(
    source: str,
    done: dict[str, TableOffset | None],
    ends: dict[str, TableOffset | None],
    table_id: str,
) -> TableOffset:
    offset = done.get(source)
    if offset is not None and offset.table_id == table_id:
        return offset
    end = ends.get(source)
    in_snapshot = end is not None and end.in_snapshot
    version = end.version if end is not None and in_snapshot else 0
    return TableOffset(table_id=table_id, version=version, in_snapshot=in_snapshot)


def _version(offset: TableOffset) -> int:
    return offset.version


def _is_of(offset: TableOffset | None, table_id: str) -> bool:
    return offset is not None and offset.table_id == table_id


def _batches(store: Store, folder: str) -> dict[int, FileStatus]:
    names = ((status.path.rpartition("/")[2], status) for status in store.list_from(folder))
    return {int(name): status for name, status in names if name.isascii() and name.isdigit()}


def _read_offsets(store: Store, batch: int) -> dict[str, TableOffset | None]:
    path = f"offsets/{batch}"
    data = store.read_head(path, _MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _damage(f"it has more than {_MOST_BYTES} bytes", file=path)
    try:
        return parse_offsets(data)
    except ValueError as error:
        raise _damage(str(error), file=path) from None


def _newest_time(files: Iterable[FileStatus]) -> int:
    return max(status.modified_ms for status in files)


def _damage(problem: str, *, file: str | None = None) -> RefusedError:
    return RefusedError(problem, file=file)


def read_last_read(store: Store, name: str, table_id: str, *, requires_id: bool) -> StreamState:
    """Reads the file with this name. Two requests.

    Raises `RefusedError` if it does not exist, or contains something else. `requires_id` if the
    reader may be that of another table.
    """
    try:
        status, data = store.stat(name), store.read_head(name, _MOST_POSITION_BYTES + 1)
    except FileNotFoundError:
        status, data = None, b""
    if status is None:
        raise RefusedError("the file does not exist", file=name)
    try:
        if len(data) > _MOST_POSITION_BYTES:
            raise ValueError
        value: Any = json.loads(data, object_pairs_hook=object_with_unique_keys)
    except (ValueError, RecursionError):
        value = None
    version, table = (
        (value.get("version"), value.get("table_id")) if isinstance(value, dict) else (value, None)
    )
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= _MOST:
        raise RefusedError("the file does not contain a version, or contains two", file=name)
    if table is None and requires_id:
        raise RefusedError("the file does not say which table it is about (table_id)", file=name)
    if table is not None and table != table_id:
        return StreamState(position=None, is_of_others=True)
    position = StreamPosition(needs=version, unread=version + 1, changed_ms=status.modified_ms)
    return StreamState(position=position, is_of_others=False)

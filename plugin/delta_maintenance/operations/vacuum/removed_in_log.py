"""Files that a range of commits removed from a table, read from the commits.

For a vacuum that lists no folders and only finds files that the log still names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, locations
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.protocol.vacuum.protected_paths import deletion_vector_paths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LOG_DIRECTORY, LogEntry, LogListing

LAST_VACUUM = "_last_vacuum_info"
"""Where Delta Spark keeps how far its last vacuum by the log went, relative to `_delta_log`."""
_KEY = "latestCommitVersionOutsideOfRetentionWindow"
_FIELDS = {"add": ("path",), "remove": ("path", "deletionVector"), "cdc": ("path",)}
_BYTES_PER_BATCH = 12 << 20


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The commits that a `lite` vacuum reads."""

    first: int
    last: int

    @property
    def is_empty(self) -> bool:
        """Whether an earlier vacuum went as far."""
        return self.first > self.last


def window_to(store: Store, listing: LogListing, last: int) -> LogWindow:
    """The commits up to `last` that no `lite` vacuum has read.

    Raises `RefusedError` if some of them were deleted: files that they removed would never be
    found.
    """
    earliest = min(listing.commits, default=last + 1)
    done = last_vacuumed(store)
    if earliest > 0 and (done is None or done < earliest - 1):
        raise RefusedError(
            f"the commits before version {earliest} are gone, and no earlier vacuum has gone "
            "through them",
            file=LOG_DIRECTORY,
            remedy="vacuum with the mode full",
        )
    return LogWindow(max(earliest, 0 if done is None else done + 1), last)


def last_vacuumed(store: Store) -> int | None:
    """The last commit that a `lite` vacuum has read, if it is recorded."""
    try:
        value = json.loads(store.read(f"{LOG_DIRECTORY}/{LAST_VACUUM}"))
    except (FileNotFoundError, ValueError):
        return None
    version = value.get(_KEY) if isinstance(value, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def record_vacuumed(store: Store, version: int) -> None:
    """Records that all files removed by commits up to a version have been deleted."""
    store.put(f"{LOG_DIRECTORY}/{LAST_VACUUM}", json.dumps({_KEY: version}).encode())


def removed_paths(store: Store, entries: Sequence[LogEntry]) -> pa.StringArray:
    """The data files, deletion vectors and change data files that commits removed or wrote.

    Relative to the root and decoded, each once; those that lie elsewhere or are no UTF-8 are left
    out. `StorageError` where a commit is gone since it was listed.
    """
    try:
        return _removed_paths(store, entries)
    except FileNotFoundError as error:
        raise StorageError(
            "a commit is gone since it was listed", file=error.filename, remedy="run again"
        ) from None


def _removed_paths(store: Store, entries: Sequence[LogEntry]) -> pa.StringArray:
    found: list[pa.BinaryArray] = []
    waiting: list[FileLines] = []
    size = 0
    keys = MapKeys(partition_columns=frozenset())
    for _, text in LogTail(store, entries).texts():
        _, beside = parse_other_lines(text)
        lines = FileLines.of(text, beside)
        if not lines.runs:
            continue
        waiting.append(lines)
        size += lines.size
        if size >= _BYTES_PER_BATCH:
            found += _named(waiting, keys, store.addresses)
            waiting, size = [], 0
    if waiting:
        found += _named(waiting, keys, store.addresses)
    places = pc.unique(pa.chunked_array(found, pa.binary()))
    try:
        return places.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text for text in map(_text, places.to_pylist()) if text], pa.string())


def _named(sources: list[FileLines], keys: MapKeys, roots: Sequence[str]) -> list[pa.BinaryArray]:
    parsed = parse_file_actions(sources, keys=keys, fields=_FIELDS)
    paths = [*parsed.removes["path"].chunks, *parsed.cdc_paths.chunks]
    vectors: list[pa.StringArray] = []
    if "deletionVector" in parsed.removes.column_names:
        for chunk in parsed.removes["deletionVector"].chunks:
            relative, absolute = deletion_vector_paths(chunk)
            # These are no URIs: they are taken literally.
            vectors.append(relative)
            paths.append(absolute)
    places = [chunk.cast(pa.binary()) for chunk in vectors]
    for root in roots:
        places += [locations(chunk, root=root) for chunk in paths]
    return [place.filter(pc.invert(pc.match_substring_regex(place, ABSOLUTE))) for place in places]


def _text(place: bytes) -> str | None:
    try:
        return place.decode()
    except UnicodeDecodeError:
        return None

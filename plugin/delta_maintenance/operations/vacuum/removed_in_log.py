"""The files that some commits took out of a table, read from the commits themselves.

For a vacuum that lists no folders: what it can find is what the log still names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.actions.paths import ABSOLUTE, locations
from delta_maintenance.protocol.delta_log.file_names import MAX_VERSION
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.protocol.vacuum.protected_paths import deletion_vector_paths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_age import told_time
from delta_maintenance.table.read.log_file import read_hint
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LOG_DIRECTORY, LogEntry, LogListing

LAST_VACUUM = "_last_vacuum_info"
"""Where Delta Spark keeps how far its last vacuum by the log went, relative to `_delta_log`."""
_KEY = "latestCommitVersionOutsideOfRetentionWindow"
_FIELDS = {
    "add": ("path",),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
    "cdc": ("path",),
}
_BYTES_PER_BATCH = 12 << 20


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The commits that a vacuum by the log goes through."""

    first: int
    last: int

    @property
    def is_empty(self) -> bool:
        """Whether an earlier vacuum went as far."""
        return self.first > self.last


def window_to(store: Store, listing: LogListing, last: int) -> LogWindow:
    """The commits up to `last` that no vacuum by the log has gone through.

    `RefusedError` where some of them are gone: what they removed would be left for ever.
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
    """The last commit that a vacuum by the log went through, if one says so."""
    try:
        value = json.loads(read_hint(store, f"{LOG_DIRECTORY}/{LAST_VACUUM}"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    version = value.get(_KEY) if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        return None
    return version if 0 <= version <= MAX_VERSION else None


def record_vacuumed(store: Store, version: int) -> None:
    """Says that everything which commits up to a version removed has been deleted."""
    store.put(f"{LOG_DIRECTORY}/{LAST_VACUUM}", json.dumps({_KEY: version}).encode())


def removed_paths(store: Store, entries: Sequence[LogEntry]) -> pa.StringArray:
    """The data files, deletion vectors and change data files that commits removed or wrote.

    Relative to the root and decoded, each once; those that lie elsewhere or are no UTF-8 are left
    out. `StorageError` where a commit is gone since it was listed.
    """
    return _removed(store, entries, lambda entry, info: None)


def removed_since(
    store: Store, entries: Sequence[LogEntry], times: Mapping[int, int], *, instant_ms: int
) -> tuple[pa.StringArray, bool]:
    """Those of `removed_paths` of which any time that is known is not before an instant.

    Known are the times of the commit's file (`times`, by version), what the commit tells itself,
    and the `deletionTimestamp` of the removal, in milliseconds since 1970-01-01 UTC. The second
    value tells whether any commit is before the instant by all its times.
    """
    old = False

    def deleted_from(entry: LogEntry, info: CommitInfo | None) -> int | None:
        nonlocal old
        time = max(times[entry.file.version or 0], told_time(info) or 0)
        old |= time < instant_ms
        return None if time >= instant_ms else instant_ms

    return _removed(store, entries, deleted_from), old


def _removed(
    store: Store,
    entries: Sequence[LogEntry],
    deleted_from: Callable[[LogEntry, CommitInfo | None], int | None],
) -> pa.StringArray:
    """What commits removed or wrote; `deleted_from` says of a commit from which instant on its
    removals count, None for all that it did."""
    found = _Found(store.addresses)
    try:
        for entry, text in LogTail(store, entries).texts():
            actions, beside = parse_other_lines(text, commit_info=True)
            lines = FileLines.of(text, beside)
            instant_ms = deleted_from(entry, actions.commit_info)
            if lines.runs:
                found.take(lines, instant_ms)
    except FileNotFoundError as error:
        raise StorageError(
            "a commit is gone since it was listed", file=error.filename, remedy="run again"
        ) from None
    places = pc.unique(pa.chunked_array(found.places(), pa.binary()))
    try:
        return places.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text for text in map(_text, places.to_pylist()) if text], pa.string())


class _Found:
    """The places that lines of file actions name, parsed some lines at a time."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._keys = MapKeys(partition_columns=frozenset())
        self._waiting: dict[int | None, list[FileLines]] = {}
        self._size = 0
        self._places: list[pa.BinaryArray] = []

    def take(self, lines: FileLines, instant_ms: int | None) -> None:
        self._waiting.setdefault(instant_ms, []).append(lines)
        self._size += lines.size
        if self._size >= _BYTES_PER_BATCH:
            self._parse()

    def places(self) -> list[pa.BinaryArray]:
        self._parse()
        return self._places

    def _parse(self) -> None:
        for instant_ms, sources in self._waiting.items():
            self._places += _named(sources, self._keys, self._roots, instant_ms)
        self._waiting, self._size = {}, 0


def _named(
    sources: list[FileLines], keys: MapKeys, roots: Sequence[str], instant_ms: int | None
) -> list[pa.BinaryArray]:
    parsed = parse_file_actions(sources, keys=keys, fields=_FIELDS)
    removes, cdc_paths = parsed.removes, parsed.cdc_paths.chunks
    if instant_ms is not None:
        late = pc.greater_equal(removes["deletionTimestamp"], instant_ms)
        removes, cdc_paths = removes.filter(pc.fill_null(late, False)), []
    paths = [*removes["path"].chunks, *cdc_paths]
    vectors: list[pa.StringArray] = []
    if "deletionVector" in removes.column_names:
        for chunk in removes["deletionVector"].chunks:
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

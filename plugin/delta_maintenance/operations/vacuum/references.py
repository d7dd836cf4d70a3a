"""The files that a version of a table refers to, and those that a range of commits removed.

A `lite` vacuum takes its candidates from the removed files. Every vacuum uses them to protect those
whose tombstones a checkpoint has dropped too early, and to recognise data files with unusual names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, PathAudit, file_locations
from delta_maintenance.protocol.columns import booleans, to_bools, valid_texts
from delta_maintenance.protocol.delta_log.checkpoint_rows import deletion_times
from delta_maintenance.protocol.delta_log.file_names import MAX_VERSION
from delta_maintenance.protocol.ndjson.parse import (
    FileLines,
    MapKeys,
    ParsedFileActions,
    parse_file_actions,
)
from delta_maintenance.protocol.ndjson.split import CommitText, parse_other_lines
from delta_maintenance.protocol.vacuum import (
    PathSet,
    ProtectedPaths,
    Reason,
    VisibilityRules,
    deletion_vector_paths,
    hash_spellings,
    reasons,
    spellings_of,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.history import told_time
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_ahead, read_hint
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LogListing
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.sidecar_writer import commit_times

REFERENCE_FIELDS = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
}
"""The fields of file actions that contain references."""
LAST_VACUUM = "_last_vacuum_info"
"""The file in which Delta Spark stores where its next `lite` vacuum begins, relative to
`_delta_log`.
"""
_KEY = "latestCommitVersionOutsideOfRetentionWindow"
_REMOVED_FIELDS = {
    "add": ("path",),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
    "cdc": ("path",),
}
_BYTES_PER_BATCH = 12 << 20


@dataclass(slots=True)
class FileReferences:
    """The referenced files of one or several versions, each under every spelling."""

    in_use: ProtectedPaths
    """Files of live adds."""
    in_retention: ProtectedPaths
    """Files of unexpired tombstones, and of removes of recent commits. They are kept as well."""
    expired: list[pa.BinaryArray] = field(default_factory=list)
    """Files of expired tombstones, and `recorded` ones; some of them may also be live."""
    live: list[pa.StringArray] = field(default_factory=list)
    """The files of live adds, with their paths as written; empty unless `keeps_live`."""
    keeps_live: bool = True
    live_bytes: int = 0
    num_live: int = 0
    ageless_tombstones: int = 0
    """The number of tombstones of unknown age. They protect their files, because they may be
    unexpired.
    """
    held: list[tuple[str, ProtectedPaths]] = field(default_factory=list)
    """Files that are kept for holders, by holder."""

    @classmethod
    def none(cls, roots: tuple[str, ...], *, keeps_live: bool = True) -> FileReferences:
        """Returns empty references; `roots` are the addresses of the table."""
        return cls(ProtectedPaths(roots), ProtectedPaths(roots), keeps_live=keeps_live)

    def record(self, removed: pa.Table, *, rules: VisibilityRules) -> None:
        """Adds files that the log records as removed, if their names alone do not make them
        candidates.
        """
        for locations in spellings_of(removed, roots=self.in_use.roots).locations:
            unusual = rules.hidden(locations) | (reasons(locations, expired=None) == Reason.FOREIGN)
            self.expired.append(locations.filter(booleans(unusual)))

    @staticmethod
    def live_paths(adds: pa.Table) -> list[pa.StringArray]:
        """Returns the data files of adds, and the files of their vectors below the root."""
        vectors = adds["deletionVector"].chunks if "deletionVector" in adds.column_names else []
        return [*adds["path"].chunks, *(deletion_vector_paths(chunk)[0] for chunk in vectors)]

    def missing(self, listed: Sequence[pa.StringArray]) -> list[tuple[str, str]]:
        """Returns the live files below the root that the listing does not contain under any
        spelling that readers use: decoded once, or as written. They must have been kept.

        Each is a pair of the path in the log and the location relative to the root.
        """
        there = PathSet(hash_spellings)
        there.add(listed)
        found: list[tuple[str, str]] = []
        for paths in self.live:
            is_listed = there.has(paths)
            if is_listed.all():
                continue
            for root in self.in_use.roots:
                locations = file_locations(paths, root=root)
                below = ~to_bools(pc.match_substring_regex(locations, ABSOLUTE))
                is_listed |= there.has(locations)
                missing = booleans(below & ~is_listed)
                is_listed |= below
                found += zip(
                    paths.filter(missing).to_pylist(),
                    map(_as_text, locations.filter(missing).to_pylist()),
                    strict=True,
                )
        return found


def read_references(
    snapshot: Snapshot, *, deleted_before_ms: int, keeps_live: bool = True
) -> tuple[FileReferences, str | None]:
    """Reads the references of a snapshot.

    A tombstone is expired if its file was removed before `deleted_before_ms`, in milliseconds since
    1970-01-01 UTC. A tombstone without a deletion time has the age of its commit, and never expires
    if that is unknown. With `keeps_live`, the paths of live files are kept for `unlisted`; they are
    most of the memory. The second returned value is one clause that forbids deletions: paths that
    readers interpret differently.
    """

    def collect(sound: Snapshot) -> tuple[FileReferences, str | None]:
        references = FileReferences.none(sound.log.store.addresses, keeps_live=keeps_live)
        audit = PathAudit(sound.table)
        for batch in sound.log.scan(fields=REFERENCE_FIELDS):
            audit.add(
                batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
            )
            take_references(
                references,
                batch,
                deleted_before_ms=deleted_before_ms,
                commit_times=commit_times(sound),
            )
        return references, audit.problem()

    return snapshot.avoiding_damage(collect)


def protect_live_files(protected: ProtectedPaths, snapshot: Snapshot) -> None:
    """Adds the live files of another version, with their deletion vectors."""

    def protect(sound: Snapshot) -> None:
        for batch in sound.log.scan(fields={"add": ("path", "deletionVector"), "remove": ()}):
            protected.add(batch.adds)

    snapshot.avoiding_damage(protect)


def protect_removed(protected: ProtectedPaths, store: Store, entries: Sequence[LogEntry]) -> None:
    """Adds the files that commits removed, with their deletion vectors, and change data files.

    `CorruptTableError` if a commit cannot be read, `FileNotFoundError` if one was deleted after the
    listing.
    """
    for actions in _removed_files(store, entries):
        protected.add(actions.removes)
        protected.add(pa.table({"path": actions.cdc_paths}))


def take_references(
    references: FileReferences,
    batch: ActiveFiles,
    *,
    deleted_before_ms: int,
    commit_times: Mapping[int, int],
) -> None:
    """Adds the references of one batch of a version's actions."""
    adds, tombstones = batch.adds, batch.tombstones
    references.in_use.add(adds)
    references.num_live += adds.num_rows
    if "size" in adds.column_names:
        references.live_bytes += pc.sum(adds["size"]).as_py() or 0
    if references.keeps_live:
        references.live += FileReferences.live_paths(adds)
    if not tombstones.num_rows:
        return
    times = deletion_times(tombstones, commit_times=commit_times)
    protects = pc.fill_null(pc.greater_equal(times, deleted_before_ms), True)
    references.in_retention.add(tombstones.filter(protects))
    expired = tombstones.filter(pc.invert(protects))
    references.expired += spellings_of(expired, roots=references.in_use.roots).locations
    references.ageless_tombstones += times.null_count


def _as_text(location: bytes) -> str:
    return location.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The commits that a `lite` vacuum reads."""

    first: int
    last: int

    @property
    def is_empty(self) -> bool:
        """Whether an earlier vacuum has read all of these commits."""
        return self.first > self.last


def window_to(store: Store, listing: LogListing, last: int) -> LogWindow:
    """The commits up to `last` whose removed files no vacuum has deleted.

    Raises `RefusedError` if some of them were deleted: files that they removed would never be
    found.
    """
    earliest = min(listing.commits, default=last + 1)
    done = last_vacuumed(store)
    if earliest > 0 and (done is None or done < earliest - 1):
        raise RefusedError(
            f"the commits before version {earliest} were deleted, and no vacuum is known to have "
            "deleted the files that they removed",
            file=LOG_DIRECTORY,
            remedy="vacuum with --mode full",
        )
    return LogWindow(max(earliest, 0 if done is None else done + 1), last)


def last_vacuumed(store: Store) -> int | None:
    """The last commit whose removed files a vacuum has deleted, if it is recorded."""
    try:
        value = json.loads(read_hint(store, f"{LOG_DIRECTORY}/{LAST_VACUUM}"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    version = value.get(_KEY) if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        return None
    return version if 0 <= version <= MAX_VERSION else None


def record_vacuumed(store: Store, version: int, *, newest: int) -> None:
    """Records that all files removed by commits up to a version have been deleted.

    Keeps the record of a later version, unless that is beyond `newest`, the newest version.
    """
    done = last_vacuumed(store)
    if done is not None and version <= done <= newest:
        return
    store.put(f"{LOG_DIRECTORY}/{LAST_VACUUM}", json.dumps({_KEY: version}).encode())


def removed_paths(store: Store, entries: Sequence[LogEntry]) -> pa.StringArray:
    """Returns the data files, deletion vectors and change data files that commits removed or wrote.

    The paths are unique, decoded and relative to the root; files outside the root and paths that
    are not UTF-8 are omitted. `CorruptTableError` if a commit cannot be read, `FileNotFoundError`
    if one was deleted after the listing.
    """
    path_arrays: list[pa.BinaryArray] = []
    for actions in _removed_files(store, entries):
        path_arrays += _locations(actions, store.addresses)
    return valid_texts(pc.unique(pa.chunked_array(path_arrays, pa.binary())))


def _removed_files(store: Store, entries: Sequence[LogEntry]) -> Iterator[ParsedFileActions]:
    contents = read_ahead(store, entries, partial(_content, LogTail(store, entries)))
    everything = ((_readable(content)[0], True) for _, content in contents)
    for sources, _ in _batches(everything):
        yield _parse(sources)


@dataclass(slots=True)
class Removals:
    """Files that commits removed, or wrote as change data, divided by age.

    A file is recent if any of its known times is.

    The known times are the modification time of the commit file, the times in the commit, and the
    `deletionTimestamp` of each remove. All are in milliseconds since 1970-01-01 UTC.
    """

    tail: LogTail
    """Some of the commits, which were read before."""
    entries: Sequence[LogEntry]
    times: Mapping[int, int]
    """The modification times of the commit files, by version."""
    since_ms: int
    """Times from this instant on are recent."""
    goes_back: bool = False
    """Whether any of the commits is not recent."""
    swept_to: int | None = None
    """The newest version such that its commit and all older ones can be read and are not recent."""
    unreadable: list[CorruptTableError] = field(default_factory=list)
    """The errors of commits that cannot be read."""

    def actions(self) -> Iterator[tuple[pa.Table, bool]]:
        """Yields the actions in batches, each with whether its files are recent.

        Their columns are `path`, and `deletionVector` if any has one. `FileNotFoundError` if a
        commit was deleted after the listing.
        """
        for sources, late in _batches(self._lines()):
            for parsed in self._parse_each(sources):
                yield pa.table({"path": parsed.cdc_paths}), late
                removes = parsed.removes
                if late:
                    yield removes, True
                else:
                    is_late = pc.greater_equal(removes["deletionTimestamp"], self.since_ms)
                    is_late = pc.fill_null(is_late, False)
                    yield removes.filter(is_late), True
                    yield removes.filter(pc.invert(is_late)), False

    def _lines(self) -> Iterator[tuple[FileLines, bool]]:
        # The last commit is read first.
        contents = read_ahead(self.tail.store, self.entries, partial(_content, self.tail))
        for entry, content in contents:
            version = entry.file.version or 0
            try:
                lines, told_ms = _readable(content)
            except CorruptTableError as error:
                self.unreadable.append(error)
                self.swept_to = None
                continue
            late = max(self.times[version], told_ms or 0) >= self.since_ms
            self.goes_back |= not late
            if late:
                self.swept_to = None
            elif self.swept_to is None:
                self.swept_to = version
            yield lines, late

    def _parse_each(self, sources: list[FileLines]) -> Iterator[ParsedFileActions]:
        try:
            yield _parse(sources)
        except CorruptTableError as error:
            if len(sources) == 1:
                self.unreadable.append(error)
                return
            for source in sources:
                yield from self._parse_each([source])


_Content = CommitText | CorruptTableError
"""The content of a commit, or the reason why it cannot be read."""


def _content(tail: LogTail, entry: LogEntry) -> _Content:
    try:
        return tail.text_of(entry)
    except CorruptTableError as error:
        return error


def _readable(content: _Content) -> tuple[FileLines, int | None]:
    """Returns the removes and change data files of a commit, and the time that it contains.

    Adds are not parsed: they are most of a log, and nothing is asked of them here.
    """
    if isinstance(content, CorruptTableError):
        raise content
    actions, beside = parse_other_lines(content, commit_info=True)
    return FileLines.of(content, beside).without_adds(), told_time(actions.commit_info)


def _batches(commits: Iterable[tuple[FileLines, bool]]) -> Iterator[tuple[list[FileLines], bool]]:
    """Yields the commits in batches; commits with and without the flag are in different batches."""
    waiting: dict[bool, list[FileLines]] = {True: [], False: []}
    sizes = {True: 0, False: 0}
    for lines, flag in commits:
        if lines.runs:
            waiting[flag].append(lines)
            sizes[flag] += lines.size
        if sizes[flag] >= _BYTES_PER_BATCH:
            yield waiting[flag], flag
            waiting[flag], sizes[flag] = [], 0
    yield from ((lines, flag) for flag, lines in waiting.items() if lines)


def _parse(sources: Sequence[FileLines]) -> ParsedFileActions:
    keys = MapKeys(partition_columns=frozenset())
    return parse_file_actions(sources, keys=keys, fields=_REMOVED_FIELDS)


def _locations(actions: ParsedFileActions, roots: Sequence[str]) -> list[pa.BinaryArray]:
    removes = actions.removes
    paths = [*removes["path"].chunks, *actions.cdc_paths.chunks]
    vectors: list[pa.StringArray] = []
    if "deletionVector" in removes.column_names:
        for chunk in removes["deletionVector"].chunks:
            relative, absolute = deletion_vector_paths(chunk)
            # Not URIs, so they are not decoded.
            vectors.append(relative)
            paths.append(absolute)
    locations = [chunk.cast(pa.binary()) for chunk in vectors]
    for root in roots:
        locations += [file_locations(chunk, root=root) for chunk in paths]
    return [
        location.filter(pc.invert(pc.match_substring_regex(location, ABSOLUTE)))
        for location in locations
    ]

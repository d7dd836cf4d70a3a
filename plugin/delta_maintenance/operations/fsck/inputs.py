"""Reads what several checks compare: the whole log, however damaged, and the newest live files.

An unreadable commit is a finding, not an error. The history begins after the last missing or
damaged commit, with the oldest checkpoint from there on, or at version 0. It answers questions
about any version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError, shorten
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.layout.reading import Column, columns_of, file_statistics
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    COMMIT_VERSION,
    REMOVE_TYPES,
    concat,
)
from delta_maintenance.protocol.columns import booleans, column_of
from delta_maintenance.protocol.data_files.layout import required_columns
from delta_maintenance.protocol.delta_log.file_history import (
    COMPARED_FIELDS,
    FileActions,
    FileHistory,
)
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.retention import start_of_run
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import (
    CommitText,
    SingleActions,
    parse_other_lines,
    split,
)
from delta_maintenance.protocol.row_tracking.backfill import RowIdAudit, RowIdFindings
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.active_files import record_counts
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.log_file import LogEntry, read_ahead, read_listed
from delta_maintenance.table.read.partition_codes import partition_texts
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing
from delta_maintenance.table.read.snapshot import Snapshot

HISTORY_FIELDS = {
    "add": ("path", "deletionVector", "dataChange", *COMPARED_FIELDS),
    "remove": (
        "path",
        "deletionVector",
        "dataChange",
        "size",
        "deletionTimestamp",
        "baseRowId",
        "defaultRowCommitVersion",
    ),
}
_NULLS = pa.schema([("path", pa.string()), ("column", pa.string())])
_BATCH_BYTES = 12 << 20
_LIVE_COLUMNS = ("path", "deletionVector", "size", "baseRowId", "defaultRowCommitVersion")
_TOMBSTONE_COLUMNS = ("path", "deletionVector", "deletionTimestamp")
_LIVE_FIELDS = {
    "add": (*_LIVE_COLUMNS, "stats", "stats_parsed", "partitionValues"),
    "remove": (*_TOMBSTONE_COLUMNS, "baseRowId", "stats"),
}


@dataclass(frozen=True, slots=True)
class NonFileActions:
    """The non-file actions of a commit, and its metadata."""

    version: int
    actions: SingleActions
    """Without `commitInfo`, which would take too much memory for a long log."""
    txn_id: str | None
    in_commit_timestamp: int | None
    """Milliseconds since 1970-01-01 UTC; None unless `commitInfo` is the first action."""
    engine_info: str | None = None
    """The writer, as `commitInfo` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHistory:
    """A log from its oldest readable version on."""

    base: Checkpoint | None
    first: int
    """The version of the base; 0 if the log is complete."""
    last: int
    files: FileHistory
    commits: tuple[NonFileActions, ...]
    """The commits after the base, in ascending order."""

    def states(self, versions: Iterable[int]) -> Iterator[tuple[int, StateReplay]]:
        """Yields the state without files at some versions, ascending. Each state is valid until the
        next.
        """
        wanted_versions = sorted({v for v in versions if self.first <= v <= self.last})
        state = StateReplay()
        if self.base is not None:
            _apply(state, self.base.singles)
        commits = iter(self.commits)
        upcoming = next(commits, None)
        for version in wanted_versions:
            while upcoming is not None and upcoming.version <= version:
                _apply(state, upcoming.actions)
                upcoming = next(commits, None)
            yield version, state


@dataclass(slots=True)
class LiveFiles:
    """The live files and the tombstones of a snapshot, without their statistics."""

    adds: pa.Table
    """`path`, `deletionVector`, `size`, `baseRowId`, `defaultRowCommitVersion`, `num_records`."""
    tombstones: pa.Table
    """`path`, `deletionVector`, `deletionTimestamp`."""
    unreadable_statistics: pa.ChunkedArray
    """The paths of files whose statistics are not a JSON object."""
    nulls: pa.Table
    """`path` and `column` of files whose statistics state nulls of a NOT NULL column."""
    removed: RowIdFindings
    """The row IDs of tombstones."""
    partitions: Mapping[str, pa.ChunkedArray]
    """The value of each partition column in the log, by physical name, for each of the adds."""
    snapshot: Snapshot
    """The snapshot on whose base they could be read."""


def read_live_files(snapshot: Snapshot) -> LiveFiles:
    """Reads the files of a snapshot; damaged checkpoints are skipped."""
    collected = snapshot.avoiding_damage(_collect)
    texts = pa.dictionary(pa.int32(), pa.string())
    return LiveFiles(
        pa.concat_tables(collected.adds, promote_options="default"),
        pa.concat_tables(collected.tombstones, promote_options="default"),
        pa.chunked_array(collected.unreadable, pa.string()),
        pa.concat_tables([_NULLS.empty_table(), *collected.nulls]),
        collected.removed.findings(),
        {
            name: pa.chunked_array(
                [chunk for part in collected.partitions for chunk in part[name].chunks], texts
            )
            for name in snapshot.log.physical_partition_columns
        },
        collected.snapshot,
    )


def read_live_rows(snapshot: Snapshot, paths: tuple[str, ...]) -> pa.Table:
    """Returns the live files of these paths with all fields of their adds."""
    path_array = pa.array(paths, pa.string())
    parts = snapshot.avoiding_damage(
        lambda sound: [
            batch.adds.filter(pc.is_in(batch.adds["path"], value_set=path_array))
            for batch in sound.log.scan()
        ]
    )
    return pa.concat_tables(parts, promote_options="permissive")


def read_history(
    store: Store,
    listing: LogListing,
    last: int,
    findings: Findings,
    *,
    progress: Progress | None = None,
) -> LogHistory | None:
    """Reads the history up to a version; returns None if no base can be read.

    `FileNotFoundError` if a file was deleted after the listing.
    """
    facts: list[NonFileActions] = []
    tail: list[FileActions] = []
    entries = [entry for version, entry in sorted(listing.commits.items()) if version <= last]
    # Versions before the newest gap are not used; the width of gaps does not matter.
    first_version = start_of_run(listing.commits, last)
    for piece in _pieces(store, entries, findings):
        first_version = max([first_version, *(version + 1 for version in piece.damaged)])
        facts.extend(piece.facts)
        tail.extend(piece.files)
        if progress is not None:
            progress("commits", len(facts), len(entries))
    base, actions = _base(store, listing, first_version)
    if base is None and (first_version > 0 or last < 0):
        return None
    after = -1 if base is None else base.files.version
    later_parts = [part for part in (_later_than(part, after) for part in tail) if part is not None]
    start = max(after, 0)
    return LogHistory(
        base=base,
        first=start,
        last=last,
        files=FileHistory(actions, later_parts, first=start, last=last),
        commits=tuple(
            sorted((f for f in facts if f.version > after), key=lambda fact: fact.version)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some adjacent commits, parsed."""

    facts: list[NonFileActions]
    files: list[FileActions]
    damaged: list[int]


def _pieces(store: Store, entries: Sequence[LogEntry], findings: Findings) -> Iterator[_Piece]:
    piece, lines, size = _Piece([], [], []), dict[LogEntry, FileLines](), 0
    for entry, data in read_ahead(store, entries, lambda entry: _read(store, entry)):
        version = _version(entry)
        try:
            if isinstance(data, CorruptTableError):
                raise data
            text = split(entry.path, data)
            actions, beside = parse_other_lines(text, commit_info=True)
            file_lines = FileLines.of(text, beside)
        except CorruptTableError as error:
            _report(entry, error, findings)
            piece.damaged.append(version)
            continue
        piece.facts.append(_facts(version, text, actions))
        if file_lines.runs:
            lines[entry] = file_lines
            size += len(data)
        if size >= _BATCH_BYTES:
            _parse(lines, piece, findings)
            yield piece
            piece, lines, size = _Piece([], [], []), {}, 0
    _parse(lines, piece, findings)
    yield piece


def _read(store: Store, entry: LogEntry) -> bytes | CorruptTableError:
    """Returns the bytes of a commit, or the reason why it cannot be read."""
    try:
        return read_listed(store, entry.status)
    except CorruptTableError as error:
        return error


def _facts(version: int, text: CommitText, actions: SingleActions) -> NonFileActions:
    info, actions.commit_info = actions.commit_info, None
    number, line = min(text.other_lines, default=(0, b""))
    leads = b'"commitInfo"' in line and number < min(text.file_line_numbers, default=_NO_LINE)
    txn_id, engine = (
        None if info is None else info.values.get(name) for name in ("txnId", "engineInfo")
    )
    return NonFileActions(
        version,
        _NOTHING if actions == _NOTHING else actions,
        txn_id if isinstance(txn_id, str) else None,
        info.in_commit_timestamp if info is not None and leads else None,
        # Few writers add all commits of a log.
        sys.intern(shorten(engine, _MOST_ENGINE_INFO)) if isinstance(engine, str) else None,
    )


_NOTHING = SingleActions()
"""The non-file actions of nearly all commits, shared to save memory."""
_NO_LINE = 2**63
_MOST_ENGINE_INFO = 80


def _parse(lines: dict[LogEntry, FileLines], piece: _Piece, findings: Findings) -> None:
    try:
        if lines:
            piece.files.append(_file_actions(list(lines), list(lines.values())))
    except (CorruptTableError, RefusedError):
        # At least one of these commits is damaged; the others are read individually.
        for entry, file_lines in lines.items():
            try:
                piece.files.append(_file_actions([entry], [file_lines]))
            except (CorruptTableError, RefusedError) as error:
                _report(entry, error, findings)
                piece.damaged.append(_version(entry))


def _file_actions(entries: Sequence[LogEntry], lines: Sequence[FileLines]) -> FileActions:
    keys = MapKeys(partition_columns=frozenset())
    parsed = parse_file_actions(lines, keys=keys, fields=HISTORY_FIELDS)
    versions = np.array([_version(entry) for entry in entries], np.int64)
    return FileActions(
        adds=parsed.adds.append_column(COMMIT_VERSION, pa.array(versions[parsed.add_source])),
        removes=parsed.removes.append_column(
            COMMIT_VERSION, pa.array(versions[parsed.remove_source])
        ),
    )


def _report(entry: LogEntry, error: CorruptTableError | RefusedError, findings: Findings) -> None:
    findings.add("unreadable-commit", error.problem, version=entry.file.version, path=entry.path)


def _base(
    store: Store, listing: LogListing, first_version: int
) -> tuple[Checkpoint | None, FileActions | None]:
    """Returns the oldest sound checkpoint after which no commit is missing."""
    if first_version == 0:
        return None, None
    for files in listing.checkpoints:
        if files.version >= first_version - 1:
            try:
                return _open_checkpoint(store, files)
            except UnusableCheckpointError:
                continue
    return None, None


def _open_checkpoint(store: Store, files: CheckpointFiles) -> tuple[Checkpoint, FileActions]:
    checkpoint = Checkpoint(store, files)
    if checkpoint.singles.protocol is None or checkpoint.singles.metadata is None:
        raise UnusableCheckpointError("the checkpoint has no protocol or no metaData")
    keys = MapKeys(partition_columns=frozenset())
    batches = list(checkpoint.file_actions(keys=keys, fields=HISTORY_FIELDS))
    return checkpoint, FileActions(
        adds=concat((batch.adds for batch in batches), ADD_TYPES),
        removes=concat((batch.removes for batch in batches), REMOVE_TYPES),
        version=files.version,
    )


def _later_than(part: FileActions, version: int) -> FileActions | None:
    adds, removes = (
        batch.filter(pc.greater(batch[COMMIT_VERSION], version))
        for batch in (part.adds, part.removes)
    )
    if not adds.num_rows and not removes.num_rows:
        return None
    return replace(part, adds=adds, removes=removes)


def _apply(state: StateReplay, actions: SingleActions) -> None:
    """Applies newer actions, whereas `StateReplay` itself adds older ones."""
    state.protocol = actions.protocol or state.protocol
    state.metadata = actions.metadata or state.metadata
    state.txns.update(actions.txns)
    state.domains.update(actions.domains)
    state.draft_high_water_mark = actions.draft_high_water_mark or state.draft_high_water_mark


def _version(entry: LogEntry) -> int:
    assert entry.file.version is not None
    return entry.file.version


@dataclass(slots=True)
class _Collected:
    snapshot: Snapshot
    adds: list[pa.Table] = field(
        default_factory=lambda: [
            pa.schema([(name, ADD_TYPES[name]) for name in _LIVE_COLUMNS])
            .append(pa.field("num_records", pa.int64()))
            .empty_table()
        ]
    )
    tombstones: list[pa.Table] = field(
        default_factory=lambda: [
            pa.schema([(name, REMOVE_TYPES[name]) for name in _TOMBSTONE_COLUMNS]).empty_table()
        ]
    )
    unreadable: list[pa.Array] = field(default_factory=list)
    partitions: list[Mapping[str, pa.ChunkedArray]] = field(default_factory=list)
    nulls: list[pa.Table] = field(default_factory=list)
    removed: RowIdAudit = field(default_factory=RowIdAudit)

    def take(
        self, adds: pa.Table, tombstones: pa.Table, names: Sequence[str], required: Sequence[Column]
    ) -> None:
        """Keeps the columns of a batch that are needed later; most of its size is statistics."""
        counts = record_counts(adds)
        self.unreadable.extend(_without_statistics(adds, counts).chunks)
        self.adds.append(
            adds.select(
                [name for name in _LIVE_COLUMNS if name in adds.column_names]
            ).append_column("num_records", counts)
        )
        present_columns = [name for name in _TOMBSTONE_COLUMNS if name in tombstones.column_names]
        self.tombstones.append(tombstones.select(present_columns))
        self.removed.add(adds.slice(0, 0), tombstones)
        self.partitions.append(partition_texts(adds, names))
        statistics = file_statistics(adds, required) if required else adds
        deleted = pc.fill_null(
            pc.struct_field(column_of(adds, "deletionVector", ADD_TYPES), "cardinality"), 0
        )
        for number, column in enumerate(required):
            # Rows that are deleted may be the ones without a value.
            over = pc.fill_null(pc.greater(statistics[f"{number} nulls"], deleted), False)
            paths = adds["path"].filter(over)
            names_of = pa.repeat(pa.scalar(column.name), len(paths))
            self.nulls.append(pa.table([paths, names_of], schema=_NULLS))


def _collect(snapshot: Snapshot) -> _Collected:
    collected = _Collected(snapshot)
    required = _with_null_counts(snapshot)
    names = snapshot.log.physical_partition_columns
    for batch in snapshot.log.scan(fields=_LIVE_FIELDS):
        collected.take(batch.adds, batch.tombstones, names, required)
    return collected


def _with_null_counts(snapshot: Snapshot) -> list[Column]:
    """Returns the NOT NULL columns whose nulls the statistics count apart from those of structs."""
    try:
        required = {
            tuple(field.name for field in column.fields)
            for column in required_columns(snapshot.protocol, snapshot.metadata)
            if column.in_required and not column.is_partition
        }
        return [column for column in columns_of(snapshot).values() if column.names in required]
    except CorruptTableError:
        # Reported with the schema.
        return []


def _without_statistics(adds: pa.Table, counts: pa.ChunkedArray) -> pa.ChunkedArray:
    if "stats" not in adds.column_names:
        return adds["path"].slice(0, 0)
    # Statistics with a row count are valid objects; the few others are checked individually.
    suspect = adds.filter(pc.and_(pc.is_valid(adds["stats"]), pc.is_null(counts)))
    texts = pc.unique(suspect["stats"])
    broken = texts.filter(booleans(np.array([not _is_object(t) for t in texts.to_pylist()], bool)))
    return suspect["path"].filter(pc.is_in(suspect["stats"], value_set=broken))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

"""Traces of a table feature, in the latest version and in every version that can still be read.

Implements the requirement of "Protocol Evolution" for the client that removes a feature. The
absence of traces is verified in the log, from the columns of all files, and never inferred from a
property.

`clean_log` deletes versions that used the feature like other versions, but with the retention of
`delta.dropFeatureTruncateHistory.retentionDuration` and with a boundary rounded to the minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.operations.rewriting.live_columns import NEEDS_WIDENING, FooterReasons
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.changes.drop import PROTECTED_BEFORE, FeatureRemoval
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.delta_log.file_names import LogFile
from delta_maintenance.protocol.delta_log.retention import is_expired
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.ndjson.split import CommitText, parse_other_lines
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.quantities import duration_text
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.history import file_times, read_commit_info, told_time
from delta_maintenance.table.read.log_file import LogEntry, relisting
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.partition_codes import (
    has_other_spelling,
    partition_texts,
    partition_types,
)
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

BARRIER = 3
"""The number of checkpoints between the last version that used a feature and the first version
without it: a client that cannot read a checkpoint tries the one before it, at most twice."""
EMPTY_COMMIT = "Empty Commit"
"""The operation that adds a version for a checkpoint. Delta Spark uses the same name."""

_LOOKED_BACK = 100
"""The number of latest versions that are searched for an incomplete barrier."""
_RETENTION = "delta.dropFeatureTruncateHistory.retentionDuration"
_LONGEST_TRANSACTION = timedelta(hours=24)
"""The assumed maximum duration of a transaction. A writer that stalled for longer than the log
retention could write a deleted version again.
"""
_ANY_KEYS = MapKeys(partition_columns=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTraces:
    """Live files that use a feature."""

    count: int
    first: str | None
    """The path of one of these files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrace:
    """A file of the log that a client without the feature would misread."""

    file: LogFile
    what: str
    """The use of the feature, as a clause."""

    def __str__(self) -> str:
        return f"{self.file.name}: {self.what}"


@dataclass(slots=True)
class CheckedFooters:
    """Remembers which data files can be read without type widening, so that each is opened once."""

    _paths: pa.ChunkedArray = field(default_factory=lambda: pa.chunked_array([], pa.string()))
    _columns: StructType | None = None
    """The columns of the table when these files were opened."""

    def traces(self, snapshot: Snapshot) -> FileTraces:
        """Returns the live files that can only be read with type widening, by their footers, and
        those whose partition values have the spelling of a former type.

        Raises the error of a footer that cannot be read, or that contradicts the schema.
        """
        layout = DataFileLayout.of_columns(snapshot.protocol, snapshot.metadata)
        if layout.columns != self._columns:
            self._paths, self._columns = self._paths.slice(0, 0), layout.columns
        names, types = snapshot.log.physical_partition_columns, partition_types(snapshot)
        live: list[pa.Array] = []
        trace_paths: list[pa.Array] = []
        for batch in snapshot.log.scan(fields={"add": ("path", "partitionValues"), "remove": ()}):
            paths, texts = batch.adds["path"], partition_texts(batch.adds, names)
            respelled = has_other_spelling(texts, types, len(paths))
            live += paths.chunks
            trace_paths += paths.filter(pa.array(respelled)).chunks
        files = pa.chunked_array(live, pa.string())
        opened = files.filter(pc.invert(pc.is_in(files, value_set=self._paths)))
        reading = FooterReasons(
            store=snapshot.log.store, layout=layout, wanted=[NEEDS_WIDENING], strict=True
        )
        needing = pa.array(list(map(bool, reading.of_paths(opened))), pa.bool_())
        sound = opened.filter(pc.invert(needing))
        self._paths = pa.chunked_array([*self._paths.chunks, *sound.chunks], pa.string())
        trace_paths += opened.filter(needing).chunks
        traced = pc.unique(pa.chunked_array(trace_paths, pa.string()))
        return FileTraces(count=len(traced), first=traced[0].as_py() if len(traced) else None)


def state_trace(snapshot: Snapshot, removal: FeatureRemoval) -> str | None:
    """Returns a use of the feature in metadata or domains, as a noun phrase; None if there is none.

    The checkpoint and the files are examined elsewhere.
    """
    trace = removal.metadata_trace(snapshot.metadata)
    if trace is not None:
        return trace
    if removal.leaked_domains and snapshot.log.state.domains:
        return f"the domain {min(snapshot.log.state.domains)!r}"
    return None


def checkpoint_trace(snapshot: Snapshot, removal: FeatureRemoval) -> str | None:
    """Returns the checkpoint of the snapshot, as a noun phrase, if reading it needs the feature."""
    checkpoint = snapshot.log.checkpoint
    if removal.v2_checkpoints and checkpoint is not None and checkpoint.is_v2:
        return f"the V2 checkpoint {checkpoint.files.name}"
    return None


def file_traces(
    snapshot: Snapshot,
    removal: FeatureRemoval,
    *,
    footers: CheckedFooters,
    none_until: int | None = None,
) -> FileTraces:
    """Returns the live files that use the feature, according to the log or to their `footers`.

    `none_until` is a version that is known to have none. In that case, the commits since are read
    first, and the live files only if one of these commits has a trace.
    """
    none = FileTraces(count=0, first=None)
    if removal.rewrites == "old-types":
        return snapshot.avoiding_damage(footers.traces)
    if not removal.file_fields:
        return none
    if none_until is not None and not _committed_since(snapshot, removal, none_until):
        return none
    return snapshot.avoiding_damage(lambda sound: _live(sound, removal))


def traced_files(snapshot: Snapshot, removal: FeatureRemoval) -> Iterator[pa.Table]:
    """Yields the live files that use the feature, with all fields.

    Raises `UnusableCheckpointError` like `Snapshot.scan`.
    """
    for batch in snapshot.log.scan():
        yield batch.adds.filter(_mask(batch.adds, removal.file_fields))


def history_traces(
    snapshot: Snapshot, removal: FeatureRemoval, *, first_version: int = 0
) -> tuple[HistoryTrace, ...]:
    """Returns the retained files of the log that use the feature, including newer ones.

    Versions before `first_version` are skipped, except for a feature whose traces are the versions
    themselves. All actions of commits and compactions count, but not the tombstones of checkpoints,
    because no readable version has their files. An unreadable checkpoint or compaction counts,
    because it could become readable again. Raises `CorruptTableError` for an unreadable commit, and
    `StorageError` if files repeatedly vanish.
    """
    store = snapshot.log.store
    if removal.needs_truncation:
        return tuple(_find_unprotected(list_log(store), snapshot.metadata))

    def listed() -> tuple[HistoryTrace, ...]:
        listing = list_log(store, first_version=first_version)
        return tuple(_history(store, listing, removal))

    return relisting(listed)


def clean_checkpoint(listing: LogListing, traces: Sequence[HistoryTrace]) -> CheckpointFiles | None:
    """Returns the oldest checkpoint such that deleting the history before it removes all traces.

    The commit of its version exists, as the clean-up requires of a boundary checkpoint.
    """
    for files in listing.checkpoints:
        if files.version in listing.commits and outdated(traces, files.version):
            return files
    return None


def outdated(traces: Sequence[HistoryTrace], cut_off: int) -> bool:
    """Returns whether deleting the history before a checkpoint at `cut_off` removes all traces."""
    return all(is_expired(trace.file, cut_off) for trace in traces)


def _live(snapshot: Snapshot, removal: FeatureRemoval) -> FileTraces:
    count, first_path = 0, None
    fields = {"add": removal.file_fields, "remove": ()}
    for batch in snapshot.log.scan(fields=fields):
        live_traces = batch.adds.filter(_mask(batch.adds, removal.file_fields))
        if live_traces.num_rows:
            count += live_traces.num_rows
            first_path = first_path or live_traces["path"][0].as_py()
    return FileTraces(count=count, first=first_path)


def _mask(files: pa.Table, fields: Sequence[str]) -> pa.ChunkedArray:
    none = pa.chunked_array([pa.repeat(pa.scalar(False), files.num_rows)])
    present = [pc.is_valid(files[name]) for name in fields if name in files.column_names]
    return reduce(pc.or_, present, none)


def _committed_since(snapshot: Snapshot, removal: FeatureRemoval, version: int) -> bool:
    """Returns whether a commit after `version` adds a file with a trace, or may do so."""
    since = [entry for entry in snapshot.log.segment.commits if (entry.file.version or 0) > version]
    if len(since) != snapshot.version - version:
        return True
    try:
        return any(True for _ in _traced_versions(snapshot.log.store, since, removal, ("add",)))
    except FileNotFoundError:
        return True


def _traced_versions(
    store: Store, entries: Sequence[LogEntry], removal: FeatureRemoval, actions: Sequence[str]
) -> Iterator[int]:
    keys = ("path", "deletionVector")
    trace_keys = {
        action: (*keys, *removal.file_fields) if action in actions else keys
        for action in ("add", "remove")
    }
    for batch in LogTail(store, entries).batches(keys=_ANY_KEYS, fields=trace_keys):
        for action, files in (("add", batch.adds), ("remove", batch.removes)):
            if action in actions:
                traced_files = files.filter(_mask(files, removal.file_fields))
                yield from pc.unique(traced_files[COMMIT_VERSION]).to_pylist()


def _find_unprotected(listing: LogListing, metadata: Metadata) -> Iterator[HistoryTrace]:
    properties = TableProperties.from_configuration(metadata.configuration)
    boundary = properties.require_checkpoint_protection_before_version
    entries = [
        *listing.commits.values(),
        *listing.compactions,
        *(entry for files in listing.checkpoints for entry in files.entries),
    ]
    for entry in sorted(entries, key=lambda entry: entry.file.name):
        if (entry.file.version or 0) < boundary:
            yield HistoryTrace(
                file=entry.file, what=f"it is older than {PROTECTED_BEFORE}, {boundary}"
            )


def _history(store: Store, listing: LogListing, removal: FeatureRemoval) -> Iterator[HistoryTrace]:
    if not removal.protects_history:
        return
    commits = [listing.commits[version] for version in sorted(listing.commits)]
    yield from _in_text(store, commits, removal)
    for entry in listing.compactions:
        if entry.status.size:
            try:
                yield from _in_text(store, [entry], removal)
            except CorruptTableError as error:
                yield _unreadable(entry.file, error)
    for files in listing.checkpoints:
        yield from _in_checkpoint(store, files, removal)


def _in_text(
    store: Store, entries: Sequence[LogEntry], removal: FeatureRemoval
) -> Iterator[HistoryTrace]:
    """Yields the traces in commits, or in one compaction."""
    suspects = []
    for entry, text in LogTail(store, entries).texts():
        actions, beside = parse_other_lines(text)
        trace = None if actions.metadata is None else removal.history_trace(actions.metadata)
        if trace is not None:
            yield HistoryTrace(file=entry.file, what=f"it holds {trace}".removesuffix(","))
        elif _names(text, beside, removal.file_fields):
            suspects.append(entry)
    suspects.reverse()
    by_version = {entry.file.end_version or entry.file.version: entry for entry in suspects}
    for version in sorted(set(_traced_versions(store, suspects, removal, ("add", "remove")))):
        yield HistoryTrace(
            file=by_version[version].file,
            what=f"it holds a file action with a {removal.file_fields[0]}",
        )


def _names(text: CommitText, beside: Sequence[bytes], fields: Sequence[str]) -> bool:
    """Returns whether the names of the fields occur, which is faster to check than their values."""
    if not fields:
        return False
    name = re.compile(b"|".join(f'"{field}"'.encode() for field in fields))
    return any(name.search(lines) for lines in (*(run.text for run in text.file_lines), *beside))


def _in_checkpoint(
    store: Store, files: CheckpointFiles, removal: FeatureRemoval
) -> Iterator[HistoryTrace]:
    file = files.entries[0].file
    try:
        checkpoint = Checkpoint(store, files, open_sidecars=bool(removal.file_fields))
        metadata = checkpoint.singles.metadata
        trace = None if metadata is None else removal.history_trace(metadata)
        if removal.v2_checkpoints and checkpoint.is_v2:
            yield HistoryTrace(file=file, what="it is a V2 checkpoint")
        elif trace is not None:
            yield HistoryTrace(file=file, what=f"it holds {trace}".removesuffix(","))
        elif removal.file_fields:
            fields = {"add": ("path", *removal.file_fields), "remove": ("path",)}
            for batch in checkpoint.file_actions(keys=_ANY_KEYS, fields=fields):
                if pc.any(_mask(batch.adds, removal.file_fields)).as_py():
                    yield HistoryTrace(
                        file=file, what=f"it holds a file with a {removal.file_fields[0]}"
                    )
                    return
    except UnusableCheckpointError as error:
        yield _unreadable(file, error)


def _unreadable(file: LogFile, error: CorruptTableError) -> HistoryTrace:
    return HistoryTrace(file=file, what=f"it cannot be searched: {error.problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOutlook:
    """The state of the versions that used a feature."""

    version: int
    """The version up to which the log was searched."""
    traces: tuple[HistoryTrace, ...]
    """The files of the log that use the feature."""
    cleaning: CleanLogPlan | None = None
    """Deletes all of them at once; None if there are none, or if it is too early."""
    has_cut_off: bool = False
    """Whether a checkpoint follows all of them, which only needs to become old enough."""
    ready_at: datetime | None = None
    """The instant at which that checkpoint is old enough; None if unknown, or if something else
    keeps the history.
    """
    held: tuple[HeldBack, ...] = ()
    """The holders of versions that use the feature."""
    reason: str = ""
    """The reason why no history can be deleted yet."""


def history_outlook(
    table: Table,
    snapshot: Snapshot,
    removal: FeatureRemoval,
    options: DropFeatureOptions,
    context: RunContext,
) -> HistoryOutlook:
    """Searches the whole log. Raises `RefusedError` if the history must not be truncated."""
    cleaning = plan_truncation(snapshot, options, context)
    traces = history_traces(snapshot, removal)
    if not traces:
        return HistoryOutlook(version=snapshot.version, traces=())
    if cleaning.oldest_version is not None and outdated(traces, cleaning.oldest_version):
        return HistoryOutlook(version=snapshot.version, traces=traces, cleaning=cleaning)
    listing = list_log(snapshot.log.store)
    cut_off = clean_checkpoint(listing, traces)
    ready = None if cut_off is None else ready_at(table, snapshot, cut_off.version)
    return HistoryOutlook(
        version=snapshot.version,
        traces=traces,
        has_cut_off=cut_off is not None,
        ready_at=ready if ready is not None and ready > context.started else None,
        held=cleaning.held,
        reason=cleaning.reason,
    )


def standing_barrier(snapshot: Snapshot, removal: FeatureRemoval) -> tuple[int, ...]:
    """Returns the versions of the barrier that an interrupted run has left, oldest first.

    Each is an empty commit with a checkpoint, or the newest commit. The log shows that neither it
    nor any later version uses the feature. Returns at most `BARRIER` versions.
    """
    barrier = relisting(lambda: _empty_commits(snapshot))[-BARRIER:]
    if not barrier:
        return ()
    traces = history_traces(snapshot, removal, first_version=barrier[0])
    return tuple(version for version in barrier if outdated(traces, version))


def _empty_commits(snapshot: Snapshot) -> list[int]:
    """Returns the latest versions that may belong to a barrier.

    Raises `FileNotFoundError` if a commit was deleted in the meantime.
    """
    store = snapshot.log.store
    listing = list_log(store, first_version=max(0, snapshot.version - _LOOKED_BACK))
    versions = {snapshot.version, *(files.version for files in listing.checkpoints)}
    return [
        version
        for version in sorted(versions)
        if version in listing.commits and version <= snapshot.version
        if (info := read_commit_info(store, listing.commits[version])) is not None
        if info.operation == EMPTY_COMMIT
    ]


def plan_truncation(
    snapshot: Snapshot, options: DropFeatureOptions, context: RunContext
) -> CleanLogPlan:
    """Plans to delete the history that is old enough. Raises `RefusedError` if there is none."""
    properties = snapshot.properties
    unread = [problem for problem in properties.problems if problem.startswith(_RETENTION)]
    if unread:
        raise snapshot.refusal(f"a property cannot be read: {unread[0]}", "correct the property")
    if not properties.enable_expired_log_cleanup:
        raise snapshot.refusal(
            "the table sets delta.enableExpiredLogCleanup to false, which keeps its history",
            "set it to true first, or drop the feature without truncating history",
        )
    retention = properties.drop_feature_retention
    if retention < _LONGEST_TRANSACTION and options.other_writers != "none":
        raise snapshot.refusal(
            f"{_RETENTION} is {duration_text(retention)}, after which a stalled writer could "
            "still commit",
            "set it to 24 hours or more, or give --other-writers none",
        )
    cleaning = CleanLogOptions(
        log_retention=retention,
        # The request to truncate history implies a short retention.
        allow_short_retention=True,
        no_other_writers=True,
        as_of=options.as_of,
        to_the_minute=True,
        holders=options.holders,
    )
    return clean_log.plan(snapshot, cleaning, context=context)


def ready_at(table: Table, snapshot: Snapshot, version: int) -> datetime | None:
    """Returns the instant from which history before a version can be deleted; None if unknown."""
    # The latest of all timestamps of the commit counts, as in the clean-up.
    time_ms = file_times(list_log(table.store), now_ms=0).get(version)
    if time_ms is None:
        # The commit has just been deleted.
        return None
    times = [time_ms]
    times.append(told_time(table.snapshot(version=version).log.state.commit_info) or 0)
    instant = clock.instant(max(times))
    return ready_after(snapshot, instant)


def ready_after(snapshot: Snapshot, instant: datetime) -> datetime | None:
    """Returns the instant from which history before a version committed at `instant` can be
    deleted; None if it is beyond the calendar.
    """
    whole = instant.replace(second=0, microsecond=0)
    minute = whole if whole == instant else whole + timedelta(minutes=1)
    try:
        return minute + snapshot.properties.drop_feature_retention
    except OverflowError:
        return None

"""An immutable view of one version of a table.

Implements "Action Reconciliation" over the files of a log segment. The small state (protocol,
metadata, transactions, domains) is read when the snapshot is opened. Files are read on request, as
a stream of columns, newest first, for which only the keys of earlier batches are kept in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.limits import MOST_PARTITION_COLUMNS
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    empty,
)
from delta_maintenance.protocol.actions.model import (
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
)
from delta_maintenance.protocol.columns.key_hash import Hashes
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.schema.contradictions import contradictions
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema, physical_name
from delta_maintenance.read_once import read_once
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import (
    ActiveFiles,
    FileCounts,
    FirstActions,
    active_files,
    active_in_tail,
    column_of,
    file_view,
    tombstone_view,
    view_keys,
)
from delta_maintenance.table.read.checkpoint_reader import (
    FILE_COLUMNS,
    Checkpoint,
    FileActionBatch,
    UnusableCheckpointError,
)
from delta_maintenance.table.read.file_index import FileIndex
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import LogSegment
from delta_maintenance.table.read.sidecar_search import (
    NamedPlaces,
    SearchedSidecar,
    search_sidecars,
)

T = TypeVar("T")


class VanishedFileError(UnusableCheckpointError):
    """A file of the log was deleted after the snapshot was opened; the log must be listed again."""


_logger = logging.getLogger(__name__)

_LIVE_FIELDS = (
    "path",
    "deletionVector",
    "size",
    "partitionValues",
    ROW_COUNT,
    "baseRowId",
    "defaultRowCommitVersion",
)
_TOMBSTONE_FIELDS = (
    "path",
    "deletionVector",
    "size",
    "partitionValues",
    "stats",
    "baseRowId",
    "defaultRowCommitVersion",
    "deletionTimestamp",
    "extendedFileMetadata",
)
COUNTED_FIELDS: Mapping[str, Collection[str]] = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector"),
}
"""The fields of file actions that totals need."""
_LIVE_VIEW: Mapping[str, Collection[str]] = {
    "add": _LIVE_FIELDS,
    "remove": ("path", "deletionVector"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """The files that some commits name, each counted once, by the newest commit that names it."""

    adds: int
    tombstones: int
    places: NamedPlaces
    removed_first: Hashes
    """The hashes of the keys of files whose first action in these commits is a remove, ascending.
    Such files should be in the checkpoint before the commits.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """The small state of one version, the result of log replay."""

    protocol: Protocol
    metadata: Metadata
    txns: Mapping[str, Txn]
    domains: Mapping[str, DomainMetadata]
    """Without removed domains."""
    commit_info: CommitInfo | None
    """The `commitInfo` of the commit of this version."""
    draft_high_water_mark: Mapping[str, object] | None
    repeated_actions: frozenset[str]
    """Actions in effect of which their commit contains two, so that readers may use the other."""
    unknown_actions: frozenset[str]
    """Names of actions in the tail of the log that no revision of the protocol defines."""


class Snapshot:
    """One version of a table. Get it from `Table.snapshot`."""

    def __init__(
        self,
        *,
        store: Store,
        segment: LogSegment,
        tail: LogTail,
        checkpoint: Checkpoint | None,
        state: SnapshotState,
        timestamp_ms: int | None,
        warnings: tuple[str, ...],
        reopen: Callable[[CorruptTableError], Snapshot],
    ) -> None:
        self.store = store
        self.segment = segment
        self.tail = tail
        """The commits and compactions after the checkpoint."""
        self.checkpoint = checkpoint
        self.state = state
        self.timestamp_ms = timestamp_ms
        """Milliseconds since 1970-01-01 UTC; None if the commit of this version was deleted."""
        self.warnings = warnings
        """Files that were skipped while opening, with reasons."""
        self._reopen = reopen
        self.index: FileIndex | None = None
        """Set by `remember_files`."""

    @property
    def table(self) -> str:
        """The address of the table."""
        return self.store.root

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.segment.version

    @property
    def timestamp(self) -> datetime | None:
        """The time of the commit, in UTC: its in-commit timestamp, or else the time of its file."""
        return None if self.timestamp_ms is None else clock.instant(self.timestamp_ms)

    @property
    def log_bytes(self) -> int:
        """The bytes of the log files that a replay of this version reads."""
        checkpoint = 0 if self.checkpoint is None else self.checkpoint.size_bytes
        return checkpoint + sum(entry.status.size for entry in self.segment.tail)

    @property
    def protocol(self) -> Protocol:
        """The versions and features that a client must support at this version."""
        return self.state.protocol

    @property
    def metadata(self) -> Metadata:
        """Schema, partitioning and properties at this version."""
        return self.state.metadata

    @cached_property
    def properties(self) -> TableProperties:
        """The table properties, typed, with their defaults."""
        return TableProperties.from_configuration(self.metadata.configuration)

    @cached_property
    def contradiction(self) -> str | None:
        """The first contradiction in the state without files, as a clause; None in a sound state.

        `fsck` reports all of them as corruption. Nothing is read.
        """
        if self.state.repeated_actions:
            return f"a commit contains two actions for {min(self.state.repeated_actions)}"
        found = contradictions(self.protocol, self.metadata, self.domain_metadata)
        return next((problem for _, problem in found), None)

    @property
    def txns(self) -> dict[str, int]:
        """The newest version of each application's transactions, by application id."""
        return {app_id: txn.version for app_id, txn in sorted(self.state.txns.items())}

    @property
    def domain_metadata(self) -> dict[str, str]:
        """The configuration of each domain that is not removed, by its name."""
        return {name: domain.configuration for name, domain in sorted(self.state.domains.items())}

    def live_files(self) -> pa.Table:
        """One row per live logical file.

        Columns: `path` (exactly as in the log), `dv` (unique id of the deletion vector or null),
        `size` (bytes), `partition_values` (map of text), `num_records` (physical rows, null if the
        statistics do not state them), `base_row_id`, `default_row_commit_version`.
        """
        return self._collect(
            _LIVE_VIEW, lambda batch: file_view(batch.adds), file_view(empty(ADD_TYPES))
        )

    def live_file_batches(self) -> Iterator[pa.Table]:
        """The rows of `live_files` as a stream of tables, for tables too large to hold at once.

        If a checkpoint proves to be damaged, the stream continues from another base without
        repeating a row.
        """
        given = 0
        try:
            views = in_parallel(lambda batch: file_view(batch.adds), self.scan(fields=_LIVE_VIEW))
            for view in views:
                yield view
                given += 1
        except UnusableCheckpointError as error:
            other = self.avoiding(error)
            # The keys are read again instead of kept, because they are large and damage is rare.
            before = [
                view_keys(file_view(batch.adds))
                for batch in islice(self.scan(fields=_LIVE_VIEW), given)
            ]
            known = pa.chunked_array(
                [chunk for keys in before for chunk in keys.chunks], pa.string()
            )
            for view in other.live_file_batches():
                yield view.filter(pc.invert(pc.is_in(view_keys(view), known)))

    def tombstones(self) -> pa.Table:
        """One row per tombstone in effect, expired or not.

        The columns of `live_files`, then `deletion_timestamp` (milliseconds since 1970-01-01 UTC,
        null if the writer left none). Sizes and partition values are null if the remove does not
        contain reliable ones.
        """
        fields = {"add": ("path", "deletionVector"), "remove": _TOMBSTONE_FIELDS}
        return self._collect(
            fields,
            lambda batch: tombstone_view(batch.tombstones),
            tombstone_view(empty(REMOVE_TYPES)),
        )

    @read_once
    def counts(self) -> FileCounts:
        """The number of files, bytes, tombstones, deletion vectors and rows that they delete."""
        if self.index is not None:
            return self.index.counts
        counts = self.avoiding_damage(
            lambda snapshot: [_count(batch) for batch in snapshot.scan(fields=COUNTED_FIELDS)]
        )
        return FileCounts(
            num_files=sum(count.num_files for count in counts),
            total_size=sum(count.total_size for count in counts),
            num_tombstones=sum(count.num_tombstones for count in counts),
            num_deletion_vectors=sum(count.num_deletion_vectors for count in counts),
            num_deleted_rows=sum(count.num_deleted_rows for count in counts),
        )

    def remember_files(self) -> None:
        """Counts the files, and keeps their index so that `Table.forward` need not count again.

        The index takes 25 bytes of memory for each live file and 9 for each tombstone.
        """
        if self.index is None:
            self.index = self.avoiding_damage(
                lambda snapshot: FileIndex.of(snapshot.scan(fields=COUNTED_FIELDS))
            )

    def scan(self, *, fields: Mapping[str, Collection[str]] | None = None) -> Iterator[ActiveFiles]:
        """Yields the active file actions in batches, each row exactly once.

        Without `fields`, all fields are included, also unknown ones. Raises
        `UnusableCheckpointError` if a checkpoint proves to be damaged, and its subclass
        `VanishedFileError` if a file was deleted after the snapshot was opened; `avoiding` returns
        the version without that file.
        """
        replay = FileReplay()
        yield from self.scan_tail(replay, fields=fields)
        yield from self.scan_checkpoint(replay, fields=fields)

    def scan_tail(
        self, replay: FileReplay, *, fields: Mapping[str, Collection[str]] | None = None
    ) -> Iterator[ActiveFiles]:
        """The first part of `scan`: the active file actions of the commits since the checkpoint."""

        def active_actions() -> Iterator[ActiveFiles]:
            wanted = None if fields is None else _with_keys(fields)
            batches = self.tail.batches(keys=self.map_keys(), fields=wanted)
            yield from active_in_tail(batches, replay)

        return self._located(active_actions())

    def scan_checkpoint(
        self,
        replay: FileReplay,
        *,
        fields: Mapping[str, Collection[str]] | None = None,
        only: Collection[str] | None = None,
        actions: Collection[str] = tuple(FILE_COLUMNS),
        seen: Callable[[FileActionBatch], None] | None = None,
    ) -> Iterator[ActiveFiles]:
        """The second part of `scan`: the active file actions of the checkpoint, after `scan_tail`.

        `only` names the sidecars to read, by their paths relative to the table root; `actions` are
        those to read, `add` or `remove`. `seen` is called with every batch before rows that are no
        longer in effect are removed from it.
        """
        checkpoint = self.checkpoint
        if checkpoint is None:
            return iter(())

        def active_actions() -> Iterator[ActiveFiles]:
            wanted = None if fields is None else _with_keys(fields)
            for part in checkpoint.file_actions(
                keys=self.map_keys(), fields=wanted, only=only, actions=actions
            ):
                if seen is not None:
                    seen(part)
                yield active_files(part.adds, part.removes, replay, remember=False)

        return self._located(active_actions())

    @read_once
    def named_in_tail(self) -> NamedFiles:
        """Returns the files that commits since the checkpoint name and that are still in effect."""
        tail, fields = self.tail, _with_keys({"add": (), "remove": ()})
        if any(entry.file.end_version is not None for entry in tail.entries):
            # A log compaction omits adds of files that its own commits remove.
            tail = LogTail(self.store, self.segment.commits)
        adds = tombstones = 0
        paths: list[pa.StringArray] = []
        first = FirstActions()
        batches = first.watching(tail.batches(keys=self.map_keys(), fields=fields))
        for batch in self._located(active_in_tail(batches, FileReplay())):
            adds += batch.adds.num_rows
            tombstones += batch.tombstones.num_rows
            paths += [*batch.adds["path"].chunks, *batch.tombstones["path"].chunks]
        return NamedFiles(
            adds=adds,
            tombstones=tombstones,
            places=NamedPlaces.of(paths, root=self.table),
            removed_first=first.removes(),
        )

    @read_once
    def searched_sidecars(self) -> tuple[SearchedSidecar, ...]:
        """Returns the sidecars of the checkpoint, and whether each may contain a file of
        `named_in_tail`.

        Their files never change, so one search is enough for a plan and its execution.
        """
        assert self.checkpoint is not None
        return search_sidecars(self.store, self.checkpoint, self.named_in_tail.places)

    def map_keys(self) -> MapKeys:
        """The keys of partition values, for a reader of file actions."""
        return MapKeys(partition_columns=frozenset(self.physical_partition_columns))

    def _located(self, batches: Iterator[ActiveFiles]) -> Iterator[ActiveFiles]:
        try:
            yield from batches
        except FileNotFoundError as error:
            raise VanishedFileError(
                "a file of the log was deleted after the snapshot was opened",
                table=self.table,
                version=self.version,
                file=error.filename,
                remedy="open the table again; if that fails too, find the process that deletes "
                "files of this log",
            ) from error
        except DeltaMaintenanceError as error:
            raise error.located(
                table=self.table, version=self.version, file=LOG_DIRECTORY
            ) from error.__cause__

    def avoiding(self, error: CorruptTableError) -> Snapshot:
        """Opens the same version on another base, after `error` named a file as unusable.

        Raises `error` if the log has no other base.
        """
        other = self._reopen(error)
        _logger.warning("skipped %s: %s", error.file, error.problem)
        return other

    def avoiding_damage(self, read: Callable[[Snapshot], T]) -> T:
        """Returns the result of `read`, which gets this version.

        If `read` finds a damaged checkpoint, it is called again with the same version on another
        base.
        """
        snapshot = self
        while True:
            try:
                return read(snapshot)
            except UnusableCheckpointError as error:
                snapshot = snapshot.avoiding(error)

    @cached_property
    def physical_partition_columns(self) -> tuple[str, ...]:
        """The names of partition columns in file actions ("Column Mapping")."""
        columns = self.metadata.partition_columns
        if len(columns) > MOST_PARTITION_COLUMNS:
            # A file has a value for each partition column, even if it is null.
            raise CorruptTableError(f"the table has {len(columns)} partition columns")
        mode = column_mapping_mode(self.protocol, self.metadata.configuration)
        if mode == "none" or not columns or self.metadata.schema_string is None:
            return columns
        schema = parse_schema(self.metadata.schema_string)
        fields = {name: schema.find(name) for name in columns}
        missing = [name for name, field in fields.items() if field is None]
        if missing:
            raise CorruptTableError(f"the partition column {missing[0]!r} is not in the schema")
        return tuple(physical_name(field, mode) for field in fields.values() if field is not None)

    def _collect(
        self,
        fields: Mapping[str, Collection[str]],
        view: Callable[[ActiveFiles], pa.Table],
        none: pa.Table,
    ) -> pa.Table:
        return self.avoiding_damage(
            lambda snapshot: pa.concat_tables(
                [none, *in_parallel(view, snapshot.scan(fields=fields))]
            )
        )


def _with_keys(fields: Mapping[str, Collection[str]]) -> dict[str, Collection[str]]:
    return {
        action: {"path", "deletionVector", *fields.get(action, ())} for action in ("add", "remove")
    }


def _count(batch: ActiveFiles) -> FileCounts:
    vectors = batch.adds["deletionVector"] if "deletionVector" in batch.adds.column_names else None
    deleted = 0
    with_vector = 0
    if vectors is not None:
        with_vector = len(vectors) - vectors.null_count
        for chunk in vectors.chunks:
            deleted += pc.sum(pc.struct_field(chunk, "cardinality")).as_py() or 0
    return FileCounts(
        num_files=batch.adds.num_rows,
        total_size=pc.sum(column_of(batch.adds, "size", ADD_TYPES)).as_py() or 0,
        num_tombstones=batch.tombstones.num_rows,
        num_deletion_vectors=with_vector,
        num_deleted_rows=deleted,
    )

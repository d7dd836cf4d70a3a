"""An immutable view of one version of a table.

Implements "Action Reconciliation" over the files of a log segment. The small state (protocol,
metadata, transactions, domains) is read when the snapshot is opened. Files are read on request, as
a stream of columns, newest first, for which only the keys of earlier batches are kept in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, RefusedError, table_text
from delta_maintenance.lazy import read_once
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    empty,
)
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.columns import column_of
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.schema.contradictions import contradictions
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import (
    ActiveFiles,
    FileCounts,
    file_view,
    tombstone_view,
    view_keys,
)
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.file_index import FileIndex
from delta_maintenance.table.read.log_view import LogView, contradiction_error

T = TypeVar("T")


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


class Snapshot:
    """One version of a table. Get it from `Table.snapshot`."""

    def __init__(
        self,
        *,
        log: LogView,
        timestamp_ms: int | None,
        warnings: tuple[str, ...],
        reopen: Callable[[CorruptTableError], Snapshot],
    ) -> None:
        self.log = log
        """The files behind this version; for code that works on logs."""
        self.timestamp_ms = timestamp_ms
        """Milliseconds since 1970-01-01 UTC; None if the commit of this version was deleted."""
        self.warnings = warnings
        """Files that were skipped while opening, with reasons."""
        self._reopen = reopen

    def __repr__(self) -> str:
        return f"Snapshot({self.table!r}, version={self.version})"

    @property
    def table(self) -> str:
        """The address of the table."""
        return self.log.store.root

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.log.segment.version

    def refusal(self, problem: str, remedy: str) -> RefusedError:
        """Returns the error of an operation that must not run on this version."""
        return RefusedError(problem, table=self.table, version=self.version, remedy=remedy)

    @property
    def timestamp(self) -> datetime | None:
        """The time of the commit, in UTC: its in-commit timestamp, or else the time of its file."""
        return None if self.timestamp_ms is None else clock.instant(self.timestamp_ms)

    @property
    def protocol(self) -> Protocol:
        """The versions and features that a client must support at this version."""
        return self.log.state.protocol

    @property
    def metadata(self) -> Metadata:
        """Schema, partitioning and properties at this version."""
        return self.log.state.metadata

    @cached_property
    def properties(self) -> TableProperties:
        """The table properties, typed, with their defaults."""
        return TableProperties.from_configuration(self.metadata.configuration)

    @cached_property
    def contradiction(self) -> str | None:
        """The first contradiction in the state without files, as a clause; None in a sound state.

        `fsck` reports all of them as corruption. Nothing is read.
        """
        if self.log.state.repeated_actions:
            return f"a commit contains two actions for {min(self.log.state.repeated_actions)}"
        problems = contradictions(self.protocol, self.metadata, self.domain_metadata)
        return next((problem for _, problem in problems), None)

    def require_agreement(self) -> None:
        """Raises `CorruptTableError` if the log is known to contradict it. Reads nothing."""
        evidence = self.log.evidence
        contradiction = self.log.contradiction if evidence is None else evidence.problem
        if contradiction is not None:
            raise contradiction_error(contradiction).locate(table=self.table, version=self.version)

    @property
    def txns(self) -> dict[str, int]:
        """The newest version of each application's transactions, by application id."""
        return {app_id: txn.version for app_id, txn in sorted(self.log.state.txns.items())}

    @property
    def domain_metadata(self) -> dict[str, str]:
        """The configuration of each domain that is not removed, by its name."""
        return {
            name: domain.configuration for name, domain in sorted(self.log.state.domains.items())
        }

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
        batch_count = 0
        try:
            views = in_parallel(
                lambda batch: file_view(batch.adds), self.log.scan(fields=_LIVE_VIEW)
            )
            for view in views:
                yield view
                batch_count += 1
        except UnusableCheckpointError as error:
            reopened = self.avoiding(error)
            # The keys are read again instead of kept, because they are large and damage is rare.
            before = [
                view_keys(file_view(batch.adds))
                for batch in islice(self.log.scan(fields=_LIVE_VIEW), batch_count)
            ]
            yielded_keys = pa.chunked_array(
                [chunk for keys in before for chunk in keys.chunks], pa.string()
            )
            for view in reopened.live_file_batches():
                yield view.filter(pc.invert(pc.is_in(view_keys(view), yielded_keys)))

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
        if self.log.index is not None:
            return self.log.index.counts
        counts = self.avoiding_damage(
            lambda snapshot: [_count(batch) for batch in snapshot.log.scan(fields=COUNTED_FIELDS)]
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
        if self.log.index is None:
            self.log.index = self.avoiding_damage(
                lambda snapshot: FileIndex.of(snapshot.log.scan(fields=COUNTED_FIELDS))
            )

    def avoiding(self, error: CorruptTableError) -> Snapshot:
        """Opens the same version on another base, after `error` named a file as unusable.

        Raises `error` if the log has no other base.
        """
        if self.log.checkpoint is not None:
            error.locate(file=self.log.checkpoint.files.entries[0].path)
        reopened = self._reopen(error)
        _logger.warning("%s: skipped %s: %s", table_text(self.table), error.file, error.problem)
        return reopened

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

    def _collect(
        self,
        fields: Mapping[str, Collection[str]],
        view: Callable[[ActiveFiles], pa.Table],
        none: pa.Table,
    ) -> pa.Table:
        return self.avoiding_damage(
            lambda snapshot: pa.concat_tables(
                [none, *in_parallel(view, snapshot.log.scan(fields=fields))]
            )
        )


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

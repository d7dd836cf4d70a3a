"""Sums over the files of a snapshot: sizes, deletion vectors, and expired tombstones.

One pass over the file actions in columns. In addition to one batch, it keeps eight bytes in memory
for each expired tombstone and, if deletion vectors are supported, for each live file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ROW_COUNT
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.sidecar_summary import stated_summary
from delta_maintenance.protocol.delta_log.version_checksum import FileSizeHistogram
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.statistics.row_counts import stated_row_counts
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.files.stated_sizes import stated_sizes
from delta_maintenance.table.read.files.view import record_counts
from delta_maintenance.table.read.segment import LogEntry
from delta_maintenance.table.read.snapshot import Snapshot

_BUCKETS = 65
"""One bucket for empty files, then one for each power of two."""
_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """The sums of one snapshot."""

    files_by_size: tuple[int, ...]
    """The number of live files by size: empty files, then from 1, 2, 4… bytes to less than twice
    that size.
    """
    bytes_by_size: tuple[int, ...]
    small_files: int
    with_deletion_vector: int
    deleted_rows: int
    rows: int | None
    """Physical rows; None if a file has no row count, or if they were not requested."""
    tombstones: int
    expired_tombstones: int
    reclaimable_files: int
    """Files that only expired tombstones name, each counted once."""
    reclaimable_bytes: int
    """Bytes of those files whose tombstones state a reliable size."""
    checksum_version: int | None = None
    """The version of the checksum from which the live files were computed; None if they were
    counted.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """The times by which tombstones are classified, in milliseconds since 1970-01-01 UTC."""

    expired_before: int
    """Tombstones from before this time are expired."""
    reclaimable_before: int
    """Files of tombstones from before this time may be vacuumed."""
    reclaimed_before: int
    """Files of tombstones from before this time have been vacuumed."""


def sum_files(
    snapshot: Snapshot,
    *,
    small_bytes: int,
    instants: Instants,
    checksums: Iterable[LogEntry] = (),
) -> FileSums:
    """The sums over all file actions in effect. Counts rows only if deletion vectors are supported.

    Rows require the statistics, which are most of a checkpoint, and nothing else does. If one of
    `checksums` states the sizes of the live files, and the log confirms it, only tombstones are
    read: see `stated_sizes`.
    """
    with_vectors = supports(snapshot.protocol, "deletionVectors")
    found = _by_checksum(snapshot, checksums, _Sums(small_bytes, instants, with_vectors))
    if found is not None:
        return found
    while True:
        sums = _Sums(small_bytes, instants, with_vectors)
        try:
            for batch in snapshot.scan(fields=_FIELDS_WITH_ROWS if with_vectors else _FIELDS):
                sums.take(batch)
            return sums.result()
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def _by_checksum(snapshot: Snapshot, checksums: Iterable[LogEntry], sums: _Sums) -> FileSums | None:
    """Computes the sums without reading live files; None if they have to be read."""
    try:
        stated = stated_sizes(snapshot, checksums)
        if stated is None or stated.vectors or not sums.take_stated(stated.sizes):
            # The share of deleted rows needs the number of rows, which only the statistics of files
            # contain.
            return None
        replay = FileReplay()
        for batch in snapshot.scan_tail(replay, fields=_FIELDS):
            sums.take_tombstones(batch.tombstones)
        only = _with_tombstones(snapshot.checkpoint)
        for batch in snapshot.scan_checkpoint(
            replay, fields=_FIELDS, only=only, actions=("remove",)
        ):
            sums.take_tombstones(batch.tombstones)
    except (UnusableCheckpointError, FileNotFoundError):
        # The replay reports the failure, or finds another base.
        return None
    if sums.with_vectors and sums.dead:
        # A live file may be the same data file with another deletion vector.
        return None
    return replace(sums.result(), rows=None, checksum_version=stated.checksum_version)


def _with_tombstones(checkpoint: Checkpoint | None) -> frozenset[str] | None:
    """Returns the sidecars that may contain tombstones, by their summaries; None without
    sidecars.
    """
    if checkpoint is None or not checkpoint.sidecars:
        return None
    summaries = map(stated_summary, checkpoint.sidecars)
    return frozenset(
        path
        for path, summary in zip(checkpoint.sidecar_paths, summaries, strict=True)
        if summary is None or summary.tally.tombstones
    )


_REMOVE_FIELDS = ("path", "deletionVector", "size", "deletionTimestamp", "extendedFileMetadata")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "deletionVector", "size"),
    "remove": _REMOVE_FIELDS,
}
_FIELDS_WITH_ROWS: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "deletionVector", "size", ROW_COUNT),
    "remove": _REMOVE_FIELDS,
}


@dataclass
class _Sums:
    small_bytes: int
    instants: Instants
    with_vectors: bool
    files_by_size: _Counts = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))
    bytes_by_size: _Counts = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))
    small_files: int = 0
    vectors: int = 0
    deleted_rows: int = 0
    rows: int | None = 0
    tombstones: int = 0
    expired: int = 0
    live: list[Hashes] = field(default_factory=list)
    dead: list[Hashes] = field(default_factory=list)
    dead_bytes: list[_Counts] = field(default_factory=list)

    def take(self, batch: ActiveFiles) -> None:
        self._take_adds(batch.adds)
        self.take_tombstones(batch.tombstones)

    def take_stated(self, sizes: FileSizeHistogram) -> bool:
        """Adds the sizes of all live files; False if the bins are too coarse."""
        ends = (*sizes.boundaries[1:], 2**63)
        if self.small_bytes not in sizes.boundaries:
            return False
        bins = zip(sizes.boundaries, ends, sizes.file_counts, sizes.total_bytes, strict=True)
        for first, end, files, size in bins:
            # Files smaller than the first boundary are in one bucket.
            power = first.bit_length()
            if files and first and (end - 1).bit_length() != power:
                return False
            if files:
                self.files_by_size[power] += files
                self.bytes_by_size[power] += size
                self.small_files += files if end <= self.small_bytes else 0
        return True

    def result(self) -> FileSums:
        files, size = self._reclaimable()
        return FileSums(
            files_by_size=tuple(self.files_by_size.tolist()),
            bytes_by_size=tuple(self.bytes_by_size.tolist()),
            small_files=self.small_files,
            with_deletion_vector=self.vectors,
            deleted_rows=self.deleted_rows,
            rows=self.rows if self.with_vectors else None,
            tombstones=self.tombstones,
            expired_tombstones=self.expired,
            reclaimable_files=files,
            reclaimable_bytes=size,
        )

    def _take_adds(self, adds: pa.Table) -> None:
        if not adds.num_rows:
            return
        sizes = _integers(adds, "size")
        # The exponent of 0 is 0, and that of 2^n is n + 1.
        buckets = np.frexp(sizes.astype(np.float64))[1].clip(0, _BUCKETS - 1)
        self.files_by_size += np.bincount(buckets, minlength=_BUCKETS)
        np.add.at(self.bytes_by_size, buckets, sizes)
        self.small_files += int(np.count_nonzero(sizes < self.small_bytes))
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"]
            self.vectors += len(vectors) - vectors.null_count
            for chunk in vectors.chunks:
                self.deleted_rows += pc.sum(pc.struct_field(chunk, "cardinality")).as_py() or 0
        if self.with_vectors:
            self.live.extend(hash_texts(chunk) for chunk in adds["path"].chunks)
            counts = record_counts(adds, stated=stated_row_counts)
            rows = None if counts.null_count else pc.sum(counts).as_py() or 0
            self.rows = None if self.rows is None or rows is None else self.rows + rows

    def take_tombstones(self, removes: pa.Table) -> None:
        self.tombstones += removes.num_rows
        if not removes.num_rows or "deletionTimestamp" not in removes.column_names:
            return
        # A tombstone without a deletion timestamp never expires.
        deleted = _integers(removes, "deletionTimestamp", missing=np.iinfo(np.int64).max)
        self.expired += int(np.count_nonzero(deleted < self.instants.expired_before))
        waiting = (deleted < self.instants.reclaimable_before) & (
            deleted >= self.instants.reclaimed_before
        )
        going = removes.filter(pa.array(waiting))
        if not going.num_rows:
            return
        self.dead.extend(hash_texts(chunk) for chunk in going["path"].chunks)
        vouched = _vouched(going)
        self.dead_bytes.append(np.where(vouched, _integers(going, "size"), 0))

    def _reclaimable(self) -> tuple[int, int]:
        if not self.dead:
            return 0, 0
        files, first = np.unique(np.concatenate(self.dead), return_index=True)
        sizes = np.concatenate(self.dead_bytes)[first]
        if self.live:
            # A new deletion vector makes a new logical file of the same data file.
            unreferenced = np.isin(files, np.concatenate(self.live), invert=True)
            files, sizes = files[unreferenced], sizes[unreferenced]
        return len(files), int(sizes.sum())


def _vouched(removes: pa.Table) -> npt.NDArray[np.bool_]:
    if "extendedFileMetadata" not in removes.column_names:
        return np.zeros(removes.num_rows, np.bool_)
    column = pc.fill_null(removes["extendedFileMetadata"], False)
    return np.asarray(column.to_numpy(), np.bool_)


def _integers(table: pa.Table, name: str, *, missing: int = 0) -> _Counts:
    if name not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    column = pc.fill_null(table[name], missing)
    return np.asarray(column.to_numpy(), np.int64)

"""The version checksum of a snapshot, computed from all of its files.

Implements "Version Checksum File Schema" with every field that Delta Spark writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, unknown_columns
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    MOST_DOMAINS,
    MOST_FILES,
    MOST_INDEXED_COLUMNS,
    MOST_TXNS,
    Counts,
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    with_tombstones,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.table.commit.checksum_writer import state_of
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.stated_checksum import stated_files
from delta_maintenance.table.writable import EXAMINE

_FIELDS: Mapping[str, tuple[str, ...]] = {"add": ("size",), "remove": ()}


def computed_checksum(snapshot: Snapshot) -> VersionChecksum:
    """The checksum of the snapshot, from one pass over all file actions.

    Memory is bounded by the keys of the files. A table of at most `MOST_FILES` files is read a
    second time for `allFiles`. Raises `CorruptTableError` if readers disagree about the live files;
    `RefusedError` if a file has no size, or if the checkpoint disagrees with the checksum of its
    own version; and `UnusableCheckpointError` for a damaged checkpoint.
    """
    totals, audit, base = _Totals(), PathAudit(snapshot.table), _Base()
    replay = FileReplay()
    for batch in snapshot.scan_tail(replay, fields=_FIELDS):
        audit.add(
            batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
        )
        totals.include(batch)
    for batch in snapshot.scan_checkpoint(replay, fields=_FIELDS, seen=base.include):
        audit.add(
            batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
        )
        totals.include(batch)
    if (contradiction := audit.problem()) is not None:
        raise CorruptTableError(
            contradiction, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
        )
    problem = totals.problem or base.problem(snapshot)
    if problem is not None:
        raise RefusedError(
            f"a version checksum would not be certain: {problem}",
            table=snapshot.table,
            version=snapshot.version,
            remedy="run fsck, which names the files",
        )
    state = state_of(snapshot)
    active = in_commit_timestamps.is_active(snapshot.protocol, snapshot.metadata.configuration)
    checksum = replace(
        state,
        table_size=totals.size,
        num_files=totals.files,
        num_deleted_records=totals.deleted_rows,
        num_deletion_vectors=totals.vectors,
        in_commit_timestamp=snapshot.timestamp_ms if active else None,
        txns=_if_few(state.txns, MOST_TXNS),
        domains=_if_few(state.domains, MOST_DOMAINS),
        file_sizes=totals.histogram,
        deleted_record_counts=tuple(totals.bins.tolist()),
        all_files=_all_files(snapshot) if totals.files <= MOST_FILES else None,
    )
    return with_tombstones(checksum, totals.tombstones)


class _Totals:
    """Totals of the live files and the tombstones, batch by batch."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.files = self.size = self.vectors = self.deleted_rows = self.tombstones = 0
        self.histogram = FileSizeHistogram.of(none)
        self.bins: Counts = np.array(deleted_record_counts(none), np.int64)
        self.problem: str | None = None

    def include(self, batch: ActiveFiles) -> None:
        """Adds the files of a batch."""
        self.tombstones += batch.tombstones.num_rows
        adds = batch.adds
        if not adds.num_rows:
            return
        column = adds["size"] if "size" in adds.column_names else None
        if column is None or column.null_count or pc.min(column).as_py() < 0:
            self.problem = "a live file has no size"
            return
        sizes = column.to_numpy()
        deleted = np.zeros(len(sizes), np.int64)
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"].combine_chunks()
            marked = pc.struct_field(vectors, "cardinality")
            if marked.null_count > vectors.null_count:
                self.problem = "a deletion vector does not state how many rows it deletes"
                return
            marked = pc.if_else(pc.is_valid(vectors), marked, 0)
            deleted = marked.to_numpy(zero_copy_only=False).astype(np.int64)
            self.vectors += len(vectors) - vectors.null_count
        self.files += len(sizes)
        self.size += int(sizes.sum())
        self.deleted_rows += int(deleted.sum())
        self.bins = self.bins + np.array(deleted_record_counts(deleted), np.int64)
        self.histogram = self.histogram.changed(removed=sizes[:0], added=sizes)


class _Base:
    """Totals of the adds of a checkpoint, to compare with the checksum of its version."""

    def __init__(self) -> None:
        self.files = self.size = 0

    def include(self, batch: FileActionBatch) -> None:
        """Adds the adds of a batch, whether or not a later commit removed them."""
        self.files += batch.adds.num_rows
        if "size" in batch.adds.column_names:
            self.size += pc.sum(batch.adds["size"], min_count=0).as_py()

    def problem(self, snapshot: Snapshot) -> str | None:
        """The difference between the checkpoint and the checksum of its version, if any."""
        if snapshot.checkpoint is None:
            return None
        version = snapshot.checkpoint.files.version
        stated = stated_files(snapshot.store, version)
        if stated is None or stated == (self.files, self.size):
            return None
        return (
            f"the checkpoint of version {version} has {self.files} files of {self.size} bytes, but "
            f"the checksum of that version states {stated[0]} files of {stated[1]} bytes"
        )


def _if_few(actions: Any, most: int) -> Any:
    return actions if actions is None or len(actions) <= most else None


def _all_files(snapshot: Snapshot) -> tuple[dict[str, Any], ...] | None:
    """The `add` objects of a table of few files; None if they would not be complete."""
    if snapshot.properties.data_skipping_num_indexed_columns > MOST_INDEXED_COLUMNS:
        return None
    files: list[dict[str, Any]] = []
    for batch in snapshot.scan():
        adds = batch.adds
        if unknown_columns(adds, ADD_TYPES) or _has_only_parsed_statistics(adds):
            return None
        known = [name for name in ADD_TYPES if name in adds.column_names]
        files.extend(_object(row) for row in adds.select(known).to_pylist())
    return tuple(files)


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    # As in Delta Spark: the list describes a state, not a change of data.
    return {**_present(row), "dataChange": False}


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not null; maps, which Arrow returns as pairs, as objects."""
    present: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            present[name] = _present(value)
        elif value is not None:
            present[name] = dict(value) if isinstance(value, list) else value
    return present


def _has_only_parsed_statistics(adds: pa.Table) -> bool:
    if "stats_parsed" not in adds.column_names:
        return False
    stated = adds.num_rows - adds["stats_parsed"].null_count
    as_text = adds.num_rows - adds["stats"].null_count if "stats" in adds.column_names else 0
    return bool(as_text < stated)

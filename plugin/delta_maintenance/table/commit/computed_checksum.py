"""The version checksum of a snapshot, computed from all of its files.

Implements "Version Checksum File Schema" with every field that Delta Spark writes, except
`allFiles`, which is optional and of use to tables of a few files alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.delta_log.version_checksum import (
    Counts,
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.table.commit.checksum_writer import state_of
from delta_maintenance.table.read.active_files import StandingFiles
from delta_maintenance.table.read.snapshot import Snapshot


def computed_checksum(snapshot: Snapshot) -> VersionChecksum:
    """Reads every file action once; memory is bounded by the keys of the files.

    `RefusedError` where readers disagree on which files are live, or where a file has no size.
    `UnusableCheckpointError` for a checkpoint that turns out to be damaged.
    """
    totals, audit = _Totals(), PathAudit(snapshot.table)
    for batch in snapshot.scan(fields={"add": ("size",), "remove": ()}):
        audit.offer(batch.adds, batch.tombstones)
        totals.include(batch)
    problem = audit.problem() or totals.problem
    if problem is not None:
        raise RefusedError(
            f"no checksum can be certain: {problem}",
            table=snapshot.table,
            version=snapshot.version,
            remedy="run fsck, which names the files",
        )
    active = in_commit_timestamps.is_active(snapshot.protocol, snapshot.metadata.configuration)
    return replace(
        state_of(snapshot),
        table_size=totals.size,
        num_files=totals.files,
        num_deleted_records=totals.deleted_rows,
        num_deletion_vectors=totals.vectors,
        in_commit_timestamp=snapshot.timestamp_ms if active else None,
        file_sizes=totals.histogram,
        deleted_record_counts=tuple(totals.bins.tolist()),
    )


class _Totals:
    """What the live files add up to, batch by batch."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.files = self.size = self.vectors = self.deleted_rows = 0
        self.histogram = FileSizeHistogram.of(none)
        self.bins: Counts = np.array(deleted_record_counts(none), np.int64)
        self.problem: str | None = None

    def include(self, batch: StandingFiles) -> None:
        """Counts the live files of a batch."""
        adds = batch.adds
        if not adds.num_rows:
            return
        sizes = adds["size"] if "size" in adds.column_names else None
        if sizes is None or sizes.null_count or pc.min(sizes).as_py() < 0:
            self.problem = "a live file has no size"
            return
        come = sizes.to_numpy()
        deleted = np.zeros(len(come), np.int64)
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"].combine_chunks()
            marked = pc.struct_field(vectors, "cardinality")
            if marked.null_count > vectors.null_count:
                self.problem = "a deletion vector does not say how many rows it deletes"
                return
            marked = pc.if_else(pc.is_valid(vectors), marked, 0)
            deleted = marked.to_numpy(zero_copy_only=False).astype(np.int64)
            self.vectors += len(vectors) - vectors.null_count
        self.files += len(come)
        self.size += int(come.sum())
        self.deleted_rows += int(deleted.sum())
        self.bins = self.bins + np.array(deleted_record_counts(deleted), np.int64)
        self.histogram = self.histogram.changed(gone=np.zeros(0, np.int64), come=come)

"""Live files without row IDs, and the adds that assign row IDs to them.

Streams a snapshot: memory holds the keys of its replay and one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit
from delta_maintenance.protocol.commit.staged import places
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.row_tracking.backfill import (
    RowIdAudit,
    RowIdFindings,
    lacks_row_ids,
    with_row_counts,
)
from delta_maintenance.protocol.statistics.stats import num_records
from delta_maintenance.table.data.row_counts import RowCounter
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import layout_of

_AUDITED = {
    "add": ("path", "stats", "stats_parsed", "baseRowId", "defaultRowCommitVersion"),
    "remove": ("path", "stats", "baseRowId"),
}


def audit_row_ids(snapshot: Snapshot) -> RowIdFindings:
    """Audits the row IDs of all files of the snapshot.

    A damaged checkpoint is skipped.
    """
    while True:
        audit = RowIdAudit()
        try:
            for batch in snapshot.scan(fields=_AUDITED):
                audit.add(batch.adds, batch.tombstones)
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)
        else:
            return audit.findings()


def files_without_row_ids(snapshot: Snapshot, *, files_per_batch: int) -> Iterator[pa.Table]:
    """The adds to commit again, with every field as in the log except `dataChange`.

    Statistics that only the structs of a checkpoint contain are rendered as JSON. Raises
    `RefusedError` if that would lose any, and `UnusableCheckpointError` like `Snapshot.scan`.
    """
    waiting: list[pa.Table] = []
    count = 0
    for files in _re_added(snapshot):
        waiting.append(files)
        count += files.num_rows
        while count >= files_per_batch:
            together = pa.concat_tables(waiting, promote_options="permissive")
            yield together.slice(0, files_per_batch)
            waiting, count = [together.slice(files_per_batch)], count - files_per_batch
    if count:
        yield pa.concat_tables(waiting, promote_options="permissive")


def counted(adds: pa.Table, count_rows: RowCounter) -> tuple[pa.Table, tuple[str, ...]]:
    """Adds `numRecords` where it is missing.

    Returns the adds whose rows could be counted, and the reasons why others could not.
    """
    uncounted = pc.is_null(num_records(adds["stats"]))
    if not pc.any(uncounted).as_py():
        return adds, ()
    paths = pa.concat_arrays(adds["path"].filter(uncounted).chunks)
    found = count_rows(paths)
    nothing = pa.nulls(adds.num_rows, pa.int64())
    counts = pc.replace_with_mask(nothing, uncounted, found.counts)
    stats = with_row_counts(pa.concat_arrays(adds["stats"].chunks), counts)
    filled = adds.set_column(adds.column_names.index("stats"), "stats", stats)
    known = pc.or_(pc.invert(uncounted), pc.is_valid(counts))
    return filled.filter(known), found.problems


class TouchedFiles:
    """Files that other writers added or removed since a snapshot was read; these changes take
    precedence.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._places: list[pa.Array] = []

    def offer(self, commits: Iterable[ConcurrentCommit]) -> None:
        """Adds the commits of other writers."""
        for commit in commits:
            for batch in (commit.adds, commit.removes):
                if batch.num_rows:
                    self._places.append(places(batch, root=self._root))

    def left_out_of(self, adds: pa.Table) -> pa.Table:
        """Returns the adds of files that no other writer changed."""
        if not self._places:
            return adds
        touched = pa.concat_arrays(self._places)
        return adds.filter(pc.invert(pc.is_in(places(adds, root=self._root), value_set=touched)))


def _re_added(snapshot: Snapshot) -> Iterator[pa.Table]:
    layout = _layout(snapshot)
    for batch in snapshot.scan():
        files = batch.adds.filter(lacks_row_ids(batch.adds))
        if files.num_rows:
            layout = layout.widened(files.schema, pa.schema([]))
            chunks = layout.adds(files).chunks
            yield pa.Table.from_batches([pa.RecordBatch.from_struct_array(c) for c in chunks])


def _layout(snapshot: Snapshot) -> FileActionLayout:
    """A commit contains the same fields as a checkpoint with JSON statistics."""
    layout = layout_of(snapshot, zone=None)
    return replace(layout, stats_as_json=True, statistics_type=None, partition_types=None)

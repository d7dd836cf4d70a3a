"""Files of earlier groups that new files do not overlap, from the bounds in the log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from delta_maintenance.operations.layout.reading import columns_of, read_bounds
from delta_maintenance.operations.rewriting.live_columns import LiveColumns, Mask, Numbers
from delta_maintenance.protocol.layout.bounds import ColumnBounds, order_keys
from delta_maintenance.protocol.layout.clustering import ClusteringColumn
from delta_maintenance.protocol.layout.measures import overlap_elsewhere
from delta_maintenance.table.read.snapshot import Snapshot


def files_apart(
    snapshot: Snapshot,
    files: LiveColumns,
    columns: Sequence[ClusteringColumn],
    rows: Numbers,
    unit: Numbers,
) -> Mask:
    """Returns which of some files have no value in common with a file of another unit, in at least
    one of the columns. Sorting them with files of other units would not make readers skip more.

    `rows` are the files, and `unit` is the number of the unit of each, whose files are in one
    partition. The statistics of the log are read again for this.
    """
    columns_by_path = {column.physical: column for column in columns_of(snapshot).values()}
    bounded = [columns_by_path[column.path] for column in columns if column.path in columns_by_path]
    bounds = read_bounds(snapshot, [column for column in bounded if column.is_bounded])
    apart = np.zeros(len(rows), np.bool_)
    if not np.array_equal(bounds.size, files.size):
        # A damaged checkpoint was left out, so that the log has another order.
        return apart
    for column_bounds in bounds.columns.values():
        apart |= ~_overlap(column_bounds.take(rows), files.partition[rows], unit)
    return apart


def _overlap(bounds: ColumnBounds, partition: Numbers, unit: Numbers) -> Mask:
    """A file without bounds overlaps every file of its partition."""
    has_bounds = bounds.known
    overlap = np.isin(partition, partition[~has_bounds])
    rows = np.flatnonzero(has_bounds)
    at = pa.array(rows)
    low, high = order_keys(bounds.least.take(at), bounds.greatest.take(at))
    overlap[rows] |= overlap_elsewhere(low, high, partition[rows], unit[rows])
    return overlap

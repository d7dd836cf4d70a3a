"""Assigning row IDs to the files of a commit ("Writer Requirements for Row Tracking")."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.statistics.stats import num_records

_MAX_ROW_ID = 2**63 - 1


def assign_row_ids(adds: pa.Table, *, high_water_mark: int, version: int) -> tuple[pa.Table, int]:
    """The adds with base row IDs and row commit versions, and the new high-water mark.

    A file with a base row ID was committed before and keeps it. Other files get ranges above the
    mark, one ID for each physical row, including deleted rows. Raises `RefusedError` if the
    statistics of such a file do not contain its number of rows, or if the IDs exceed 64 bits.
    """
    fresh = pc.is_null(adds["baseRowId"]).to_numpy()
    ids, mark = adds["baseRowId"], high_water_mark
    if fresh.any():
        new = adds.filter(pa.array(fresh))
        counts = num_records(new["stats"])
        if counts.null_count:
            path = new["path"].filter(pc.is_null(counts))[0].as_py()
            raise RefusedError(
                "the statistics of a file without row IDs do not contain its number of rows",
                file=path,
                remedy="take numRecords from the footer of the data file",
            )
        rows = counts.to_numpy()
        if mark + sum(rows.tolist()) > _MAX_ROW_ID:
            raise RefusedError(
                "the new row IDs would exceed 64 bits",
                remedy="check the high-water mark of the table with fsck",
            )
        ends = mark + np.cumsum(rows)
        filled = ids.to_numpy() if not ids.null_count else pc.fill_null(ids, 0).to_numpy()
        filled = filled.copy()
        filled[fresh] = ends - rows + 1
        ids, mark = pa.chunked_array([pa.array(filled, pa.int64())]), int(ends[-1])
    versions = pc.fill_null(adds["defaultRowCommitVersion"], version)
    for name, column in (("baseRowId", ids), ("defaultRowCommitVersion", versions)):
        adds = adds.set_column(adds.column_names.index(name), name, column)
    return adds, mark

"""Row IDs for the files of a commit ("Writer Requirements for Row Tracking")."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.statistics.stats import num_records

_MAX_ROW_ID = 2**63 - 1


def assign_row_ids(adds: pa.Table, *, high_water_mark: int, version: int) -> tuple[pa.Table, int]:
    """The adds with a base row ID and a commit version each, and the new high-water mark.

    A file that has a base row ID was committed before and keeps it. Every other one gets a range
    above the mark, as long as its physical rows, deleted ones included. `RefusedError` where the
    statistics of such a file do not tell their number, or where 64 bits are not enough.
    """
    fresh = pc.is_null(adds["baseRowId"]).to_numpy()
    ids, mark = adds["baseRowId"], high_water_mark
    if fresh.any():
        new = adds.filter(pa.array(fresh))
        counts = num_records(new["stats"])
        if counts.null_count:
            path = new["path"].filter(pc.is_null(counts))[0].as_py()
            raise RefusedError(
                "the statistics of a file without row IDs do not tell its number of rows",
                file=path,
                remedy="take numRecords from the footer of the data file",
            )
        rows = counts.to_numpy()
        if mark + sum(rows.tolist()) > _MAX_ROW_ID:
            raise RefusedError("the row IDs of the table would not fit into 64 bits")
        ends = mark + np.cumsum(rows)
        filled = ids.to_numpy() if not ids.null_count else pc.fill_null(ids, 0).to_numpy()
        filled = filled.copy()
        filled[fresh] = ends - rows + 1
        ids, mark = pa.chunked_array([pa.array(filled, pa.int64())]), int(ends[-1])
    versions = pc.fill_null(adds["defaultRowCommitVersion"], version)
    for name, column in (("baseRowId", ids), ("defaultRowCommitVersion", versions)):
        adds = adds.set_column(adds.column_names.index(name), name, column)
    return adds, mark

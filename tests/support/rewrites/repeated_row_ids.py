"""Tables in which several live rows have the same row ID."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION
from tests.support.rewrites.rewritten_tables import Rewritten, numbers

DEFECTS = {"1001", "2000", "5", "33", "5002"}
"""The repeated row IDs of `defective`."""


def stored(ids: Sequence[int | None], first: int = 900) -> pa.Table:
    """Rows with these row IDs in the file."""
    rows = numbers(first, len(ids))
    versions = pa.array([1] * len(ids), pa.int64())
    return rows.append_column(ROW_ID, pa.array(ids, pa.int64())).append_column(
        ROW_VERSION, versions
    )


def defective(made: Rewritten) -> None:
    """Adds each kind of repeated row ID, and row IDs that only a deleted row has too."""

    def append(*files: Sequence[int | None]) -> list[str]:
        return made.table.append(*map(stored, files), partitionValues={"p": "x"})

    # In two files, in one file, and in a range of the log.
    append([1000, 1001], [1001, 1002])
    append([2000, 2001, 2000])
    append([None, 5])
    # The row 18 is deleted, the row 33 is not.
    made.table.delete(made.paths["y"][0], [2])
    append([18])
    made.table.delete(made.paths["z"][0], [0])
    append([33])
    # A deleted row and a live row of the same file.
    [both] = append([3000, 3001, 3000])
    made.table.delete(both, [2])
    # A file with many ranges.
    append([6000, 5004, 5000, 5006, 5002, 6002, 5008], [4000, 5002])


def scattered(made: Rewritten, *, files: int, rows: int) -> None:
    """Adds files in which no row ID follows another one."""
    for file in range(files):
        ids = [10_000 + 2 * (file + files * row) for row in range(rows)]
        made.table.append(stored(ids), partitionValues={"p": "x"})

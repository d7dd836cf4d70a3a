"""Rows in effect are copied as slices where few are left out, and filtered elsewhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from delta_maintenance.protocol.columns import booleans
from delta_maintenance.table.read.active_files import _rows

ROWS = 4096
BATCH = pa.table(
    {
        "path": [f"part-{number}" for number in range(ROWS)],
        "partitionValues": pa.array(
            [[("p", None if number % 3 else "x")] for number in range(ROWS)],
            pa.map_(pa.string(), pa.string()),
        ),
        "size": pa.array([None if number % 5 else number for number in range(ROWS)]),
    }
)


@pytest.mark.parametrize(
    "gone",
    [[], [0], [ROWS - 1], [7, 8, 9], [0, 1, 2000, ROWS - 2, ROWS - 1], [*range(0, ROWS, 2)]],
    ids=str,
)
def test_rows_that_are_left_out(gone: list[int]) -> None:
    stands = np.ones(ROWS, bool)
    stands[gone] = False
    found = _rows(BATCH, stands)
    assert found.equals(BATCH.filter(booleans(stands)))
    assert found["path"].num_chunks == 1
    found.validate(full=True)

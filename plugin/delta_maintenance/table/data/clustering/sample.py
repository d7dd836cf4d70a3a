"""A uniform sample of the rows of a stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SAMPLED_ROWS = 1 << 16
"""The number of rows whose values decide the ranks of all values."""


class RowSample:
    """Keeps a number of rows, each with the same probability. The choice is reproducible."""

    def __init__(self, most: int = SAMPLED_ROWS) -> None:
        self._most = most
        self._draw = np.random.default_rng(0)
        self._rows: list[pa.RecordBatch] = []
        self._numbers: list[npt.NDArray[np.float64]] = []
        self._below = 1.0
        """Rows with a smaller random number are kept."""
        self._kept = 0
        self.count = 0
        """The number of rows that were offered."""

    def offer(self, batch: pa.RecordBatch) -> None:
        """Adds rows to the stream."""
        self.count += batch.num_rows
        numbers = self._draw.random(batch.num_rows)
        kept = np.flatnonzero(numbers < self._below)
        if not len(kept):
            return
        self._rows.append(batch.take(pa.array(kept)))
        self._numbers.append(numbers[kept])
        self._kept += len(kept)
        if self._kept > 2 * self._most:
            self._reduce()

    def rows(self) -> pa.RecordBatch | None:
        """Returns the sample; None if there were no rows."""
        if not self._rows:
            return None
        if self._kept > self._most:
            self._reduce()
        return pa.concat_batches(self._rows)

    def _reduce(self) -> None:
        numbers = np.concatenate(self._numbers)
        self._below = float(np.partition(numbers, self._most)[self._most])
        kept = np.flatnonzero(numbers < self._below)
        self._rows = [pa.concat_batches(self._rows).take(pa.array(kept))]
        self._numbers = [numbers[kept]]
        self._kept = len(kept)

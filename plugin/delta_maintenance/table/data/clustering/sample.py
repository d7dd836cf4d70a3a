"""A uniform sample of the rows of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SAMPLED_ROWS = 1 << 16
"""The number of rows whose values decide the ranks of all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """The sample of a part of the rows. Can be pickled."""

    rows: pa.RecordBatch | None
    numbers: npt.NDArray[np.float64]
    """The random number of each row."""
    below: float
    """All rows with smaller random numbers are in the sample."""
    count: int
    """The number of rows of the part."""


def joined(parts: Sequence[SamplePart], *, most_rows: int = SAMPLED_ROWS) -> pa.RecordBatch | None:
    """Returns a uniform sample of all parts, in random order; None if there are no rows.

    The parts must be drawn with different seeds.
    """
    below = min(part.below for part in parts)
    numbers = np.concatenate([part.numbers for part in parts])
    batches = [part.rows for part in parts if part.rows is not None]
    if not batches:
        return None
    order = np.argsort(numbers)[: min(most_rows, int((numbers < below).sum()))]
    return pa.concat_batches(batches).take(pa.array(order))


class RowSample:
    """Keeps some rows, each with the same probability. The choice is reproducible."""

    def __init__(self, *, most_bytes: int, most_rows: int = SAMPLED_ROWS, seed: int = 0) -> None:
        """`most_bytes` limits the size of the rows in memory; long rows reduce their number."""
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._draw = np.random.default_rng(seed)
        self._rows: list[pa.RecordBatch] = []
        self._numbers: list[npt.NDArray[np.float64]] = []
        self._below = 1.0
        """Rows with a smaller random number are kept."""
        self._kept = self._bytes = 0
        self.count = 0
        """The number of rows that were offered."""

    def offer(self, batch: pa.RecordBatch) -> None:
        """Adds rows to the stream."""
        self.count += batch.num_rows
        numbers = self._draw.random(batch.num_rows)
        below = np.flatnonzero(numbers < self._below)
        if not len(below):
            return
        rows = batch.take(pa.array(below))
        self._rows.append(rows)
        self._numbers.append(numbers[below])
        self._kept += len(below)
        self._bytes += rows.nbytes
        if self._kept > 2 * self._most_rows or self._bytes > self._most_bytes:
            self._reduce()

    def rows(self) -> pa.RecordBatch | None:
        """Returns the sample; None if there were no rows."""
        if not self._rows:
            return None
        if self._kept > self._most_rows:
            self._reduce()
        return pa.concat_batches(self._rows)

    def part(self) -> SamplePart:
        """Returns the sample in a form that can be joined with others."""
        return SamplePart(
            rows=self.rows(),
            numbers=np.concatenate(self._numbers or [np.zeros(0)]),
            below=self._below,
            count=self.count,
        )

    def _reduce(self) -> None:
        numbers = np.concatenate(self._numbers)
        # Half of the allowed size, so that this is not repeated for each batch.
        by_bytes = self._kept * self._most_bytes // (2 * max(1, self._bytes))
        limit = max(1, min(self._most_rows, by_bytes))
        if limit >= self._kept:
            return
        self._below = float(np.partition(numbers, limit)[limit])
        below = np.flatnonzero(numbers < self._below)
        self._rows = [pa.concat_batches(self._rows).take(pa.array(below))]
        self._numbers = [numbers[below]]
        self._kept, self._bytes = len(below), self._rows[0].nbytes

"""The keys of rows on the curve over the clustering columns, the same in every process.

They are learned from a uniform sample of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.ranks import (
    Boxes,
    ColumnRanks,
    Curve,
    Ranks,
    bits_for,
    curve_keys,
)
from delta_maintenance.protocol.statistics.ranks import Path as ColumnPath

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


def combine(parts: Sequence[SamplePart], *, most_rows: int = SAMPLED_ROWS) -> pa.RecordBatch | None:
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


SORT_BYTES = 128 << 20
"""The size in memory of the rows that are sorted at once."""
_POINTS = 1 << 11
"""The number of sampled rows for which the depth is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """How the rows of new files are ordered. Can be sent to executors."""

    columns: tuple[ColumnPath, ...]
    """The physical names of the columns, whose values have ranks."""
    curve: Curve
    sort_bytes: int = SORT_BYTES

    def key_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the clustering columns of rows."""
        columns = [column_at(rows, path) for path in self.columns]
        return pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveKeys:
    """Computes keys by the ranks of values in a sample. Can be sent to executors."""

    clustering: Clustering
    columns: Mapping[ColumnPath, ColumnRanks]

    @classmethod
    def learn(cls, clustering: Clustering, sample: pa.RecordBatch) -> CurveKeys:
        """Determines the ranks from a sample of the clustering columns."""
        bits = bits_for(len(clustering.columns))
        columns = {
            path: ColumnRanks.of(column, bits=bits)
            for path, column in zip(clustering.columns, sample.columns, strict=True)
        }
        return cls(clustering=clustering, columns=columns)

    def rank(self, keys: pa.RecordBatch) -> tuple[list[Ranks], Ranks]:
        """Returns the ranks of clustering columns, and the keys of their rows."""
        columns_with_ranks = list(zip(self.columns.values(), keys.columns, strict=True))
        ranks = [column.ranks(values) for column, values in columns_with_ranks]
        bits = [column.bits for column, _ in columns_with_ranks]
        return ranks, curve_keys(ranks, bits, self.clustering.curve)

    def points(self, sample: pa.RecordBatch) -> Ranks:
        """Returns the ranks of some sampled rows."""
        return np.stack(self.rank(sample)[0], axis=1)[:_POINTS]


@dataclass(slots=True)
class SourceBoxes:
    """The ranks between which the rows of each source are. Can be pickled."""

    _low: dict[int, Ranks] = field(default_factory=dict)
    _high: dict[int, Ranks] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    def add(self, source: int, ranks: Sequence[Ranks]) -> None:
        """Adds rows of a source, at least one."""
        low = np.array([rank.min() for rank in ranks], np.uint64)
        high = np.array([rank.max() for rank in ranks], np.uint64)
        self._low[source] = np.minimum(low, self._low.get(source, low))
        self._high[source] = np.maximum(high, self._high.get(source, high))
        self._rows[source] = self._rows.get(source, 0) + len(ranks[0])

    def update(self, boxes: SourceBoxes) -> None:
        """Adds those of other sources."""
        self._low |= boxes._low
        self._high |= boxes._high
        self._rows |= boxes._rows

    def boxes(self) -> Boxes:
        """Returns the boxes of all sources with rows."""
        sources = sorted(self._low)
        return Boxes(
            low=np.array([self._low[source] for source in sources], np.uint64),
            high=np.array([self._high[source] for source in sources], np.uint64),
            rows=np.array([self._rows[source] for source in sources], np.int64),
        )


def column_at(rows: pa.RecordBatch, path: ColumnPath) -> pa.Array:
    """Returns a column, or a field of a struct."""
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column

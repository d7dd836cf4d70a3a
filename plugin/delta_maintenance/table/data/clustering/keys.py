"""The keys of rows on the curve over the clustering columns, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.layout.ranks import (
    Boxes,
    ColumnRanks,
    Curve,
    Ranks,
    bits_for,
    curve_keys,
)
from delta_maintenance.protocol.layout.ranks import Path as ColumnPath

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
    def learned(cls, clustering: Clustering, sample: pa.RecordBatch) -> CurveKeys:
        """Determines the ranks from a sample of the clustering columns."""
        bits = bits_for(len(clustering.columns))
        columns = {
            path: ColumnRanks.of(column, bits=bits)
            for path, column in zip(clustering.columns, sample.columns, strict=True)
        }
        return cls(clustering=clustering, columns=columns)

    def ranked(self, keys: pa.RecordBatch) -> tuple[list[Ranks], Ranks]:
        """Returns the ranks of clustering columns, and the keys of their rows."""
        columns_with_ranks = list(zip(self.columns.values(), keys.columns, strict=True))
        ranks = [column.ranks(values) for column, values in columns_with_ranks]
        bits = [column.bits for column, _ in columns_with_ranks]
        return ranks, curve_keys(ranks, bits, self.clustering.curve)

    def points(self, sample: pa.RecordBatch) -> Ranks:
        """Returns the ranks of some sampled rows."""
        return np.stack(self.ranked(sample)[0], axis=1)[:_POINTS]


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

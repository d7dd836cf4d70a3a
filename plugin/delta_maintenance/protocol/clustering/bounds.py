"""The bounds of some columns of data files, from the statistics in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.clustering.curve import Ranks
from delta_maintenance.protocol.clustering.depth import Boxes
from delta_maintenance.protocol.clustering.ranks import ColumnRanks
from delta_maintenance.protocol.columns.arrays import to_bools
from delta_maintenance.protocol.statistics.as_json import parse_statistics
from delta_maintenance.protocol.statistics.as_struct import align_statistics

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """One row for each file, from its statistics; null where they lack a value."""

    rows: pa.Array
    low: Mapping[Path, pa.Array]
    high: Mapping[Path, pa.Array]
    nulls: Mapping[Path, pa.Array]
    omits_maxima: pa.BooleanArray
    """Files that state no maxima at all, because that of one column cannot be stated."""

    def is_complete(self, path: Path) -> npt.NDArray[np.bool_]:
        """Returns which files have the statistics that a clustering column needs: a null count,
        and bounds unless all values are null. Beside NaN there is no maximum.
        """
        high = self.high[path]
        above = pc.or_(pc.is_valid(high), self.omits_maxima)
        if pa.types.is_floating(high.type):
            above = pc.is_valid(self.low[path])
        bounded = pc.and_(pc.is_valid(self.low[path]), above)
        only_nulls = pc.fill_null(pc.equal(self.nulls[path], self.rows), False)
        complete = pc.and_(pc.is_valid(self.nulls[path]), pc.or_(bounded, only_nulls))
        return to_bools(complete)

    def boxes(self, columns: Mapping[Path, ColumnRanks]) -> Boxes:
        """Returns the bounds as ranks. A missing bound is the least or the greatest rank."""
        low, high = [], []
        for path, ranks in columns.items():
            least, greatest = ranks.ranks(self.low[path]), ranks.ranks(self.high[path])
            has_nulls = ~to_bools(pc.fill_null(pc.equal(self.nulls[path], 0), False))
            # Ranks of nulls are 0, also those of missing bounds.
            least[has_nulls | ~self.is_complete(path)] = 0
            only_nulls = to_bools(pc.fill_null(pc.equal(self.nulls[path], self.rows), False))
            greatest[to_bools(pc.is_null(self.high[path])) & ~only_nulls] = ranks.count - 1
            low.append(least)
            high.append(greatest)
        counts = pc.fill_null(self.rows, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Boxes(low=_columns(low, counts), high=_columns(high, counts), rows=counts)


def file_bounds(
    stats: pa.Array, columns: Mapping[Path, pa.DataType], *, parsed: pa.StructArray | None = None
) -> FileBounds:
    """Reads the statistics of these columns, given their physical paths and types.

    `stats` is JSON text; `parsed` has the statistics of files without it.
    """
    bounds = _struct({path: kind for path, kind in columns.items()})
    counts = _struct({path: pa.int64() for path in columns})
    kind = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", bounds),
            ("maxValues", bounds),
            ("nullCount", counts),
        ]
    )
    told = parse_statistics(stats, kind, record_lost=False).values
    also = None if parsed is None else align_statistics(parsed, kind).values

    def leaf(*path: str) -> pa.Array:
        found = pc.struct_field(told, list(path))
        return found if also is None else pc.coalesce(found, pc.struct_field(also, list(path)))

    return FileBounds(
        rows=leaf("numRecords"),
        low={path: leaf("minValues", *path) for path in columns},
        high={path: leaf("maxValues", *path) for path in columns},
        nulls={path: leaf("nullCount", *path) for path in columns},
        omits_maxima=pc.and_(pc.is_valid(leaf("minValues")), pc.is_null(leaf("maxValues"))),
    )


def _struct(leaves: Mapping[Path, pa.DataType]) -> pa.StructType:
    groups: dict[str, dict[Path, pa.DataType]] = {}
    for path, kind in leaves.items():
        groups.setdefault(path[0], {})[path[1:]] = kind
    return pa.struct(
        [
            (name, members[()] if () in members else _struct(members))
            for name, members in groups.items()
        ]
    )


def _columns(columns: Sequence[Ranks], rows: npt.NDArray[np.int64]) -> Ranks:
    if not columns:
        return np.zeros((len(rows), 0), np.uint64)
    return np.stack(columns, axis=1)

"""What filters read of a table now, and what they would read after clustering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from delta_maintenance.operations.layout import ColumnLayout, Depths, Reading
from delta_maintenance.operations.layout.queries import Query
from delta_maintenance.operations.layout.reading import Column
from delta_maintenance.protocol.statistics.bounds import FileBounds, Mask, Path, order_keys
from delta_maintenance.protocol.statistics.measures import (
    PlannedClustering,
    Probes,
    histogram,
    overlaps,
    probe,
    sampled_values,
)
from delta_maintenance.protocol.statistics.skipping import files_read


@dataclass(slots=True)
class Measured:
    """The files of a table, and what was learnt about them."""

    files: FileBounds
    target_bytes: int
    samples: dict[Path, pa.Array] = field(default_factory=dict)
    """Drawn values of each measured column, ascending."""
    alone: dict[Path, Mask] = field(default_factory=dict)
    """Files that share no value of a column with another file of their partition."""
    _clustering: PlannedClustering = field(init=False)

    def __post_init__(self) -> None:
        self._clustering = PlannedClustering(self.files, target_bytes=self.target_bytes)

    @property
    def weights(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The rows of each file; the bytes if the log states no rows."""
        rows = np.maximum(self.files.rows, 0)
        return rows if rows.any() else self.files.size

    def column(self, column: Column) -> ColumnLayout:
        """Measures one column."""
        files, bounds = self.files, self.files.columns[column.path]
        values = self.sample(column.path)
        has_bounds = bounds.known
        rows = np.flatnonzero(has_bounds)
        at = pa.array(rows)
        low, high, drawn = order_keys(bounds.least.take(at), bounds.greatest.take(at), values)
        self._clustering.know(column.path, low, high)
        overlap = overlaps(low, high, files.partition[rows])
        alone = bounds.all_null.copy()
        alone[rows] = overlap.overlap == 0
        self.alone[column.path] = alone
        now = probe(
            low,
            high,
            files.size[rows],
            drawn,
            unskippable=files.size[bounds.unknown],
            count=files.count,
        )
        own_paths = [column.path]
        after = self._probe(self.cluster_by(own_paths, columns=own_paths), column.path)
        return ColumnLayout(
            name=column.name,
            type=str(column.kind),
            files_without_bounds=int(bounds.unknown.sum()),
            files_of_nulls=int(bounds.all_null.sum()),
            files_of_one_value=int((low == high).sum()),
            average_overlap=_mean(overlap.overlap),
            average_depth=_mean(overlap.depth),
            depths=tuple(
                Depths(up_to=depth, files=count)
                for depth, count in histogram(overlap.depth).items()
            ),
            point=_reading(now.point.files, now.point.bytes, after.point.bytes),
            range=_reading(now.range.files, now.range.bytes, after.range.bytes),
        )

    def sample(self, path: Path) -> pa.Array:
        """Returns drawn values of a column, ascending."""
        if path not in self.samples:
            self.samples[path] = sampled_values(self.files.columns[path], self.weights)
        return self.samples[path]

    def cluster_by(
        self, keys: Sequence[Path], *, columns: Sequence[Path] | None = None
    ) -> FileBounds:
        """Returns the files after clustering by these columns, with the bounds of `columns`."""
        samples = {path: self.sample(path) for path in keys}
        return self._clustering.by(keys, samples, columns=columns)

    def range_reads(self, keys: Sequence[Path]) -> list[float]:
        """Returns the share of bytes that a range of each key reads after clustering by all."""
        files = self.cluster_by(keys, columns=keys)
        return [self._probe(files, path).range.bytes for path in keys]

    def bytes_to_rewrite(self, keys: Sequence[Path]) -> int:
        """Returns the bytes that clustering rewrites: for one key, of the files that overlap."""
        if len(keys) == 1 and keys[0] in self.alone:
            return int(self.files.size[~self.alone[keys[0]]].sum())
        counts = np.bincount(self.files.partition, minlength=self.files.partitions)
        return int(self.files.size[counts[self.files.partition] > 1].sum())

    def _probe(self, files: FileBounds, path: Path) -> Probes:
        bounds, values = files.columns[path], self.samples[path]
        rows = np.flatnonzero(bounds.known)
        at = pa.array(rows)
        low, high, drawn = order_keys(bounds.least.take(at), bounds.greatest.take(at), values)
        return probe(
            low,
            high,
            files.size[rows],
            drawn,
            unskippable=files.size[bounds.unknown],
            count=files.count,
        )


def bytes_read(queries: Sequence[Query], files: FileBounds) -> list[float]:
    """Returns the share of bytes that a reader of each query reads."""
    total = int(files.size.sum())
    return [_share(int(files.size[read_by(query, files)].sum()), total) for query in queries]


def read_by(query: Query, files: FileBounds) -> Mask:
    """Returns which files a reader of a query reads."""
    if query.condition is None:
        return np.ones(files.count, np.bool_)
    return files_read(query.condition, files)


def _reading(files: float, size: float, after: float) -> Reading:
    # The model cannot make a layout worse, because a writer would leave it as it is.
    return Reading(
        files=round(files, 6), bytes=round(size, 6), bytes_after=round(min(size, after), 6)
    )


def _mean(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    return round(float(numbers.mean()), 3) if len(numbers) else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

"""The reads of simple filters, against counts over the rows that the files hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from delta_maintenance.protocol.schema import PrimitiveType
from delta_maintenance.protocol.statistics.bounds import (
    ColumnBounds,
    FileBounds,
    Numbers,
    Path,
    column_bounds,
    order_keys,
)
from delta_maintenance.protocol.statistics.measures import (
    PlannedClustering,
    Probes,
    mean_depth,
    probe,
    sampled_values,
)

Rows = npt.NDArray[np.int64]
FILES, ROWS = 100, 1000
KIND = PrimitiveType(name="long")


def files_of(values: Rows, partition: Numbers | None = None) -> FileBounds:
    """Files of equal size, each with a row of `values`."""
    count = len(values)
    rows = np.full(count, values.shape[1])
    column = column_bounds(
        KIND,
        least=pa.array(values.min(axis=1)),
        greatest=pa.array(values.max(axis=1)),
        nulls=pa.array(np.zeros(count, np.int64)),
        rows=rows,
    )
    return FileBounds(
        size=np.full(count, 1 << 20),
        rows=rows,
        partition=np.zeros(count, np.int64) if partition is None else partition,
        columns={("a",): column},
    )


def probed(files: FileBounds, values: pa.Array) -> Probes:
    column = files.columns[("a",)]
    low, high, drawn = order_keys(column.least, column.greatest, values)
    return probe(low, high, files.size, drawn, unskippable=np.zeros(0, np.int64), count=files.count)


def counted(values: Rows, share: float) -> float:
    """The share of files that a filter reads, over filters that begin at each row."""
    every, low, high = np.sort(values.ravel()), values.min(axis=1), values.max(axis=1)
    width = int(len(every) * share)
    starts = np.arange(0, len(every) - width, 97)
    reads = [((low <= every[at + width]) & (high >= every[at])).sum() for at in starts]
    return float(np.mean(reads) / len(values))


LAYOUTS: Mapping[str, Callable[[np.random.Generator], Rows]] = {
    "random": lambda chance: chance.integers(0, 10**9, (FILES, ROWS)),
    "sorted": lambda chance: np.sort(chance.integers(0, 10**9, FILES * ROWS)).reshape(FILES, ROWS),
    "days": lambda chance: (
        chance.integers(0, 86_400, (FILES, ROWS)) + np.arange(FILES)[:, None] // 10 * 86_400
    ),
    "few values": lambda chance: np.sort(chance.integers(0, 7, FILES * ROWS)).reshape(FILES, ROWS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reads_of_filters_are_those_over_the_rows(layout: str) -> None:
    values = LAYOUTS[layout](np.random.default_rng(3))
    files = files_of(values)
    found = probed(files, sampled_values(files.columns[("a",)], files.rows))
    assert found.point.files == pytest.approx(counted(values, 0), rel=0.2)
    assert found.range.files == pytest.approx(counted(values, 0.01), rel=0.2)
    assert found.point.files == pytest.approx(found.point.bytes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reads_after_clustering_are_those_of_sorted_rows(layout: str) -> None:
    values = LAYOUTS[layout](np.random.default_rng(5))
    files = files_of(values)
    drawn = sampled_values(files.columns[("a",)], files.rows)
    planned = PlannedClustering(files, target_bytes=1 << 20).by([("a",)], {("a",): drawn})
    ordered = np.sort(values.ravel()).reshape(FILES, ROWS)
    assert planned.count == FILES
    assert probed(planned, drawn).range.bytes == pytest.approx(counted(ordered, 0.01), rel=0.35)


def test_two_keys_share_the_slices_and_partitions_stay_apart() -> None:
    chance = np.random.default_rng(7)
    one = files_of(chance.integers(0, 10**6, (FILES, ROWS)), np.arange(FILES) % 2)
    column = one.columns[("a",)]
    files = FileBounds(
        size=one.size,
        rows=one.rows,
        partition=one.partition,
        columns={("a",): column, ("b",): column},
    )
    drawn = sampled_values(column, files.rows)
    samples: dict[Path, pa.Array] = {("a",): drawn, ("b",): drawn}
    planned = PlannedClustering(files, target_bytes=1 << 20).by([("a",), ("b",)], samples)
    # 50 files for each partition: 7 slices of each key.
    assert planned.count == 2 * 49
    assert probed(planned, drawn).point.bytes == pytest.approx(1 / 7, rel=0.2)
    both = [planned.columns[path] for path in samples]
    assert mean_depth(both, planned.rows) == pytest.approx(2, rel=0.2)
    assert planned.size.sum() == pytest.approx(files.size.sum(), rel=0.01)


def test_the_depth_of_a_box_is_that_of_its_grid() -> None:
    grid = np.arange(16)

    def column(place: Numbers) -> ColumnBounds:
        return column_bounds(
            KIND,
            least=pa.array(place * 100),
            greatest=pa.array(place * 100 + 99),
            nulls=pa.array(np.zeros(16, np.int64)),
            rows=np.full(16, 100),
        )

    both = [column(grid // 4), column(grid % 4)]
    weights = np.full(16, 100)
    assert mean_depth(both, weights) == 1
    assert mean_depth(both[:1], weights) == 4

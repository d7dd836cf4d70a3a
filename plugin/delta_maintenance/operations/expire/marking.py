"""The expired rows of single files, read from one column.

Runs in threads of this process. Memory holds a bitmap of the expired rows for each file, and one
batch of the column for each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.expire.limit import Limit
from delta_maintenance.operations.rewriting.engine import default_workers
from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.bounds import numbers
from delta_maintenance.protocol.statistics.collect import ColumnStatistics, StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """The expired rows of one file."""

    rows: int = 0
    """Physical rows."""
    gone: BitMap64
    """The positions of all deleted rows: those that were deleted before, and expired ones."""
    now: BitMap64 = field(default_factory=BitMap64)
    """The positions of the live rows that have expired."""
    remaining: ColumnStatistics | None = None
    """The bounds of the live rows that remain; None if the column needs no statistics."""
    problem: DeltaMaintenanceError | None = None
    """Why the file cannot be read."""

    @property
    def expired(self) -> int:
        """The number of live rows that have expired."""
        return len(self.now)

    @property
    def not_expired(self) -> BitMap64:
        """The positions of all rows that did not expire now, deleted ones included."""
        return BitMap64(range(self.rows)) - self.now

    @property
    def is_damaged(self) -> bool:
        """Whether the file is missing or damaged."""
        return isinstance(self.problem, CorruptTableError)

    @property
    def is_whole(self) -> bool:
        """Whether no live row remains."""
        return self.expired > 0 and len(self.gone) == self.rows


def marked(
    store: Store,
    layout: DataFileLayout,
    limit: Limit,
    files: Sequence[SourceFile],
    *,
    leaf: StatisticsLeaf | None,
    workers: int | None,
) -> Iterator[Marked]:
    """Yields the expired rows of files, in their order. Errors of the store are raised.

    `leaf` is the column, if files have statistics of it.
    """
    part = layout.only({limit.column.physical[0]})

    def of(file: SourceFile) -> Marked:
        try:
            return _marked(store, part, limit, file, leaf)
        except StorageError:
            raise
        except (CorruptTableError, RefusedError, UnsupportedFeatureError) as error:
            return Marked(gone=BitMap64(), problem=error)

    with StreamingPool(workers or default_workers()) as pool:
        yield from pool.map(of, files)


def _marked(
    store: Store, part: DataFileLayout, limit: Limit, file: SourceFile, leaf: StatisticsLeaf | None
) -> Marked:
    rows, before, expired = 0, BitMap64(), BitMap64()
    leaves = () if leaf is None else (leaf,)
    remaining = StatisticsCollector(
        StatisticsColumns(leaves=leaves, tight_bounds=False), part.schema
    )
    for batch in DataFileReader(store, part).read(file):
        rows, before = batch.first + batch.batch.num_rows, batch.deleted
        less = _less(batch.batch, limit)
        expired |= BitMap64((batch.first + np.flatnonzero(less)).tolist())
        stays = ~less
        stays[batch.gone()] = False
        remaining.offer(batch.batch.filter(booleans(stays)))
    return Marked(
        rows=rows,
        gone=before | expired,
        now=expired - before,
        remaining=None if leaf is None else remaining.bounds(leaf.path),
    )


def _less(batch: pa.RecordBatch, limit: Limit) -> np.ndarray:
    top_name, *inner = limit.column.physical
    values: pa.Array = batch.column(top_name)
    for name in inner:
        # Null if the struct is null.
        values = pc.struct_field(values, name)
    is_less: np.ndarray = to_bools(pc.is_valid(values)) & (numbers(values) < limit.value)
    return is_less

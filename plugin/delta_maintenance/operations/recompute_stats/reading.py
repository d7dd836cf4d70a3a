"""Reads statistics of single files: from footers where these are safe, else from rows.

Runs in threads of this process and on executors; all values can be pickled. An engine decides where
files are read, and the statistics do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.rewriting.engine import default_workers
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.data_file_reader import SourceFile, row_statistics
from delta_maintenance.table.data.footers import PARALLEL_READS, FooterReader, FooterStatistics
from delta_maintenance.table.data.parquet.footers import omits_bounds_of_nan


@dataclass(slots=True)
class FileWork:
    """The work on one file. Columns are numbers in `StatisticsReading.leaves`."""

    row: int
    file: SourceFile
    leaves: Sequence[int] = ()
    """The columns to replace."""
    suspect: Sequence[int] = ()
    """Those to replace unless the writer of the file is trusted."""
    is_certain: bool = True
    """Whether it has a defect that does not depend on its writer."""
    was_exact: bool = False
    """Whether it has a deletion vector, and gets statistics of its live rows."""
    rows: int = 0
    bounds: dict[tuple[str, ...], ColumnStatistics] = field(default_factory=dict)
    to_decode: Sequence[int] = ()
    live: bool = False
    problem: DeltaMaintenanceError | None = None

    @property
    def has_vector(self) -> bool:
        """Whether the file has a deletion vector."""
        return self.file.deletion_vector is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsReading:
    """The columns of the table that have statistics."""

    layout: DataFileLayout
    leaves: tuple[StatisticsLeaf, ...]

    def read(
        self, store: Store, files: Sequence[FileWork], *, decode: bool, workers: int | None = None
    ) -> Iterator[FileWork]:
        """Completes the work on files, in their order: reads their footers, or with `decode` the
        columns that the footers lack.

        Errors of files are in `FileWork.problem`; errors of the store are raised. `workers` is the
        number of files that are decoded at the same time.
        """
        if decode:
            with StreamingPool(workers or default_workers()) as pool:
                yield from pool.map(lambda work: self._from_rows(store, work), files)
        else:
            footers = FooterReader(store, self.layout, self.leaves)
            with StreamingPool(PARALLEL_READS) as pool:
                footer_statistics = footers.read_all([work.file for work in files], pool)
                for work, statistics in zip(files, footer_statistics, strict=True):
                    if isinstance(statistics, FooterStatistics):
                        self._take_in(work, statistics)
                    else:
                        work.problem = statistics
                    yield work

    def _take_in(self, work: FileWork, statistics: FooterStatistics) -> None:
        """Uses the statistics of a footer, and finds the columns to decode."""
        work.rows = statistics.rows
        if omits_bounds_of_nan(statistics.created_by):
            work.suspect = ()
        if work.suspect:
            more = [leaf for leaf in work.suspect if leaf not in work.leaves]
            work.leaves = [*work.leaves, *more]
        if work.has_vector and work.leaves:
            # Whether bounds are tight is stated for the whole file.
            work.leaves = range(len(self.leaves))
        work.to_decode = [leaf for leaf in work.leaves if statistics.bounds[leaf] is None]
        if work.has_vector and (work.to_decode or work.was_exact):
            work.to_decode, work.live = work.leaves, True
        else:
            for leaf in work.leaves:
                bounds = statistics.bounds[leaf]
                if bounds is not None:
                    work.bounds[self.leaves[leaf].path] = bounds

    def _from_rows(self, store: Store, work: FileWork) -> FileWork:
        leaves = [self.leaves[leaf] for leaf in work.to_decode]
        try:
            work.bounds |= row_statistics(store, self.layout, work.file, leaves, live=work.live)
        except StorageError:
            raise
        except (CorruptTableError, RefusedError, UnsupportedFeatureError) as error:
            work.problem = error
        return work


class StatisticsEngine(Protocol):
    """Reads files."""

    @property
    def decoded_bytes(self) -> int:
        """The size of the files in bytes after which decoded statistics are committed."""

    def read(
        self,
        reading: StatisticsReading,
        files: Sequence[FileWork],
        *,
        decode: bool,
        workers: int | None = None,
    ) -> Iterable[FileWork]:
        """Returns the completed work on each file, in any order. See `StatisticsReading.read`."""


class LocalStatistics:
    """Reads files in threads of this process."""

    decoded_bytes = 8 << 30

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(
        self,
        reading: StatisticsReading,
        files: Sequence[FileWork],
        *,
        decode: bool,
        workers: int | None = None,
    ) -> Iterable[FileWork]:
        """See `StatisticsEngine`."""
        return reading.read(self._store, files, decode=decode, workers=workers)

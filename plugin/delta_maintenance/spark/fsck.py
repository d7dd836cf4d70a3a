"""Opens files on a cluster for `fsck`: footers of data files, deletion vectors and row IDs.

Uses plain PySpark with Python workers, as for sidecars. The driver sends files in groups and
receives the problems, so its memory does not grow with the number of files. Executors only read
these files, with the functions of the local engine. They return row IDs as ranges, in a bounded
number for each group, which the driver compares with those of the groups before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from delta_maintenance.operations.fsck.checks.contents import (
    check_footers,
    check_vectors,
    with_vectors,
)
from delta_maintenance.operations.fsck.checks.row_ids import (
    PARTS,
    RANGES_PER_PART,
    RANGES_PER_ROUND,
    PartReading,
)
from delta_maintenance.operations.fsck.findings import FINDINGS, Findings
from delta_maintenance.operations.fsck.statistics import StatisticsCheck
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.spark.log_shares import Read, TableAddress, by_key, gather, in_parts, in_turn
from delta_maintenance.spark.session import JobSession, SparkEngine
from delta_maintenance.table.progress import Progress

_FILES_PER_ROUND = 200_000
_FILES_PER_TASK = 500

_FOOTERS = ["path", "location", "num_records"]
_COMPARED = ["size", "deletionVector", "baseRowId", "defaultRowCommitVersion", "stats", "writer"]
"""The further columns of files whose statistics are compared."""
_VECTORS = ["path", "deletionVector", "num_records"]

_Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """The inputs of a task; they are sent to executors.

    Its methods return rows of `FINDINGS`. Errors of the store are raised, so that Spark retries the
    task.
    """

    address: TableAddress
    version: int
    layout: DataFileLayout | None = None
    statistics: StatisticsCheck | None = None

    def footers(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Opens data files, given as rows of `path`, `location` and `num_records`, and of
        `_COMPARED` with `statistics`.
        """
        check = partial(check_footers, layout=self.layout, statistics=self.statistics)
        return self._found(check, batches)

    def vectors(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Opens deletion vectors, given as rows of `path`, `deletionVector` and `num_records`."""
        return self._found(check_vectors, batches)

    def _found(self, check: Callable[..., None], batches: _Batches) -> Iterator[pa.RecordBatch]:
        with self.address.store() as store:
            for batch in batches:
                findings = Findings()
                check(store, pa.table(batch), findings, version=self.version)
                yield from findings.table().to_batches()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdReading:
    """The inputs of a task that reads row IDs; they are sent to executors."""

    address: TableAddress
    reading: PartReading

    def read(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Converts rows of `FILES` to rows of `PARTS`.

        Errors of the store are raised, so that Spark retries the task.
        """
        with self.address.store() as store:
            files = (pa.Table.from_batches([batch]) for batch in batches)
            yield from self.reading.read(store, files)


class SparkContents(SparkEngine):
    """A `ContentsCheck` on a Spark session."""

    def __init__(
        self,
        job: JobSession,
        *,
        files_per_round: int = _FILES_PER_ROUND,
        files_per_task: int = _FILES_PER_TASK,
        ranges_per_round: int = RANGES_PER_ROUND,
        ranges_per_part: int = RANGES_PER_PART,
    ) -> None:
        super().__init__(job)
        self._files_per_round = files_per_round
        self._files_per_task = files_per_task
        self._ranges_per_round = ranges_per_round
        self._ranges_per_part = ranges_per_part

    def __call__(
        self,
        present: pa.Table,
        adds: pa.Table,
        findings: Findings,
        *,
        version: int,
        layout: DataFileLayout | None = None,
        statistics: StatisticsCheck | None = None,
        progress: Progress | None = None,
    ) -> None:
        """See `ContentsCheck`. Findings of a round are in the order of their paths."""
        reading = FileReading(
            address=self._address, version=version, layout=layout, statistics=statistics
        )
        compared = [name for name in _COMPARED if name in present.column_names]
        footers = present.select([*_FOOTERS, *(compared if statistics is not None else ())])
        for done, files in self._rounds(footers):
            file_parts = in_parts(files, self._files_per_task)
            findings.extend(self._found(file_parts, reading.footers))
            _tell(progress, "footers", done, footers.num_rows)
        vectors = with_vectors(adds).select(_VECTORS)
        for done, rows in self._rounds(vectors):
            # A file with several vectors is read by one task.
            file_parts = by_key(_with_file(rows), "file", self._files_per_task)
            findings.extend(self._found(file_parts, reading.vectors))
            _tell(progress, "deletion vectors", done, vectors.num_rows)

    def row_ids(self, layout: DataFileLayout) -> SparkRowIds:
        """See `ReadsRowIds`."""
        reading = PartReading(
            layout=layout, most_ranges=self._ranges_per_round, per_part=self._ranges_per_part
        )
        return SparkRowIds(
            self._spark,
            RowIdReading(address=self._address, reading=reading),
            files_per_round=self._files_per_round,
            files_per_task=self._files_per_task,
        )

    def _rounds(self, files: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yields groups of files, each with the number of files so far."""
        for start in range(0, files.num_rows, self._files_per_round):
            round_files = files.slice(start, self._files_per_round)
            yield start + round_files.num_rows, round_files

    def _found(self, file_parts: Sequence[pa.Table], read: Read) -> pa.Table:
        findings = gather(self._spark, file_parts, read, schema=FINDINGS)
        return findings.sort_by([("path", "ascending"), ("problem", "ascending")])


class SparkRowIds:
    """A `RowIdReader` on a Spark session."""

    def __init__(
        self, spark: SparkSession, task: RowIdReading, *, files_per_round: int, files_per_task: int
    ) -> None:
        self._spark = spark
        self._task = task
        self._files_per_task = files_per_task
        self.files_per_round = files_per_round

    def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
        """See `RowIdReader`. The ranges of a round are divided equally between the tasks."""
        reading = self._task.reading
        most_tasks = reading.most_ranges // reading.per_part
        tasks = min(-(-files.num_rows // self._files_per_task), most_tasks)
        reading = replace(
            reading,
            first=files["at"][0].as_py(),
            passed=passed,
            most_ranges=reading.most_ranges // tasks,
        )
        # Each task reads files from the whole round, in order. If a task stops early, the other
        # tasks have read about as many files.
        file_parts = in_turn(files, tasks)
        return gather(
            self._spark, file_parts, replace(self._task, reading=reading).read, schema=PARTS
        )


def _with_file(rows: pa.Table) -> pa.Table:
    """Adds the column `file`, which has one value for all vectors in the same file."""
    vectors = rows["deletionVector"]
    kind, name = (
        pc.struct_field(vectors, field_name) for field_name in ("storageType", "pathOrInlineDv")
    )
    return rows.append_column("file", pc.binary_join_element_wise(kind, name, ""))


def _tell(progress: Progress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(stage, done, total)

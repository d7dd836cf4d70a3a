"""Sorts the rows of one large bin on a cluster, in the order of a curve.

1. Executors read the clustering columns of all sources. The driver learns the ranks from a sample
   and divides the keys into ranges, as the local engine does.
2. Executors read the sources with all that new files keep, and append the key, from the function of
   the local engine, and the range.
3. Spark sends each range to one partition, and sorts the partition by the key.
4. Executors write the rows of each partition to new files, and read them back.

The driver then compares the digest of all new files with that of all sources. No row but the sample
reaches it. A task that runs twice writes files with new names, and only those of the result are
committed.

`repartitionByRange` is not used, because it runs the second step twice: once to draw a sample. Its
result is the same otherwise.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, functions

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.statistics.ranks import Ranks
from delta_maintenance.spark.carried_rows import CarriedRows, sortable, spark_type
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import (
    Bin,
    DigestKind,
    RewriteSpec,
    RewrittenBin,
    RowsDigest,
    SourceError,
    source_rows,
)
from delta_maintenance.table.data.clustering.clustered_bin import (
    clustered_bin,
    key_columns,
    measure_depth,
    written,
)
from delta_maintenance.table.data.clustering.keys import (
    SAMPLED_ROWS,
    Clustering,
    CurveKeys,
    RowSample,
    SamplePart,
    SourceBoxes,
    combine,
)
from delta_maintenance.table.data.clustering.sorter import SortedRows, cuts_between
from delta_maintenance.table.data.data_file_reader import DataFileReader, LostBloomFilters
from delta_maintenance.table.data.data_file_writer import WrittenFile
from delta_maintenance.table.data.read_back import require_sums, stored_sums
from delta_maintenance.table.parallel import IdleWorkers

FOUND = "found binary"
"""The schema of results of tasks: a pickled value."""

_READ_BYTES = 128 << 20
"""The size of the sources that a task reads."""
_SAMPLE_BYTES = 64 << 20
"""The size of the sample of all tasks in the driver."""
_SPREAD = 8
"""How many times more rows than are needed all tasks sample, because their sizes differ."""
_SLACK = 1.4
"""How many times more rows than planned a file may have, so that a range that is a little larger
than others does not end with a small file.
"""
_SIGN = np.uint64(1 << 63)
"""Turns keys into signed numbers with the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """The result of a task that reads clustering columns."""

    part: SamplePart | None = None
    refused: tuple[int, str, bool] | None = None
    """The arguments of a `SourceError`."""
    loses_filters: bool = False
    """Whether a source has bloom filters that new files would lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a task that reads sources found, besides rows."""

    sums: RowSums
    boxes: SourceBoxes
    refused: tuple[int, str, bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The new files of a partition, or the reason why they are not as written."""

    least: int = 0
    """The first key."""
    outputs: tuple[WrittenFile, ...] = ()
    sums: RowSums = field(default_factory=RowSums)
    problem: DeltaMaintenanceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingTask:
    """The inputs of all tasks for one bin; they are sent to executors."""

    address: TableAddress
    work: Bin
    spec: RewriteSpec
    clustering: Clustering
    new_id: NewId
    rows: CarriedRows
    value_type: pa.DataType | None
    """The type of the value by which rows with the same key are sorted, if there is one clustering
    column.
    """
    parts: tuple[range, ...]
    """The sources of each reading task."""
    keys: CurveKeys | None = None
    """Set after the sample."""
    cuts: Ranks = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The first key of each range but the first."""
    slots: Sequence[int] = (0,)
    """For each range, a number that Spark sends to a partition of its own."""
    most_rows: int = 0
    """The maximum number of rows in a new file."""

    @property
    def schema(self) -> str:
        """The schema of the rows in Spark: the columns of data files, then those of the task."""
        columns = [f"c{number} {kind}" for number, kind in enumerate(self.rows.spark_types)]
        value = [] if self.value_type is None else [f"value {spark_type(self.value_type)}"]
        return ", ".join([*columns, "key bigint", "slot bigint", "note binary", *value])

    def sample(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Samples the clustering columns of the sources of parts."""
        with self.address.store() as store:
            for number in _numbers(batches):
                yield _found(self._sample_rows(store, number))

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reads the rows of the sources of parts, and adds a row with a note about each part."""
        with self.address.store() as store:
            for number in _numbers(batches):
                yield from self._read_keyed_rows(store, self.parts[number])

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the rows of a partition, and returns the notes."""
        notes: list[bytes] = []
        keys: list[int] = []
        writers = []
        with self.address.store() as store:
            try:
                writers = written(
                    store,
                    self.work,
                    self.spec,
                    self._restore_rows(batches, notes, keys),
                    most_rows=self.most_rows,
                    new_id=self.new_id,
                )
                outputs = tuple(writer.result() for writer in writers)
                sums = stored_sums(
                    store, self.work, self.spec, outputs, writers, kind=self._digest_kind
                )
                assert isinstance(sums, RowSums)
                found = _Written(least=min(keys, default=0), outputs=outputs, sums=sums)
            except DeltaMaintenanceError as error:
                if error.retryable:
                    raise
                found = _Written(problem=error)
        yield pa.RecordBatch.from_arrays(
            [pa.array([*notes, pickle.dumps(found)], pa.binary())], names=["found"]
        )

    @property
    def _digest_kind(self) -> DigestKind:
        """Sums, because the rows come in another order."""
        return "sums" if self.spec.proof == "rows" else "counts"

    def _sample_rows(self, store: Store, number: int) -> _Sampled:
        tasks = len(self.parts)
        sample = RowSample(
            most_bytes=max(1 << 16, _SAMPLE_BYTES // tasks),
            most_rows=max(1 << 10, min(SAMPLED_ROWS, _SPREAD * SAMPLED_ROWS // tasks)),
            seed=number,
        )
        sources, files = self.parts[number], self.spec.files
        sampled_bin = replace(self.work, sources=self.work.sources[sources.start : sources.stop])
        try:
            for rows in key_columns(store, sampled_bin, files.layout, self.clustering):
                sample.offer(self.clustering.key_columns(rows))
        except SourceError as error:
            at = sources.start + error.source
            return _Sampled(refused=(at, error.problem, error.damaged))
        reader = DataFileReader(store, files.layout)
        filters = frozenset[str]().union(*map(reader.bloom_filters, sampled_bin.sources))
        return _Sampled(part=sample.part(), loses_filters=bool(filters - files.bloom_filters))

    def _read_keyed_rows(self, store: Store, sources: range) -> Iterator[pa.RecordBatch]:
        layout, sorted_bin = self.spec.files.layout, self.work
        digest = RowsDigest(layout.schema, dict(sorted_bin.partition_values), self._digest_kind)
        boxes, refused = SourceBoxes(), None
        reader = DataFileReader(store, layout)
        for source in sources:
            try:
                for rows in source_rows(reader, sorted_bin, source):
                    live = rows.live()
                    digest.add(rows.batch, rows.gone())
                    if live.num_rows:
                        yield self._with_keys(source, live, boxes)
            except SourceError as error:
                refused = (source, error.problem, error.damaged)
        sums = digest.total()
        assert isinstance(sums, RowSums)
        note = _Read(sums=sums, boxes=boxes, refused=refused)
        nothing = self.rows.nulls(1)
        yield self._batch(
            nothing,
            keys=np.zeros(1, np.uint64),
            notes=pa.array([pickle.dumps(note)], pa.binary()),
            value=None if self.value_type is None else pa.nulls(1, self.value_type),
        )

    def _with_keys(self, source: int, rows: pa.RecordBatch, boxes: SourceBoxes) -> pa.RecordBatch:
        assert self.keys is not None
        columns = self.clustering.key_columns(rows)
        ranks, keys = self.keys.rank(columns)
        boxes.add(source, ranks)
        return self._batch(
            self.rows.to_spark(rows),
            keys=keys,
            notes=pa.nulls(rows.num_rows, pa.binary()),
            value=None if self.value_type is None else sortable(columns.column(0)),
        )

    def _batch(
        self, columns: list[pa.Array], *, keys: Ranks, notes: pa.Array, value: pa.Array | None
    ) -> pa.RecordBatch:
        slots = np.array(self.slots, np.int64)[np.searchsorted(self.cuts, keys, side="right")]
        arrays = [*columns, pa.array((keys ^ _SIGN).view(np.int64)), pa.array(slots), notes]
        names = [*(f"c{number}" for number in range(len(columns))), "key", "slot", "note"]
        if value is not None:
            arrays, names = [*arrays, value], [*names, "value"]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _restore_rows(
        self, batches: Iterable[pa.RecordBatch], notes: list[bytes], keys: list[int]
    ) -> Iterator[SortedRows]:
        """Yields the rows of data files. Sets apart the notes, and the first key."""
        for batch in batches:
            is_note = pc.is_valid(batch.column("note"))
            if pc.any(is_note).as_py():
                notes += batch.column("note").drop_null().to_pylist()
                batch = batch.filter(pc.invert(is_note))
            if not batch.num_rows:
                continue
            if not keys:
                keys.append(batch.column("key")[0].as_py())
            columns = batch.columns[: len(self.spec.files.layout.schema)]
            yield SortedRows(self.rows.from_spark(columns), self.value_type is not None)


class SparkSorting:
    """A `ClusteredRewrite` on a Spark session."""

    def __init__(self, spark: SparkSession, address: TableAddress) -> None:
        self._spark = spark
        self._address = address

    def __call__(
        self,
        store: Store,
        file_bin: Bin,
        spec: RewriteSpec,
        clustering: Clustering,
        *,
        new_id: NewId,
        idle_workers: IdleWorkers | None = None,
    ) -> RewrittenBin:
        """See `clustered_bin`, which is called if the bin has no rows."""
        task = SortingTask(
            address=self._address,
            work=file_bin,
            spec=spec,
            clustering=clustering,
            new_id=new_id,
            rows=CarriedRows(spec.files.layout.schema),
            value_type=_value_type(spec.files.layout.schema, clustering),
            parts=tuple(_parts(file_bin)),
        )
        sampled: list[_Sampled] = self._collect(task)
        _require_sound(sampled)
        if any(each.loses_filters for each in sampled):
            raise LostBloomFilters
        parts = [each.part for each in sampled if each.part is not None]
        sample = combine(parts)
        if sample is None:
            return clustered_bin(store, file_bin, spec, clustering, new_id=new_id)
        keys = CurveKeys.learn(clustering, sample)
        files = max(1, round(sum(source.size for source in file_bin.sources) / spec.target_bytes))
        cuts = cuts_between(keys.rank(sample)[1], files)
        rows = sum(part.count for part in parts)
        task = replace(
            task,
            keys=keys,
            cuts=cuts,
            slots=self._slots(len(cuts) + 1),
            most_rows=int(_SLACK * rows / files) + 1,
        )
        read, outputs, stored = _results(self._sort_bin(task))
        sums, sources = RowSums(), SourceBoxes()
        for each in read:
            sums += each.sums
            sources.update(each.boxes)
        require_sums(file_bin, stored, sums)
        return RewrittenBin(
            bin=file_bin,
            outputs=outputs,
            runs=(),
            sums=sums,
            clustered=measure_depth(
                spec.files.layout.schema,
                outputs,
                ranks=keys.columns,
                sources=sources,
                points=keys.points(sample),
                group=new_id(),
            ),
        )

    def _collect(self, task: SortingTask) -> list[_Sampled]:
        count = len(task.parts)
        rows = self._spark.range(0, count, 1, count).mapInArrow(task.sample, FOUND).collect()
        return [pickle.loads(row.found) for row in rows]

    def _sort_bin(self, task: SortingTask) -> list[_Read | _Written]:
        count = len(task.parts)
        order = ["key"] if task.value_type is None else ["key", "value"]
        rows = (
            self._spark.range(0, count, 1, count)
            .mapInArrow(task.read, task.schema)
            .repartition(len(task.slots), "slot")
            # Nulls come first, and NaN last.
            .sortWithinPartitions(*order)
            .mapInArrow(task.write, FOUND)
            .collect()
        )
        return [pickle.loads(row.found) for row in rows]

    def _slots(self, count: int) -> list[int]:
        """Returns numbers that Spark hashes to different partitions.

        If some were not found, two ranges would share a partition, and their files too.
        """
        partition = functions.pmod(functions.hash("id"), functions.lit(count))
        numbers = self._spark.range(64 * count).groupBy(partition.alias("partition"))
        found = numbers.agg(functions.min("id").alias("slot")).collect()
        slots = dict.fromkeys(range(count), 0)
        return list((slots | {row.partition: row.slot for row in found}).values())


def _value_type(schema: pa.Schema, clustering: Clustering) -> pa.DataType | None:
    if len(clustering.columns) > 1:
        return None
    columns = clustering.key_columns(pa.RecordBatch.from_pylist([], schema))
    return sortable(columns.column(0)).type


def _parts(sorted_bin: Bin) -> Iterator[range]:
    """Divides the sources between reading tasks."""
    start = size = 0
    for number, source in enumerate(sorted_bin.sources):
        size += source.size
        if size >= _READ_BYTES:
            yield range(start, number + 1)
            start, size = number + 1, 0
    if start < len(sorted_bin.sources):
        yield range(start, len(sorted_bin.sources))


def _require_sound(task_results: Sequence[_Sampled | _Read]) -> None:
    for task_result in task_results:
        if task_result.refused is not None:
            source, problem, damaged = task_result.refused
            raise SourceError(source, problem, damaged=damaged)


def _results(
    task_results: Sequence[_Read | _Written],
) -> tuple[list[_Read], tuple[WrittenFile, ...], RowSums]:
    """Returns what was read, the new files in the order of their keys, and their digest."""
    read = [task_result for task_result in task_results if isinstance(task_result, _Read)]
    _require_sound(read)
    written = sorted(
        (e for e in task_results if isinstance(e, _Written)), key=lambda part: part.least
    )
    sums = RowSums()
    for part in written:
        if part.problem is not None:
            raise part.problem
        sums += part.sums
    return read, tuple(output for part in written for output in part.outputs), sums


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _found(value: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([pickle.dumps(value)], pa.binary())], names=["found"]
    )

"""How rows travel between the driver and executors. The first step on executors reads a part of the
log and distributes its actions by key.

The logical files of a table are divided into shares by their paths, so that all actions for one
file are in the same share. An action is sent as a row of an Arrow stream with its own schema, so
that Spark needs no schema for unknown fields.

A part of a table of the driver travels as a stream as well, in both directions, so it has the same
types on every version of Spark: `DataFrame.toArrow`, and data frames of Arrow tables, are new in
Spark 4.0.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, REMOVE_TYPES, empty
from delta_maintenance.protocol.actions.paths import file_locations, repeated_file
from delta_maintenance.protocol.columns import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import ActiveFiles, active_in_tail
from delta_maintenance.table.read.checkpoint_reader import CheckpointPart, read_part
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE

LogPart = tuple[LogEntry, ...] | CheckpointPart
"""The part of the log that one task reads: adjacent commits and compactions by ascending version,
or a part of a checkpoint.
"""

Notice = DeltaMaintenanceError | tuple[pa.Schema, pa.Schema]
"""A message from a reading task to every share: its error, or the schemas of its adds and removes
with the fields that the layout lacks.
"""

SCHEMA = "label int, age int, kind string, payload binary"
"""The schema of rows in Spark. `label` identifies the share. `age` is the number of the part, from
0 for the newest; notices have negative numbers, so that they come first, in the order of the parts.
`kind` is `add`, `remove` or `notice`.
"""

ARROW_SCHEMA = pa.schema(
    [("label", pa.int32()), ("age", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())]
)
"""`SCHEMA` in Arrow."""

Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called on an executor with the batches of one part."""

PART_SCHEMA = "label int, part int, payload binary"
"""`part` is the number of the part. `label` sends every part to a task of its own."""

_ROWS_PER_PAYLOAD = 8192
_BYTES_PER_BATCH = 4 << 20
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One row of `SCHEMA`."""

    label: int
    age: int
    kind: str
    payload: bytes | pa.Buffer

    @property
    def is_notice(self) -> bool:
        """Whether the payload is a `Notice` instead of actions."""
        return self.kind == "notice"

    def notice(self) -> Notice:
        """Returns the notice in the payload."""
        notice: Notice = pickle.loads(self.payload)
        return notice

    def files(self) -> ActiveFiles:
        """Returns the file actions in the payload of a row that is not a notice."""
        batch = pa.ipc.open_stream(self.payload).read_all()
        if self.kind == "add":
            return ActiveFiles(batch, empty(REMOVE_TYPES))
        return ActiveFiles(empty(ADD_TYPES), batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress:
    """The address and the storage options of the table, valid in all processes."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def store(self) -> AbstractContextManager[Store]:
        """Returns a context manager that opens the table's store and closes it at the end."""
        return closing(open_store(self.uri, self.storage_options))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """The inputs of a reading task; they are sent to executors.

    Their size does not depend on the number of files.
    """

    address: TableAddress
    parts: tuple[bytes, ...]
    """Every `LogPart`, the newest first; pickled separately, because a task needs only one."""
    labels: tuple[int, ...]
    """The label of each share."""
    partition_columns: frozenset[str]
    """Physical names of the partition columns."""
    layout: FileActionLayout
    fields: Mapping[str, tuple[str, ...]] | None = None
    """The fields of each action to read; None for all, including unknown ones."""

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts the numbers of parts to rows of `SCHEMA`.

        Temporary errors are raised, so that Spark retries the task; other errors are sent to every
        share.
        """
        with self.address.store() as store:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from in_batches(self._rows(store, number))

    def _rows(self, store: Store, number: int) -> Iterator[ShareRow]:
        layout = self.layout
        try:
            for files in self._files(store, pickle.loads(self.parts[number])):
                if files.repeated is not None:
                    raise CorruptTableError(repeated_file(files.repeated), remedy=EXAMINE)
                schemas = _schema(files.adds), _schema(files.tombstones)
                wider = layout.widen(*schemas)
                if wider != layout:
                    layout = wider
                    yield from self._notices(schemas, number)
                yield from self._shares(files.adds, "add", number)
                yield from self._shares(files.tombstones, "remove", number)
        except DeltaMaintenanceError as error:
            if error.retryable:
                raise
            yield from self._notices(error, number)
        except FileNotFoundError as error:
            yield from self._notices(gone(error), number)

    def _files(self, store: Store, log_part: LogPart) -> Iterator[ActiveFiles]:
        keys = MapKeys(partition_columns=self.partition_columns)
        if isinstance(log_part, CheckpointPart):
            for batch in read_part(store, log_part, keys=keys, fields=self.fields):
                yield ActiveFiles(batch.adds, batch.removes)
        else:
            # Do not send actions that a later action of the same part supersedes.
            batches = LogTail(store, log_part).batches(keys=keys, fields=self.fields)
            yield from active_in_tail(batches, FileReplay())

    def _shares(self, batch: pa.Table, kind: str, number: int) -> Iterator[ShareRow]:
        if not batch.num_rows:
            return
        paths = pa.concat_arrays(batch["path"].chunks)
        hashes = hash_texts(file_locations(paths, root=self.address.uri))
        yield from shared_out(batch, hashes, self.labels, kind=kind, age=number)

    def _notices(self, notice: Notice, number: int) -> Iterator[ShareRow]:
        payload = pickle.dumps(notice)
        for label in self.labels:
            yield ShareRow(label, number - len(self.parts), "notice", payload)


def shared_out(
    batch: pa.Table, hashes: Hashes, labels: Sequence[int], *, kind: str, age: int
) -> Iterator[ShareRow]:
    """Divides the rows of a batch among the shares by their hashes."""
    share = (hashes % np.uint64(len(labels))).astype(np.int64)
    order = np.argsort(share, kind="stable")
    batch = batch.combine_chunks().take(pa.array(order))
    ends = np.cumsum(np.bincount(share, minlength=len(labels)))
    for label, start, end in zip(labels, [0, *ends[:-1]], ends, strict=True):
        for at in range(start, end, _ROWS_PER_PAYLOAD):
            rows = batch.slice(at, min(_ROWS_PER_PAYLOAD, end - at))
            yield ShareRow(label, age, kind, to_payload(rows))


def share_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[ShareRow]:
    """Yields the rows of Arrow batches of `SCHEMA`. Their payloads are views, not copies."""
    for batch in batches:
        label, age, kind, payload = batch.columns
        for row in range(batch.num_rows):
            yield ShareRow(
                label[row].as_py(), age[row].as_py(), kind[row].as_py(), payload[row].as_buffer()
            )


def in_batches(rows: Iterable[ShareRow]) -> Iterator[pa.RecordBatch]:
    """Collects rows in Arrow batches of `SCHEMA` with a bounded size."""
    waiting: list[ShareRow] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row.payload)
        if size >= _BYTES_PER_BATCH:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def gone(error: FileNotFoundError) -> CorruptTableError:
    """Returns the error for a file of the log that an executor cannot find."""
    return CorruptTableError(
        "a file of the log cannot be found by an executor",
        file=str(error),
        remedy="keep the table at an address that every executor can reach; "
        "if it is, find the process that deletes files of this log",
    )


def _batch(rows: list[ShareRow]) -> pa.RecordBatch:
    columns = [
        pa.array([getattr(row, field.name) for row in rows], field.type) for field in ARROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def to_payload(rows: pa.Table) -> bytes:
    """Serialises rows as a compressed Arrow stream with their own schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
        stream.write_table(rows)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def _schema(batch: pa.Table) -> pa.Schema:
    # The JSON reader chooses arbitrary types for a batch without rows.
    return batch.schema if batch.num_rows else pa.schema([])


LOG_BYTES_PER_TASK = 32 << 20
_LOG_FILES_PER_TASK = 2000
_LABELS_TRIED = 32
_ARROW_BYTES_PER_TASK = 128 << 20
_ROWS_PER_BATCH = ("spark.sql.execution.arrow.maxRecordsPerBatch", "16")


def log_parts(
    snapshot: Snapshot,
    *,
    log_bytes_per_task: int = LOG_BYTES_PER_TASK,
    only: Collection[str] | None = None,
) -> tuple[list[LogPart], int]:
    """Returns the files that make up a version in parts, the newest part first, and the number of
    parts that belong to the tail.

    `only` limits the sidecars of the checkpoint to these paths.
    """
    parts: list[LogPart] = [*adjacent_parts(snapshot.log.segment.tail, log_bytes_per_task)]
    tail = len(parts)
    if snapshot.log.checkpoint is not None:
        parts += snapshot.log.checkpoint.parts(_ARROW_BYTES_PER_TASK, only=only)
    return parts, tail


def adjacent_parts(
    entries: Sequence[LogEntry], log_bytes_per_task: int
) -> list[tuple[LogEntry, ...]]:
    """Divides files into parts of adjacent files by ascending version, the newest part first."""
    commit_parts: list[tuple[LogEntry, ...]] = []
    together: list[LogEntry] = []
    size = 0
    for entry in reversed(entries):
        if together and (
            size + entry.status.size > log_bytes_per_task or len(together) == _LOG_FILES_PER_TASK
        ):
            commit_parts.append(tuple(reversed(together)))
            together, size = [], 0
        together.append(entry)
        size += entry.status.size
    if together:
        commit_parts.append(tuple(reversed(together)))
    return commit_parts


def share_labels(spark: SparkSession, shares: int) -> tuple[int, ...]:
    """Returns a number for each share such that Spark's hash sends every share to a different task.

    With arbitrary numbers, some tasks would get several shares and others none.
    """
    if shares == 1:
        return (0,)
    task = functions.expr(f"pmod(hash(label), {shares})")
    numbers = spark.range(0, shares * _LABELS_TRIED, 1, 1).selectExpr("int(id) AS label")
    label_rows = numbers.groupBy(task).agg(functions.min("label").alias("label")).collect()
    labels = [row.label for row in label_rows]
    return (*labels, *range(-1, len(labels) - shares - 1, -1))


def shares(spark: SparkSession, read: Read, *, parts: int, labels: Sequence[int]) -> DataFrame:
    """Calls `read` with the number of each part; one task receives each share, sorted by age."""
    return by_label(spark.range(0, parts, 1, parts).mapInArrow(read, SCHEMA), len(labels))


def by_label(rows: DataFrame, labels: int) -> DataFrame:
    """Sends rows of `log_shares.SCHEMA` with the same label to one task, sorted by age."""
    return rows.repartition(labels, "label").sortWithinPartitions("label", "age")


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Prevents Spark from passing thousands of payloads to Python at once."""
    name, value = _ROWS_PER_BATCH
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def gather(
    spark: SparkSession, parts: Sequence[pa.Table], read: Read, *, schema: pa.Schema
) -> pa.Table:
    """Calls `read` with each part in a task, and returns the batches of all parts, in their order.

    `read` yields batches of `schema`, and is sent to executors.
    """
    if not parts:
        return schema.empty_table()
    labels = share_labels(spark, len(parts))
    rows = [
        (label, number, to_payload(part_rows))
        for number, (label, part_rows) in enumerate(zip(labels, parts, strict=True))
    ]
    result_rows = (
        spark.createDataFrame(rows, PART_SCHEMA)
        .repartition(len(parts), "label")
        .mapInArrow(PartTask(read).run, PART_SCHEMA)
        .collect()
    )
    # The sort is stable, so that the batches of a part keep their order.
    result_rows.sort(key=attrgetter("part"))
    tables = (pa.ipc.open_stream(row.payload).read_all() for row in result_rows)
    return pa.concat_tables([schema.empty_table(), *tables])


def in_parts(rows: pa.Table, max_rows: int) -> list[pa.Table]:
    """Divides rows into parts of adjacent rows, none of which is longer than `most`."""
    return [rows.slice(start, max_rows) for start in range(0, rows.num_rows, max_rows)]


def in_turn(rows: pa.Table, part_count: int) -> list[pa.Table]:
    """Divides rows into parts that each have rows from everywhere, in their order."""
    return [rows.take(np.arange(start, rows.num_rows, part_count)) for start in range(part_count)]


def by_key(rows: pa.Table, key: str, max_rows: int) -> list[pa.Table]:
    """Divides rows into sorted parts of about `most` rows; one part has all rows with a key."""
    rows = rows.sort_by(key)
    keys = rows[key].combine_chunks().dictionary_encode().indices.to_numpy()
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    starts = firsts[np.flatnonzero(np.diff(firsts // max_rows, prepend=-1))]
    cuts = pairwise([*starts, rows.num_rows])
    return [rows.slice(start, end - start) for start, end in cuts]


@dataclass(frozen=True, slots=True)
class PartTask:
    """The inputs of a task; they are sent to executors."""

    read: Read

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of `PART_SCHEMA` to rows with what was found, one per batch."""
        for batch in batches:
            label, part_number, payload = batch.columns
            for row in range(batch.num_rows):
                stream = pa.ipc.open_stream(payload[row].as_buffer())
                for result in self.read(stream.read_all().to_batches()):
                    content = pa.array([to_payload(pa.table(result))], pa.binary())
                    yield pa.RecordBatch.from_arrays(
                        [label.slice(row, 1), part_number.slice(row, 1), content],
                        names=["label", "part", "payload"],
                    )

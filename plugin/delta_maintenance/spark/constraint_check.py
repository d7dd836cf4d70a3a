"""Checks rows on a cluster: counts the rows for which a constraint is not true.

Uses plain PySpark with Python workers, as for sidecars. Executors read the columns that the
expression names, through the table's store, and drop deleted rows; Spark evaluates the expression.
The driver holds the files of one job at a time.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType as SparkStruct

from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.add_constraint import CheckedRows
from delta_maintenance.operations.table_change.row_check import check_files, summarize
from delta_maintenance.protocol.schema.data_columns import arrow_type
from delta_maintenance.protocol.schema.types import PrimitiveType, StructField, parse_schema
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.spark.session import JobSession, SparkEngine
from delta_maintenance.table.data.row_reader import RowLayout, RowReader
from delta_maintenance.table.read.snapshot import Snapshot

MARK = "__delta_maintenance"
"""The prefix of all names that this library adds to those of a table."""
_FILE = f"{MARK}_file"
_PROBLEM = f"{MARK}_problem"
"""Additional columns: the number of the file in the job, and the reason why it cannot be read."""

_CHECKED = pa.schema(
    {_FILE: pa.int32(), "rows": pa.int64(), "violations": pa.int64(), "problem": pa.binary()}
)
"""The result per file."""

_FILES_PER_JOB = 10_000
_BYTES_PER_TASK = 128 << 20
_BYTES_TO_OPEN = 4 << 20
"""The cost of opening a file, as the number of bytes that could be read in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReading:
    """The inputs of a task; they are sent to executors."""

    address: TableAddress
    layout: RowLayout
    tasks: tuple[tuple[int, bytes], ...] = field(repr=False)
    """For each task, the number of its first file, and its files as an Arrow stream of `FILES`."""

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts the numbers of tasks to rows of `_FILE`, `_PROBLEM` and the needed columns.

        A file that cannot be read gives one row with its error, pickled. Temporary errors are
        raised, so that Spark retries the task.
        """
        with self.address.store() as store:
            reader = RowReader(store, self.layout)
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    first_file, files = self.tasks[task]
                    yield from self._rows(reader, first_file, pa.ipc.open_stream(files).read_all())

    def _rows(
        self, reader: RowReader, first_file: int, files: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        schema = self.layout.schema
        for number in range(files.num_rows):
            try:
                for rows in reader.read(files, number):
                    yield _batch(schema, first_file + number, None, rows.count, rows.columns)
            except DeltaMaintenanceError as error:
                if error.retryable:
                    raise
                nulls = [pa.nulls(1, kind) for kind in schema.types]
                yield _batch(schema, first_file + number, pickle.dumps(error), 1, nulls)


class SparkConstraintCheck(SparkEngine):
    """A `ConstraintCheck` on a Spark session."""

    def __init__(
        self,
        job: JobSession,
        *,
        files_per_job: int = _FILES_PER_JOB,
        bytes_per_task: int = _BYTES_PER_TASK,
    ) -> None:
        super().__init__(job)
        self._files_per_job = files_per_job
        self._bytes_per_task = bytes_per_task

    def __call__(
        self, snapshot: Snapshot, expression: str, *, added_after: int | None
    ) -> CheckedRows:
        """See `ConstraintCheck`."""
        columns = needed_columns(self._spark, snapshot, expression)
        layout = RowLayout.of(
            snapshot, [item.name for item in columns], zone=self._zone(snapshot, columns)
        )
        return check_files(
            snapshot,
            lambda files: self._check(snapshot, expression, layout, files),
            added_after=added_after,
            files_at_once=self._files_per_job,
            progress=self._progress,
        )

    def _zone(self, snapshot: Snapshot, columns: tuple[StructField, ...]) -> tzinfo:
        """Returns the session's time zone, which Delta Spark applies to zoneless partitions."""
        timestamp = PrimitiveType(name="timestamp")
        partitions = snapshot.metadata.partition_columns
        if not any(item.name in partitions and item.type == timestamp for item in columns):
            return UTC
        name = str(self._spark.conf.get("spark.sql.session.timeZone"))
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            raise RefusedError(
                f"the time zone {name!r} of the Spark session is not the name of a region",
                remedy="set spark.sql.session.timeZone to the name of a region, or to UTC",
            ) from None

    def _check(
        self, snapshot: Snapshot, expression: str, layout: RowLayout, files: pa.Table
    ) -> CheckedRows:
        reading = RowReading(
            address=self._address, layout=layout, tasks=tuple(_tasks(files, self._bytes_per_task))
        )
        count = len(reading.tasks)
        schema = SparkStruct().add(_FILE, "integer").add(_PROBLEM, "binary")
        for item in spark_schema(snapshot, layout.columns.fields):
            schema.add(item)
        holds = functions.coalesce(functions.expr(expression), functions.lit(False))
        readable = functions.col(_PROBLEM).isNull()
        counts = (
            self._spark.range(0, count, 1, count)
            .mapInArrow(reading.read, schema)
            # A file that cannot be read has no values to evaluate.
            .select(_FILE, _PROBLEM, functions.when(readable, ~holds).alias("violates"))
            .groupBy(_FILE)
            .agg(
                functions.count("violates").alias("rows"),
                functions.count_if("violates").alias("violations"),
                functions.max(_PROBLEM).alias("problem"),
            )
            .collect()
        )
        checked = pa.Table.from_pylist([row.asDict() for row in counts], _CHECKED)
        _raise_first(checked)
        return summarize(files, checked.select([_FILE, "rows", "violations"]))


def _batch(
    schema: pa.Schema, file: int, problem: bytes | None, count: int, columns: list[pa.Array]
) -> pa.RecordBatch:
    marks = {
        _FILE: pa.repeat(pa.scalar(file, pa.int32()), count),
        _PROBLEM: pa.array([problem] * count, pa.binary())
        if problem
        else pa.nulls(count, pa.binary()),
    }
    return pa.RecordBatch.from_arrays([*marks.values(), *columns], names=[*marks, *schema.names])


def _tasks(files: pa.Table, bytes_per_task: int) -> Iterator[tuple[int, bytes]]:
    """Groups adjacent files, up to `bytes_per_task` per group."""
    sizes = pc.fill_null(files["size"], 0).to_numpy().astype(np.int64)
    upto = np.cumsum(sizes + _BYTES_TO_OPEN)
    starts = np.flatnonzero(np.diff((upto - 1) // bytes_per_task, prepend=-1))
    for first_file, end in zip(starts, [*starts[1:], files.num_rows], strict=True):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, files.schema) as stream:
            stream.write_table(files.slice(first_file, end - first_file))
        yield int(first_file), sink.getvalue().to_pybytes()


def _raise_first(counts: pa.Table) -> None:
    problems = counts["problem"].drop_null()
    if len(problems):
        error: DeltaMaintenanceError = min(map(pickle.loads, problems.to_pylist()), key=str)
        raise error


def needed_columns(
    spark: SparkSession, snapshot: Snapshot, expression: str
) -> tuple[StructField, ...]:
    """Returns the columns that the expression needs, in the order of the schema.

    Raises `InvalidRequestError` if the expression is not boolean, uses other columns or other rows,
    or is not deterministic, and `UnsupportedFeatureError` for types that cannot be read.
    """
    columns = parse_schema(snapshot.metadata.schema_string or "").fields
    readable = tuple(item for item in columns if _is_readable(item))
    named_columns = [item for item in columns if _is_named(item.name, expression)]
    try:
        _analyse(spark, snapshot, readable, expression)
    except AnalysisException as error:
        unreadable = [item for item in named_columns if item not in readable]
        if unreadable:
            raise UnsupportedFeatureError(
                f"the column {unreadable[0].name} is of the type {unreadable[0].type}, which "
                "cannot be checked",
                remedy="add the constraint with Delta Spark",
            ) from None
        raise InvalidRequestError(
            f"{expression!r} cannot be a constraint: {_gist(error)}",
            remedy="give an expression that is true or false of each row by itself",
        ) from None
    needed = tuple(item for item in named_columns if item in readable)
    try:
        _analyse(spark, snapshot, needed, expression)
    except AnalysisException:
        # IDENTIFIER can compose a name, which then does not occur in the text.
        return readable
    return needed


def spark_schema(snapshot: Snapshot, columns: tuple[StructField, ...]) -> SparkStruct:
    """Returns the columns as Spark types, all nullable.

    The check must not rely on a `NOT NULL` rule that the rows may violate.
    """
    names = {item.name for item in columns}
    fields = json.loads(snapshot.metadata.schema_string or "")["fields"]
    table_fields = [_without_promises(item) for item in fields if item["name"] in names]
    schema: SparkStruct = SparkStruct.fromJson({"type": "struct", "fields": table_fields})
    return schema


def _analyse(
    spark: SparkSession, snapshot: Snapshot, columns: tuple[StructField, ...], expression: str
) -> None:
    """Lets Spark analyse the expression in positions that only accept valid constraints.

    A filter accepts only boolean expressions without aggregates and windows; the condition of a
    join accepts no nondeterministic expressions and no stars; a lambda function accepts no
    subqueries, and the parentheses around it no alias. The lambda functions of Spark 3.5 accept
    `IN` and `EXISTS`, which a sort does not.
    """
    rows = spark.createDataFrame([], spark_schema(snapshot, columns))
    empty_rows = spark.range(0).toDF(f"{MARK}_id")
    alone = f"forall(array(0), {MARK}_item -> ({expression}\n))"
    _require_sound(rows.where(functions.expr(expression)))
    _require_sound(rows.join(empty_rows, functions.expr(expression), "left_semi"))
    _require_sound(rows.where(functions.expr(alone)))
    _require_sound(rows.sort(functions.expr(expression)))


def _require_sound(frame: DataFrame) -> None:
    # Spark Connect does not analyse the plan before this access.
    _ = frame.schema


def _is_readable(column: StructField) -> bool:
    try:
        arrow_type(column.type)
    except UnsupportedFeatureError:
        return False
    return True


def _is_named(name: str, expression: str) -> bool:
    """Returns whether the expression contains the name, as every use of the column does."""
    text, name = (item.upper().lower() for item in (expression, name))
    if re.fullmatch("[a-z0-9_]+", name):
        return re.search(rf"(?<![a-z0-9_]){name}(?![a-z0-9_])", text) is not None
    return name in text or name.replace("`", "``") in text


def _without_promises(value: Any) -> Any:
    """Reduces a type or a field of a schema string to the parts that define the type."""
    if isinstance(value, list):
        return [_without_promises(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain_field = {
        name: True if name in _PROMISES else _without_promises(item)
        for name, item in value.items()
        if name != "metadata"
    }
    if "name" in value:
        collations = (value.get("metadata") or {}).get(_COLLATIONS)
        plain_field |= {
            "nullable": True,
            "metadata": {_COLLATIONS: collations} if collations else {},
        }
    return plain_field


_PROMISES = ("nullable", "containsNull", "valueContainsNull")
_COLLATIONS = "__COLLATIONS"


def _gist(error: AnalysisException) -> str:
    """Returns the first line of Spark's message, without error codes and the text position."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", line).rstrip(". ;")

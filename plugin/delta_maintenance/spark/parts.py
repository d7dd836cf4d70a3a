"""Sends parts of a table of the driver to executors, and returns what they find.

A part travels as an Arrow stream in a binary cell, in both directions. So it has the same types on
every version of Spark: `DataFrame.toArrow`, and data frames of Arrow tables, are new in Spark 4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from delta_maintenance.spark.log_shares import share_labels, to_payload

Read = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called on an executor with the batches of one part."""

SCHEMA = "label int, part int, payload binary"
"""`part` is the number of the part. `label` sends every part to a task of its own."""


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
        (label, number, to_payload(part))
        for number, (label, part) in enumerate(zip(labels, parts, strict=True))
    ]
    found = (
        spark.createDataFrame(rows, SCHEMA)
        .repartition(len(parts), "label")
        .mapInArrow(_Task(read).run, SCHEMA)
        .collect()
    )
    # The sort is stable, so that the batches of a part keep their order.
    found.sort(key=attrgetter("part"))
    tables = (pa.ipc.open_stream(row.payload).read_all() for row in found)
    return pa.concat_tables([schema.empty_table(), *tables])


def in_parts(rows: pa.Table, most: int) -> list[pa.Table]:
    """Divides rows into parts of adjacent rows, none of which is longer than `most`."""
    return [rows.slice(first, most) for first in range(0, rows.num_rows, most)]


def in_turn(rows: pa.Table, parts: int) -> list[pa.Table]:
    """Divides rows into parts that each have rows from everywhere, in their order."""
    return [rows.take(np.arange(first, rows.num_rows, parts)) for first in range(parts)]


def by_key(rows: pa.Table, key: str, most: int) -> list[pa.Table]:
    """Divides rows into sorted parts of about `most` rows; one part has all rows with a key."""
    rows = rows.sort_by(key)
    keys = rows[key].combine_chunks().dictionary_encode().indices.to_numpy()
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    starts = firsts[np.flatnonzero(np.diff(firsts // most, prepend=-1))]
    cuts = pairwise([*starts, rows.num_rows])
    return [rows.slice(start, end - start) for start, end in cuts]


@dataclass(frozen=True, slots=True)
class _Task:
    read: Read

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts rows of `SCHEMA` to rows with what was found, one per batch."""
        for batch in batches:
            label, part, payload = batch.columns
            for row in range(batch.num_rows):
                stream = pa.ipc.open_stream(payload[row].as_buffer())
                for found in self.read(stream.read_all().to_batches()):
                    content = pa.array([to_payload(pa.table(found))], pa.binary())
                    yield pa.RecordBatch.from_arrays(
                        [label.slice(row, 1), part.slice(row, 1), content],
                        names=["label", "part", "payload"],
                    )

"""Streams of Delta Spark continue across our commits, and Delta Spark maintains the table after us.

A stream reads a table, the table is changed by Delta Spark and rewritten by us, and the same stream
continues. No row may be lost or read twice.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.operations import fsck, optimize, purge
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from tests.support.oracle.delta_spark import DeltaSpark, decode
from tests.support.oracle.delta_spark_tables import create
from tests.support.suite.play import some

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

FEED = {"readChangeFeed": "true", "startingVersion": "1"}
APPENDS = {"skipChangeCommits": "true"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of table, and how a stream reads it."""

    clauses: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    reading: dict[str, str]

    @property
    def has_vectors(self) -> bool:
        """Whether deleted rows are marked by deletion vectors."""
        return self.properties["enableDeletionVectors"] == "true"


SHAPES = {
    "clustered change feed": Shape(
        clauses="CLUSTER BY (id)",
        properties={
            "enableDeletionVectors": "true",
            "enableChangeDataFeed": "true",
            "enableRowTracking": "true",
        },
        reading=FEED,
    ),
    "IcebergCompatV1": Shape(
        clauses="PARTITIONED BY (part)",
        properties={
            "columnMapping_mode": "name",
            "enableDeletionVectors": "false",
            "enableIcebergCompatV1": "true",
        },
        reading=APPENDS,
    ),
    "IcebergCompatV2": Shape(
        clauses="PARTITIONED BY (part)",
        properties={
            "columnMapping_mode": "name",
            "enableDeletionVectors": "false",
            "enableIcebergCompatV2": "true",
        },
        reading=APPENDS,
    ),
}


class Stream:
    """A stream from a table into another one. It continues where it stopped."""

    def __init__(
        self, spark: DeltaSpark, source: Path, folder: Path, options: dict[str, str]
    ) -> None:
        self._spark, self._source, self._options = spark, source, options
        self.state, self._sink = folder / "state", folder / "sink"

    def start(self, *, available_now: bool) -> Any:
        """Starts the query, which ends by itself only if it reads what is available now."""
        reader = self._spark.jvm_session().readStream().format("delta")
        for name, value in self._options.items():
            reader = reader.option(name, value)
        writer = reader.load(str(self._source)).writeStream().format("delta")
        writer = writer.option("checkpointLocation", str(self.state))
        if available_now:
            trigger = self._spark.jvm.org.apache.spark.sql.streaming.Trigger.AvailableNow()
            writer = writer.trigger(trigger)
        return writer.start(str(self._sink))

    def read(self) -> Counter[tuple[int, str]]:
        """Reads everything that is new. Returns how often the stream has read each row so far."""
        # Raises the error of a stream that fails.
        self.start(available_now=True).awaitTermination()
        change = "_change_type" if "readChangeFeed" in self._options else "'insert'"
        rows = self._spark.rows(f"SELECT id, {change} AS change FROM delta.`{self._sink}`")
        return Counter((row["id"], row["change"]) for row in map(json.loads, rows))


def append(spark: DeltaSpark, path: Path, first: int) -> None:
    """Appends four rows in two files."""
    spark.sql(
        f"INSERT INTO delta.`{path}` SELECT /*+ REPARTITION(2) */ id, concat('text ', id), "
        f"concat('p', id % 2) FROM range({first}, {first + 4})"
    )


def optimized(path: Path) -> Any:
    table = open_table(str(path))
    options = OptimizeOptions(full=True, workers=1)
    return optimize.apply(table, optimize.plan(table.snapshot(), options))


def purged(path: Path) -> Any:
    table = open_table(str(path))
    options = PurgeOptions(workers=1)
    return purge.apply(table, purge.plan(table.snapshot(), options))


@pytest.mark.parametrize("name", some(list(SHAPES), 2))
def test_a_stream_continues_across_our_commits(
    delta_spark: DeltaSpark, tmp_path: Path, name: str
) -> None:
    spark, shape, path = delta_spark, SHAPES[name], tmp_path / "table"
    create(spark, path, "id BIGINT, text STRING, part STRING", shape.clauses, **shape.properties)
    append(spark, path, 0)
    stream = Stream(spark, path, tmp_path, shape.reading)
    expected = Counter({(row, "insert"): 1 for row in range(4)})
    assert stream.read() == expected

    append(spark, path, 4)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5")
    first = purged(path) if shape.has_vectors else optimized(path)
    second = optimized(path)
    assert first.status == "rewritten", first
    assert second.status == ("rewritten" if shape.has_vectors else "nothing-to-do"), second
    spark.forget()
    append(spark, path, 8)
    spark.sql(f"UPDATE delta.`{path}` SET text = 'new' WHERE id = 2")
    third = optimized(path)
    assert third.status == "rewritten", third
    spark.forget()

    expected += Counter({(row, "insert"): 1 for row in range(4, 12)})
    if shape.reading is FEED:
        expected += Counter(
            {(5, "delete"): 1, (2, "update_preimage"): 1, (2, "update_postimage"): 1}
        )
    assert stream.read() == expected
    rows = {row["id"]: row["text"] for row in map(json.loads, spark.rows(_query(path)))}
    texts = {row: f"text {row}" for row in range(12) if row != 5}
    assert rows == texts | {2: "new"}
    (detail,) = map(decode, spark.rows(f"DESCRIBE DETAIL delta.`{path}`"))
    assert detail["numFiles"] == open_table(str(path)).snapshot().live_files().num_rows
    ours = {commit["version"]: commit["operation"] for commit in spark.history(path)}
    assert ours[third.version] == "OPTIMIZE"

    append(spark, path, 12)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    expected += Counter({(row, "insert"): 1 for row in range(12, 16)})
    assert stream.read() == expected
    assert len(spark.rows(_query(path))) == 15
    found = fsck.plan(open_table(str(path)), fsck.FsckOptions(deep=True))
    assert found.status == "sound", found.findings


def _query(path: Path) -> str:
    return f"SELECT id, text FROM delta.`{path}`"

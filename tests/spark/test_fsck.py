"""Files opened by executors: the same findings as those of this process, bounded and repeatable."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import fsck
from delta_maintenance.operations.fsck import FsckOptions, FsckResult
from delta_maintenance.operations.fsck.checks.contents import check_footers
from delta_maintenance.operations.fsck.findings import FINDINGS, Findings
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.fsck import FileReading, SparkContents
from delta_maintenance.spark.log_shares import TableAddress, by_key
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobSpec
from tests.support.tables.sound_tables import DATA, SoundTable, parquet
from tests.support.tables.table_builder import EPOCH_MS

pytestmark = pytest.mark.spark

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)
DEEP = FsckOptions(deep=True)
NARROW = parquet(kind=pa.int32())


@pytest.fixture
def spoilt(tmp_path: Path) -> SoundTable:
    """Eight files: one is no Parquet, one has other rows, one another type, two bad vectors."""
    table = SoundTable(LocalStore(tmp_path / "table"))
    inline = {"storageType": "i", "pathOrInlineDv": "-----", "sizeInBytes": 4, "cardinality": 1}
    table.step(
        table.data("no parquet".replace(" ", "%20")),
        table.data("fewer", stats='{"numRecords":9}'),
        table.data("narrow", size=len(NARROW)),
        table.data("ünlike", deletionVector=inline),
        table.data("shared", deletionVector=table.vector),
        table.mark(),
    )
    table.store.put("no parquet", b"x" * len(DATA))
    table.store.put("narrow", NARROW)
    table.store.put(table.vector_path, table.store.read(table.vector_path)[:-1] + b"x")
    return table


def sorted_rows(findings: pa.Table) -> list[dict[str, Any]]:
    assert findings.schema == FINDINGS
    return sorted(findings.to_pylist(), key=lambda row: (row["kind"], row["path"], row["problem"]))


def test_executors_find_what_threads_would(spark: SparkSession, spoilt: SoundTable) -> None:
    told: list[tuple[str, int, int | None]] = []
    contents = SparkContents(
        JobSession(spark=spark, table_uri=str(spoilt.store.root)),
        files_per_round=3,
        files_per_task=2,
    )
    by_spark = fsck.survey(
        spoilt.open(),
        DEEP,
        now=NOW,
        engine=contents,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    local = fsck.survey(spoilt.open(), DEEP, now=NOW)

    assert sorted_rows(by_spark.findings) == sorted_rows(local.findings)
    assert by_spark.plan.counts == local.plan.counts
    assert {count.kind: count.count for count in local.plan.counts} == {
        "damaged-deletion-vector": 3,
        "row-count-differs": 1,
        "unreadable-data-file": 1,
        "widened-without-feature": 1,
    }
    assert (by_spark.plan.engine, local.plan.engine) == ("spark", "local")
    opened = [(what, done, total) for what, done, total in told if "s" in what]
    assert ("footers", 3, 8) in opened and ("footers", 8, 8) in opened
    assert ("deletion vectors", 3, 3) in opened


def test_a_job_reports_every_finding_in_a_file(
    spark: SparkSession, spoilt: SoundTable, tmp_path: Path
) -> None:
    report = tmp_path / "findings.parquet"
    spoilt.hint(77)
    spec = JobSpec(
        operation="fsck",
        table=str(spoilt.store.root),
        options={"deep": True, "repair": True},
        report_uri=str(report),
    )
    result = FsckResult.from_json(json.loads(json.dumps(job.run(spec, spark))))

    local = fsck.survey(spoilt.open(), DEEP, now=NOW)
    assert (result.status, result.report) == ("corrupt", str(report))
    assert [outcome.status for outcome in result.repairs] == ["done"]
    assert result.counts == local.plan.counts
    rows = pq.read_table(report)
    assert "dangling-hint" in rows["kind"].to_pylist()
    deep = [row for row in sorted_rows(rows) if row["kind"] != "dangling-hint"]
    assert deep == sorted_rows(local.findings)


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    with pytest.raises(RefusedError, match="memory"):
        SparkContents(JobSession(spark=spark, table_uri="memory://x"))


def test_data_for_executors_has_addresses_but_no_keys() -> None:
    reading = FileReading(
        address=TableAddress(uri="s3://b/t", storage_options={"secret": "hush"}), version=1
    )
    assert "hush" not in repr(reading)


def test_rows_with_one_key_are_in_one_part() -> None:
    keys = [f"k{number}" for number in (3, 1, 2, 1, 1, 1, 1, 2, 4, 5)]
    parts = by_key(pa.table({"at": range(10), "key": keys}), "key", 3)
    assert [part["key"].to_pylist() for part in parts] == [
        ["k1"] * 5,
        ["k2"] * 2,
        ["k3", "k4"],
        ["k5"],
    ]
    assert sorted(at for part in parts for at in part["at"].to_pylist()) == list(range(10))
    assert by_key(pa.table({"key": pa.array([], pa.string())}), "key", 3) == []


def test_a_task_gives_findings_batch_by_batch(spoilt: SoundTable) -> None:
    reading = FileReading(
        address=TableAddress(uri=str(spoilt.store.root), storage_options={}), version=5
    )
    found = Findings()
    rows = {"path": ["fewer", "no%20parquet"], "location": ["fewer", "no parquet"]}
    files = pa.table({**rows, "num_records": [9, 10]})
    for batch in reading.footers(files.to_batches(max_chunksize=1)):
        found.extend(pa.table(batch))
    direct = Findings()
    check_footers(spoilt.store, files, direct, version=5)
    assert sorted_rows(found.table()) == sorted_rows(direct.table())
    assert found.counts == direct.counts == {"row-count-differs": 1, "unreadable-data-file": 1}

"""Version checksums: those of Delta Spark hold for our reading, and ours for Delta Spark's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from delta_maintenance import open_table
from delta_maintenance.operations import checkpoint, fsck
from delta_maintenance.operations import checksum as checksum_operation
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.protocol.delta_log import (
    VersionChecksum,
    checksum_name,
    parse_checksum,
    render_checksum,
)
from delta_maintenance.table.commit import Transaction
from delta_maintenance.table.commit.outcome import Landed
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import copy, create

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

PROPERTIES = {
    "enableDeletionVectors": "true",
    "enableRowTracking": "true",
    "enableInCommitTimestamps": "true",
}


@pytest.fixture(scope="module")
def original(delta_spark: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with deletion vectors, row IDs and times in its commits, written by Delta Spark."""
    path = tmp_path_factory.mktemp("checksums") / "table"
    name = f"delta.`{path}`"
    create(delta_spark, path, "id LONG, part STRING", **PROPERTIES)
    for first in (0, 100, 200):
        query = f"SELECT id, 'x' AS part FROM range({first}, {first + 100}, 1, 2)"
        delta_spark.write(path, query, txnAppId="app", txnVersion=str(first))
    delta_spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3 AND id < 200")
    delta_spark.sql(f"UPDATE {name} SET part = 'y' WHERE id = 250")
    return path


@pytest.fixture
def table(original: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return copy(original, tmp_path / "table")


def checksum(path: Path, version: int) -> VersionChecksum:
    return parse_checksum((path / "_delta_log" / checksum_name(version)).read_bytes())


def found(path: Path) -> dict[str, int]:
    return dict(examine(open_table(str(path)), now=datetime.now(UTC), deep=True).findings.counts)


def accepted(spark: DeltaSpark, path: Path) -> Any:
    """The checksum that Delta Spark takes its newest snapshot's state from, held against it."""
    spark.forget()
    with spark.setting("spark.databricks.delta.checksum.mismatch.fatal", "true"):
        snapshot = spark.snapshot(path)
        assert snapshot.checksumOpt().isDefined()
        nothing = spark.jvm.scala.Predef.Map().empty()
        assert snapshot.validateChecksum(nothing)
    return snapshot.checksumOpt().get()


@pytest.mark.conformance("CRC-03", "CRC-08", "CRC-09")
def test_checksums_of_delta_spark_match_our_reading(table: Path) -> None:
    version = open_table(str(table)).latest_version()

    stated = [checksum(table, number) for number in range(version + 1)]

    assert found(table) == {}
    assert stated[-1].num_deletion_vectors
    assert stated[-1].in_commit_timestamp is not None
    assert all(each.txn_id is not None for each in stated)


@pytest.mark.conformance("CRC-04", "CRC-05", "CRC-06", "CRC-07")
def test_delta_spark_accepts_our_checksums_and_continues(
    delta_spark: DeltaSpark, table: Path
) -> None:
    snapshot = open_table(str(table)).snapshot()
    before = checksum(table, snapshot.version)
    transaction = Transaction(snapshot, "SET TBLPROPERTIES")
    configuration = {**snapshot.metadata.configuration, "mine": "1"}
    transaction.stage_metadata(replace(snapshot.metadata, configuration=configuration))

    outcome = transaction.commit()

    assert isinstance(outcome, Landed)
    ours = checksum(table, outcome.version)
    assert ours.file_sizes == before.file_sizes is not None
    assert ours.deleted_record_counts == before.deleted_record_counts is not None
    theirs = accepted(delta_spark, table)
    assert theirs.numFiles() == ours.num_files
    assert theirs.txnId().get() == ours.txn_id
    delta_spark.write(table, "SELECT id, 'z' AS part FROM range(300, 310, 1, 1)")
    assert accepted(delta_spark, table).numFiles() == (ours.num_files or 0) + 1
    assert found(table) == {}


def test_delta_spark_rejects_a_wrong_checksum(delta_spark: DeltaSpark, table: Path) -> None:
    version = open_table(str(table)).latest_version()
    stated = checksum(table, version)
    lie = render_checksum(replace(stated, num_files=(stated.num_files or 0) + 1))
    log = table / "_delta_log"
    (log / checksum_name(version)).write_bytes(lie)
    (log / f".{checksum_name(version)}.crc").unlink()

    with pytest.raises(Py4JJavaError, match="Number of files"):
        accepted(delta_spark, table)


@pytest.mark.conformance("CRC-05", "CDC-02")
def test_delta_spark_accepts_the_checksum_of_a_repair(delta_spark: DeltaSpark, table: Path) -> None:
    files = open_table(str(table)).snapshot().live_files().to_pylist()
    gone = next(row for row in files if row["dv"] is not None)
    (table / gone["path"]).unlink()
    opened = open_table(str(table))
    options = FsckOptions(remove_missing_files=True)

    plan = fsck.plan(opened, options, context=RunContext.at(datetime.now(UTC)))
    result = fsck.apply(opened, plan, context=RunContext.at(datetime.now(UTC)))

    assert result.status == "sound"
    theirs = accepted(delta_spark, table)
    assert theirs.numFiles() == len(files) - 1
    rows = delta_spark.rows(f"SELECT count(*) AS n FROM delta.`{table}`")
    assert rows == [f'{{"n":{_live_rows(table)}}}']


@pytest.mark.conformance("CRC-04", "CRC-09", "CKPT-22")
def test_delta_spark_goes_by_our_checkpoint_and_checksum_without_the_commits_behind_them(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    name = f"delta.`{path}`"
    create(delta_spark, path, "id LONG", checkpointPolicy="v2")
    for first in (0, 100, 200):
        delta_spark.write(path, f"SELECT id FROM range({first}, {first + 100}, 1, 2)")
    delta_spark.sql(f"DELETE FROM {name} WHERE id >= 250")
    rows = delta_spark.rows(f"SELECT sum(id) AS n FROM {name}")
    log, opened = path / "_delta_log", open_table(str(path))
    for file in log.glob("*.crc"):
        file.unlink()
    snapshot, now = opened.snapshot(), datetime.now(UTC)
    options = CheckpointOptions(kind="v2-json", actions_per_sidecar=2)
    checkpoint.apply(opened, checkpoint.plan(snapshot, options, context=RunContext.at(now)))
    written = checksum_operation.apply(
        opened, checksum_operation.plan(snapshot, context=RunContext.at(now))
    )
    assert written.status == "written"
    for number in range(snapshot.version):
        (log / f"{number:020}.json").unlink()
    assert "delta-maintenance.numTombstones" in (log / checksum_name(snapshot.version)).read_text()
    [top] = log.glob("*.checkpoint.*.json")
    assert '"delta-maintenance.summary"' in top.read_text()

    theirs = accepted(delta_spark, path)

    assert theirs.numFiles() == snapshot.counts.num_files
    assert delta_spark.rows(f"SELECT sum(id) AS n FROM {name}") == rows
    delta_spark.write(path, "SELECT id FROM range(300, 310, 1, 1)")
    assert accepted(delta_spark, path).numFiles() == snapshot.counts.num_files + 1
    assert found(path) == {}


def _live_rows(path: Path) -> int:
    snapshot = open_table(str(path)).snapshot()
    counts = snapshot.counts
    total = sum(snapshot.live_files()["num_records"].to_pylist())
    return int(total) - counts.num_deleted_rows

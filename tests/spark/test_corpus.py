"""Both engines write the same rows for every real table of the corpus."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.spark import JobSession
from delta_maintenance.spark.sidecars import SparkSidecars
from delta_maintenance.table.read import Snapshot
from tests.support.logs.sidecar_rows import sidecar_rows
from tests.support.suite.play import some
from tests.support.tables.corpus_tables import TABLES

pytestmark = pytest.mark.spark

LONG_AGO = datetime(2019, 1, 1, tzinfo=UTC)
"""When the commits are dated: a checkpoint keeps all tombstones of commits from the future."""


@pytest.mark.conformance("CKPT-22", "CKPT-24")
@pytest.mark.parametrize("name", some(TABLES, len(TABLES) // 2))
def test_spark_writes_the_rows_of_the_local_engine(
    name: str, corpus: Path, spark: SparkSession, tmp_path: Path
) -> None:
    folders = [tmp_path / engine for engine in ("local", "spark")]
    for folder in folders:
        shutil.copytree(corpus / name, folder)
    outcomes = []
    for folder in folders:
        options = CheckpointOptions(
            kind="v2-json", actions_per_sidecar=6, engine=folder.name, time_zone="UTC"
        )
        table = open_table(str(folder))
        engine = SparkSidecars(
            JobSession(spark=spark, table_uri=str(folder)), log_bytes_per_task=10_000
        )
        try:
            add_v2_checkpoint(folder, table.snapshot())
            snapshot = table.snapshot()
            plan = checkpoint.plan(
                snapshot, options, context=RunContext.at(amid_tombstones(snapshot))
            )
            result = checkpoint.apply(
                table, plan, context=RunContext(engine=engine if plan.engine == "spark" else None)
            )
        except DeltaMaintenanceError as error:
            outcomes.append((type(error), error.problem.replace(str(folder), "")))
            continue
        snapshot = table.snapshot()
        assert snapshot.log.checkpoint is not None
        assert result.status == "written"
        assert snapshot.log.segment.tail == ()
        outcomes.append(
            (
                sidecar_rows(table, result.version),
                sorted(map(str, snapshot.live_files().to_pylist())),
                sorted(map(str, snapshot.tombstones().to_pylist())),
                (result.num_files, result.num_tombstones, result.expired_tombstones),
                result.actions - result.sidecars,
            )
        )
    local, on_spark = outcomes
    assert on_spark == local


def add_v2_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Commits one more version, in which the table supports `v2Checkpoint`."""
    protocol = snapshot.protocol
    line: dict[str, object] = {"commitInfo": {"operation": "UPGRADE", "timestamp": 1}}
    supported = supported_features(protocol)
    if "v2Checkpoint" not in supported:
        mapped = {"columnMapping"} if protocol.min_reader_version >= 2 else set()
        line = {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted({*(protocol.reader_features or mapped), "v2Checkpoint"}),
                "writerFeatures": sorted({*supported, "v2Checkpoint"}),
            }
        }
    path = folder / "_delta_log" / commit_name(snapshot.version + 1)
    path.write_text(json.dumps(line) + "\n")
    for path in folder.glob("_delta_log/*.json"):
        os.utime(path, (LONG_AGO.timestamp(),) * 2)


def amid_tombstones(snapshot: Snapshot) -> datetime:
    """An instant at which some tombstones have expired and some have not, if there are several."""
    deleted = snapshot.tombstones()["deletion_timestamp"].drop_null().sort().to_pylist()
    if not deleted:
        return LONG_AGO + timedelta(days=1)
    median = datetime.fromtimestamp(deleted[(len(deleted) - 1) // 2] / 1000, UTC)
    return median + snapshot.properties.deleted_file_retention

"""Every operation through Spark Connect, on a server whose Python lacks this library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock
from delta_maintenance.operations import fsck
from delta_maintenance.operations.checkpoint import CheckpointResult
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobReport
from delta_maintenance.table.read import Table
from tests.support.rewrites.repeated_row_ids import DEFECTS, defective
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.servers.spark_processes import ConnectServer, ConnectUnavailable
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import DATA, SoundTable
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import Folder

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

JOBS = """
import json, sys, warnings
warnings.simplefilter("ignore", FutureWarning)
from delta_maintenance.spark.session import open_connection
from delta_maintenance.spark.job import run
from delta_maintenance.spark.rewriting import SparkRewriting
from delta_maintenance.submission.job_report import JobReport
from delta_maintenance.submission.job_spec import JobSpec
# Several tasks sort bins of any size.
SparkRewriting.__init__.__kwdefaults__["sorted_bytes"] = 1
with open_connection(sys.argv[1]) as spark:
    assert "connect" in type(spark).__module__
    for text in sys.argv[2:]:
        try:
            spec = JobSpec.from_json(json.loads(text))
            report = JobReport(status="done", result=run(spec, spark))
        except Exception as error:
            report = JobReport.of_error(error)
        print("REPORT", json.dumps(report.to_json()))
"""


@pytest.fixture(scope="module")
def server(
    java: None, bare_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectServer]:
    pytest.importorskip("grpc", reason="NO SPARK CONNECT: its client needs grpcio")
    try:
        running = ConnectServer(tmp_path_factory.mktemp("connect"), bare_python)
    except ConnectUnavailable:
        pytest.skip("NO SPARK CONNECT: the jars of its server cannot be fetched")
    try:
        yield running
    finally:
        running.close()


def client() -> dict[str, str]:
    """An environment in which no JVM can be started."""
    return {**os.environ, "JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere"}


def run_all(server: ConnectServer, *specs: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", JOBS, server.address, *map(json.dumps, specs)],
        env=client(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    reports = [JobReport.from_json(json.loads(line.removeprefix("REPORT "))) for line in told]
    return [report.result_or_raise() for report in reports]


def counted(root: Path, *rows: int) -> TableBuilder:
    """A table of files with ids from 0 up, whose log does not say how many."""
    root.mkdir()
    table = TableBuilder(root)
    for number, ids in enumerate(rows):
        pq.write_table(pa.table({"id": pa.array(range(ids), pa.int64())}), root / f"f{number}")
    adds = (log.add(f"f{n}", size=(root / f"f{n}").stat().st_size) for n in range(len(rows)))
    table.commit([log.protocol(), log.metadata(), *adds])
    return table


def test_every_operation_has_the_same_result_on_a_server(
    server: ConnectServer, tmp_path: Path
) -> None:
    neglected = Folder(tmp_path / "vacuum", now=clock.now(), first=[log.protocol(), log.metadata()])
    neglected.log(log.add("live.parquet"))
    neglected.file("live.parquet", "dead.parquet", "deep/dead.parquet")
    sound = SoundTable(LocalStore(tmp_path / "fsck"))
    sound.step(sound.data("no-parquet"), sound.mark())
    sound.store.put("no-parquet", b"x" * len(DATA))
    repeated = Rewritten(store=LocalStore(tmp_path / "row-ids"))
    defective(repeated)
    counted(tmp_path / "backfill", 0, 1, 2, 3)
    counted(tmp_path / "constraint", 3, 4)
    compact = counted(tmp_path / "compact", 1, 2)
    compact.commit([log.remove("f0"), log.add("f3")])
    counted(tmp_path / "optimize", 3, 4)
    counted(tmp_path / "recompute-stats", 3, 4)
    counted(tmp_path / "cluster", 3, 4)

    (
        vacuumed,
        examined,
        compared,
        filled,
        constrained,
        compacted,
        merged,
        recomputed,
        clustered,
    ) = run_all(
        server,
        {"operation": "vacuum", "table": str(tmp_path / "vacuum")},
        {"operation": "fsck", "table": str(tmp_path / "fsck"), "options": {"deep": True}},
        {"operation": "fsck", "table": str(tmp_path / "row-ids"), "options": {"deep": True}},
        {
            "operation": "backfill-row-ids",
            "table": str(tmp_path / "backfill"),
            "options": {"files_per_commit": 2, "checkpoint": False},
        },
        {
            "operation": "add-constraint",
            "table": str(tmp_path / "constraint"),
            "options": {"name": "natural", "expression": "id >= 0"},
        },
        {
            "operation": "compact-log",
            "table": str(tmp_path / "compact"),
            "options": {"commits_per_file": 2},
        },
        {"operation": "optimize", "table": str(tmp_path / "optimize")},
        {"operation": "recompute-stats", "table": str(tmp_path / "recompute-stats")},
        {"operation": "cluster", "table": str(tmp_path / "cluster"), "options": {"by": ["id"]}},
    )

    assert (vacuumed["status"], vacuumed["deleted"]) == ("vacuumed", 2)
    assert sorted(path.name for path in (tmp_path / "vacuum").rglob("*.parquet")) == [
        "live.parquet"
    ]
    for table, found, kind, count in (
        (sound.open(), examined, "unreadable-data-file", 1),
        (Table(repeated.store), compared, "repeated-row-id", len(DEFECTS)),
    ):
        here = fsck.survey(table, fsck.FsckOptions(deep=True), now=clock.now()).plan
        there = {item["kind"]: item["count"] for item in found["counts"]}
        assert there == {item.kind: item.count for item in here.counts}
        assert there[kind] == count
    assert (filled["status"], filled["high_water_mark"]) == ("enabled", 5)
    assert constrained["status"] == "committed"
    assert (compacted["status"], compacted["engine"]) == ("written", "spark")
    assert [(w["num_adds"], w["num_removes"]) for w in compacted["windows"]] == [(2, 1)]
    assert (merged["status"], merged["engine"]) == ("rewritten", "spark")
    assert (recomputed["status"], recomputed["files_recomputed"]) == ("recomputed", 2)
    assert (clustered["status"], clustered["rows"], clustered["files_after"]) == ("rewritten", 7, 1)
    assert (merged["files_before"], merged["files_after"], merged["rows"]) == (2, 1, 7)
    assert (constrained["checked"]["rows"], constrained["checked"]["violations"]) == (7, 0)


def test_the_command_line_needs_no_java_for_a_server(server: ConnectServer, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table")
    table.commit([log.features("v2Checkpoint"), log.metadata()])
    table.commit([log.add(f"{n}", stats='{"numRecords":1}') for n in range(300)])
    words = ["checkpoint", str(tmp_path / "table"), "--kind", "v2-json", "--engine", "spark"]
    command = [sys.executable, "-W", "ignore", "-m", "delta_maintenance", *words]
    done = subprocess.run(
        [*command, "--master", server.address, "--json", "--actions-per-sidecar", "100"],
        env=client(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = CheckpointResult.from_json(json.loads(done.stdout))
    assert (result.status, result.engine, result.num_files) == ("written", "spark", 300)
    assert result.sidecars >= 3
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None and snapshot.live_files().num_rows == 300

"""The Spark engine of vacuum finds and deletes exactly what the local one does."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, RefusedError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import (
    VacuumOptions,
    VacuumPlan,
    VacuumResult,
    VacuumSurvey,
)
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.vacuum import SparkVacuum
from delta_maintenance.submission import JobSpec
from delta_maintenance.table.evidence import contradictions
from tests.support.tables.actions import (
    add,
    commit_info,
    deletion_vector,
    features,
    metadata,
    remove,
)
from tests.support.tables.table_builder import LOG
from tests.support.tables.vacuum_tables import Folder

pytestmark = pytest.mark.spark

VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def engine(spark: SparkSession, table: Folder) -> SparkVacuum:
    """Several buckets, however small the log; each costs processes of Python."""
    return SparkVacuum(
        JobSession(spark=spark, table_uri=table.store.root), log_bytes_per_bucket=1 << 12
    )


def build(root: Path) -> Folder:
    """Files of every kind, dead and alive, in folders at several depths."""
    now = clock.now()
    first = [features("deletionVectors"), metadata(partitioned_by=["_p"])]
    table = Folder(root, now=now, first=first)
    old, recent = (epoch_millis(now - timedelta(days=days)) for days in (20, 2))
    live = [f"_p={n % 5}/live {n}.parquet" for n in range(40)]
    gone = [f"_p={n % 5}/gone-{n}.parquet" for n in range(28)]
    # Of a former partition column.
    gone = ["_former=1/gone.parquet", "_former=2/.gone.parquet", *gone]
    table.log(
        *(add(path.replace(" ", "%20")) for path in live),
        *(add(path) for path in gone),
        add("vectored.parquet", dv=deletion_vector()),
        add(f"file:{root}/deep/er/absolute.parquet"),
        add("s3://elsewhere/t/unknown-address.parquet"),
        add("kept/version.parquet"),
    )
    table.log(*(remove(path, deletionTimestamp=old) for path in gone[:20]), days=20)
    table.checkpoint()
    table.log(*(remove(path, deletionTimestamp=recent) for path in gone[20:]), days=2)
    table.log(remove("kept/version.parquet", deletionTimestamp=old), days=1)
    table.file("R%2526D.parquet", "_former=1/stray.parquet")
    table.file(*live, *gone, "vectored.parquet", VECTOR, "deep/er/absolute.parquet")
    table.file("unknown-address.parquet", "kept/version.parquet", "readme.txt", "_tmp/x.parquet")
    table.file(
        *(f"deep/a{n}/b/orphan-{n}.parquet" for n in range(9)), "Ü/ö.parquet", "LIVE.parquet"
    )
    table.file("_change_data/cdc-1.parquet", ".orphan.parquet.crc", "orphan.parquet", "q/.o.crc")
    table.file("deep/young.parquet", days=1)
    (root / "deep" / "empty").mkdir()
    (root / "linked").symlink_to("/etc")
    for folder in sorted(root.rglob("*")):
        if folder.is_dir() and LOG not in folder.parts:
            os.utime(folder, (1_600_000_000, 1_600_000_000))
    return table


def both(spark: SparkSession, table: Folder, **options: Any) -> tuple[VacuumSurvey, VacuumSurvey]:
    snapshot = table.open().snapshot()
    local = vacuum.survey(snapshot, VacuumOptions(engine="local", **options), now=table.now)
    wanted = VacuumOptions(engine="spark", **options)
    return local, vacuum.survey(snapshot, wanted, now=table.now, engine=engine(spark, table))


def rows(surveyed: VacuumSurvey) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in surveyed.found.files().to_pylist())


@pytest.mark.conformance("VAC-03", "VAC-04", "VAC-09", "VAC-11", "VAC-15")
@pytest.mark.parametrize(
    "options",
    [{"ignore_missing_files": True}, {"foreign_files": True}, {"keep_versions": (1,)}],
    ids=str,
)
def test_both_engines_find_the_same(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    table = build(tmp_path / "my table")
    misnamed = "ignore_missing_files" in options
    if misnamed:
        # deltalake 0.8 encodes names once more than the paths in the log.
        table.log(add("R%26D.parquet"), days=0)
    local, ours = both(spark, table, **options)
    assert rows(ours) == rows(local) and len(rows(local)) > 10
    plans = [
        surveyed.plan.to_json()
        | {"options": None, "engine": None, "groups": None, "folders": None, "oldest": None}
        for surveyed in (local, ours)
    ]
    assert plans[0] == plans[1]
    # Only the local engine counts folders and states the oldest file.
    assert local.plan.folders and not ours.plan.folders
    for mine, theirs in zip(ours.plan.groups, local.plan.groups, strict=True):
        assert (mine.reason, mine.count, mine.bytes) == (theirs.reason, theirs.count, theirs.bytes)
    assert set(ours.found.directories) == set(local.found.directories) != set()
    paths = set(ours.found.files()["path"].to_pylist())
    former = {"_former=1/gone.parquet", "_former=2/.gone.parquet"}
    assert paths & former == (set() if "keep_versions" in options else former)
    assert not paths & {VECTOR, "_former=1/stray.parquet"}
    assert ("R%2526D.parquet" in paths) is not misnamed


@pytest.mark.conformance("VAC-17", "VAC-19", "VAC-20")
def test_executors_delete_candidates_and_keep_files_referenced_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = build(tmp_path / "t")
    before = table.files()
    local, ours = both(spark, table)
    table.log(add("orphan.parquet"), days=0)
    result = vacuum.apply(
        table.open(), ours.plan, context=RunContext.at(clock.now()), surveyed=ours
    )
    assert (result.status, result.spared, result.failed) == ("vacuumed", 1, 0)
    assert before - table.files() == {path for path, *_ in rows(local)} - {"orphan.parquet"}
    assert result.deleted == len(rows(local)) - 1
    assert result.directories > 5 and (tmp_path / "t" / "linked").is_symlink()
    assert [entry.operation for entry in table.open().history()[:2]] == [
        "VACUUM END",
        "VACUUM START",
    ]
    assert both(spark, table)[1].plan.files == 0


def test_errors_of_the_local_engine_also_stop_spark(spark: SparkSession, tmp_path: Path) -> None:
    cases: list[tuple[str, list[Any], list[str], type[DeltaMaintenanceError]]] = [
        ("missing", [add("absent.parquet")], [], CorruptTableError),
        ("nested", [], ["sub/inner/_delta_log/0.json"], RefusedError),
        ("vector", [add("a", dv=deletion_vector("short"))], ["a"], CorruptTableError),
        (
            "spellings",
            [add("file:/x/y"), remove("file:///x/y", deletionTimestamp=1)],
            [],
            CorruptTableError,
        ),
    ]
    for name, actions, files, error in cases:
        table = Folder(
            tmp_path / name, now=clock.now(), first=[features("deletionVectors"), metadata()]
        )
        table.log(*actions) if actions else None
        table.file("dead.parquet", *files)
        for chosen in ("local", "spark"):
            with pytest.raises(error):
                vacuum.survey(
                    table.open().snapshot(),
                    VacuumOptions(engine=chosen),
                    now=table.now,
                    engine=engine(spark, table),
                )


def test_a_change_of_the_rules_ends_the_deletion(spark: SparkSession, tmp_path: Path) -> None:
    table = build(tmp_path / "t")
    _, ours = both(spark, table, log_commits=False)
    before = table.files()
    table.log(metadata(partitioned_by=["x"]), days=0)
    with pytest.raises(RefusedError, match="has just changed"):
        vacuum.apply(table.open(), ours.plan, context=RunContext.at(clock.now()), surveyed=ours)
    assert table.files() == before


def test_the_job_answers_with_the_plan_or_the_result(spark: SparkSession, tmp_path: Path) -> None:
    table = build(tmp_path / "t")
    before = table.files()
    report = tmp_path / "report.parquet"
    spec = JobSpec(
        operation="vacuum", table=table.store.root, report_uri=str(report), plan_only=True
    )
    plan = VacuumPlan.from_json(job.run(spec, spark))
    assert (plan.engine, plan.files) == ("spark", pq.read_table(report).num_rows)
    assert table.files() == before
    spec = JobSpec(operation="vacuum", table=table.store.root, options={"log_commits": False})
    result = VacuumResult.from_json(job.run(spec, spark))
    assert (result.status, result.deleted) == ("vacuumed", plan.files)
    assert before - table.files() == set(pq.read_table(report)["path"].to_pylist())


def test_a_plan_for_spark_needs_spark(tmp_path: Path) -> None:
    table = Folder(tmp_path, now=clock.now())
    with pytest.raises(DeltaMaintenanceError, match="the plan is for Spark"):
        vacuum.plan(
            table.open().snapshot(), VacuumOptions(engine="spark"), context=RunContext.at(table.now)
        )


def test_the_driver_has_no_list_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """What comes back is one row per bucket, and the list only when it is asked for."""
    table = build(tmp_path / "t")
    _, ours = both(spark, table)
    batches = list(ours.found.batches())
    assert len(batches) > 1 and all(isinstance(batch, pa.Table) for batch in batches)


def test_a_file_that_no_commit_removes_stops_the_vacuum(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = build(tmp_path / "t")
    lost = "_p=1/live%201.parquet"
    table.log(commit_info(), days=1)
    state = table.state()
    table.checkpoint(actions=[a for a in state if a.get("add", {}).get("path") != lost])
    table.log(commit_info(), days=1)

    with pytest.raises(CorruptTableError, match="lacks live files"):
        both(spark, table)

    # As if the checkpoint were large, and its newest commits did not name the file.
    monkeypatch.setattr(contradictions, "FEW_ACTIONS", 0)
    monkeypatch.setattr(contradictions, "MOST_BYTES_OF_LARGE", 0)
    wanted = VacuumOptions(engine="spark", ignore_missing_files=True)
    with pytest.raises(CorruptTableError, match=r"no commit removes _p=1/live 1\.parquet"):
        snapshot = table.open().snapshot()
        vacuum.survey(snapshot, wanted, now=table.now, engine=engine(spark, table))

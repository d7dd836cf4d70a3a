"""`optimize` and `purge` on Spark: the files of the local engine, whatever happens to executors."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from delta_maintenance.clock import NewId, new_id
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.core.operation import load
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.spark import JobSession, job, rewriting
from delta_maintenance.spark.rewriting import BinTask, SparkRewriting, groups
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobSpec
from delta_maintenance.table.commit.manifests import manifest_path
from delta_maintenance.table.data import Bin
from delta_maintenance.table.read import Table
from tests.operations.test_symlink_manifests import ENABLED, expected
from tests.support.rewrites.data_files import DataTable, field, source
from tests.support.rewrites.rewritten_tables import NOW, Rewritten, numbers
from tests.support.rewrites.table_rows import Action, latest, live_adds
from tests.support.servers.spark_session import REPLACED_TASK
from tests.table.commit.test_manifests import manifests_in

pytestmark = pytest.mark.spark

EVERY_BIN = 1
"""Bytes per task, with which each bin has a task of its own."""


def made_in(path: Path, **shape: Any) -> Rewritten:
    """A table with row IDs and deleted rows, in a folder."""
    made = Rewritten(store=LocalStore(str(path)), **shape)
    made.table.delete(made.paths["y"][1], [1, 3])
    return made


def rewrite(made: Rewritten, engine: SparkRewriting, **options: Any) -> OptimizeResult:
    table = Table(made.store)
    options = {"engine": "spark", "workers": 1} | options
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(**options), context=RunContext.at(NOW)
    )
    return optimize.apply(table, planned, context=RunContext.at(NOW, engine=engine))


def engine(spark: SparkSession, made: Rewritten, new_id: NewId = new_id) -> SparkRewriting:
    root = made.store.root
    return SparkRewriting(
        JobSession(spark=spark, table_uri=root, new_id=new_id), bytes_per_task=EVERY_BIN
    )


def by_partition(store: LocalStore) -> dict[str, tuple[str, Action]]:
    """For each partition the digest of its one file, and its add without names and times."""
    found = {}
    for path, add in live_adds(store).items():
        digest = hashlib.sha256(store.read(path)).hexdigest()
        # The order of the bins in a commit decides on the IDs that no row uses.
        own = ("path", "modificationTime", "baseRowId", "tags")
        kept = {name: value for name, value in add.items() if name not in own}
        assert add["partitionValues"]["p"] not in found
        found[add["partitionValues"]["p"]] = digest, kept
    return found


def unreferenced(store: LocalStore) -> set[str]:
    """Data files that the log never named."""
    named = {path for version in range(latest(store) + 1) for path in live_adds(store, version)}
    present = {path for batch in store.list_tree() for path in batch["path"].to_pylist()}
    return {path for path in present if path.endswith(".parquet")} - named


@pytest.mark.conformance("RW-42", "RW-22", "RW-26", "RT-15", "DV-12")
@pytest.mark.parametrize("operation", ["optimize", "purge"])
def test_both_engines_write_the_same_files(
    spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    made = made_in(tmp_path / "local")
    if operation == "purge":
        made.optimize()
        for path in list(made.table.live):
            made.table.delete(path, [2, 5, 7])
    shutil.copytree(tmp_path / "local", tmp_path / "spark")
    before, there = made.rows(), LocalStore(str(tmp_path / "spark"))

    record = find(operation)
    options = record.options(engine="local", workers=1)
    here = load(f"{record.code}:prepare")(Table(made.store), options, RunContext.at(NOW)).apply()
    told = job.run(JobSpec(operation=operation, table=there.root), spark)

    assert (here.status, here.engine, here.files_after) == ("rewritten", "local", 3)
    assert (told["status"], told["engine"], told["files_after"]) == ("rewritten", "spark", 3)
    sums = {each.partition["p"]: each.row_sums for each in here.bins}
    assert {each["partition"]["p"]: each["row_sums"] for each in told["bins"]} == sums
    assert None not in sums.values() and len(set(sums.values())) == 3
    assert by_partition(there) == by_partition(made.store)
    assert Rewritten.rows(_like(made, there)) == made.rows() == before
    assert unreferenced(there) == set()
    again = job.run(JobSpec(operation=operation, table=there.root), spark)
    assert again["status"] == "nothing-to-do"


def _like(made: Rewritten, store: LocalStore) -> Rewritten:
    other = object.__new__(Rewritten)
    other.store, other.tracked = store, made.tracked
    return other


@pytest.mark.parametrize("columns", [("p",), ()], ids=["partitioned", "whole"])
def test_jobs_leave_manifests_of_the_live_files(
    spark: SparkSession, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    fields = [field("a", "long"), field("b", "string"), field("p", "string")]
    store = LocalStore(str(tmp_path))
    made = DataTable(*fields, store=store, configuration=ENABLED, partitioned_by=columns)
    for value in ("x/ y", None):
        values = {"p": value} if columns else {}
        made.append(*map(numbers, range(0, 40, 10)), partitionValues=values)
    jobs: dict[str, dict[str, object]] = {
        "optimize": {},
        "cluster": {"by": ["a"], "full": True},
        "recompute-stats": {"all_files": True},
        "backfill-row-ids": {},
    }
    for operation, options in jobs.items():
        for folder in expected(store, columns, f"file:{tmp_path}/"):
            store.put(manifest_path(folder), b"stale\n")
        job.run(JobSpec(operation=operation, table=store.root, options=options), spark)
        assert manifests_in(store) == expected(store, columns, f"file:{tmp_path}/"), operation


def test_auto_decides_by_the_number_of_bytes_and_has_a_reason(tmp_path: Path) -> None:
    made = made_in(tmp_path)
    table = Table(made.store)
    little = optimize.plan(table.snapshot(), OptimizeOptions(), context=RunContext.at(NOW))
    assert (little.engine, little.reason.split("; ")[1]) == (
        "local",
        "that is little enough for one process",
    )
    options = OptimizeOptions(auto_spark_bytes=little.bytes)
    much = optimize.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert (much.engine, much.workers) == ("spark", None)
    assert much.reason.endswith("; that is more than one process should rewrite")
    assert much.memory_bytes < little.memory_bytes or little.workers == 1
    with pytest.raises(InvalidRequestError, match="for Spark.*submit the Spark job"):
        optimize.apply(table, much, context=RunContext.at(NOW))
    assert latest(made.store) == 4
    idle = optimize.plan(
        table.snapshot(), OptimizeOptions(engine="spark", max_files=0), context=RunContext.at(NOW)
    )
    assert idle.is_noop and not find("optimize").needs_job(idle)


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    with pytest.raises(RefusedError, match="memory"):
        SparkRewriting(JobSession(spark=spark, table_uri="memory://x"))


@pytest.mark.conformance("RW-15", "RW-44")
@REPLACED_TASK
def test_attempts_that_end_their_executor_cost_one_bin_and_commit_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly(BinTask):
        """Ends its process at the bin of x, and once after y was written alone."""

        def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            names = [dict(work.partition_values)["p"] for work in self.bins]
            rows = BinTask.run(self, batches)
            for name in names:
                if name == "x":
                    os.kill(os.getpid(), signal.SIGKILL)
                row = next(rows)
                if names == ["y"] and context.attemptNumber() == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row

    made = made_in(tmp_path / "table")
    before = made.rows()
    monkeypatch.setattr(rewriting, "BinTask", Deadly)
    # All bins are in one task at first.
    result = rewrite(made, SparkRewriting(JobSession(spark=spark, table_uri=made.store.root)))
    assert (result.status, result.fates) == ("failed", {"committed": 2, "failed": 1})
    assert (result.files_before, result.files_after) == (8, 2)
    failed = result.bins[0]
    assert (failed.partition, len(failed.sources)) == ({"p": "x"}, 4)
    assert failed.problem is not None
    assert failed.problem.startswith("no executor completed the task: ")
    assert "exited unexpectedly" in failed.problem and "\tat " not in failed.problem
    assert made.rows() == before
    # Three attempts with all bins, of which x is the last, and one with y alone.
    assert len(unreferenced(made.store)) == 3 * 2 + 1


@pytest.mark.conformance("RW-15")
def test_a_damaged_file_is_named_and_other_bins_are_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = made_in(tmp_path / "table")
    damaged = made.paths["y"][2]
    path = tmp_path / "table" / damaged
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    with_the_option = spark.conf.get("spark.sql.files.ignoreCorruptFiles")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        spec = JobSpec(operation="optimize", table=made.store.root)
        result = OptimizeResult.from_json(job.run(spec, spark))
    finally:
        spark.conf.set("spark.sql.files.ignoreCorruptFiles", str(with_the_option))
    assert (result.status, result.num_refused) == ("failed", 1)
    assert (result.refused[0].path, result.refused[0].damaged) == (damaged, True)
    # The three sound files of its bin are merged, too.
    assert (result.files_before, result.files_after) == (11, 3)
    assert damaged in live_adds(made.store)
    error = find("optimize").conclusion(result).error(table=result.table, version=result.version)
    line = str(error)
    assert made.store.root in line and damaged in line and f"version {result.version}" in line
    assert "; " in line


@REPLACED_TASK
def test_a_full_disk_fails_its_bin_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(BinTask):
        def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            is_full = dict(self.bins[0].partition_values)["p"] == "y"
            most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if is_full else most, most))
            yield from BinTask.run(self, batches)

    made = made_in(tmp_path / "table")
    before = made.rows()
    monkeypatch.setattr(rewriting, "BinTask", Full)
    result = rewrite(made, engine(spark, made))
    assert (result.status, result.fates) == ("failed", {"committed": 2, "failed": 1})
    assert result.problem is not None and "File too large" in result.problem
    assert result.bins[0].partition == {"p": "y"}
    assert made.rows() == before and unreferenced(made.store) == set()


def test_a_cluster_that_does_not_work_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    made = Rewritten(store=LocalStore(str(tmp_path)), partitions="abcdefghijkl", files=2)
    lock = threading.Lock()

    def cannot_travel() -> str:
        with lock:
            return new_id()

    result = rewrite(made, engine(spark, made, cannot_travel))
    assert result.status == "failed" and result.fates == {"failed": 4, "not-started": 8}
    assert result.problem is not None and "pickle" in result.problem
    assert latest(made.store) == len(made.table.builder.commits) - 1


def test_no_bin_starts_after_the_run_ended(spark: SparkSession, tmp_path: Path) -> None:
    made = made_in(tmp_path)
    table = Table(made.store)
    planned = optimize.plan(table.snapshot(), OptimizeOptions(), context=RunContext.at(NOW))
    contract = Contract.of(table.snapshot(), target_bytes=planned.target_bytes, proof="rows")
    taken: list[int] = []

    def bins() -> Iterator[Bin]:
        for number in range(8):
            taken.append(number)
            gone = source("gone", b"x")
            yield Bin(number=number, sources=(gone,), reasons=(("small",),))

    outcomes = engine(spark, made).rewrite(bins(), contract.spec, workers=1)
    assert next(outcomes).number == 0
    outcomes.close()  # type: ignore[attr-defined]
    assert len(taken) == 2


def test_small_bins_share_a_task_and_large_ones_have_their_own() -> None:
    table = DataTable(field("a", "long"))
    [path] = table.append(pa.table({"a": [1]}))

    def of(number: int, size: int) -> Bin:
        file = source(path, b"x" * size)
        return Bin(number=number, sources=(file,), reasons=(("small",),))

    overhead = rewriting._BYTES_TO_OPEN
    bins = [of(number, size) for number, size in enumerate([10, 10, 100, 10, 10, 10])]
    found = [[work.number for work in group] for group in groups(bins, 2 * (overhead + 10))]
    assert found == [[0, 1], [2], [3, 4], [5]]

"""The job on a standalone cluster whose Python lacks this library: how it gets there."""

from __future__ import annotations

import base64
import io
import os
import shutil
import signal
import stat
import sys
import threading
import uuid
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_maintenance
from delta_maintenance import clock, open_table
from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.checkpoint import CheckpointResult
from delta_maintenance.operations.optimize import OptimizeResult
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumResult
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobReport, JobSpec, library_zip
from tests.support.emulators.s3_server import S3Server
from tests.support.hostile.exposure import watched
from tests.support.logs.sidecar_rows import sidecar_rows
from tests.support.rewrites.data_files import DataTable, field
from tests.support.servers.spark_processes import Cluster
from tests.support.tables.actions import add, deletion_vector, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import Folder

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

ONE_EXECUTOR = {"spark.cores.max": "1"}
"""For a job that a second executor would teach nothing: each costs seconds of processor time."""
VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


@pytest.fixture(scope="module")
def py_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library as a ZIP file, to be shipped."""
    file = tmp_path_factory.mktemp("shipped") / "library.zip"
    file.write_bytes(library_zip())
    return str(file)


@pytest.fixture(scope="module")
def cluster(
    java: None, bare_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"), bare_python)
    try:
        yield running
    finally:
        running.close()


def neglected(path: Path) -> TableBuilder:
    table = TableBuilder(path)
    table.commit([features("v2Checkpoint"), metadata()])
    for commit in range(6):
        table.commit([add(f"{commit}-{n}", stats='{"numRecords":1}') for n in range(100)])
    table.commit([remove(f"3-{n}", deletionTimestamp=1 << 43) for n in range(10)])
    return table


def job(table: str, **storage_options: str) -> JobSpec:
    options = {"kind": "v2-json", "actions_per_sidecar": 100}
    return JobSpec(
        operation="checkpoint", table=table, storage_options=storage_options, options=options
    )


def check(told: JobReport, table: delta_maintenance.Table, like: TableBuilder) -> None:
    result = CheckpointResult.from_json(told.result_or_raise())
    assert (result.status, result.engine) == ("written", "spark")
    assert (result.num_files, result.num_tombstones) == (590, 10)
    assert result.sidecars >= 6
    snapshot = table.snapshot()
    assert snapshot.log.checkpoint is not None and snapshot.log.segment.tail == ()
    expected = like.open().snapshot().live_files().sort_by("path")
    assert snapshot.live_files().sort_by("path") == expected
    assert sum(sidecar_rows(table, result.version).values()) == 600


def test_executors_with_the_library_shipped_along_reach_s3_with_what_the_driver_has(
    cluster: Cluster, py_file: str, s3_server: S3Server, tmp_path: Path
) -> None:
    like = neglected(tmp_path / "like")
    s3_server.make_bucket("cluster")
    for name in like.names():
        s3_server.fill("cluster", [f"table/_delta_log/{name}"], like.read(name))
    public, secret = dict(s3_server.storage_options), {}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        secret[name] = public.pop(name)
    spec = job("s3://cluster/table", **public)
    before = cluster.executors()
    told = cluster.submit(spec, "s3", secret, [py_file])
    check(told, open_table("s3://cluster/table", s3_server.storage_options), like)
    assert all(more > less for more, less in zip(cluster.executors(), before, strict=True))


def test_the_secrets_of_a_job_are_in_no_process_list_and_no_file(
    cluster: Cluster, py_file: str, s3_server: S3Server, tmp_path: Path
) -> None:
    like = neglected(tmp_path / "like")
    s3_server.make_bucket("secrets")
    for name in like.names():
        s3_server.fill("secrets", [f"table/_delta_log/{name}"], like.read(name))
    # Other tests have secrets of their own in the environments of their processes.
    secret, marker = uuid.uuid4().hex, uuid.uuid4().hex
    options = {**s3_server.storage_options, "AWS_SECRET_ACCESS_KEY": secret}
    folders = [tmp_path / name for name in ("local", "events", "tmp")]
    for folder in folders:
        folder.mkdir()
    environment = {"SPARK_LOCAL_DIRS": str(folders[0]), "TMPDIR": str(folders[2]), "MARKER": marker}
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folders[1].as_uri(),
        "spark.executorEnv.TMPDIR": str(folders[2]),
        "spark.executorEnv.MARKER": marker,
    }
    spellings = [secret, base64.b64encode(secret.encode()).decode()]
    with watched(spellings, [*folders, cluster.folder], marker) as exposure:
        told = cluster.submit(
            job("s3://secrets/table", **options), "secret", environment, [py_file], conf=conf
        )
    check(told, open_table("s3://secrets/table", options), like)
    specification = cluster.folder / "secret.spec.json"
    assert exposure.seen == {f"file {specification}"}
    assert stat.S_IMODE(specification.stat().st_mode) == 0o600
    # The driver and two executors are a Java and a Python each.
    assert len(exposure.marked) >= 6, exposure.marked
    assert "java" in exposure.marked.values()
    names = {Path(file).name for file in exposure.files}
    assert {"secret.log", "stderr", "secret.json"} <= names
    assert any(Path(file).is_relative_to(folders[1]) for file in exposure.files)


def test_a_job_that_cannot_run_reports_the_reason(
    cluster: Cluster, py_file: str, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "table")
    table.commit([features("v2Checkpoint", "fromTheFuture"), metadata()])
    spec = job(str(tmp_path / "table"))
    told = cluster.submit(spec, "refused", {}, [py_file], conf=ONE_EXECUTOR)
    assert (told.status, told.exit_status) == ("refused", 3)


@pytest.mark.conformance("VAC-03", "VAC-11")
def test_a_vacuum_on_a_cluster_deletes_the_set_of_the_local_engine(
    cluster: Cluster, py_file: str, tmp_path: Path
) -> None:
    table = littered(tmp_path / "table")
    snapshot = table.open().snapshot()
    local = vacuum.survey(snapshot, VacuumOptions(engine="local"), now=clock.now())
    expected = set(local.found.files()["path"].to_pylist())
    assert len(expected) == 70
    before, executors = table.files(), cluster.executors()
    spec = JobSpec(operation="vacuum", table=table.store.root, report_uri=str(tmp_path / "list"))
    told = cluster.submit(spec, "vacuum", {}, [py_file])
    result = VacuumResult.from_json(told.result_or_raise())
    assert (result.status, result.failed) == ("vacuumed", 0)
    assert (result.deleted, result.bytes) == (len(expected), local.plan.bytes)
    assert set(pq.read_table(tmp_path / "list")["path"].to_pylist()) == expected
    assert before - table.files() == expected
    assert all(more > less for more, less in zip(cluster.executors(), executors, strict=True))


@pytest.mark.conformance("RW-42", "RW-44")
def test_an_executor_that_is_killed_inside_a_bin_costs_no_row(
    cluster: Cluster, py_file: str, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(7).integers(0, 1 << 60, (4, 400_000))
    # On a busy machine, the bin may be written before this process gets a turn.
    for attempt in range(3):
        folder = tmp_path / f"table-{attempt}"
        table = DataTable(field("a", "long"), store=LocalStore(str(folder)))
        paths = table.append(*(pa.table({"a": pa.array(row)}) for row in numbers))
        killed, ended = list[int](), threading.Event()
        watcher = threading.Thread(
            target=kill_a_writer, args=(cluster, folder, set(paths), killed, ended)
        )
        watcher.start()
        spec = JobSpec(operation="optimize", table=table.store.root)
        try:
            told = cluster.submit(spec, f"killed-{attempt}", {}, [py_file])
        finally:
            ended.set()
            watcher.join()
        result = OptimizeResult.from_json(told.result_or_raise())
        assert (result.status, result.engine) == ("rewritten", "spark")
        assert (result.files_before, result.files_after, result.rows) == (4, 1, 1_600_000)
        [path] = table.builder.open().snapshot().live_files()["path"].to_pylist()
        assert pq.read_table(folder / path)["a"].to_pylist() == numbers.ravel().tolist()
        if killed:
            return
    raise AssertionError("no executor was killed while it wrote")


def kill_a_writer(
    cluster: Cluster, folder: Path, known: set[str], killed: list[int], ended: threading.Event
) -> None:
    """Kills an executor that writes a file into a folder, until the job has ended."""
    while not killed and not ended.is_set():
        if any(file.is_file() and file.name not in known for file in folder.iterdir()):
            process = cluster.executor_writing_to(folder)
            if process is not None:
                os.kill(process, signal.SIGKILL)
                killed.append(process)


def littered(path: Path) -> Folder:
    """Live files, dead ones that the log knows, and some that it does not, in ten folders."""
    now = clock.now()
    table = Folder(path, now=now, first=[features("deletionVectors"), metadata()])
    paths = [f"p={number % 10}/{number}.parquet" for number in range(100)]
    vector = deletion_vector()
    table.log(*(add(path) for path in paths), add("vectored.parquet", dv=vector))
    old = epoch_millis(now - timedelta(days=20))
    table.log(*(remove(path, deletionTimestamp=old) for path in paths[:50]), days=20)
    orphans = [f"p={number % 10}/orphan-{number}.parquet" for number in range(20)]
    table.file(*paths, *orphans, "vectored.parquet", VECTOR)
    table.file("p=1/young.parquet", days=1)
    return table


def test_without_the_library_executors_say_what_they_lack(cluster: Cluster, tmp_path: Path) -> None:
    neglected(tmp_path / "table")
    own = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    told = cluster.submit(job(str(tmp_path / "table")), "bare", own, [], conf=ONE_EXECUTOR)
    assert told.error is not None and "No module named 'delta_maintenance'" in told.error.problem


def test_an_archive_of_an_environment_brings_python_and_library(
    cluster: Cluster, bare_python: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    shutil.copytree(bare_python.parents[1], environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(io.BytesIO(library_zip())) as library:
        library.extractall(packages)
    packed = shutil.make_archive(str(tmp_path / "environment"), "gztar", environment)
    shutil.rmtree(environment)
    neglected(tmp_path / "table")
    like = neglected(tmp_path / "like")
    own = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "./environment/bin/python"}
    archives = [f"{packed}#environment"]
    spec = job(str(tmp_path / "table"))
    told = cluster.submit(spec, "archive", own, [], archives, conf=ONE_EXECUTOR)
    check(told, open_table(str(tmp_path / "table")), like)

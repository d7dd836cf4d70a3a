"""docker-compose.yaml in a Docker Engine: neglected tables in its object store are maintained.

Where no Docker runs, tools/containers.py starts one in namespaces of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import delta_maintenance
from delta_maintenance.storage import open_store
from tests.stack.conftest import Airflow, answered_until_it_ends
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.overdue_tables import overdue_table
from tests.support.tables.vacuum_tables import Folder

if TYPE_CHECKING:
    from containers import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(7200)]
ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())[
    "services"
]
PROJECT = "delta-maintenance-nightly"
LOG_BYTES = 2_000_000
"""The log of the large table; more than `spark_log_bytes` of docker/policy.yaml."""
AGE = timedelta(days=40)
_NEW_NETWORK = 0x40000000


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The services, healthy, and this thread in their network; nothing is left of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        import containers
        from debian import Missing

        try:
            stack = containers.available(project=PROJECT)
        except Missing as missing:
            pytest.skip(f"NO CONTAINERS: {missing}")
        try:
            try:
                stack.up()
            except Missing as missing:
                pytest.skip(f"NO CONTAINERS: {missing}")
            with joined(stack.network):
                yield stack
        finally:
            with containers.stage("docker compose down"):
                stack.down("--volumes")
        if stack.own:
            place = str(ROOT / "build" / "containers")
            processes = subprocess.run(("ps", "-e", "-o", "args"), capture_output=True, text=True)
            assert place not in processes.stdout
            assert place not in Path("/proc/self/mounts").read_text()


@contextmanager
def joined(network: Path) -> Iterator[None]:
    """Moves this thread, and the threads and processes that it starts, to a network namespace."""
    set_namespace = ctypes.CDLL(None, use_errno=True).setns
    with network.open() as wanted, open("/proc/thread-self/ns/net") as own:
        if os.fstat(wanted.fileno()).st_ino == os.fstat(own.fileno()).st_ino:
            yield
            return
        assert set_namespace(wanted.fileno(), _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert set_namespace(own.fileno(), _NEW_NETWORK) == 0


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> None:
    """The access to the object store, at the port that it publishes."""
    for name, value in SERVICES["s3-init"]["environment"].items():
        monkeypatch.setenv(name, value.replace("//s3:", "//127.0.0.1:"))


@pytest.fixture
def airflow(stack: Stack, tmp_path: Path) -> Airflow:
    found = Airflow(tmp_path, 8080)
    with urllib.request.urlopen(f"{found.address}/auth/token") as answer:
        found.token = json.load(answer)["access_token"]
    return found


def upload(table: Folder, address: str) -> None:
    """Puts the files of a table on disk below an address."""
    store, folder = open_store(address), Path(table.store.root)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            store.put(str(file.relative_to(folder)), file.read_bytes())


def large_table(folder: Path) -> Folder:
    """A table that wants V2 checkpoints, with few files but a large log."""
    settings = {"delta.checkpointPolicy": "v2"}
    first = [features("v2Checkpoint"), metadata(configuration=settings)]
    table = Folder(folder, now=datetime.now(UTC), first=first)
    longest = "x" * (LOG_BYTES // 20)
    for number in range(20):
        stats = {"numRecords": 1, "maxValues": {"value": longest}}
        table.log(add(f"{number}.parquet", stats=json.dumps(stats)))
        table.file(f"{number}.parquet")
    return table


def make_older(stack: Stack, *addresses: str) -> None:
    """Changes the times of the files in SeaweedFS, which S3 itself does not allow.

    Its metadata are saved, the seconds of each time are replaced, and they are loaded again.
    """
    file = "/tmp/tables.meta"
    in_s3(stack, "weed", "shell", told=f"fs.meta.save -o {file} /buckets/tables".encode())
    saved = in_s3(stack, "cat", file)
    times = {
        time
        for address in addresses
        for batch in open_store(address).list_tree()
        for time in batch["modified_ms"].to_pylist()
        if time is not None
    }
    for seconds in {time // 1000 for time in times}:
        # Field 2 of FuseAttributes, of the same length as before.
        old = b"\x10" + varint(seconds)
        assert old in saved
        saved = saved.replace(old, b"\x10" + varint(seconds - int(AGE.total_seconds())))
    in_s3(stack, "sh", "-c", f"cat > {file}", told=saved)
    in_s3(stack, "weed", "shell", told=f"fs.meta.load {file}".encode())


def varint(number: int) -> bytes:
    """A number as Protocol Buffers write it."""
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def in_s3(stack: Stack, *command: str, told: bytes = b"") -> bytes:
    """What a command in the container of the object store prints."""
    inside = stack.compose("exec", "-T", "s3", *command)
    return subprocess.run(inside, input=told, stdout=subprocess.PIPE, check=True).stdout


def test_every_service_is_healthy_or_has_ended_well(stack: Stack) -> None:
    listed = subprocess.run(
        stack.compose("ps", "--all", "--format", "json"), capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        each = json.loads(line)
        state = each["Health"] or f"{each['State']} {each['ExitCode']}"
        found.setdefault(each["Service"], []).append(state)
    assert found == {
        name: ["healthy" if "healthcheck" in service else "exited 0"]
        * service.get("deploy", {}).get("replicas", 1)
        for name, service in SERVICES.items()
    }


@pytest.mark.usefixtures("access")
def test_neglected_tables_are_maintained(stack: Stack, airflow: Airflow, tmp_path: Path) -> None:
    small, large = "s3://tables/small", "s3://tables/deep/large"
    upload(overdue_table(tmp_path / "small"), small)
    upload(large_table(tmp_path / "large"), large)
    make_older(stack, small, large)
    airflow.wait_for("the Dags", lambda: len(airflow.call("GET", "/api/v2/dags")["dags"]) == 3)
    for dag in ("delta_maintenance", "delta_on_commit", "delta_manual"):
        airflow.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    # The run of this hour begins by itself.
    run_id = airflow.wait_for("the question", lambda: asking_run(airflow), patience=1200)
    checkpoints = {
        address: delta_maintenance.open_table(address).snapshot().log.checkpoint
        for address in (small, large)
    }
    versions = {
        address: found.files.version for address, found in checkpoints.items() if found is not None
    }
    assert versions == {small: 15, large: 20}
    (job,) = finished_jobs()
    assert job["state"] == "FINISHED"
    assert "0.parquet" in names(small)
    answer = {
        "chosen_options": ["Approve"],
        "params_input": {"plans": ["vacuum of lake/small"], "snooze_until": None},
    }
    ended = answered_until_it_ends(airflow, "delta_maintenance", run_id, ("approve", -1), answer)
    assert ended == "success"
    assert "0.parquet" not in names(small)
    assert "1.parquet" in names(small)
    assert "lake/small" in airflow.page("/delta-maintenance/")


def asking_run(airflow: Airflow) -> str | None:
    """The run whose approvals are waited for."""
    for run in airflow.runs("delta_maintenance"):
        task = airflow.tasks("delta_maintenance", run["dag_run_id"]).get(("approve", -1), {})
        if task.get("state") == "awaiting_input":
            return str(run["dag_run_id"])
    return None


def finished_jobs() -> list[dict[str, Any]]:
    """The applications that Spark's master has completed."""
    with urllib.request.urlopen("http://127.0.0.1:8081/json/") as answer:
        jobs: list[dict[str, Any]] = json.load(answer)["completedapps"]
    return jobs


def names(address: str) -> set[str]:
    return {path for batch in open_store(address).list_tree() for path in batch["path"].to_pylist()}

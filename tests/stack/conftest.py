"""Airflow as it is deployed: scheduler, triggerer, API server, and tasks in separate processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.orchestrators.health_server import signed_in
from tests.support.servers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DAGS = ("delta_maintenance_dags",)
PATIENCE = 480
"""The timeout of every wait in seconds; machines that run tests are slow."""
PATIENCE_AT_START = 1200
"""The timeout of the start, which imports Airflow in ten processes at once."""


POLL_INTERVAL = 3
"""Seconds between two polls of a watched table."""


class Airflow:
    """A running Airflow, and its API."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.address = f"http://127.0.0.1:{port}"
        self.token = ""
        """Of the user `somebody`, an administrator."""
        self.pid = 0
        """The process that started all others, which are in its session."""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request, below `/api/v2`."""
        request = urllib.request.Request(
            f"{self.address}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from None

    def page(self, path: str) -> str:
        """The text of a page."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.address}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return str(answer.read().decode())

    def log_in(self) -> None:
        self.token = signed_in(self.address)

    def trigger(self, dag_id: str, **conf: Any) -> str:
        body = {"logical_date": None, "conf": conf}
        run = self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        return str(run["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        return found

    def tasks(self, dag_id: str, run_id: str) -> dict[tuple[str, int], dict[str, Any]]:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found = self.call("GET", path)["task_instances"]
        return {(ti["task_id"], ti["map_index"]): ti for ti in found}

    def told(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Any:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        query = f"?map_index={map_index}&deserialize=true"
        return self.call("GET", f"{path}/xcomEntries/return_value{query}")["value"]

    def wait_for(self, what: str, look: Callable[[], Any], *, patience: float = PATIENCE) -> Any:
        """The first result of `look` that is not empty."""
        end = time.monotonic() + patience
        while not (found := look()):
            assert time.monotonic() < end, f"{what} did not happen; see {self.home}/airflow.log"
            time.sleep(1)
        return found

    def wait_for_run(self, dag_id: str, run_id: str) -> str:
        """The final state of a run."""

        def ended() -> str | None:
            state = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state if state in ("success", "failed") else None

        state: str = self.wait_for(f"the end of {run_id}", ended)
        return state

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1
    ) -> dict[str, Any]:
        """The task instance, once it is in that state."""

        def there() -> dict[str, Any] | None:
            ti = self.tasks(dag_id, run_id).get((task_id, map_index))
            return ti if ti is not None and ti["state"] == state else None

        found: dict[str, Any] = self.wait_for(f"{task_id} {state}", there)
        return found


def answered_until_it_ends(
    airflow: Airflow, dag_id: str, run_id: str, asking: tuple[str, int], answer: dict[str, Any]
) -> str:
    """Returns the end of a run whose approval is answered whenever the task asks for it.

    An answer that arrives before Airflow has noticed the end of the task's process fails the try,
    and the next try asks again; on a busy machine that takes seconds.
    """
    run, (task_id, index) = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}", asking
    task = f"{run}/taskInstances/{task_id}/{index}"

    def ended() -> str | None:
        if airflow.tasks(dag_id, run_id)[asking]["state"] == "awaiting_input":
            details = airflow.call("GET", f"{task}/hitlDetails")
            if not details["response_received"]:
                airflow.call("PATCH", f"{task}/hitlDetails", answer)
        state: str = airflow.call("GET", run)["state"]
        return state if state in ("success", "failed") else None

    how: str = airflow.wait_for(f"the end of {run_id}", ended)
    return how


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tables."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def airflow(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """`airflow standalone` with our Dags and those beside this file, and the policy of the lake."""
    home = tmp_path_factory.mktemp("airflow")
    copy_dags(home)
    shutil.copy(Path(__file__).with_name("probe_dags.py"), home / "dags")
    settings = {
        # The writers of SQLite wait for each other: 5 s by default, after which requests fail.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(lake / "policy.yaml"),
        "AIRFLOW__DELTA_MAINTENANCE__POLL_INTERVAL": str(POLL_INTERVAL),
        "AIRFLOW__DELTA_MAINTENANCE__REPORT_FOLDER": str(lake / "spark-reports"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "PROBE_TABLE": str(lake / "probed"),
    }
    dags = {"delta_maintenance", "delta_on_commit", "delta_manual", "probe_sensor"}
    with standalone(home, settings, dags=dags) as stack:
        yield stack


def copy_dags(home: Path, arguments: str = "") -> None:
    """Copies our Dag files, with these arguments, whose work `held_work` can hold."""
    (home / "dags").mkdir()
    shutil.copy(Path(__file__).with_name("held_work.py"), home / "dags")
    for name in DAGS:
        text = (ROOT / "dags" / f"{name}.py").read_text()
        text = text.replace("\ndelta_maintenance_dags()", f"\ndelta_maintenance_dags({arguments})")
        (home / "dags" / f"{name}.py").write_text(f"{text}\nimport held_work\n")


@contextmanager
def standalone(home: Path, settings: Mapping[str, str], *, dags: Set[str]) -> Iterator[Airflow]:
    """`airflow standalone` on the Dag files in `home/dags`, once it knows the Dags named."""
    port = free_port()
    passwords = home / "passwords.json"
    passwords.write_text('{"somebody": "secret", "viewer": "secret"}')
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of these tests " + "x" * 40,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "somebody:admin,viewer:viewer",
        # The files do not change after the start; to parse them again takes a second each.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        "AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS": str(home / "assessments"),
        # The default of 5 s fails tasks on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        **settings,
    }
    stack = Airflow(home, port)
    with (home / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,
        )
    stack.pid = process.pid
    try:
        stack.wait_for(
            "the start of Airflow", lambda: _is_up(stack, process), patience=PATIENCE_AT_START
        )
        stack.log_in()
        stack.wait_for("the parsing of the Dags", lambda: dags <= _known(stack))
        yield stack
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def kill(*processes: psutil.Process) -> None:
    """Kills processes with SIGKILL, and waits until they have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    end = time.monotonic() + 60
    while not all(map(_has_ended, processes)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in processes:
        if isinstance(process, psutil.Popen):
            process.wait()


def _has_ended(process: psutil.Process) -> bool:
    # `airflow standalone` does not wait for its processes, which remain as zombies.
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_up(stack: Airflow, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (stack.home / "airflow.log").read_text()[-4000:]
    try:
        health = stack.call("GET", "/api/v2/monitor/health")
    except (AssertionError, OSError):
        return False
    return all(health[part]["status"] == "healthy" for part in ("scheduler", "triggerer"))


def _known(stack: Airflow) -> Set[str]:
    return {dag["dag_id"] for dag in stack.call("GET", "/api/v2/dags")["dags"]}

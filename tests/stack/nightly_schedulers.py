"""Two schedulers on one PostgreSQL, and the loss of one: every last commit is maintained, by one
task at a time.

`make nightly NIGHTLY=schedulers` runs it. Airflow reaches PostgreSQL, of the packages of the
machine, by the packages `psycopg2-binary` and `asyncpg`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from . import last_commits
from .conftest import POLL_INTERVAL, Airflow, copy_dags, kill, standalone
from .last_commits import LIMIT, append, has_ended, hold_work, is_maintained, work_intervals
from .postgresql import postgresql, programs

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

KILLED = ("scheduler", "host")
"""Tables on which a task works when its scheduler is killed: without the task, and with it."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("lake")
    names = (*last_commits.TABLES, *KILLED)
    for name in names:
        append(lake / name)
    policy = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 1}},
        "tables": [{"name": name, "uri": str(lake / name)} for name in names],
    }
    (lake / "policy.yaml").write_text(yaml.safe_dump(policy))
    return lake


@pytest.fixture(scope="module")
def airflow(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = programs()
    assert folder is not None, "PostgreSQL is not installed"
    home = tmp_path_factory.mktemp("airflow")
    copy_dags(home, "schedule=None")
    with postgresql(folder) as database:
        settings = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://airflow@{database}",
            "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(lake / "policy.yaml"),
            "AIRFLOW__DELTA_MAINTENANCE__POLL_INTERVAL": str(POLL_INTERVAL),
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        }
        with standalone(home, settings, dags={"delta_maintenance", "delta_on_commit"}) as stack:
            yield stack


class Schedulers:
    """The schedulers of a stack, which can be killed."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow
        [first] = (
            process
            for process in psutil.Process(airflow.pid).children()
            if "scheduler" in " ".join(process.cmdline())
        )
        self._environment = first.environ()
        self.processes = [first]

    def start(self) -> None:
        """Starts another one, and waits until it is active."""
        with (self._airflow.home / "scheduler.log").open("ab") as log:
            process = psutil.Popen(
                [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"],
                env=self._environment,
                cwd=self._airflow.home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        number = len(self.processes)
        self._airflow.wait_for("another scheduler", lambda: self._active() >= number)

    def _active(self) -> int:
        jobs = self._airflow.call("GET", "/api/v2/jobs?job_type=SchedulerJob&is_alive=true")
        return int(jobs["total_entries"])

    def kill(self, task: int, *, with_tasks: bool) -> None:
        """Kills the scheduler that has started a process, with SIGKILL."""
        parents = {process.pid for process in psutil.Process(task).parents()}
        [scheduler] = (process for process in self.processes if process.pid in parents)
        self.processes.remove(scheduler)
        kill(scheduler, *(scheduler.children(recursive=True) if with_tasks else ()))


@pytest.fixture(scope="module")
def schedulers(airflow: Airflow) -> Iterator[Schedulers]:
    running = Schedulers(airflow)
    running.start()
    yield running
    for process in running.processes:
        kill(process, *process.children(recursive=True))


def test_two_schedulers_lose_no_last_commit(
    airflow: Airflow, lake: Path, schedulers: Schedulers
) -> None:
    last_commits.maintain_last_commits(airflow, lake, limit=LIMIT)


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_scheduler_loses_no_last_commit(
    airflow: Airflow, lake: Path, schedulers: Schedulers, name: str
) -> None:
    table = lake / name
    task = hold_work(airflow, table)
    append(table)
    schedulers.kill(task, with_tasks=name == "host")
    killed = time.monotonic()

    def since() -> str:
        return f"{time.monotonic() - killed:.0f} s after the kill"

    if name == "scheduler":
        airflow.wait_for("a second try", lambda: len(work_intervals(table)) > 1)
        print(f"second try {since()}", work_intervals(table), flush=True)
        time.sleep(30)
    (table / "hold").unlink()
    airflow.wait_for("the work", partial(is_maintained, table), patience=900)
    print(f"{name}: maintained {since()}", flush=True)
    airflow.wait_for("the end of every run", partial(has_ended, airflow), patience=900)
    print(f"{name}: idle {since()}", flush=True)
    last_commits.expect_no_concurrent_work(table)
    schedulers.start()

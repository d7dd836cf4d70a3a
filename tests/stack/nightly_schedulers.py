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
from .last_commits import (
    LIMIT,
    append,
    expect_no_concurrent_work,
    has_ended,
    hold_work,
    is_maintained,
    work_intervals,
)
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
        self._running = [first]
        self._started = list[psutil.Process]()

    def start(self) -> None:
        """Starts another one, and waits until it is active."""
        before = self._active()
        with (self._airflow.home / "scheduler.log").open("ab") as log:
            process = psutil.Popen(
                [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"],
                env=self._environment,
                cwd=self._airflow.home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        self._airflow.wait_for("another scheduler", lambda: self._active() - before)

    def _active(self) -> set[int]:
        jobs = self._airflow.call("GET", "/api/v2/jobs?job_type=SchedulerJob&is_alive=true")
        return {job["id"] for job in jobs["jobs"]}

    def kill(self, task: int, *, with_tasks: bool) -> None:
        """Kills the scheduler that has started a process, with SIGKILL."""
        parents = {process.pid for process in psutil.Process(task).parents()}
        [scheduler] = (process for process in self._running if process.pid in parents)
        self._running.remove(scheduler)
        children = scheduler.children(recursive=True)
        kill(scheduler, *(children if with_tasks else ()))
        self._started += children

    def end(self) -> None:
        """Kills all schedulers, and what they have started."""
        children = [child for one in self._running for child in one.children(recursive=True)]
        kill(*self._running, *children, *self._started)


@pytest.fixture(scope="module")
def schedulers(airflow: Airflow) -> Iterator[Schedulers]:
    running = Schedulers(airflow)
    try:
        running.start()
        yield running
    finally:
        running.end()


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
    # Airflow starts a second try, and ends the first one if that has survived its scheduler.
    airflow.wait_for("a second try", lambda: work_intervals(table).keys() - {task})
    print(f"{name}: a second try {time.monotonic() - killed:.0f} s after the kill", flush=True)
    time.sleep(15)
    (table / "hold").unlink()
    airflow.wait_for("the end of every run", partial(has_ended, airflow))
    idle = time.monotonic()
    airflow.wait_for("the work", partial(is_maintained, table), patience=LIMIT.total_seconds())
    print(
        f"{name}: maintained {idle - killed:.0f} + {time.monotonic() - idle:.0f} s after the kill"
    )
    expect_no_concurrent_work(table)
    schedulers.start()

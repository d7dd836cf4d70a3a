"""Deferred tasks that are killed with `kill -9` at each step, and retried.

`DELTA_MAINTENANCE_KILLS` is the number of kills of each try; `all` kills it at every call that
changes the disk. `spark-submit` is played by a script.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from tests.support.kills.kill_points import fork_server
from tests.support.orchestrators import killed_tasks
from tests.support.orchestrators.airflow_versions import TaskDeferred
from tests.support.orchestrators.deferrals import deferred, driver_of, event_of, resumed
from tests.support.orchestrators.fake_spark import FakeSpark, is_alive, wait_for
from tests.support.orchestrators.killed_tasks import build, context, task

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

KILLS = os.environ.get("DELTA_MAINTENANCE_KILLS", "4")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_maintenance_airflow.triggers.spark_job.SECONDS_BETWEEN_POLLS", 0.1)


@pytest.fixture
def settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], FakeSpark]:
    """Lets this process work below a new folder of that name."""

    def settle(name: str) -> FakeSpark:
        root = tmp_path / name
        spark = build(root)
        for variable, value in killed_tasks.environment(root).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr("tempfile.tempdir", str(root / "tmp"))
        return spark

    return settle


def next_try() -> dict[str, Any]:
    """The result of another try, which Airflow begins anew after each death."""
    try:
        return task().execute(context())
    except TaskDeferred as deferral:
        told: dict[str, Any] = resumed(task(), context(), deferral)
        return told


def check(root: Path, told: dict[str, Any]) -> None:
    """The work is done and recorded, and no file of a job is left on the worker.

    A try that was killed after its record leaves nothing to do, and perhaps a lease that expires.
    """
    done = told["status"] == "done"
    assert told["operations"] == (["compact-log: done"] if done else [])
    assert done or told["status"] == "nothing-due"
    entry = AssessmentStore(str(root / "kept")).named("t")
    assert isinstance(entry, AssessmentEntry)
    assert [run.operations for run in entry.history] == [("compact-log: done",)]
    assert not done or list((root / "kept").glob("*.lease")) == []
    wait_for(lambda: not any(names for _, _, names in os.walk(root / "tmp")))


@pytest.mark.parametrize("killed_try", ["first_try", "resumed_try"])
def test_the_next_try_of_a_killed_one_finishes_and_runs_no_job_twice(
    killed_try: str,
    settle: Callable[[str], FakeSpark],
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
) -> None:
    def prepared(name: str) -> FakeSpark:
        spark = settle(name)
        if killed_try == "resumed_try":
            event = event_of(deferred(task(), context()).trigger)
            (tmp_path / name / "event.json").write_text(json.dumps(event))
        return spark

    with fork_server(f"{killed_tasks.__name__}:{killed_try}", tmp_path) as run:
        prepared("whole")
        moments = run(tmp_path / "whole").moments
        assert moments > 4
        count = moments if KILLS == "all" else int(KILLS)
        for number in range(count):
            at = 1 + round(number * (moments - 1) / (count - 1))
            spark, root = prepared(f"killed-{number}"), tmp_path / f"killed-{number}"
            assert run(root, at=at).killed, f"moment {at} was not reached"
            check(root, next_try())
            assert len(spark.starts) == 1, at
    count_cases(f"kills of a deferred task, {killed_try}", count)


@pytest.mark.parametrize("with_driver", [False, True])
def test_a_job_whose_waiter_is_killed_is_finished_by_the_next_try(
    with_driver: bool,
    settle: Callable[[str], FakeSpark],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delta_maintenance_airflow.triggers.spark_job.SECONDS_UNTIL_LOST", 1.0)
    spark, root = settle("t"), tmp_path / "t"
    go, report = root / "go", (root / "bin/spark-submit").read_text().splitlines()[-3:]
    spark.acts(f"while not os.path.exists({str(go)!r}): time.sleep(0.05)", *report)
    deferral = deferred(task(), context())
    driver = driver_of(spark)
    waiter = psutil.Process(driver).ppid()
    assert "waiter" in " ".join(psutil.Process(waiter).cmdline())
    os.kill(waiter, signal.SIGKILL)
    if with_driver:
        os.kill(driver, signal.SIGKILL)
    with pytest.raises(AirflowException, match="the Spark driver is lost") as lost:
        resumed(task(), context(), deferral)
    assert not isinstance(lost.value, AirflowFailException)
    assert is_alive(driver) != with_driver
    go.touch()
    check(root, next_try())
    assert len(spark.starts) == 1 + with_driver

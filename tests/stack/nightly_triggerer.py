"""kill -9 of the triggerer while it watches tables: no commit is lost, and no work is done twice.

`make nightly NIGHTLY=triggerer` runs it; most of its time is Airflow's wait for the dead triggerer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from delta_maintenance_airflow.triggers import DeltaPolicyCommitTrigger

from .conftest import POLL_INTERVAL, Airflow, kill
from .last_commits import announced_tables, append, checkpoint_of, work_intervals

# Airflow waits for the dead triggerer four times.
pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]
TABLES = ("dead", "at-once", "told", "settled", "later")
"""Named by the moment of the kill: before the commit, right after it, after the event, after the
position is stored; and without another kill.
"""


@pytest.fixture(scope="module", autouse=True)
def tables(lake: Path) -> None:
    for name in TABLES:
        append(lake / name)
    rules = {"checkpoint": {"max_commits": 1}}
    named = [{"name": name, "uri": str(lake / name)} for name in TABLES]
    policy = {"version": 1, "defaults": rules, "tables": named}
    (lake / "policy.yaml").write_text(yaml.safe_dump(policy))


class Triggerer:
    """The triggerer of the stack, which can be killed and started again."""

    def __init__(self, airflow: Airflow) -> None:
        [self.process] = [
            each
            for each in psutil.Process(airflow.pid).children()
            if "triggerer" in " ".join(each.cmdline())
        ]
        self._environment, self._folder = self.process.environ(), self.process.cwd()

    def kill(self) -> None:
        """Kills the process and everything that it has started, with SIGKILL."""
        kill(self.process, *self.process.children(recursive=True))

    def start(self) -> None:
        self.process = psutil.Popen(
            [sys.executable, "-m", "airflow", "triggerer"],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture
def triggerer(airflow: Airflow) -> Iterator[Triggerer]:
    running = Triggerer(airflow)
    yield running
    running.kill()


def told(airflow: Airflow) -> Counter[str]:
    """How many events name each table as changed."""
    tables = announced_tables(airflow)
    assert all(table["status"] == "changed" for table in tables), tables
    return Counter(Path(table["table"]).name for table in tables)


def maintained(airflow: Airflow) -> dict[str, list[str]]:
    """The statuses of all woken tasks on each table."""
    found: dict[str, list[str]] = {}
    for run in airflow.runs("delta_on_commit"):
        tasks = airflow.tasks("delta_on_commit", run["dag_run_id"])
        for (task_id, index), task in tasks.items():
            if task_id == "run" and task["state"] == "success":
                facts: dict[str, Any] = airflow.told(
                    "delta_on_commit", run["dag_run_id"], "run", index
                )
                found.setdefault(facts["name"], []).append(facts["status"])
    return found


def test_a_killed_triggerer_loses_no_commit_and_repeats_no_work(
    airflow: Airflow, lake: Path, triggerer: Triggerer
) -> None:
    settled = DeltaPolicyCommitTrigger.settling_seconds * 2 + POLL_INTERVAL
    # The scheduled Dag would write the checkpoints too. Its run of this hour starts at once, and
    # would not end while it is paused.
    for run in airflow.wait_for("a run", partial(airflow.runs, "delta_maintenance")):
        airflow.wait_for_run("delta_maintenance", run["dag_run_id"])
    airflow.call("PATCH", "/api/v2/dags/delta_maintenance", {"is_paused": True})
    time.sleep(settled)
    for name in TABLES:
        assert told(airflow)[name] == 0
        if name == "dead":
            triggerer.kill()
        append(lake / name)
        if name in ("told", "settled"):
            airflow.wait_for("an event", partial(_is_told, airflow, name))
        if name == "settled":
            time.sleep(settled)
        if name in ("at-once", "told", "settled"):
            triggerer.kill()
        if name != "later":
            triggerer.start()
        started = time.time()
        airflow.wait_for("the work", partial(_is_maintained, airflow, name))
        began, _ = max(work_intervals(lake / name).values())
        [*_, announced] = (
            table["announced_at"]
            for table in announced_tables(airflow)
            if Path(table["table"]).name == name
        )
        print(
            f"{name}: announced {announced - started:.0f} s later, maintained "
            f"{began - started:.0f} s later, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        assert checkpoint_of(lake / name) == 1
        time.sleep(settled)
    events, statuses = told(airflow), maintained(airflow)
    print(dict(events), statuses)
    # An event whose position was not stored yet is sent again, and its task finds nothing to do.
    assert events["told"] in (1, 2)
    assert [events[name] for name in TABLES if name != "told"] == [1, 1, 1, 1]
    for name in TABLES:
        assert sorted(statuses[name]) == ["done", *["nothing-due"] * (events[name] - 1)], name


def _is_told(airflow: Airflow, name: str) -> bool:
    return told(airflow)[name] > 0


def _is_maintained(airflow: Airflow, name: str) -> bool:
    return "done" in maintained(airflow).get(name, ())

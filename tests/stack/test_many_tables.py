"""Thousands of tables on a real scheduler with PostgreSQL: nothing is starved, nothing stalls.

Takes minutes, so it runs only where `DELTA_MAINTENANCE_TABLES` says with how many tables. Airflow
reaches PostgreSQL by the packages `psycopg2-binary` and `asyncpg`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from delta_maintenance import open_table
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

from .conftest import Airflow, standalone
from .postgresql import postgresql, programs

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

TABLES = int(os.environ.get("DELTA_MAINTENANCE_TABLES", "0"))
WORK = 24
"""Tables on which something is due."""
PER_RUN = 16
"""The number of these that are maintained in one run."""
BROKEN = 5
_DAG_FILE = """
from delta_maintenance_airflow.dags import DagIds, RunLimits, delta_maintenance_dags

delta_maintenance_dags(
    ids=DagIds(on_commit=None, manual=None),
    schedule=None,
    limits=RunLimits(tables_per_run={per_run}),
)
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the tables are named by the policy, half are found by a pattern."""
    lake = tmp_path_factory.mktemp("lake")
    idle, neglected = lake / "template/idle", lake / "template/neglected"
    for folder, commits in ((idle, 3), (neglected, 12)):
        table = TableBuilder(folder)
        table.commit([protocol(), metadata()])
        for number in range(commits):
            table.commit([add(f"{number}.parquet")])
            table.store.put(f"{number}.parquet", b"x")
    named = []
    for number in range(TABLES):
        found = number % 2 == 0
        folder = lake / ("found" if found else "named") / f"t{number:05}"
        # In the middle of the policy, so that no order is correct by chance.
        has_work = TABLES // 2 <= number < TABLES // 2 + WORK
        shutil.copytree(neglected if has_work else idle, folder)
        if number < BROKEN:
            (folder / "_delta_log" / f"{1:020}.json").write_bytes(b"{")
        if not found:
            named.append({"name": folder.name, "uri": str(folder)})
    policy = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 10}},
        "tables": [
            *named,
            {"name": "found", "pattern": f"{lake}/found/*"},
            {"pattern": "s3://nowhere/*", "storage": {"connection": "of nobody"}},
        ],
    }
    (lake / "policy.yaml").write_text(yaml.safe_dump(policy))
    return lake


@pytest.fixture(scope="module")
def airflow(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    if not TABLES:
        pytest.skip("DELTA_MAINTENANCE_TABLES names no number of tables")
    folder = programs()
    if folder is None or any(map(_is_missing, ("psycopg2", "asyncpg"))):
        pytest.skip("PostgreSQL, or a driver for it, is not installed")
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags/many.py").write_text(_DAG_FILE.format(per_run=PER_RUN))
    with postgresql(folder) as database:
        settings = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://airflow@{database}",
            "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(lake / "policy.yaml"),
        }
        with standalone(home, settings, dags={"delta_maintenance"}) as stack:
            yield stack


def test_every_table_is_assessed_in_each_run_and_none_is_starved(
    airflow: Airflow, lake: Path
) -> None:
    maintained: set[str] = set()
    for left in (WORK - PER_RUN, 0):
        before, started = _cpu(airflow.pid), time.monotonic()
        begun = time.time()
        run_id = airflow.trigger("delta_maintenance")
        state, worst = _watched(airflow, run_id)
        seconds, cpu = time.monotonic() - started, _cpu(airflow.pid)
        summary = airflow.told("delta_maintenance", run_id, "summary")
        print(
            f"{TABLES} tables: {seconds:.0f} s, scheduler silent for {worst:.1f} s at most, "
            f"services {cpu - before:.0f} s of CPU; {summary['text']}"
        )
        assert state == "failed", "what is broken is told"
        assert seconds < 3600 and worst < 30
        assert summary["not_assessed"] == BROKEN + 1 == summary["num_problems"]
        assert summary["left_over"] == left
        assert summary["statuses"] == {"done": min(PER_RUN, WORK - len(maintained))}
        kept = list((airflow.home / "assessments").glob("*.json"))
        assert len(kept) == TABLES + 1, "one for the pattern that cannot be listed"
        assert all(path.stat().st_mtime > begun for path in kept)
        tasks = _all_tasks(airflow, run_id)
        counts = Counter(task["task_id"] for task in tasks)
        assert counts["assess"] == -(-TABLES // 50)
        batches = airflow.told("delta_maintenance", run_id, "tables_with_work")
        assert counts["run"] == len(batches) < PER_RUN
        worked = {row["name"] for batch in batches for row in batch}
        assert not worked & maintained, "those that waited come first"
        maintained |= worked
        _measure_page(airflow)
    assert len(maintained) == WORK
    for number in range(TABLES // 2, TABLES // 2 + WORK):
        folder = lake / ("named" if number % 2 else "found") / f"t{number:05}"
        assert open_table(str(folder)).snapshot().log.checkpoint is not None


def _watched(airflow: Airflow, run_id: str) -> tuple[str, float]:
    """How the run ends, and the longest time without a heartbeat of the scheduler."""
    worst, path = 0.0, f"/api/v2/dags/delta_maintenance/dagRuns/{run_id}"
    while True:
        health = airflow.call("GET", "/api/v2/monitor/health")["scheduler"]
        assert health["status"] == "healthy", health
        beat = _instant(health["latest_scheduler_heartbeat"])
        worst = max(worst, time.time() - beat)
        state = airflow.call("GET", path)["state"]
        if state in ("success", "failed"):
            return str(state), worst
        time.sleep(2)


def _measure_page(airflow: Airflow) -> None:
    durations = []
    for query in ("", "?status=failed", "?q=t01001", "?page=7"):
        started = time.perf_counter()
        text = airflow.page(f"/delta-maintenance/{query}")
        durations.append(time.perf_counter() - started)
        assert f"{TABLES:,}"[-3:] in text
    print("the page: " + ", ".join(f"{each:.2f}" for each in durations) + " s")
    assert max(durations[1:]) < 1


def _all_tasks(airflow: Airflow, run_id: str) -> list[dict[str, Any]]:
    path = f"/api/v2/dags/delta_maintenance/dagRuns/{run_id}/taskInstances"
    found: list[dict[str, Any]] = []
    while True:
        some = airflow.call("GET", f"{path}?limit=100&offset={len(found)}")["task_instances"]
        if not some:
            return found
        found += some


def _cpu(session: int) -> float:
    """Seconds of CPU of the services, and of all that they have waited for."""
    total = 0.0
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session:
                times = process.cpu_times()
                total += times.user + times.system
                total += times.children_user + times.children_system
    return total


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None

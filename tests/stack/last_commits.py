"""The last commits of tables, which no event announces to a free run, on a real scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

import delta_maintenance
from delta_maintenance.policies import AssessmentStore, Leases

from .conftest import Airflow

TABLES = ("queued", "in-use", "dropped", "third")
"""Tables with a commit while the Dag has no free run. Its event is queued; its event is queued, and
a test holds the lease of the table; its event is dropped; or its event is dropped after a run that
works on an earlier commit, and another that finds the table in use.
"""
LIMIT = timedelta(minutes=2)
"""The time from the end of all other work to the maintenance of the last commit."""


def append(folder: Path) -> None:
    deltalake.write_deltalake(str(folder), pa.table({"id": [1, 2, 3]}), mode="append")


def newest(folder: Path) -> int:
    return delta_maintenance.open_table(str(folder)).snapshot().version


def checkpoint_of(folder: Path) -> int | None:
    checkpoint = delta_maintenance.open_table(str(folder)).snapshot().log.checkpoint
    return checkpoint.files.version if checkpoint is not None else None


def is_maintained(folder: Path) -> bool:
    return checkpoint_of(folder) == newest(folder)


def announced_tables(airflow: Airflow) -> list[dict[str, Any]]:
    """The tables in all events of watchers of a policy, each with the time of its event."""

    def answer() -> Any:
        try:
            return airflow.call("GET", "/api/v2/assets/events?limit=100&order_by=-timestamp")
        except AssertionError as error:
            # Airflow 3.3.2 fails as long as a run that an event triggered has not started.
            if ": 500 " not in str(error):
                raise
            return None

    events = airflow.wait_for("an answer", answer)["asset_events"]
    return [
        {**table, "announced_at": datetime.fromisoformat(event["timestamp"]).timestamp()}
        for event in events
        for table in (event["extra"].get("payload") or {}).get("tables", ())
    ]


def commit(airflow: Airflow, *folders: Path) -> None:
    """Commits to tables, and waits until the watcher has announced that."""

    def are_announced() -> bool:
        versions = {
            (Path(table["table"]).name, table.get("to_version"))
            for table in announced_tables(airflow)
        }
        return {(folder.name, newest(folder)) for folder in folders} <= versions

    while True:
        for folder in folders:
            append(folder)
        # The watcher begins at the newest version at its first poll.
        with suppress(AssertionError):
            airflow.wait_for("events", are_announced, patience=60)
            return


def woken_runs(airflow: Airflow, *states: str) -> list[dict[str, Any]]:
    return [run for run in airflow.runs("delta_on_commit") if run["state"] in states]


def has_ended(airflow: Airflow) -> bool:
    return not woken_runs(airflow, "queued", "running")


def work_intervals(folder: Path) -> dict[int, tuple[float, float]]:
    """The begin and the end of the work on a table, by the ID of the process."""
    intervals = {}
    for file in folder.parent.glob(f"{folder.name}.work-*"):
        times = [float(line) for line in file.read_text().splitlines()]
        if times:
            intervals[int(file.name.rpartition("-")[2])] = (times[0], times[-1])
    return intervals


def hold_work(airflow: Airflow, folder: Path) -> int:
    """Commits to a table, whose maintenance then lasts until its file `hold` is deleted. Returns
    the ID of the process that works on it.
    """
    earlier = work_intervals(folder).keys()
    (folder / "hold").touch()
    commit(airflow, folder)
    [process] = airflow.wait_for(
        "the work on the first commit", lambda: work_intervals(folder).keys() - earlier
    )
    return int(process)


def expect_no_concurrent_work(folder: Path) -> None:
    intervals = sorted(work_intervals(folder).values())
    print(f"{folder.name}: work for {[round(end - begin, 1) for begin, end in intervals]} s")
    for (_, ended), (began, _) in zip(intervals, intervals[1:], strict=False):
        assert began >= ended, f"{folder.name}: {intervals}"


@contextmanager
def paused_schedule(airflow: Airflow) -> Iterator[None]:
    """Pauses the scheduled Dag, which would do the same work."""
    path = "/api/v2/dags/delta_maintenance"
    airflow.call("PATCH", path, {"is_paused": True})
    yield
    airflow.call("PATCH", path, {"is_paused": False})


def maintain_last_commits(airflow: Airflow, lake: Path, *, limit: timedelta) -> None:
    """Plays the loss of events (apache/airflow#56050: one after another that waits for a run starts
    none) and tables in use, and expects that each last commit is maintained.
    """
    queued, in_use, dropped, third = (lake / name for name in TABLES)

    def set_slots(slots: int) -> None:
        body = {"pool": "default_pool", "slots": slots, "include_deferred": False}
        airflow.call("PATCH", "/api/v2/pools/default_pool?update_mask=slots", body)

    def count_active(number: int) -> bool:
        return len(woken_runs(airflow, "running")) == number

    store = AssessmentStore(str(airflow.home / "assessments")).store
    airflow.wait_for("the end of every run", partial(has_ended, airflow))
    hold_work(airflow, third)
    with Leases(store).held("in-use", holder="a test", uri=str(in_use)):
        set_slots(0)
        commit(airflow, third)
        airflow.wait_for("a second run", partial(count_active, 2))
        for _ in range(2):
            airflow.trigger("delta_on_commit")
        airflow.wait_for("four runs", partial(count_active, 4))
        commit(airflow, queued, in_use)
        commit(airflow, dropped, third)
        set_slots(128)
        airflow.wait_for("the work on the queued event", partial(is_maintained, queued))
        airflow.wait_for("the end of the other runs", partial(count_active, 1))
    # The dropped event may have been sent again by now.
    assert not any(map(is_maintained, (in_use, third)))
    (third / "hold").unlink()
    airflow.wait_for("the end of every run", partial(has_ended, airflow))
    idle = time.monotonic()
    for folder in (in_use, dropped, third):
        patience = limit.total_seconds() - (time.monotonic() - idle)
        airflow.wait_for(
            f"the work on {folder.name}", partial(is_maintained, folder), patience=patience
        )
        seconds = time.monotonic() - idle
        print(f"{folder.name}: maintained {seconds:.0f} s after everything was idle", flush=True)
    airflow.wait_for("the end of every run", partial(has_ended, airflow))
    expect_no_concurrent_work(third)

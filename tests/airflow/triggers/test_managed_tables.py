"""Watchers and sensors of catalog-managed tables: the catalog wakes them, by one request a poll."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_maintenance.storage.local import LocalStore
from delta_maintenance_airflow.sensors import DeltaCommitSensor
from delta_maintenance_airflow.triggers import DeltaCommitEventTrigger
from tests.support.catalogs.managed_tables import ManagedTables
from tests.support.orchestrators.watching import eventually, run, running
from tests.support.servers.unity_delta import TOKEN, serve_unity

pytestmark = pytest.mark.server

NAME = "uc://main.s.t0"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedTables]:
    """A table of version 1, which is not published."""
    monkeypatch.setattr(DeltaCommitEventTrigger, "settling_seconds", 0.0)
    with serve_unity() as server:
        monkeypatch.setenv("UNITY_CATALOG_URI", server.url)
        monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
        tables = ManagedTables(server, tmp_path)
        tables.add().ratify()
        tables.state()
        yield tables


def test_a_watcher_wakes_when_the_catalog_ratifies_a_commit(
    tables: ManagedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    (managed,) = tables.tables
    listed: list[str] = []

    def list_from(self: LocalStore, directory: str, start: str = "") -> Iterator[object]:
        listed.append(directory)
        return iter(())

    async def polled(times: int) -> None:
        tables.server.requests.clear()
        await eventually(lambda: len(tables.server.requests) >= times)

    async def scenario() -> None:
        trigger = DeltaCommitEventTrigger(table_uri=NAME, poll_interval=0.01)
        async with running(trigger.run()) as events:
            await polled(6)
            managed.publish()
            managed.rogue()
            await polled(3)
            assert events == []
            managed.ratify()
            tables.state()
            await eventually(lambda: len(events) == 1)
        (event,) = events
        assert (event["status"], event["from_version"], event["to_version"]) == ("changed", 1, 2)
        assert {line.rpartition("/")[2] for line in tables.server.requests} == {"t0"}

    monkeypatch.setattr(LocalStore, "list_from", list_from)
    run(scenario())
    assert listed == []


def test_a_sensor_asks_the_catalog_once_a_poke(tables: ManagedTables) -> None:
    sensor = DeltaCommitSensor(task_id="s", table_uri=NAME, version=2)
    assert not sensor.poke({}).is_done
    tables.asked()
    (managed,) = tables.tables
    managed.ratify()
    tables.state()
    assert sensor.poke({}).is_done
    assert tables.asked() == {"t0": 1}

"""The commit sensor: what wakes it, what it asks of the store, what it remembers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance import clock
from delta_maintenance.errors import StorageError
from delta_maintenance.storage.local import LocalStore
from delta_maintenance_dagster import DeltaMaintenanceComponent
from tests.support.catalogs.managed_tables import ManagedTables
from tests.support.servers.unity_delta import TOKEN, serve_unity
from tests.support.tables.actions import add, commit_info, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]
TABLE = dg.AssetKey(["lake", "events"])
MAINTENANCE = dg.AssetKey(["lake", "events", "maintenance"])


class Ticks:
    """A sensor and its cursor, as the daemon keeps it."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions = definitions
        self.instance = instance
        self._sensor = definitions.resolve_sensor_def("delta_maintenance_commits")
        self.cursor: str | None = None

    def __call__(self) -> Any:
        context = dg.build_sensor_context(
            instance=self.instance, definitions=self.definitions, cursor=self.cursor
        )
        done = self._sensor.evaluate_tick(context)
        self.cursor = done.cursor
        return done

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Executes a requested run."""
        return self.definitions.resolve_job_def("delta_maintenance").execute_in_process(
            instance=self.instance, tags=request.tags, raise_on_error=False
        )

    def create_run(self, request: dg.RunRequest, status: dg.DagsterRunStatus) -> dg.DagsterRun:
        """Creates a run without its process."""
        job = self.definitions.resolve_job_def("delta_maintenance")
        return self.instance.create_run_for_job(job, tags=request.tags, status=status)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "lake" / "events")


@pytest.fixture
def ticks(table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance) -> Ticks:
    return Ticks(load(tables=[{"uri": uri, "key": "lake/events"}]), instance)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests to stores."""
    asked: list[str] = []
    for name in ("read", "read_head", "list_from", "stat", "open_input"):
        method = getattr(LocalStore, name, None)
        if method is None:
            continue

        def counted(
            self: LocalStore, *args: Any, _name: str = name, _method: Any = method, **more: Any
        ) -> Any:
            asked.append(_name)
            return _method(self, *args, **more)

        monkeypatch.setattr(LocalStore, name, counted)
    yield asked


def versions(tick: Any) -> list[str]:
    """The data versions that a tick observed."""
    return [event.tags["dagster/data_version"] for event in tick.asset_events]


def maintenance(operation: str) -> list[dict[str, Any]]:
    """A commit that moves files and changes no rows."""
    return [
        commit_info(operation),
        remove("0.parquet", dataChange=False),
        add("compacted.parquet", dataChange=False),
    ]


def test_the_first_poll_requests_a_run_and_the_next_one_does_not(ticks: Ticks, uri: str) -> None:
    first = ticks()
    (request,) = first.run_requests
    assert request.run_key == f"{uri}@9"
    assert request.asset_selection == [MAINTENANCE]
    assert versions(first) == ["9"]
    assert first.asset_events[0].asset_key == TABLE
    second = ticks()
    assert second.run_requests == [] and second.asset_events == []
    assert "no change in 1 table" in second.skip_message


def test_new_data_requests_a_run_and_is_observed(ticks: Ticks, table: TableBuilder) -> None:
    ticks()
    table.commit([add("new.parquet")])
    tick = ticks()
    assert len(tick.run_requests) == 1
    assert versions(tick) == ["10"]


@pytest.mark.parametrize("operation", ["OPTIMIZE", "VACUUM START", "VACUUM END", "REORG"])
def test_maintenance_by_other_engines_requests_no_run(
    ticks: Ticks, table: TableBuilder, operation: str
) -> None:
    ticks()
    table.commit(maintenance(operation))
    tick = ticks()
    assert tick.run_requests == [] and tick.asset_events == []


def test_maintenance_by_this_library_requests_no_run(ticks: Ticks, table: TableBuilder) -> None:
    ticks()
    table.commit([commit_info("SET TBLPROPERTIES", engineInfo="delta-maintenance/0.1"), metadata()])
    table.commit([commit_info("UPGRADE PROTOCOL", engineInfo="delta-maintenance/0.1"), protocol()])
    for _ in range(3):
        tick = ticks()
        assert tick.run_requests == [] and tick.asset_events == []


def test_data_below_maintenance_is_found_one_commit_with_each_tick(
    ticks: Ticks, table: TableBuilder
) -> None:
    ticks()
    table.commit([add("new.parquet")])
    table.commit(maintenance("OPTIMIZE"))
    table.commit(maintenance("OPTIMIZE"))
    assert ticks().run_requests == []
    assert ticks().run_requests == []
    tick = ticks()
    assert versions(tick) == ["10"]
    assert len(tick.run_requests) == 1
    assert ticks().run_requests == []


def test_new_commits_do_not_hide_those_that_are_still_to_be_read(
    ticks: Ticks, table: TableBuilder
) -> None:
    ticks()
    table.commit([add("new.parquet")])
    table.commit(maintenance("OPTIMIZE"))
    assert ticks().run_requests == []
    table.commit(maintenance("OPTIMIZE"))
    assert ticks().run_requests == []
    assert versions(ticks()) == ["10"]


def test_an_undecided_commit_is_read_completely_with_the_next_tick(
    ticks: Ticks, table: TableBuilder
) -> None:
    ticks()
    many = [add(f"{number}-{'x' * 200}.parquet", dataChange=False) for number in range(400)]
    table.commit([*many, add("new.parquet")])
    assert ticks().run_requests == []
    assert versions(ticks()) == ["10"]


def test_a_tick_makes_at_most_two_requests(
    ticks: Ticks, table: TableBuilder, requests: list[str]
) -> None:
    ticks()
    assert len(requests) == 2
    for actions in ([add("new.parquet")], maintenance("OPTIMIZE"), maintenance("VACUUM END")):
        table.commit(actions)
    for _ in range(4):
        requests.clear()
        ticks()
        assert 1 <= len(requests) <= 2, requests
    requests.clear()
    ticks()
    assert requests == ["list_from"]


def test_a_restarted_daemon_neither_misses_nor_repeats(
    ticks: Ticks, table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance
) -> None:
    ticks()
    table.commit([add("new.parquet")])
    again = Ticks(load(tables=[{"uri": uri, "key": "lake/events"}]), instance)
    again.cursor = ticks.cursor
    assert [request.run_key for request in again().run_requests] == [f"{uri}@10"]
    assert again().run_requests == []


def test_a_repeated_tick_uses_the_same_run_key(ticks: Ticks, table: TableBuilder) -> None:
    ticks()
    cursor = ticks.cursor
    table.commit([add("new.parquet")])
    first = ticks()
    ticks.cursor = cursor
    assert [r.run_key for r in ticks().run_requests] == [r.run_key for r in first.run_requests]


def test_two_sensors_on_one_table_use_one_run_key_and_one_pool(
    table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance
) -> None:
    both = [
        Ticks(load(tables=[{"uri": uri, "key": key}]), instance)()
        for key in ("lake/events", "other/name")
    ]
    assert {tick.run_requests[0].run_key for tick in both} == {f"{uri}@9"}


def test_a_run_is_requested_after_enough_commits(
    table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(
        load(tables=[{"uri": uri, "key": "lake/events"}], sensor={"min_commits": 3}), instance
    )
    ticks()
    requested = []
    for number in range(7):
        table.commit([add(f"new-{number}.parquet")])
        tick = ticks()
        # An observation of the table still shows its version.
        assert versions(tick) == [str(10 + number)]
        requested += [request.run_key for request in tick.run_requests]
    assert requested == [f"{uri}@12", f"{uri}@15"]


def test_an_unreadable_table_does_not_stop_the_others(
    table: TableBuilder, uri: str, tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    absent = {"uri": str(tmp_path / "absent"), "key": "lake/absent"}
    ticks = Ticks(load(tables=[absent, {"uri": uri, "key": "lake/events"}]), instance)
    assert len(ticks().run_requests) == 1
    tick = ticks()
    assert "1 could not be polled" in tick.skip_message
    assert "absent" in tick.skip_message
    TableBuilder(tmp_path / "absent").commit([protocol(), metadata()])
    assert [request.run_key for request in ticks().run_requests] == [f"{tmp_path}/absent@0"]


def test_a_tick_without_readable_tables_fails_and_keeps_the_cursor(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch, table: TableBuilder
) -> None:
    ticks()
    cursor = ticks.cursor

    def down(*_: object, **__: object) -> None:
        raise StorageError("the store is down")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "list_from", down)
        with pytest.raises(dg.Failure, match="the store is down"):
            ticks()
    assert ticks.cursor == cursor
    table.commit([add("new.parquet")])
    assert len(ticks().run_requests) == 1


def test_another_table_at_the_address_counts_as_new(
    ticks: Ticks, table: TableBuilder, uri: str
) -> None:
    ticks()
    for name in table.names():
        (Path(uri) / "_delta_log" / name).unlink()
    TableBuilder(uri).commit([protocol(), metadata()])
    tick = ticks()
    assert [request.run_key for request in tick.run_requests] == [f"{uri}@0"]


def test_tables_that_are_no_longer_watched_leave_the_cursor(
    ticks: Ticks, tmp_path: Path, load: Load, instance: dg.DagsterInstance
) -> None:
    ticks()
    other = TableBuilder(tmp_path / "other")
    other.commit([protocol(), metadata()])
    later = Ticks(load(tables=[{"uri": str(tmp_path / "other"), "key": "o"}]), instance)
    later.cursor = ticks.cursor
    later()
    assert set(json.loads(later.cursor or "")) == {str(tmp_path / "other")}


def test_a_manual_observation_has_the_same_data_version(
    ticks: Ticks, table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance
) -> None:
    definitions = load(tables=[{"uri": uri, "key": "lake/events"}])
    observable = definitions.resolve_assets_def(TABLE)

    def observe() -> str:
        result = dg.materialize([observable], instance=instance, selection=[TABLE])
        (event,) = result.asset_observations_for_node("lake__events__observe")
        return event.tags["dagster/data_version"]

    assert observe() == "9"
    table.commit(maintenance("OPTIMIZE"))
    assert observe() == "9"
    table.commit([add("new.parquet")])
    table.commit(maintenance("OPTIMIZE"))
    assert observe() == "11"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Moves the clock."""
    start, moved = clock.now(), [timedelta()]

    def move(time: timedelta) -> None:
        moved[0] += time

    monkeypatch.setattr(clock, "now", lambda: start + moved[0])
    return move


Later = Callable[[timedelta], None]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def patient(table: TableBuilder, uri: str, load: Load, instance: dg.DagsterInstance) -> Ticks:
    """A sensor whose runs write checkpoints, and are not retried by Dagster."""
    tables = [{"uri": uri, "key": "lake/events", "checkpoint": {"max_commits": 1}}]
    execution = {"retry_policy": {"max_retries": 0, "delay": 0}}
    return Ticks(load(tables=tables, execution=execution), instance)


def keys(tick: Any) -> list[str]:
    return [request.run_key for request in tick.run_requests]


@pytest.mark.parametrize("end", ["never-started", "cancelled", "store-down"])
def test_a_run_that_did_not_maintain_the_table_is_requested_again(
    patient: Ticks,
    table: TableBuilder,
    uri: str,
    later: Later,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    (request,) = patient().run_requests
    match end:
        case "cancelled":
            patient.create_run(request, dg.DagsterRunStatus.CANCELED)
        case "store-down":

            def down(*_: object, **__: object) -> None:
                raise StorageError("the store is down")

            with monkeypatch.context() as broken:
                broken.setattr(LocalStore, "list_from", down)
                assert not patient.run(request).success
    assert keys(patient()) == []
    later(MINUTE)
    again = patient()
    assert keys(again) == [f"{uri}@9#2"]
    assert again.run_requests[0].asset_selection == [MAINTENANCE]
    assert patient.run(again.run_requests[0]).success
    # Neither later nor after commits of maintenance is there another one.
    table.commit(maintenance("OPTIMIZE"))
    for _ in range(5):
        later(timedelta(hours=1))
        assert keys(patient()) == []
    table.commit([add("new.parquet")])
    assert keys(patient()) == [f"{uri}@11"]


def test_runs_are_requested_ever_less_often_until_one_maintains_the_table(
    patient: Ticks, later: Later
) -> None:
    patient()
    requested = 0
    for _ in range(120):
        later(MINUTE)
        requested += len(keys(patient()))
    assert 5 < requested < 15
    later(timedelta(hours=1))
    assert len(keys(patient())) == 1


def test_a_run_under_way_is_waited_for(patient: Ticks, uri: str, later: Later) -> None:
    (request,) = patient().run_requests
    run = patient.create_run(request, dg.DagsterRunStatus.STARTED)
    for _ in range(6):
        later(timedelta(hours=1))
        assert keys(patient()) == []
    patient.instance.report_run_failed(run)
    later(MINUTE)
    (request,) = patient().run_requests
    assert request.run_key == f"{uri}@9#2"
    # Its process is lost, and Dagster does not notice.
    patient.create_run(request, dg.DagsterRunStatus.STARTED)
    later(timedelta(hours=25))
    assert keys(patient()) == [f"{uri}@9#3"]


def test_a_failing_table_is_tried_once_an_hour(
    patient: Ticks, table: TableBuilder, uri: str, later: Later
) -> None:
    (request,) = patient().run_requests
    damaged = Path(uri) / "_delta_log" / table.names()[3]
    contents = damaged.read_bytes()
    damaged.unlink()
    assert not patient.run(request).success
    later(timedelta(days=1))
    (request,) = patient().run_requests
    later(timedelta(minutes=59))
    assert keys(patient()) == []
    later(MINUTE)
    assert keys(patient()) == [f"{uri}@9#3"]
    damaged.write_bytes(contents)
    assert patient.run(request).success
    later(timedelta(days=1))
    assert keys(patient()) == []


@pytest.mark.server
def test_a_tick_asks_the_catalog_once_and_runs_what_it_ratified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with serve_unity() as server:
        tables = ManagedTables(server, tmp_path)
        managed = tables.add()
        managed.ratify()
        tables.state()
        lake = {
            "kind": "unity",
            "address": server.url,
            "catalog": "main",
            "options": {"token": "${env:LAKE_TOKEN}"},
        }
        component = DeltaMaintenanceComponent.model_validate(
            {"catalogs": {"lake": lake}, "tables": [{"catalog": "lake.**"}]}
        )
        state = tmp_path / "state.json"
        component.write_state_to_path(state)
        context = dg.ComponentTree.for_test().load_context
        ticks = Ticks(component.build_defs_from_state(context, state), instance)
        assert versions(ticks()) == ["1"]
        tables.asked()
        assert versions(ticks()) == []
        assert tables.asked() == {"t0": 1}
        # Neither a publication nor a file beside the catalog is a version.
        managed.publish()
        managed.rogue()
        assert versions(ticks()) == []
        managed.ratify()
        tables.state()
        tick = ticks()
        assert versions(tick) == ["2"] and len(tick.run_requests) == 1

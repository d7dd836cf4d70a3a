"""One trigger that watches the tables of a catalog: new, dropped and moved ones, and failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs.http import client
from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.policy_assets import changed_tables, watched_assets
from delta_maintenance_airflow.triggers import DeltaPolicyCommitTrigger, polling
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.watching import WRITE, State, eventually, run, running
from tests.support.servers.unity_delta import TOKEN, UnityTable, serve_unity
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

QUICK = 0.02
DOWN = CatalogUnavailableError("the catalog does not answer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "settling_seconds", 0.0)
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "gathering_seconds", 0.0)
    monkeypatch.setattr(polling, "_IN_TROUBLE", QUICK)
    monkeypatch.setattr(client, "PAUSES", ())
    yield
    polling._pool.cache_clear()


def table_at(folder: Path) -> TableBuilder:
    """A table at version 1."""
    table = TableBuilder(folder)
    table.commit([protocol(), metadata()])
    table.commit(WRITE)
    return table


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[InMemoryCatalog]:
    """A catalog with two tables on disk."""
    monkeypatch.setenv("LAKE_TOKEN", "dapi-canary")
    server = use_catalogs(monkeypatch, {"https://lake": []})
    for name in ("a", "b"):
        register(server, name, tmp_path / name)
    return server


def register(server: type[InMemoryCatalog], name: str, folder: Path) -> None:
    entry = catalog_table(f"uc://prod.sales.{name}", str(folder))
    server.tables["https://lake"][entry.name] = entry


@pytest.fixture
def policy(tmp_path: Path) -> Callable[..., str]:
    """Writes a policy that takes tables from the catalog; gives its path."""

    def write(*tables: dict[str, Any], **lake: Any) -> str:
        catalog = {"kind": "unity", "address": "https://lake", "catalog": "prod"}
        options = {"token": "${env:LAKE_TOKEN}"}
        document = {
            "version": 1,
            "catalogs": {"lake": {**catalog, "options": options, **lake}},
            "tables": [*tables] or [{"catalog": "lake.**"}],
        }
        path = tmp_path / "policy.yaml"
        path.with_suffix(".new").write_text(yaml.safe_dump(document))
        path.with_suffix(".new").replace(path)
        return str(path)

    return write


def watcher(path: str, state: State | None = None) -> DeltaPolicyCommitTrigger:
    made = DeltaPolicyCommitTrigger(
        policy=path, catalog="lake", poll_interval=QUICK, listing_interval=QUICK
    )
    made.asset_state_store = SimpleNamespace(_by_name={"lake": state or State()})
    return made


def told(events: list[Any]) -> dict[str, list[tuple[int, int]]]:
    """The reported versions, by the last part of each name."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in (one for event in events for one in event["tables"]):
        assert one["status"] == "changed", one
        versions = (one["from_version"], one["to_version"])
        found.setdefault(one["table"].rpartition(".")[2], []).append(versions)
    return found


def parts(state: State) -> list[dict[str, Any]]:
    return [*state.values.values()]


async def watched(state: State, count: int) -> None:
    """Waits until the positions of this number of tables are stored."""
    await eventually(lambda: sum(map(len, parts(state))) == count)


def test_tables_of_a_catalog_are_watched_by_name(
    lake: type[InMemoryCatalog], policy: Callable[..., str], tmp_path: Path
) -> None:
    a, _, named = (table_at(tmp_path / name) for name in ("a", "b", "named"))
    register(lake, "twice", tmp_path / "named")
    path = policy({"uri": str(tmp_path / "named")}, {"catalog": "lake.**"})

    async def scenario() -> None:
        state = State()
        async with running(watcher(path, state).run()) as events:
            await watched(state, 2)
            # A table that the policy names by its address is watched with the tables of its store.
            named.commit(WRITE)
            a.commit(WRITE)
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
        (one,) = events[0]["tables"]
        assert (one["table"], one["uri"]) == ("uc://prod.sales.a", str(tmp_path / "a"))
        event = SimpleNamespace(extra={"payload": events[0]})
        row = {"name": one["table"], "uri": one["uri"], "problem": None}
        assert changed_tables({"asset": [event]}, path) == [row]

    run(scenario())


def test_tables_come_move_and_go_with_the_catalog(
    lake: type[InMemoryCatalog], policy: Callable[..., str], tmp_path: Path
) -> None:
    a, b, c = (table_at(tmp_path / name) for name in ("a", "b", "c"))
    moved = table_at(tmp_path / "moved")

    async def scenario() -> None:
        state = State()
        async with running(watcher(policy(), state).run()) as events:
            await watched(state, 2)
            register(lake, "c", tmp_path / "c")
            await watched(state, 3)
            c.commit(WRITE)
            await eventually(lambda: told(events) == {"c": [(1, 2)]})
            del lake.tables["https://lake"][CatalogName.parse("uc://prod.sales.a")]
            register(lake, "b", tmp_path / "moved")
            listings = len(lake.known)
            await eventually(lambda: len(lake.known) > listings + 2)
            a.commit(WRITE)
            b.commit(WRITE)
            moved.commit(WRITE)
            await eventually(lambda: told(events) == {"c": [(1, 2)], "b": [(1, 2)]})
            assert events[-1]["tables"][0]["uri"] == str(tmp_path / "moved")

    run(scenario())


@pytest.mark.parametrize("broken", ["https://lake", "uc://prod.sales"])
def test_a_catalog_that_is_down_keeps_its_tables_watched(
    lake: type[InMemoryCatalog], policy: Callable[..., str], tmp_path: Path, broken: str
) -> None:
    a, b = (table_at(tmp_path / name) for name in ("a", "b"))

    async def scenario() -> None:
        state = State()
        async with running(watcher(policy(), state).run()) as events:
            await watched(state, 2)
            lake.broken[broken] = DOWN
            opened = len(lake.opened)
            await eventually(lambda: len(lake.opened) > opened + 2)
            a.commit(WRITE)
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
            await eventually(lambda: any([2, 2, 0, None, 1] in p.values() for p in parts(state)))
        # A restart during the outage forgets no position.
        b.commit(WRITE)
        async with running(watcher(policy(), state).run()) as events:
            opened = len(lake.opened)
            await eventually(lambda: len(lake.opened) > opened + 2)
            assert events == []
            lake.broken.clear()
            await eventually(lambda: told(events) == {"b": [(1, 2)]})

    run(scenario())


def test_a_refused_list_is_reported_once(
    lake: type[InMemoryCatalog], policy: Callable[..., str], tmp_path: Path
) -> None:
    a, _ = (table_at(tmp_path / name) for name in ("a", "b"))

    async def scenario() -> None:
        state, path = State(), policy()
        async with running(watcher(path, state).run()) as events:
            await watched(state, 2)
            lake.broken["https://lake"] = CatalogError("the token is wrong")
            await eventually(lambda: len(events) == 1)
            (one,) = events[0]["tables"]
            assert (one["status"], one["table"]) == ("error", "catalogs.lake")
            event = SimpleNamespace(extra={"payload": events[0]})
            (row,) = changed_tables({"asset": [event]}, path)
            assert row["uri"] is None and "the token is wrong" in row["problem"]
            opened = len(lake.opened)
            await eventually(lambda: len(lake.opened) > opened + 2)
            a.commit(WRITE)
            await eventually(lambda: told(events[1:]) == {"a": [(1, 2)]})

    run(scenario())


def test_a_connection_that_does_not_exist_is_reported(
    lake: type[InMemoryCatalog], policy: Callable[..., str]
) -> None:
    path = policy(address=None, options={}, connection="absent")

    async def scenario() -> None:
        async with running(watcher(path).run()) as events:
            await eventually(lambda: len(events) == 1)
            (one,) = events[0]["tables"]
            assert one["table"] == "catalogs.lake" and "absent" in one["message"]

    run(scenario())


def test_vended_credentials_are_renewed(
    policy: Callable[..., str], s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, s3_server.storage_options[name])
    connection = {"conn_type": "delta_unity_catalog", "password": TOKEN}
    passed, real = [timedelta()], clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + passed[0])
    with serve_unity() as unity:
        location = f"s3://{s3_bucket}/t"
        unity.add("prod.s.t", UnityTable(location=location))
        table = TableBuilder(open_store(location, s3_server.storage_options))
        table.commit([protocol(), metadata()])
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection | {"host": unity.url}))
        path = policy(address=None, options={}, connection="lake")

        def commit() -> None:
            # With the keys of the emulator, which watchers do not have.
            s3_server.intercept = None
            table.commit(WRITE)
            s3_server.intercept = unity.guarded

        async def scenario() -> None:
            state = State()
            s3_server.intercept = unity.guarded
            async with running(watcher(path, state).run()) as events:
                await watched(state, 1)
                commit()
                await eventually(lambda: told(events) == {"t": [(0, 1)]})
                unity.reject_keys()
                commit()
                await eventually(lambda: told(events) == {"t": [(0, 1), (1, 2)]})
                # The catalog is down when they end.
                unity.status = 500
                passed[0] = timedelta(hours=2)
                commit()
                requests = len(unity.vended())
                await eventually(lambda: len(unity.vended()) > requests)
                unity.status = None
                passed[0] += timedelta(minutes=1)
                await eventually(lambda: told(events) == {"t": [(0, 1), (1, 2), (2, 3)]})
            assert set(unity.vended()) == {"READ"}
            stored = json.dumps([events, state.values, watcher(path).serialize()])
            assert not [secret for secret in unity.canaries() if secret in stored]

        try:
            run(scenario())
        finally:
            s3_server.intercept = None


def test_each_catalog_has_one_watcher(
    lake: type[InMemoryCatalog], policy: Callable[..., str], tmp_path: Path
) -> None:
    path = policy({"uri": str(tmp_path / "a")}, {"catalog": "lake.**"})
    triggers = [asset.watchers[0].trigger for asset in watched_assets(path)]
    assert [(each.store, each.catalog) for each in triggers] == [("file:", None), (None, "lake")]
    assert not lake.opened
    for each in triggers:
        _, arguments = each.serialize()
        again = DeltaPolicyCommitTrigger(**json.loads(json.dumps(arguments)))
        assert again.serialize() == each.serialize()
    # As before there were catalogs, so that the watchers of stores stay the same.
    assert set(triggers[0].serialize()[1]) == {"policy", "store", "poll_interval", "min_commits"}
    assert len({each._board_name() for each in triggers}) == 2
    with pytest.raises(ValueError, match="a store or a catalog"):
        DeltaPolicyCommitTrigger(policy=path, store="file:", catalog="lake")

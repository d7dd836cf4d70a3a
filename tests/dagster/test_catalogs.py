"""Tables by name in Dagster: keys, metadata, owners and access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.component import state_backed_component

from delta_maintenance import clock
from delta_maintenance.address import CatalogName
from delta_maintenance.catalogs import CatalogTable
from delta_maintenance.errors import CatalogUnavailableError, InvalidRequestError
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.discovery import discover
from delta_maintenance.submission import JobSpec
from delta_maintenance_dagster import (
    DeltaMaintenanceComponent,
    DeltaSparkResource,
    DeltaStorageResource,
    component,
    found_tables,
)
from delta_maintenance_dagster.new_tables import NewTables
from delta_maintenance_dagster.resources import Reference
from tests.cli.test_policies import neglected
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs

LAKE = {
    "kind": "unity",
    "address": "https://lake",
    "catalog": "prod",
    "options": {"token": "${env:LAKE_TOKEN}"},
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[InMemoryCatalog]:
    """A catalog with one table on disk and one with vended credentials."""
    neglected(tmp_path / "lake" / "orders")
    monkeypatch.setenv("LAKE_TOKEN", "dapi-canary")
    orders = catalog_table(
        "uc://prod.sales.orders",
        f"{tmp_path}/lake/orders",
        owner="team-a",
        tags={"tier": "gold", "checked by": "me"},
    )
    vended = catalog_table("uc://prod.raw.events", "s3://lake/events", vends_credentials=True)
    return use_catalogs(monkeypatch, {"https://lake": [orders, vended]})


def loaded(tmp_path: Path, **attributes: object) -> dg.Definitions:
    """The definitions of a component, and the state that they are built from."""
    component = DeltaMaintenanceComponent.model_validate(
        {"catalogs": {"lake": LAKE}, "tables": [{"catalog": "lake.**"}], **attributes}
    )
    state = tmp_path / "state.json"
    component.write_state_to_path(state)
    assert "dapi-canary" not in state.read_text()
    return component.build_defs_from_state(dg.ComponentTree.for_test().load_context, state)


def keys(definitions: dg.Definitions) -> set[str]:
    graph = definitions.resolve_asset_graph()
    return {key.to_user_string() for key in graph.get_all_asset_keys()}


def test_keys_are_names_and_by_choice_their_parts(
    tmp_path: Path, server: type[InMemoryCatalog]
) -> None:
    assert {"prod.sales.orders", "prod.sales.orders/maintenance"} <= keys(loaded(tmp_path))
    by_parts = loaded(tmp_path, keys_of_names=True)
    assert {"prod/sales/orders", "prod/raw/events/maintenance"} <= keys(by_parts)
    given = loaded(tmp_path, keys={"uc://prod.sales.orders": "shop/orders"})
    assert {"shop/orders", "prod.raw.events"} <= keys(given)


def test_assets_carry_the_name_the_owner_and_the_tags(
    tmp_path: Path, server: type[InMemoryCatalog]
) -> None:
    definitions = loaded(tmp_path, keys_of_names=True)
    spec = next(
        spec
        for spec in definitions.resolve_all_asset_specs()
        if spec.key == dg.AssetKey(["prod", "sales", "orders"])
    )
    assert spec.metadata["dagster/table_name"] == "prod.sales.orders"
    assert spec.metadata["dagster/uri"] == f"{tmp_path}/lake/orders"
    assert list(spec.owners) == ["team:team-a"]
    assert {"tier": "gold", "checked_by": "me"}.items() <= spec.tags.items()


def test_a_job_maintains_a_named_table(tmp_path: Path, server: type[InMemoryCatalog]) -> None:
    definitions = loaded(
        tmp_path, tables=[{"catalog": "lake.sales.*"}], defaults={"checkpoint": {"max_commits": 2}}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("delta_maintenance")
        assert job.execute_in_process(instance=instance).success
    assert list((tmp_path / "lake" / "orders" / "_delta_log").glob("*5.checkpoint.parquet"))


def test_a_spark_job_gets_the_name_of_its_table(
    tmp_path: Path,
    server: type[InMemoryCatalog],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str | None] = []

    def run_job(self: DeltaSparkResource, spec: JobSpec, **_: object) -> dict[str, Any]:
        names.append(spec.catalog_name)
        raise InvalidRequestError("there is no Spark")

    monkeypatch.setattr(DeltaSparkResource, "run_job", run_job)
    rules = {"vacuum": True, "engine": {"prefer": "spark"}}
    definitions = loaded(tmp_path, tables=[{"catalog": "lake.sales.*"}], defaults=rules)
    job = definitions.resolve_job_def("delta_maintenance")
    job.execute_in_process(instance=instance, raise_on_error=False)
    assert names == ["uc://prod.sales.orders"]


def test_a_connection_of_airflow_is_refused(tmp_path: Path, server: type[InMemoryCatalog]) -> None:
    with pytest.raises(InvalidRequestError, match="'lake' of a catalog is one of Airflow"):
        loaded(tmp_path, catalogs={"lake": {"kind": "unity", "connection": "lake"}})


def test_vended_credentials_come_from_the_catalog_of_the_policy(
    tmp_path: Path, server: type[InMemoryCatalog]
) -> None:
    loaded(tmp_path)
    tables = json.loads((tmp_path / "state.json").read_text())["tables"]
    (events,) = (
        PolicyTable.from_json(each) for each in tables if each["name"] == "uc://prod.raw.events"
    )
    options = DeltaStorageResource().storage_options(events.rules.storage, uri=events.uri)
    assert options["catalog_token"] == "dapi-canary"
    assert options["catalog_table"] == "uc://prod.raw.events"


async def _refreshed(
    component: DeltaMaintenanceComponent, root: Path, path: Path
) -> dg.Definitions:
    await component.refresh_state(root)
    return component.build_defs_from_state(dg.ComponentTree.for_test().load_context, path)


@pytest.fixture
def refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dg.Definitions]:
    """Refreshes a component with two catalogs, as Dagster does, and loads it."""
    path = tmp_path / "state" / "state"
    monkeypatch.setattr(state_backed_component, "get_local_state_path", lambda *_: path)
    monkeypatch.setattr(found_tables, "get_local_state_path", lambda *_: path)
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())

    def refresh(**attributes: object) -> dg.Definitions:
        # Dagster deletes the file of the last state before the refresh.
        path.parent.mkdir(exist_ok=True)
        other = LAKE | {"address": "https://other", "catalog": "dev"}
        component = DeltaMaintenanceComponent.model_validate(
            {
                "catalogs": {"lake": LAKE, "other": other},
                "tables": [{"catalog": "lake.**"}, {"catalog": "other.**"}],
                **attributes,
            }
        )
        return asyncio.run(_refreshed(component, tmp_path, path))

    return refresh


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[InMemoryCatalog]:
    monkeypatch.setenv("LAKE_TOKEN", "dapi-canary")
    return use_catalogs(
        monkeypatch,
        {
            "https://lake": [catalog_table("uc://prod.sales.orders", "s3://lake/orders")],
            "https://other": [catalog_table("uc://dev.a.t", "s3://other/t")],
        },
    )


DOWN = CatalogUnavailableError("the catalog does not answer")


def _add(server: type[InMemoryCatalog], address: str, table: CatalogTable) -> None:
    server.tables[address][table.name] = table


def test_a_catalog_that_is_down_keeps_its_tables_of_the_last_refresh(
    both: type[InMemoryCatalog],
    refreshed: Callable[..., dg.Definitions],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert {"prod.sales.orders", "dev.a.t"} <= keys(refreshed())
    both.broken["https://lake"] = DOWN
    _add(both, "https://other", catalog_table("uc://dev.a.new", "s3://other/new"))
    del both.tables["https://other"][CatalogName.parse("uc://dev.a.t")]
    definitions = refreshed()
    assets = {key for key in keys(definitions) if "/" not in key}
    assert assets == {"prod.sales.orders", "dev.a.new"}
    assert "catalogs.lake: the catalog does not answer" in caplog.text
    assert "catalogs.lake" in str(definitions.metadata["delta/not_listed"])
    kept = {
        spec.key.to_user_string(): "delta/not_listed" in spec.metadata
        for spec in definitions.resolve_all_asset_specs()
    }
    assert kept["prod.sales.orders"] and not kept["dev.a.new"]
    # Once more: what is kept is kept again, unless no pattern asks for it any longer.
    assert "prod.sales.orders" in keys(refreshed())
    only = [{"catalog": "lake.hr.*"}, {"catalog": "other.**"}]
    assert {key for key in keys(refreshed(tables=only)) if "/" not in key} == {"dev.a.new"}
    both.broken.clear()
    definitions = refreshed()
    assert "prod.sales.orders" in keys(definitions)
    assert not definitions.metadata


def test_a_caller_who_loses_all_rights_keeps_the_tables_of_the_last_refresh(
    both: type[InMemoryCatalog], refreshed: Callable[..., dg.Definitions]
) -> None:
    refreshed()
    orders = both.tables["https://lake"].copy()
    both.tables["https://lake"].clear()
    for _ in range(2):
        definitions = refreshed()
        assert {"prod.sales.orders", "dev.a.t"} <= keys(definitions)
        assert "no table matches lake.**" in str(definitions.metadata["delta/not_listed"])
    both.tables["https://lake"].update(orders)
    assert not refreshed().metadata


def test_a_schema_that_fails_keeps_its_tables(
    both: type[InMemoryCatalog], refreshed: Callable[..., dg.Definitions]
) -> None:
    _add(both, "https://lake", catalog_table("uc://prod.hr.people", "s3://lake/people"))
    refreshed()
    both.broken["uc://prod.sales"] = DOWN
    both.tables["https://lake"].clear()
    _add(both, "https://lake", catalog_table("uc://prod.sales.x", "s3://lake/x"))
    assert {key for key in keys(refreshed()) if "/" not in key} == {"prod.sales.orders", "dev.a.t"}


def test_the_first_refresh_with_a_catalog_that_is_down_says_so(
    both: type[InMemoryCatalog],
    refreshed: Callable[..., dg.Definitions],
    caplog: pytest.LogCaptureFixture,
) -> None:
    both.broken["https://lake"] = DOWN
    definitions = refreshed()
    assert {key for key in keys(definitions) if "/" not in key} == {"dev.a.t"}
    assert "missing until a refresh" in caplog.text
    assert "catalogs.lake" in str(definitions.metadata["delta/not_listed"])


def test_a_mistake_in_the_policy_fails_the_refresh_and_leaves_the_last_state(
    both: type[InMemoryCatalog], refreshed: Callable[..., dg.Definitions], tmp_path: Path
) -> None:
    refreshed()
    before = (tmp_path / "state" / "state").read_text()
    with pytest.raises(InvalidRequestError, match="of a catalog is one of Airflow"):
        refreshed(catalogs={"lake": {"kind": "unity", "connection": "lake"}, "other": LAKE})
    assert (tmp_path / "state" / "state").read_text() == before


def test_the_sensor_says_which_tables_came_after_the_refresh(
    tmp_path: Path,
    server: type[InMemoryCatalog],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[NewTables] = []

    def noted(*arguments: Any, **named: Any) -> NewTables:
        made.append(NewTables(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(component, "NewTables", noted)
    passed, real = [timedelta()], clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + passed[0])
    definitions = loaded(tmp_path, tables=[{"catalog": "lake.sales.*"}])
    sensor = definitions.resolve_sensor_def("delta_maintenance_commits")
    cursor = None

    def tick() -> str:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, definitions=definitions, cursor=cursor)
        done = sensor.evaluate_tick(context)
        cursor = done.cursor
        assert made[0].listing is not None
        made[0].listing.join()
        for request in done.run_requests or ():
            # A run that succeeds, so that it is not requested again.
            job = definitions.resolve_job_def("delta_maintenance")
            succeeded = dg.DagsterRunStatus.SUCCESS
            instance.create_run_for_job(job, tags=request.tags, status=succeeded)
        return done.skip_message or ""

    lists = len(server.known)
    tick()
    again = catalog_table("uc://prod.sales.again", f"file://{tmp_path}/lake/orders/")
    other = catalog_table("uc://prod.hr.other", "s3://lake/other")
    for table in (again, other, catalog_table("uc://prod.sales.new", "s3://lake/new")):
        _add(server, "https://lake", table)
    passed[0] += timedelta(minutes=4)
    assert tick() == "no change in 1 table"
    assert len(server.known) == lists + 1
    passed[0] += timedelta(minutes=1)
    tick()
    told = "no change in 1 table; not in the definitions yet: 1 table of catalogs, such as "
    assert tick().startswith(f"{told}uc://prod.sales.new; refresh the state")
    # What cannot be listed is as it was.
    server.broken["https://lake"] = DOWN
    passed[0] += timedelta(minutes=5)
    tick()
    assert tick().startswith(told) and len(server.known) == lists + 2
    server.broken.clear()
    del server.tables["https://lake"][CatalogName.parse("uc://prod.sales.new")]
    passed[0] += timedelta(minutes=5)
    tick()
    assert tick() == "no change in 1 table"


def test_a_component_without_catalogs_lists_nothing(
    tmp_path: Path, server: type[InMemoryCatalog], instance: dg.DagsterInstance
) -> None:
    policy = Policy.model_validate({"version": 1, "tables": [{"uri": "/lake/orders"}]})
    new = NewTables([], policy, storage=Reference(DeltaStorageResource()))
    assert new.text() is None and new.listing is None

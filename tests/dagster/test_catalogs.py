"""Tables by name in Dagster: keys, metadata, owners and access."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance_dagster import DeltaMaintenanceComponent
from delta_maintenance_dagster.resources import DeltaStorageResource
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
        tmp_path,
        tables=[{"catalog": "lake.sales.*"}],
        defaults={"checkpoint": {"max_commits": 2}},
    )
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("delta_maintenance")
        assert job.execute_in_process(instance=instance).success
    assert list((tmp_path / "lake" / "orders" / "_delta_log").glob("*5.checkpoint.parquet"))


def test_a_connection_of_airflow_is_refused(tmp_path: Path, server: type[InMemoryCatalog]) -> None:
    with pytest.raises(InvalidRequestError, match="'lake' of a catalog is one of Airflow"):
        loaded(tmp_path, catalogs={"lake": {"kind": "unity", "connection": "lake"}})


def test_vended_credentials_come_from_the_catalog_of_the_policy(
    tmp_path: Path, server: type[InMemoryCatalog]
) -> None:
    loaded(tmp_path)
    tables = json.loads((tmp_path / "state.json").read_text())
    from delta_maintenance.policies.definition.policy import PolicyTable

    (events,) = (
        PolicyTable.from_json(each) for each in tables if each["name"] == "uc://prod.raw.events"
    )
    options = DeltaStorageResource().storage_options(events.rules.storage, uri=events.uri)
    assert options["catalog_token"] == "dapi-canary"
    assert options["catalog_table"] == "uc://prod.raw.events"

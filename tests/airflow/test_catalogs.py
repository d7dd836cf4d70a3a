"""Tables by name in Airflow: connections of catalogs, operators, policies, assets and lineage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk._shared.secrets_masker import redact

from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.operations.core.policy_values import StorageRule
from delta_maintenance_airflow import assets
from delta_maintenance_airflow.health_page.known_tables import KnownTables
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.hooks import catalogs as hooks
from delta_maintenance_airflow.hooks.delta import PolicyHook
from delta_maintenance_airflow.hooks.storage_options import KINDS
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.provider_info import get_provider_info
from delta_maintenance_airflow.sensors import DeltaCommitSensor
from tests.cli.test_policies import neglected
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs
from tests.support.orchestrators.watching import run

NAME = "uc://prod.sales.orders"
VENDED = "uc://prod.sales.vended"
Connect = Callable[..., None]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Adds a connection: `connect("lake", "delta_glue", login=..., extra={...})`."""

    def add(conn_id: str, conn_type: str, **fields: Any) -> None:
        value = json.dumps({"conn_type": conn_type, **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    return add


@pytest.fixture
def server(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> type[InMemoryCatalog]:
    """A catalog with one table on disk and one in S3, and the connection `lake` to it."""
    neglected(tmp_path / "lake" / "orders")
    connect("lake", "delta_unity_catalog", host="https://lake", password="dapi-canary")
    return use_catalogs(
        monkeypatch,
        {
            "https://lake": [
                catalog_table(
                    NAME, f"{tmp_path}/lake/orders", owner="team-a", tags={"tier": "gold"}
                ),
                catalog_table(VENDED, "s3://lake/vended", vends_credentials=True),
            ]
        },
    )


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy whose catalog has an Airflow connection."""
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "assessments"))
    path = tmp_path / "policy.yaml"
    document = {
        "version": 1,
        "catalogs": {"lake": {"kind": "unity", "catalog": "prod", "connection": "lake"}},
        "tables": [{"catalog": "lake.**", "where": {"tags": {"tier": "gold"}}, "vacuum": True}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("conn_type", "fields", "expected"),
    [
        (
            "delta_unity_catalog",
            {"host": "https://dbc.example.com", "password": "p1"},
            {"catalog_uri": "https://dbc.example.com", "catalog_token": "p1"},
        ),
        (
            "delta_polaris",
            {
                "host": "polaris",
                "port": 8181,
                "schema": "http",
                "login": "robot",
                "password": "p1",
                "extra": {"catalog": "main", "scope": "ALL", "token_address": "", "realm": "r"},
            },
            {
                "catalog_uri": "http://polaris:8181",
                "catalog_client_id": "robot",
                "catalog_client_secret": "p1",
                "catalog_name": "main",
                "catalog_scope": "ALL",
                "catalog_realm": "r",
            },
        ),
        (
            "delta_glue",
            {"login": "AKIA", "password": "p1", "extra": {"region": "eu-west-1"}},
            {
                "catalog_access_key_id": "AKIA",
                "catalog_secret_access_key": "p1",
                "catalog_region": "eu-west-1",
            },
        ),
        (
            "delta_hive_metastore",
            {"host": "hms", "port": 9083},
            {"catalog_uri": "thrift://hms:9083"},
        ),
    ],
)
def test_a_connection_becomes_options(
    conn_type: str, fields: dict[str, Any], expected: dict[str, str], connect: Connect
) -> None:
    connect("lake", conn_type, **fields)
    assert DeltaHook("lake").storage_options("uc://a.b.c") == expected
    assert "p1" not in str(DeltaHook("lake").storage_options(credentials=False))


def test_a_connection_can_refer_to_one_of_the_store(connect: Connect) -> None:
    connect("store", "delta", login="AKIA", password="s3-secret", extra={"region": "eu-west-1"})
    connect("lake", "delta_unity_catalog", password="p1", extra={"storage_conn_id": "store"})
    assert DeltaHook("lake").storage_options("uc://a.b.c") == {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "s3-secret",
        "region": "eu-west-1",
        "catalog_token": "p1",
    }


def test_every_kind_has_a_connection_type_with_a_hook() -> None:
    named = {each["connection-type"] for each in get_provider_info()["connection-types"]}
    assert named == {"delta", *KINDS}
    kinds = {getattr(hooks, name).conn_type: getattr(hooks, name).kind for name in hooks.__all__}
    assert kinds == KINDS


def test_the_test_button_asks_the_catalog(server: type[InMemoryCatalog]) -> None:
    hook = hooks.UnityCatalogHook("lake")
    assert hook.test_connection() == (True, "https://lake answers")
    server.broken["https://lake"] = CatalogError("the token is refused")
    works, why = hook.test_connection()
    assert not works and "the token is refused" in why and "canary" not in why


def test_the_token_is_masked_and_the_address_is_not(server: type[InMemoryCatalog]) -> None:
    DeltaHook("lake").storage_options()
    assert redact("https://lake dapi-canary") == "https://lake ***"


def test_operators_and_sensors_take_a_name(
    server: type[InMemoryCatalog], tmp_path: Path, task_context: dict[str, Any]
) -> None:
    asset = assets.create_asset(table=NAME)
    operator = DeltaCheckpointOperator(
        task_id="c", table_uri=NAME, delta_conn_id="lake", outlets=[asset]
    )
    events = task_context["outlet_events"]
    facts = operator.execute(task_context)
    assert facts["catalog_name"] == NAME and facts["table"] == f"{tmp_path}/lake/orders"
    assert events[asset].extra["catalog_name"] == NAME
    lineage = operator.lineage()
    assert lineage is not None
    assert (lineage.table_uri, lineage.catalog_name) == (f"{tmp_path}/lake/orders", NAME)
    sensor = DeltaCommitSensor(task_id="s", table_uri=NAME, delta_conn_id="lake", version=3)
    assert sensor.poke({}).is_done  # type: ignore[typeddict-item]


def test_triggers_take_a_name_and_the_connection_of_a_policy(
    server: type[InMemoryCatalog], policy: Path, tmp_path: Path
) -> None:
    assert run(DeltaHook("lake").aopen_watched(NAME)).root == f"{tmp_path}/lake/orders"
    rule = StorageRule(catalog_connection="lake", options={"catalog_table": VENDED})
    options = run(PolicyHook(rule).astorage_options("s3://lake/vended"))
    assert options == PolicyHook(rule).storage_options("s3://lake/vended")
    assert options["catalog_token"] == "dapi-canary"


def test_a_job_carries_the_address_and_no_credentials_to_a_cluster(
    server: type[InMemoryCatalog],
) -> None:
    located = DeltaHook("lake").locate(VENDED, credentials=False)
    assert located.address == "s3://lake/vended"
    assert located.storage_options == {
        "catalog_uri": "https://lake",
        "catalog_table": VENDED,
        "catalog_location": "s3://lake/vended",
    }
    own = DeltaHook("lake").locate(VENDED)
    assert own.storage_options["catalog_token"] == "dapi-canary"
    plain = DeltaHook("lake").locate("/data/lake", credentials=False)
    assert (plain.address, plain.storage_options) == ("/data/lake", {})


def test_a_policy_reaches_its_catalog_through_the_connection(
    server: type[InMemoryCatalog], policy: Path, tmp_path: Path
) -> None:
    (found,) = PolicyWork(str(policy)).session.discover().complete()
    assert (found.name, found.owner, found.tags) == (NAME, "team-a", ("tier=gold",))
    assert server.opened[-1].options == {"token": "dapi-canary"}
    # A later task knows the table from the folder of the assessments.
    server.broken["https://lake"] = CatalogUnavailableError("down")
    table = PolicyWork(str(policy)).table(NAME, found.uri)
    assert table.rules.vacuum is not None and table.owner == "team-a"
    assert PolicyHook(table.rules.storage).open_table(table.uri).latest_version() == 5


def test_a_table_with_vended_credentials_carries_a_reference(
    server: type[InMemoryCatalog], policy: Path
) -> None:
    policy.write_text(policy.read_text().replace("tier: gold", "{}").replace("gold", "x"))
    document = yaml.safe_load(policy.read_text())
    document["tables"] = [{"catalog": "lake.**"}]
    policy.write_text(yaml.safe_dump(document))
    table = PolicyWork(str(policy)).table(VENDED, None)
    rule = table.rules.storage
    assert rule.catalog_connection == "lake" and "canary" not in str(table.to_json())
    options = PolicyHook(rule).storage_options(table.uri)
    assert options == {
        "catalog_uri": "https://lake",
        "catalog_token": "dapi-canary",
        "catalog_name": "prod",
        "catalog_table": VENDED,
        "catalog_location": "s3://lake/vended",
    }
    assert "catalog_token" not in PolicyHook(rule).storage_options(table.uri, credentials=False)


def test_the_health_page_knows_which_tables_the_policy_asks_for(policy: Path) -> None:
    from delta_maintenance.policies.definition import load_policy

    known = KnownTables(load_policy(policy))
    assert known.find(NAME, "s3://x") is not None
    assert known.find("uc://other.sales.orders", "s3://x") is None
    assert known.has_pattern("catalogs.lake") and known.has_pattern("uc://prod.sales")
    assert not known.has_pattern("catalogs.other") and not known.has_pattern("glue://raw")


def test_assets_carry_the_name() -> None:
    asset = assets.create_asset(table="uc://prod.sales.a%2Eb c")
    assert asset.name == "uc://prod.sales.a%2Eb c"
    assert asset.extra == {"catalog_name": "uc://prod.sales.a%2Eb c"}
    assert assets.table_uri(asset.uri) == "uc://prod.sales.a%2Eb c"

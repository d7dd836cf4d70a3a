"""The connection of a table: what it opens, what it says, and the button that tries it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow import models
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import redact

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.operators import DeltaVacuumOperator
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.watching import run
from tests.support.tables.table_builder import TableBuilder

Connect = Callable[..., None]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Adds a connection: `connect("lake", login=..., extra={...})`."""

    def add(conn_id: str, *, conn_type: str = "delta", **fields: Any) -> None:
        value = json.dumps({"conn_type": conn_type, **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    return add


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    s3_server.make_bucket("hooked")
    return s3_server


def test_a_connection_becomes_storage_options(connect: Connect) -> None:
    connect(
        "lake",
        login="key",
        password="secret",
        extra={
            "region": "eu-west-1",
            "endpoint_url": "",
            "session_token": "token",
            "AWS_ALLOW_HTTP": True,
        },
    )
    assert DeltaHook("lake").storage_options() == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "region": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }
    assert DeltaHook("lake").storage_options(credentials=False) == {
        "region": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_connection_the_environment_decides(nothing: str | None) -> None:
    hook = DeltaHook(nothing)
    assert hook.storage_options() == {}
    assert hook.other_writers is hook.spark_conn_id is None


@pytest.mark.parametrize("address", ["/srv/a:b.parquet", "r.parquet", "./x:y", "file:///srv/r"])
def test_local_tables_get_no_storage_options(address: str, connect: Connect) -> None:
    connect("lake", login="key")
    assert DeltaHook("lake").options_for(address) is None
    assert DeltaHook("lake").options_for("s3://b/r") == {"AWS_ACCESS_KEY_ID": "key"}
    assert DeltaHook(None).options_for("s3://b/r") is None


def test_a_table_on_disk_opens_with_any_connection(
    connect: Connect, classic_table: TableBuilder
) -> None:
    connect("lake", login="key", password="secret")
    assert DeltaHook("lake").open_table(classic_table.store.root).snapshot().version == 1


def test_credentials_come_from_another_connection_by_its_id(connect: Connect) -> None:
    connect("keys", conn_type="aws", login="id", password="hidden-1", extra={"region_name": "r"})
    connect("lake", extra={"storage_conn_id": "keys", "region": "mine"})
    expected = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hidden-1", "region": "mine"}
    assert DeltaHook("lake").options_for("s3://lake/t") == expected
    assert DeltaHook("lake").storage_options(credentials=False) == {"region": "mine"}


def test_other_writers_of_the_connection_are_the_default(connect: Connect) -> None:
    connect("lake", extra={"other_writers": "spark", "spark_conn_id": "cluster"})
    hook = DeltaHook("lake")
    assert (hook.other_writers, hook.spark_conn_id) == ("spark", "cluster")

    def given(**options: Any) -> Any:
        task = DeltaVacuumOperator(
            task_id="t", table_uri="s3://b/t", delta_conn_id="lake", options=options
        )
        return task._given({})["other_writers"]

    assert given() == "spark"
    assert given(other_writers="none") == "none"


def test_secrets_are_masked_on_first_use(connect: Connect) -> None:
    connect(
        "pond",
        extra={"azure_account_key": "bWFza2VkLWtleQ==", "azure_sas_token": "sv=1&sig=mask%2Bed"},
    )
    connect("keys", conn_type="wasb", login="acc", password="bWFza2VkLXBhc3M=")
    connect("lake", extra={"storage_conn_id": "keys"})

    connect("puddle", extra={"azure_account_key": "d2F0Y2hlZC1rZXk=", "azure_account_name": "acc"})

    async def watched() -> None:
        await DeltaHook("lake").aopen_watched("az://lake/t")
        await DeltaHook("puddle").aopen_watched("az://lake/t")

    DeltaHook("pond").storage_options("az://lake/t")
    run(watched())
    secrets = ("bWFza2VkLWtleQ==", "sv=1&sig=mask%2Bed", "mask+ed", "bWFza2VkLXBhc3M=")
    for secret in (*secrets, "d2F0Y2hlZC1rZXk="):
        assert redact(f"a line with {secret} in it") == "a line with *** in it"


def test_the_form_draws_every_secret_as_a_password() -> None:
    from delta_maintenance_airflow.hooks import storage_options
    from delta_maintenance_airflow.provider_info import get_provider_info

    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    known = {*storage_options._FIELDS, *storage_options.NOT_FOR_STORES} - {"login", "password"}
    assert set(fields) == known
    for name, meanings in storage_options._FIELDS.items():
        secret = not {option.lower() for option in meanings.values()} & storage_options._UNMASKED
        if name in fields:
            assert (fields[name]["schema"].get("format") == "password") is secret, name


def tried(**fields: Any) -> tuple[bool, str]:
    """The answer of the test button, which tests a connection that is not saved."""
    extra = json.dumps(fields.pop("extra"))
    # Until 3.1 only the model has the method, and the API server exports what it tests.
    kind: Any = Connection if hasattr(Connection, "test_connection") else models.Connection
    connection = kind(conn_id="tried", conn_type="delta", extra=extra, **fields)
    if kind is Connection:
        found: tuple[bool, str] = connection.test_connection()
    else:
        with pytest.MonkeyPatch.context() as exported:
            exported.setenv("AIRFLOW_CONN_TRIED", connection.get_uri())
            found = connection.test_connection()
    return found


def test_the_test_button_lists_the_address(
    server: S3Server, tmp_path: Path, classic_table: TableBuilder
) -> None:
    uri = classic_table.store.root
    assert tried(extra={"test_address": uri}) == (True, f"{uri} is a table at version 1")
    assert tried(extra={"endpoint_url": server.url}) == (
        False,
        "nothing was tested: enter a table or a folder as the test address",
    )
    options = {"test_address": "s3://hooked/none", "endpoint_url": server.url}
    good, said = tried(login="id", password="hidden", extra={**options, "region": "us-east-1"})
    assert good and "no table at this address" in said
    good, said = tried(login="id", extra=options)
    assert not good and "an access key needs both its id and its secret" in said
    good, said = tried(extra={**options, "storage_conn_id": "nowhere"})
    assert not good and "nowhere" in said
    options["test_address"] = "s3://not-there/none"
    good, said = tried(login="id", password="hidden", extra={**options, "region": "us-east-1"})
    assert not good and "NoSuchBucket" in said


def test_an_unknown_option_is_named_without_its_value(connect: Connect) -> None:
    connect("lake", extra={"secret_kye": "hidden-2"})
    with pytest.raises(InvalidRequestError, match="secret_kye") as refusal:
        DeltaHook("lake").open_table("s3://lake/t")
    assert "hidden-2" not in str(refusal.value)

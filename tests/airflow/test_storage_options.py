"""The storage options of connections of every type."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.options import parse_options
from delta_maintenance_airflow.hooks.storage_options import (
    own_options,
    referred_options,
    secrets_in,
    without_credentials,
)

S3, GCS, AZURE = "s3://lake/t", "gs://lake/t", "abfss://lake@acc.dfs.core.windows.net/t"
KEY = json.dumps({"type": "service_account", "private_key": "-----BEGIN\nabcdefgh\n-----END\n"})


def connection(kind: str = "delta", extra: Any = None, **fields: Any) -> Connection:
    text = json.dumps(extra) if extra is not None else None
    return Connection(conn_id="lake", conn_type=kind, extra=text, **fields)


@pytest.mark.parametrize(
    ("extra", "address", "options"),
    [
        ({"region": "eu", "session_token": "t"}, S3, {"region": "eu", "AWS_SESSION_TOKEN": "t"}),
        ({"endpoint_url": "https://here"}, S3, {"endpoint_url": "https://here"}),
        ({"endpoint_url": "https://here"}, GCS, {"endpoint_url": "https://here"}),
        ({"endpoint_url": "https://here"}, AZURE, {"endpoint": "https://here"}),
        ({"anonymous": True}, S3, {"AWS_SKIP_SIGNATURE": "true"}),
        ({"anonymous": True}, GCS, {"GOOGLE_SKIP_SIGNATURE": "true"}),
        ({"anonymous": True}, AZURE, {"AZURE_SKIP_SIGNATURE": "true"}),
        ({"anonymous": False}, S3, {}),
        ({"google_key": KEY}, GCS, {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY}),
        ({"google_key_file": "/k.json"}, GCS, {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}),
        ({"azure_account_key": "a2V5"}, AZURE, {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}),
        ({"azure_sas_token": "sv=1&sig=2"}, AZURE, {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=2"}),
        (
            {"azure_tenant_id": "t", "azure_client_id": "c", "azure_client_secret": "s"},
            AZURE,
            {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"},
        ),
        ({"google_key": KEY, "azure_account_key": "a2V5", "region": "eu"}, S3, {"region": "eu"}),
        (
            {"profile": "p", "AWS_ALLOW_HTTP": False},
            S3,
            {"profile": "p", "AWS_ALLOW_HTTP": "false"},
        ),
        ({"storage_conn_id": "x", "spark_conn_id": "y", "other_writers": "none"}, S3, {}),
        ({"test_address": "s3://b/t", "region": None, "endpoint_url": ""}, S3, {}),
    ],
)
def test_the_form_has_fields_for_each_store(
    extra: dict[str, Any], address: str, options: dict[str, str]
) -> None:
    given = own_options(connection(extra=extra), address)
    assert given == options
    # The store understands them.
    parse_options(address, given, {})


def test_login_and_password_are_the_keys_of_s3_alone() -> None:
    given = connection(login="id", password="secret")
    assert own_options(given, S3) == {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert own_options(given, GCS) == own_options(given, AZURE) == {}


REFERRED = [
    (
        connection(
            "aws",
            {
                "aws_session_token": "token",
                "region_name": "eu-west-1",
                "endpoint_url": "https://s3.here",
            },
            login="id",
            password="secret",
        ),
        S3,
        {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_SESSION_TOKEN": "token",
            "region": "eu-west-1",
            "endpoint_url": "https://s3.here",
        },
    ),
    (
        connection("aws", {"service_config": {"s3": {"endpoint_url": "https://only.s3"}}}),
        S3,
        {"endpoint_url": "https://only.s3"},
    ),
    (
        connection("aws", {"profile_name": "maintenance", "session_kwargs": {"region_name": "r"}}),
        S3,
        {"AWS_PROFILE": "maintenance", "region": "r"},
    ),
    (
        connection("aws", {"config_kwargs": {"signature_version": "unsigned"}}),
        S3,
        {"AWS_SKIP_SIGNATURE": "true"},
    ),
    (
        connection("google_cloud_platform", {"key_path": "/key.json", "project": "p"}),
        GCS,
        {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"},
    ),
    (
        connection("google_cloud_platform", {"extra__google_cloud_platform__keyfile_dict": KEY}),
        GCS,
        {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY},
    ),
    (
        connection("google_cloud_platform", {"keyfile_dict": json.loads(KEY)}),
        GCS,
        {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY},
    ),
    (
        connection("google_cloud_platform", {"credential_config_file": "/federated.json"}),
        GCS,
        {"GOOGLE_APPLICATION_CREDENTIALS": "/federated.json"},
    ),
    (
        connection("google_cloud_platform", {"is_anonymous": True}),
        GCS,
        {"GOOGLE_SKIP_SIGNATURE": "true"},
    ),
    (
        connection("wasb", login="acc", password="a2V5"),
        AZURE,
        {"AZURE_STORAGE_ACCOUNT_NAME": "acc", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
    ),
    (
        connection(
            "wasb",
            {"sas_token": "https://acc.blob.core.windows.net/?sv=1&sig=2"},
            host="https://acc.blob.core.windows.net",
        ),
        AZURE,
        {"AZURE_STORAGE_ACCOUNT_NAME": "acc", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=2"},
    ),
    (
        connection(
            "wasb", {"connection_string": "AccountName=acc;AccountKey=a2V5"}, login="ignored"
        ),
        AZURE,
        {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=acc;AccountKey=a2V5"},
    ),
    (
        connection("wasb", {"shared_access_key": "a2V5"}, host="acc.blob.core.windows.net"),
        AZURE,
        {"AZURE_STORAGE_ACCOUNT_NAME": "acc", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
    ),
    (
        connection("adls", {"tenant_id": "t"}, host="acc", login="client", password="secret"),
        AZURE,
        {
            "AZURE_STORAGE_ACCOUNT_NAME": "acc",
            "AZURE_TENANT_ID": "t",
            "AZURE_CLIENT_ID": "client",
            "AZURE_CLIENT_SECRET": "secret",
        },
    ),
]


@pytest.mark.parametrize(("referred", "address", "options"), REFERRED)
def test_connections_of_other_providers_are_understood(
    referred: Connection, address: str, options: dict[str, str]
) -> None:
    given = referred_options(referred)
    assert given == options
    parse_options(address, given, {})


@pytest.mark.parametrize(
    "unknown",
    [
        connection("postgres", password="canary-secret"),
        connection("aws", {"role_arn": "arn:canary-secret"}),
        connection("google_cloud_platform", {"key_secret_name": "canary-secret"}),
        connection("google_cloud_platform", {"impersonation_chain": "canary-secret"}),
    ],
)
def test_features_of_other_providers_are_refused_by_name(unknown: Connection) -> None:
    with pytest.raises(InvalidRequestError, match="'lake'") as refusal:
        referred_options(unknown)
    assert "canary-secret" not in str(refusal.value)


@pytest.mark.parametrize("extra", ["canary-secret", '["canary-secret"]', '{"a": canary-secret'])
def test_an_extra_that_is_no_object_is_named_and_not_shown(extra: str) -> None:
    broken = Connection(conn_id="lake", conn_type="delta", extra=extra)
    with pytest.raises(InvalidRequestError, match="'lake' is not a JSON object") as refusal:
        own_options(broken, S3)
    assert "canary-secret" not in str(refusal.value)
    assert refusal.value.__cause__ is refusal.value.__context__ is None
    with pytest.raises(InvalidRequestError, match="'lake' is not a JSON object"):
        referred_options(Connection(conn_id="lake", conn_type="aws", extra=extra))


def test_unknown_options_are_treated_as_secrets() -> None:
    options = {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "s3-secret",
        "AZURE_STORAGE_SAS_TOKEN": "sv=2024&sig=a%2Bb%3D",
        "AZURE_STORAGE_CONNECTION_STRING": "AccountName=acc;AccountKey=YWJj;EndpointSuffix=x",
        "GOOGLE_SERVICE_ACCOUNT_KEY": KEY,
        "unheard_of": "perhaps",
        "region": "eu-west-1",
        "endpoint_url": "https://s3.here",
    }
    secrets = set(secrets_in(options))
    assert secrets >= {"s3-secret", "a+b=", "sv=2024&sig=a%2Bb%3D", "YWJj", "abcdefgh", "perhaps"}
    assert not secrets & {"AKIA", "eu-west-1", "https://s3.here"}
    assert without_credentials(options) == {
        "region": "eu-west-1",
        "endpoint_url": "https://s3.here",
    }

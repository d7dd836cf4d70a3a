"""From vended credentials to the options of stores."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from delta_maintenance.address import Access
from delta_maintenance.catalogs import VendedCredentials
from delta_maintenance.catalogs.credentials import (
    GCS_TOKEN,
    credentials_for,
    temporary_credentials,
    vended_credentials,
)
from delta_maintenance.errors import CatalogError
from delta_maintenance.storage.options import parse_options

AT_MS = 1_800_000_000_123
AT = datetime(2027, 1, 15, 8, 0, 0, 123000, tzinfo=UTC)
S3 = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "session"}
S3_OPTIONS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "session",
}
ADLS = "abfss://files@account.dfs.core.windows.net/t"


def _one(
    config: dict[str, str], location: str = "s3://bucket/t", more: dict[str, object] | None = None
) -> VendedCredentials:
    entry = {"prefix": location, "config": config, **(more or {})}
    (found,) = vended_credentials([entry], location="s3://other/t", access=Access.READ)
    return found


def test_the_vocabulary_of_unity_catalog() -> None:
    found = _one(S3, more={"operation": "READ_WRITE", "expiration-time-ms": AT_MS})
    assert found.options == S3_OPTIONS
    assert (found.prefix, found.access, found.expires_at) == (
        "s3://bucket/t",
        Access.READ_WRITE,
        AT,
    )
    assert _one({"azure.sas-token": "sig"}, ADLS).options == {"AZURE_STORAGE_SAS_TOKEN": "sig"}
    assert _one({"gcs.oauth-token": "t"}, "gs://bucket/t").options == {GCS_TOKEN: "t"}


def test_the_vocabulary_of_iceberg() -> None:
    endpoint = {"s3.endpoint": "https://store:9000", "client.region": "eu-west-1"}
    found = _one({**S3, **endpoint, "s3.session-token-expires-at-ms": str(AT_MS)})
    assert found.expires_at == AT
    assert found.options == {
        **S3_OPTIONS,
        "AWS_ENDPOINT_URL": "https://store:9000",
        "AWS_REGION": "eu-west-1",
    }
    name = "account.dfs.core.windows.net"
    signatures = {
        "adls.sas-token.other.dfs.core.windows.net": "wrong",
        f"adls.sas-token.{name}": "sig",
        f"adls.sas-token-expires-at-ms.{name}": str(AT_MS),
    }
    found = _one(signatures, ADLS)
    assert (found.options, found.expires_at) == ({"AZURE_STORAGE_SAS_TOKEN": "sig"}, AT)
    token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": str(AT_MS)}
    found = _one(token, "gs://bucket/t")
    assert (found.options, found.expires_at) == ({GCS_TOKEN: "t"}, AT)


def test_the_account_is_named_if_the_address_does_not_name_it() -> None:
    found = _one({"adls.sas-token.account.dfs.core.windows.net": "sig"}, "az://files/t")
    assert found.options["AZURE_STORAGE_ACCOUNT_NAME"] == "account"


def test_the_older_interface_of_unity_catalog() -> None:
    aws = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "session"}
    answer: dict[str, object] = {
        "aws_temp_credentials": aws,
        "expiration_time": AT_MS,
        "url": "s3://bucket/t",
    }
    (found,) = temporary_credentials(answer, location="s3://other/t", access=Access.READ)
    assert (found.options, found.expires_at, found.prefix) == (S3_OPTIONS, AT, "s3://bucket/t")
    others: list[tuple[dict[str, object], str]] = [
        ({"azure_user_delegation_sas": {"sas_token": "x"}}, "AZURE_STORAGE_SAS_TOKEN"),
        ({"azure_aad": {"aad_token": "x"}}, "AZURE_STORAGE_TOKEN"),
        ({"gcp_oauth_token": {"oauth_token": "x"}}, GCS_TOKEN),
    ]
    for answer, option in others:
        (found,) = temporary_credentials(answer, location=ADLS, access=Access.READ)
        assert (dict(found.options), found.prefix, found.expires_at) == ({option: "x"}, ADLS, None)
    assert temporary_credentials({}, location="file:///t", access=Access.READ) == ()


def test_values_of_the_table_apply_where_an_entry_has_none() -> None:
    entry = {"prefix": "s3://bucket/t", "config": {**S3, "client.region": "entry"}}
    config = {"s3.endpoint": "https://store", "client.region": "table"}
    (found,) = vended_credentials([entry], location="-", access=Access.READ, config=config)
    assert found.options["AWS_ENDPOINT_URL"] == "https://store"
    assert found.options["AWS_REGION"] == "entry"
    (found,) = vended_credentials([], location="s3://b/t", access=Access.READ, config=S3)
    assert (found.prefix, found.options) == ("s3://b/t", S3_OPTIONS)


def test_signing_by_the_catalog_is_refused() -> None:
    config = {"s3.remote-signing-enabled": "true"}
    with pytest.raises(CatalogError, match="signs each request"):
        vended_credentials([], location="s3://b/t", access=Access.READ, config=config)
    assert _one({**config, **S3}).options == S3_OPTIONS


@pytest.mark.parametrize(
    ("config", "location"),
    [
        ({**S3, "s3.endpoint": "https://store"}, "s3://bucket/t"),
        ({"azure.sas-token": "sig"}, ADLS),
        ({"adls.sas-token.account.dfs.core.windows.net": "sig"}, "az://files/t"),
    ],
)
def test_the_stores_accept_the_options(config: dict[str, str], location: str) -> None:
    found = _one(config, location)
    parsed = parse_options(location, found.options)
    assert parsed is not None
    assert any(value in ("secret", "sig") for value in parsed.secrets().values())
    assert not {"secret", "sig", "session"} & set(parsed.public().values())
    assert "secret" not in repr(found) and "sig'" not in repr(found)


def test_the_longest_prefix_wins() -> None:
    prefixes = ["s3://bucket", "s3://bucket/t", "s3://bucket/t/deep", "gs://bucket/t", "s3://b?c"]
    all_of_them = [
        VendedCredentials(prefix=prefix, access=Access.READ, expires_at=None, options={})
        for prefix in prefixes
    ]

    def prefix_of(address: str) -> str | None:
        found = credentials_for(address, all_of_them)
        return found.prefix if found else None

    assert prefix_of("s3a://bucket/t/file") == "s3://bucket/t"
    assert prefix_of("s3://bucket/t/deep/er") == "s3://bucket/t/deep"
    assert prefix_of("s3://bucket/t/deeper") == "s3://bucket/t"
    assert prefix_of("s3://bucket/tables") == "s3://bucket"
    assert prefix_of("s3://buckets/t") is None

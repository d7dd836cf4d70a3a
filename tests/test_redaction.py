"""Secrets in addresses: hidden in every text, and nothing else is."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, StorageError
from delta_maintenance.redaction import holds_credentials, redact, redact_address

SECRET = "hunter2+Zm9v"
WITH_SECRETS = [
    "s3://KEY:{}@bucket/t",
    "s3://{}@bucket/t",
    "s3://KEY:{}",
    "s3://KEY:12/{}@bucket/t",
    "s3:KEY:{}@bucket/t",
    "s3:/KEY:{}@bucket/t",
    "s3://KEY%3A{}@bucket/t",
    "gs://user:{}@bucket/t",
    "abfss://user:{}@acct.dfs.core.windows.net/t",
    "abfss://{}@acct.dfs.core.windows.net/t",
    "az://data/t?sv=2021&sig={}",
    "az://data/t%3Fsv%3D2021%26sig%3D{}",
    "az://data/t#token={}",
    "https://acct.blob.core.windows.net/data/t?sv=2021&sig={}&se=1",
    "https://{}@host/t",
    "https://bucket.s3.amazonaws.com/t?X-Amz-Credential=K&X-Amz-Signature={}",
    "file://user:{}@host/t",
    "file://user:{}@/t",
    "file:user:{}@host/t",
    "hdfs://user:{}@nn:8020/t",
    "sftp://user:{}@host/t",
    "uc://KEY:{}@host/t",
    "uc://KEY:{}",
    "simplecache::s3://KEY:{}@bucket/t",
    "zip://d::s3://KEY:{}@bucket/a.zip",
    "KEY:{}@bucket/t",
]
HARMLESS = [
    "uc://main.sales.orders",
    "uc://main",
    "hms://raw.a%2Eb%3Ac%40d",
    "/srv/t",
    "a/token=5/x.parquet",
    "/srv/token=5/a:b@c",
    "s3://bucket",
    "az://data",
    "s3://bucket/t",
    "s3://bucket/secret=1/dt=10:00/a@b",
    "s3://lake/t?/**",
    "gs://bucket/password",
    "abfss://data@acct.dfs.core.windows.net/a b/t",
    "az://data@acct.dfs.core.windows.net/t",
    "hdfs://nn:8020/user/me@corp:x/t",
    "hdfs://me@nn:8020/t",
    "hdfs://[::1]:8020/t",
    "http://127.0.0.1:9000/bucket",
    "sftp://me@host/t",
    "file:///srv/t",
    "dbfs:/t",
    "x?versionId=1abc",
]


@pytest.mark.parametrize("address", WITH_SECRETS)
@pytest.mark.parametrize("secret", [SECRET, "a/b+c=", "p:q/r", "with@sign/and:colon", "x::y"])
def test_a_secret_is_hidden_and_its_address_refused(address: str, secret: str) -> None:
    if "sig" in address.lower() or "token=" in address:
        secret = secret.replace("/", "%2F")
    if "://{}" in address:
        secret = secret.replace("/", "%2F")
    if "{}@" not in address:
        secret = secret.replace("@", "%40")
    text = address.format(secret)
    for shown in (
        redact_address(text),
        redact(f"table {text}: it is gone"),
        redact(f"GET '{text}', again"),
    ):
        # A name without a scheme is known for an address only where it stands alone.
        if not address.startswith("KEY") or shown == redact_address(text):
            assert secret not in shown and secret[-6:] not in shown, shown
            assert "***" in shown
    assert holds_credentials(text)
    with pytest.raises(InvalidRequestError) as got:
        Address.parse(text)
    assert secret not in str(got.value)


@pytest.mark.parametrize("address", HARMLESS)
def test_an_address_without_a_secret_is_shown_as_it_is(address: str) -> None:
    assert redact_address(address) == address
    assert not holds_credentials(address)
    for text in (f"table {address}: it is gone", f"GET '{address}', again", f"({address})"):
        assert redact(text) == text


def test_other_parts_of_an_address_stay() -> None:
    assert redact_address("s3://KEY:pw@bucket/t") == "s3://***@bucket/t"
    assert redact_address("simplecache::s3://KEY:pw@b/t") == "simplecache::s3://***@b/t"
    text = redact("GET https://host/t?sig=pw then s3://b/x")
    assert text == "GET https://host/t?*** then s3://b/x"
    assert redact("AccountName=a;AccountKey=cHc=;x") == "AccountName=a;AccountKey=***;x"


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=8, max_size=40))
def test_no_part_of_a_key_is_shown(secret: str) -> None:
    text = f"s3://AKIA1:{secret}@bucket/t"
    assert redact(f"table {text}") == "table s3://***@bucket/t"


@given(st.text())
def test_any_text_can_be_redacted_and_again_without_effect(text: str) -> None:
    assert redact(redact(text)) == redact(text)
    assert redact_address(redact_address(text)) == redact_address(text)


def test_an_error_never_contains_a_secret() -> None:
    address = f"s3://KEY:{SECRET}@bucket/t"
    errors = [
        StorageError(f"GET {address} failed", remedy=f"correct {address}"),
        StorageError("it failed", table=address, file=f"{address}/x"),
        StorageError("it failed").locate(table=address, file=address),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        shown = f"{error} {error!r} {vars(error)} {error.args} {copy!r} {vars(copy)}"
        assert SECRET not in shown and "s3://***@bucket" in shown

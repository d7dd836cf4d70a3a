"""Addresses: parsed in one place, with the same meaning everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "scheme", "authority", "path", "kind"),
    [
        ("t", "", "", "t", StoreKind.LOCAL),
        ("/srv/t/", "", "", "/srv/t", StoreKind.LOCAL),
        ("/", "", "", "/", StoreKind.LOCAL),
        ("s3-mirror/t", "", "", "s3-mirror/t", StoreKind.LOCAL),
        ("gs/t", "", "", "gs/t", StoreKind.LOCAL),
        ("2024:x", "", "", "2024:x", StoreKind.LOCAL),
        ("./a:b", "", "", "./a:b", StoreKind.LOCAL),
        ("/a%20b?c#d::e", "", "", "/a%20b?c#d::e", StoreKind.LOCAL),
        ("file:///a%20b/", "file", "", "/a b", StoreKind.LOCAL),
        ("file:/t", "file", "", "/t", StoreKind.LOCAL),
        ("FILE://localhost/t", "file", "", "/t", StoreKind.LOCAL),
        ("memory://n/t", "memory", "n", "t", StoreKind.MEMORY),
        ("S3://bucket/a%20b/", "s3", "bucket", "a%20b", StoreKind.S3),
        ("s3a://bucket", "s3a", "bucket", "", StoreKind.S3),
        ("s3://bucket/a::b", "s3", "bucket", "a::b", StoreKind.S3),
        ("s3://bucket/t=10:00/a@b", "s3", "bucket", "t=10:00/a@b", StoreKind.S3),
        ("gcs://bucket/t", "gcs", "bucket", "t", StoreKind.GCS),
        (
            "abfss://c@a.dfs.core.windows.net/t",
            "abfss",
            "c@a.dfs.core.windows.net",
            "t",
            StoreKind.AZURE,
        ),
        ("az://c/t", "az", "c", "t", StoreKind.AZURE),
        ("hdfs://nn:8020/t", "hdfs", "nn:8020", "t", StoreKind.HDFS),
        ("hdfs://[::1]:8020/t", "hdfs", "[::1]:8020", "t", StoreKind.HDFS),
        ("hdfs:///t", "hdfs", "", "t", StoreKind.HDFS),
        ("webhdfs://[::1]:9870/t", "webhdfs", "[::1]:9870", "t", StoreKind.HDFS),
        ("dbfs:/t", "dbfs", "", "t", StoreKind.OTHER),
        ("sftp://me@host/t", "sftp", "me@host", "t", StoreKind.OTHER),
        ("simplecache::s3://bucket/t", "s3", "bucket", "t", StoreKind.OTHER),
        ("simplecache::/srv/t", "", "", "/srv/t", StoreKind.OTHER),
        ("zip://a/t::s3://bucket/x.zip", "zip", "a", "t", StoreKind.OTHER),
    ],
)
def test_an_address_is_parsed(
    text: str, scheme: str, authority: str, path: str, kind: StoreKind
) -> None:
    address = Address.parse(text)
    assert (address.scheme, address.authority, address.path) == (scheme, authority, path)
    assert address.kind is kind
    assert address.is_local is (kind is StoreKind.LOCAL)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "below", "parent"),
    [
        ("t", "t/a b/c", "."),
        ("/t", "/t/a b/c", "/"),
        ("/srv/t", "/srv/t/a b/c", "/srv"),
        ("file:///srv/x%25", "file:///srv/x%25/a%20b/c", "file:///srv"),
        ("s3://bucket/t", "s3://bucket/t/a b/c", "s3://bucket"),
        ("s3://bucket/d/t", "s3://bucket/d/t/a b/c", "s3://bucket/d"),
        ("hdfs:///t", "hdfs:///t/a b/c", "hdfs:///"),
        ("dbfs:/d/t", "dbfs:/d/t/a b/c", "dbfs:/d"),
        ("zip://d/t::s3://b/a.zip", "zip://d/t/a b/c::s3://b/a.zip", "zip://d::s3://b/a.zip"),
        ("simplecache::s3://b/t", "simplecache::s3://b/t/a b/c", "simplecache::s3://b"),
    ],
)
def test_folders_and_their_contents(text: str, below: str, parent: str) -> None:
    address = Address.parse(text)
    assert str(address.join("a b/c")) == below
    assert address.join("a b/c").name == "c"
    assert address.join("a b/c").parent == address.join("a b")
    assert str(address.parent) == parent


@pytest.mark.parametrize("text", ["s3://bucket", "/", "zip://::s3://b/a.zip"])
def test_the_root_of_a_store_has_no_parent(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="names no file"):
        _ = Address.parse(text).parent
    assert Address.parse(text).join("x").name == "x"


@given(st.lists(st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1)))
def test_a_file_below_an_address_keeps_its_name(segments: list[str]) -> None:
    path = "/".join(("x", *segments))
    for root in ("/srv/t", "file:///srv/t", "s3://bucket/t", "hdfs://nn:8020/t"):
        address = Address.parse(root).join(path)
        assert address.name == path.rpartition("/")[2]
        assert address.path.endswith(f"t/{path}")


def test_an_absolute_address_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Address.parse("d/../t").absolute()) == f"{tmp_path}/t"
    assert str(Address.parse("2024:x/t").absolute()) == f"{tmp_path}/2024:x/t"
    assert str(Address.of_path("a:b").absolute()) == f"{tmp_path}/a:b"
    for text in ("/t", "file:///t", "s3://bucket/t", "simplecache::s3://bucket/t"):
        assert str(Address.parse(text).absolute()) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file:t",
        "file://host/t",
        "file:///%FF",
        "file:///t?x",
        "s3://bucket/t?",
        "s3://bucket/t#1",
        "https://host/t?versionId=1",
    ],
)
def test_incomplete_and_overlong_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as got:
        Address.parse(text)
    assert got.value.remedy and (not text or text not in str(got.value))

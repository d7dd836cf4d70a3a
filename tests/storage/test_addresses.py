from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage import MemoryStore, Put, open_store
from delta_maintenance.storage.azure.store import AzureStore
from delta_maintenance.storage.fsspec import FsspecStore
from delta_maintenance.storage.gcs.store import GCSStore
from delta_maintenance.storage.hdfs.store import HdfsStore
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.storage.options import options_over
from delta_maintenance.storage.s3 import S3Store
from tests.support.emulators.s3_server import S3Server


@pytest.mark.parametrize("name", ["t", "a b", "50%", "a%20b", "x::y", "what?", "a#b", "über"])
def test_a_plain_path_is_literal(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "x").write_bytes(b"1")
    for address in (tmp_path / name, f"{tmp_path}/{name}/", f"{tmp_path}//{name}"):
        store = open_store(address)
        assert isinstance(store, LocalStore)
        assert store.read("x") == b"1"


def test_a_relative_path_may_contain_a_colon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("./a:b").put("x", b"1")
    assert (tmp_path / "a:b" / "x").exists()
    with pytest.raises(InvalidRequestError, match=r"begin with a:.*\./ before a path"):
        open_store("a:b")


@pytest.mark.parametrize("prefix", ["file:", "file://", "FILE://", "file://localhost"])
def test_a_file_address_is_a_uri_and_decoded_once(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "a b%20c").mkdir()
    (tmp_path / "a b%20c" / "x").write_bytes(b"1")
    assert open_store(f"{prefix}{tmp_path}/a%20b%2520c/").read("x") == b"1"
    assert open_store((tmp_path / "a b%20c").as_uri()).read("x") == b"1"


@pytest.mark.parametrize("address", ["file:t", "file://host/t", "file:", "file:///%FF"])
def test_a_file_address_must_name_a_path_on_this_machine(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="absolute path"):
        open_store(address)


def test_a_memory_address_is_shared_within_the_process() -> None:
    open_store("memory://addresses/t").put("x", b"1")
    store = open_store("memory://addresses/t/")
    assert isinstance(store, MemoryStore)
    assert (store.root, store.read("x")) == ("memory://addresses/t", b"1")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_the_schemes_of_s3_mean_the_same(s3_server: S3Server, s3_bucket: str, scheme: str) -> None:
    store = open_store(f"{scheme}://{s3_bucket}/a%20b/t/", s3_server.storage_options)
    assert isinstance(store, S3Store)
    assert store.root == f"{scheme.lower()}://{s3_bucket}/a%20b/t"
    assert store.put_if_absent("x", b"1") is Put.DONE
    assert f"PUT /{s3_bucket}/a%2520b/t/x" in s3_server.requests
    store.close()


@pytest.mark.parametrize(
    "address",
    [
        "dbfs:/t",
        "nothing://host/t",
        "s3://bucket/t?versionId=1",
        "s3://bucket/t#1",
        "file:///t?x",
        "s3://user:hunter2@bucket/t",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "memory://n/a/../b",
        "",
    ],
)
def test_an_address_that_is_not_understood_is_refused_in_one_line(address: str) -> None:
    with pytest.raises(InvalidRequestError) as got:
        open_store(address)
    assert got.value.remedy and "\n" not in str(got.value)
    assert "hunter2" not in str(got.value)


@pytest.mark.parametrize("scheme", ["webhdfs", "swebhdfs", "WEBHDFS"])
def test_the_schemes_of_hdfs_are_those_of_its_rest_interface(scheme: str) -> None:
    store = open_store(f"{scheme}://me@host:9870/a%20b/t/")
    assert isinstance(store, HdfsStore)
    assert store.root == f"{scheme.lower()}://me@host:9870/a%20b/t"
    assert set(store.addresses) == {store.root, "hdfs:/a%20b/t", "/a%20b/t"}
    store.close()


@pytest.mark.parametrize("address", ["https://host/t", "simplecache::memory://x/t"])
def test_every_other_scheme_of_fsspec_is_opened_for_reading(address: str) -> None:
    store = open_store(address)
    assert isinstance(store, FsspecStore)
    assert store.root == address
    store.close()


@pytest.mark.parametrize("scheme", ["gs", "gcs", "GS"])
def test_the_schemes_of_gcs_mean_the_same(scheme: str) -> None:
    server = {"endpoint_url": "http://127.0.0.1:9"}
    store = open_store(f"{scheme}://bucket/a%20b/t/", server)
    assert isinstance(store, GCSStore)
    assert store.root == f"{scheme.lower()}://bucket/a%20b/t"
    assert set(store.addresses) == {"gs://bucket/a%20b/t", "gcs://bucket/a%20b/t"}
    store.close()


@pytest.mark.parametrize(
    "address",
    ["abfss://data@acct.dfs.core.windows.net/a b/t", "az://data/a b/t", "abfs://data/a b/t"],
)
def test_the_addresses_of_azure_mean_the_same(address: str) -> None:
    store = open_store(f"{address}/", {"account_name": "acct", "anon": "true"})
    assert isinstance(store, AzureStore)
    assert store.root == store.addresses[0] == address
    assert {
        "az://data/a b/t",
        "abfss://data@acct.dfs.core.windows.net/a b/t",
        "abfs://data@acct.dfs.core.windows.net/a b/t",
        "wasbs://data@acct.blob.core.windows.net/a b/t",
        "https://acct.blob.core.windows.net/data/a b/t",
    } <= set(store.addresses)
    store.close()


@pytest.mark.parametrize(
    "address",
    [
        "gs://",
        "gs:///t",
        "gs://user:hunter2@bucket/t",
        "gs://bucket/a//b",
        "az://",
        "az://Data/t",
        "az://data@hunter2/t",
        "abfss://user:hunter2@acct.dfs.core.windows.net/t",
        "abfss://data@acct.dfs.core.windows.net/../t",
        "abfss://data@acct.s3.amazonaws.com/t",
        "wasbs://data@acct.blob.core.windows.net/t",
        "adl://acct.azuredatalakestore.net/t",
    ],
)
def test_a_malformed_address_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(InvalidRequestError) as got:
        open_store(address, {"account_name": "acct"} if address.startswith("a") else None)
    assert got.value.remedy and "hunter2" not in str(got.value)


@pytest.mark.parametrize("address", ["/t", "file:///t", "memory://n/t"])
def test_unused_storage_options_are_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="no storage option 'key'") as got:
        open_store(address, {"key": "hunter2"})
    assert "hunter2" not in str(got.value)
    open_store(address, {})


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [
        ("s3://bucket/t", "s3fs", "s3"),
        ("gs://bucket/t", "google.auth", "gcs"),
        ("abfss://data@acct.dfs.core.windows.net/t", "azure.identity", "azure"),
        ("webhdfs://host:9870/t", "requests", "hdfs"),
    ],
)
def test_without_its_package_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, address: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidRequestError) as got:
        open_store(address)
    assert str(got.value).endswith(f"install delta-maintenance[{extra}]")
    assert open_store("/t").root == "/t"


@pytest.mark.process
def test_opening_a_local_table_loads_no_client() -> None:
    program = (
        "import sys; from delta_maintenance.storage import open_store; open_store('/t')\n"
        "clients = ('s3fs', 'botocore', 'aiohttp', 'fsspec', 'requests', 'google.auth', 'azure')\n"
        "print([name for name in clients if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert printed.stdout.strip() == b"[]"


def test_a_process_without_close_ends_without_a_warning(
    s3_server: S3Server, s3_bucket: str
) -> None:
    program = (
        "import sys; from delta_maintenance.storage import open_store\n"
        f"store = open_store('s3://{s3_bucket}/t', {s3_server.storage_options!r})\n"
        "print(store.put_if_absent('x', b'1'), store.read('x'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, check=True, text=True
    )
    assert (done.stdout, done.stderr) == ("Put.DONE b'1'\n", "")


@pytest.mark.parametrize(
    ("lower", "upper", "both"),
    [
        ({"region": "a", "profile": "p"}, {"region": "b"}, {"region": "b", "profile": "p"}),
        ({"endpoint_url": "a", "region": "r"}, {"aws_endpoint_url": "b"}, {"region": "r"}),
        ({"AWS_REGION": "a", "key": "k"}, {"AWS_DEFAULT_REGION": "b"}, {"key": "k"}),
        ({"account_key": "a"}, {"AZURE_STORAGE_ACCESS_KEY": "b"}, {}),
        ({"token": "a", "mine": "1"}, {"mine": "2"}, {"token": "a"}),
    ],
)
def test_options_override_others_under_any_of_their_names(
    lower: dict[str, str], upper: dict[str, str], both: dict[str, str]
) -> None:
    assert options_over(lower, upper) == {**both, **upper}

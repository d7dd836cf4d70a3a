from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.rest import Answer
from delta_maintenance.storage.azure.client import AzureClient, AzureFailure
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.azure.store import BLOCK_BLOB, AzurePut, AzureStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes
from tests.support.emulators.azure_server import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.support.faults.fault_proxy import serve_faults
from tests.support.servers.loopback import Reply, Request, serve

MIB = 1 << 20


class TestAzureStore(StoreContract):
    # The emulator takes milliseconds for each.
    entries = 500
    doomed = 200

    @pytest.fixture
    def store(self, azure_server: AzureServer, azure_container: str) -> Iterator[AzureStore]:
        self.server = azure_server
        root = f"az://{azure_container}/ware%20house/a b"
        self.opened = [AzureStore(Address.parse(root), azure_server.storage_options)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(AzureStore(store.address, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.put(path, b""), paths))

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        options = self.server.storage_options
        return contend_in_processes(partial(AzureStore, store.address, options), paths)


@pytest.fixture
def root(azure_container: str) -> str:
    return f"az://{azure_container}/warehouse/table"


@pytest.fixture
def client(azure_server: AzureServer, azure_container: str, root: str) -> AzureClient:
    options = AzureOptions.parse(azure_server.storage_options, AzureAddress.of(Address.parse(root)))
    return AzureClient(options, azure_container, sleep=lambda seconds: None)


@pytest.fixture
def store(client: AzureClient, root: str) -> Iterator[AzureStore]:
    store = AzureStore(Address.parse(root), client=client, multipart_size=MIB, part_size=MIB)
    yield store
    store.close()


def test_a_table_may_be_the_whole_container(
    azure_server: AzureServer, azure_container: str
) -> None:
    store = AzureStore(Address.parse(f"az://{azure_container}/"), azure_server.storage_options)
    assert store.put_if_absent("0.json", b"{}") is Put.DONE
    assert [status.path for status in store.list_from("")] == ["0.json"]
    store.close()


def test_directories_and_their_markers_are_no_files(store: AzureStore, client: AzureClient) -> None:
    marker = {**BLOCK_BLOB, "x-ms-meta-hdi_isfolder": "true"}
    for key in ("_delta_log", "_delta_log/_sidecars", "_delta_log/empty"):
        client.call("PUT", f"warehouse/table/{key}", headers=marker)
    store.put("_delta_log/0.json", b"{}")
    store.put("_delta_log/_sidecars/x", b"{}")
    assert [status.path for status in store.list_from("")] == []
    assert [status.path for status in store.list_from("_delta_log")] == ["_delta_log/0.json"]
    tree = [path for page in store.list_tree() for path in page["path"].to_pylist()]
    assert sorted(tree) == ["_delta_log/0.json", "_delta_log/_sidecars/x"]
    levels = {at: store.list_level(at).to_pylist() for at in ("", "_delta_log")}
    assert [(row["path"], row["kind"]) for row in levels[""]] == [("_delta_log", 1)]
    assert sorted((row["path"], row["kind"]) for row in levels["_delta_log"]) == [
        ("_delta_log/0.json", 0),
        ("_delta_log/_sidecars", 1),
    ]
    assert store.stat("_delta_log") is None
    with pytest.raises(FileNotFoundError):
        store.read("_delta_log")
    with pytest.raises(FileNotFoundError):
        store.open("_delta_log")


def test_a_listing_continues_after_empty_pages(
    store: AzureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"d/{number:02}" for number in range(25)]
    for name in names:
        store.put(name, b"")
    real = AzureClient.send

    def send(client: AzureClient, method: str, key: str = "", **rest: Any) -> Answer:
        query = rest.get("query") or {}
        if query.get("comp") != "list":
            return real(client, method, key, **rest)
        marker = query.get("marker", "")
        if marker and not marker.startswith("later "):
            # As accounts with a hierarchical namespace answer at times.
            return Answer(status=200, headers={}, body=EMPTY_PAGE % f"later {marker}".encode())
        rest["query"] = query | {"maxresults": "4", "marker": marker.removeprefix("later ")}
        return real(client, method, key, **rest)

    monkeypatch.setattr(AzureClient, "send", send)
    assert [status.path for status in store.list_from("d")] == names
    assert [status.path for status in store.list_from("d", "20")] == names[20:]


EMPTY_PAGE = b"<EnumerationResults><Blobs/><NextMarker>%s</NextMarker></EnumerationResults>"


@pytest.mark.server
def test_names_that_xml_cannot_contain_are_decoded() -> None:
    def answer(request: Request) -> Reply:
        body = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs><Blob>'
            '<Name Encoded="true">t/a%EF%BF%BE%25</Name><Properties>'
            "<Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified>"
            "<Content-Length>3</Content-Length></Properties></Blob><Blob><Name>t/50%25</Name>"
            "<Properties><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified>"
            "<Content-Length>3</Content-Length></Properties></Blob></Blobs><NextMarker />"
            "</EnumerationResults>"
        )
        return Reply(status=200, body=body.encode())

    with serve(answer) as url:
        options = {"account_name": "a", "anon": "true", "endpoint": url}
        store = AzureStore(Address.parse("az://data/t"), options)
        found = list(store.list_from(""))
        store.close()
    assert [status.path for status in found] == ["50%25", "a\ufffe%"]
    assert {status.modified_ms for status in found} == {1_795_168_800_000}


@pytest.mark.conformance("TXN-01")
def test_blocks_of_two_writers_of_one_name_do_not_mix(
    store: AzureStore, root: str, azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = AzureStore(
        Address.parse(root), azure_server.storage_options, multipart_size=MIB, part_size=MIB
    )
    staged = AzurePut.stage
    ours, theirs = b"o" * (3 * MIB), b"t" * (3 * MIB)

    def overtaken(put: AzurePut, key: str, source: BinaryIO, size: int, put_id: str) -> object:
        publish = staged(put, key, source, size, put_id)
        # All blocks of the other writer are uploaded, and the blob does not exist yet.
        staged(
            rival._creator, key, io.BytesIO(theirs), size, "the other put's id, which is as long"
        )
        return publish

    monkeypatch.setattr(AzurePut, "stage", overtaken)
    with store.create("x") as file:
        file.write(ours)
    assert rival.read("x") == ours
    monkeypatch.setattr(AzurePut, "stage", staged)
    with pytest.raises(FileExistsError), rival.create("x") as file:
        file.write(theirs)
    assert store.read("x") == ours
    rival.close()


def test_a_changed_blob_is_not_deleted(store: AzureStore) -> None:
    for name in ("a", "b"):
        store.put(name, b"old")
    listed = pa.concat_tables(list(store.list_tree())).select(["path", "size", "modified_ms"])
    earlier = pc.subtract(listed["modified_ms"], 60_000)
    stale = listed.set_column(2, "modified_ms", earlier)
    kept = store.delete_unchanged(stale)
    assert sorted(kept) == ["a", "b"]
    assert "replaced since it was listed" in str(kept["a"])
    assert store.delete_unchanged(listed) == {}
    assert list(store.list_from("")) == []


def test_a_file_replaced_while_it_is_read_is_an_error(store: AzureStore) -> None:
    store.put("x", bytes(3 * MIB))
    with store.open("x") as file:
        assert file.read(10) == bytes(10)
        store.put("x", b"1" * (3 * MIB))
        with pytest.raises(StorageError, match="replaced while it was read"):
            file.read()


def test_a_leased_blob_is_kept(store: AzureStore, client: AzureClient) -> None:
    store.put("x", b"theirs")
    lease = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "15"}
    client.call("PUT", "warehouse/table/x", query={"comp": "lease"}, headers=lease)
    assert store.put_if_absent("x", b"ours!!") is Put.EXISTS
    kept = store.delete_many(["x", "y"])
    assert list(kept) == ["x"] and "LeaseIdMissing" in str(kept["x"])
    assert store.read("x") == b"theirs"


@pytest.mark.conformance("LOG-09", "TXN-01")
def test_a_server_that_ignores_conditions_is_detected_before_writing(
    store: AzureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AzureClient.send

    def send(client: AzureClient, method: str, key: str = "", **rest: Any) -> Answer:
        headers = {
            k: v for k, v in (rest.pop("headers", None) or {}).items() if k != "If-None-Match"
        }
        return real(client, method, key, headers=headers, **rest)

    monkeypatch.setattr(AzureClient, "send", send)
    with pytest.raises(RefusedError, match="file _delta_log/0.json: the store has no conditional"):
        store.put_if_absent("_delta_log/0.json", b"data")
    assert list(store.list_from("_delta_log")) == []


def test_azure_itself_needs_no_probe(store: AzureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    real = AzureClient.send

    def send(client: AzureClient, method: str, key: str = "", **rest: Any) -> Answer:
        sent.append(f"{method} {key}")
        return real(client, method, key, **rest)

    monkeypatch.setattr(AzureClient, "send", send)
    monkeypatch.setattr(AzureClient, "is_azure", True)
    assert store.put_if_absent("0.json", b"{}") is Put.DONE
    assert store.put_if_absent("0.json", b"{}") is Put.EXISTS
    assert sent == [f"{method} warehouse/table/0.json" for method in ("PUT", "PUT", "HEAD")]


def test_a_missing_container_is_not_an_empty_table(azure_server: AzureServer) -> None:
    store = AzureStore(Address.parse("az://no-such-container/t"), azure_server.storage_options)
    calls: list[Callable[[], object]] = [
        lambda: list(store.list_from("_delta_log")),
        lambda: store.read("x"),
        lambda: store.stat("x"),
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        lambda: store.delete("x"),
    ]
    for call in calls:
        with pytest.raises(StorageAccessError, match="ContainerNotFound") as got:
            call()
        assert "\n" not in str(got.value)
    assert list(store.delete_many(["x", "y"])) == ["x", "y"]
    store.close()


@pytest.mark.server
def test_an_answer_of_a_proxy_is_rejected() -> None:
    with serve(lambda request: Reply(status=200, body=b"<html>Sign in</html>")) as url:
        root, given = "az://data/t", {"account_name": "a", "anon": "true", "endpoint": url}
        options = AzureOptions.parse(given, AzureAddress.of(Address.parse(root)))
        client = AzureClient(options, "data", sleep=lambda seconds: None)
        store = AzureStore(Address.parse(root), client=client)
        with pytest.raises(StorageError, match="NotXML"):
            list(store.list_from(""))
        store.close()


def test_single_calls_cost_single_requests(azure_server: AzureServer, root: str) -> None:
    seen: list[str] = []
    with serve_faults(azure_server.url) as proxy:
        proxy.choose = lambda request: seen.append(request.method)
        endpoint = {"endpoint": f"{proxy.url}/{ACCOUNT}"}
        store = AzureStore(Address.parse(root), azure_server.storage_options | endpoint)

        def cost(operation: Callable[[], object]) -> int:
            seen.clear()
            operation()
            return len(seen)

        # The server is probed once: two puts, one delete.
        assert cost(lambda: store.put_if_absent("_delta_log/0.json", b"{}")) == 4
        assert cost(lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 1
        assert cost(lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 2
        assert cost(lambda: store.put("empty", b"")) == 1
        assert cost(lambda: store.read("empty")) == 1
        assert cost(lambda: store.read("_delta_log/0.json")) == 1
        assert cost(lambda: store.read_head("_delta_log/0.json", 1)) == 1
        assert cost(lambda: store.stat("empty")) == 1
        assert cost(lambda: list(store.list_from("_delta_log"))) == 1
        assert cost(lambda: store.delete_many(["empty", "x", "y"])) == 3
        store.close()


# Credentials.


def test_a_shared_access_signature_opens_a_store_and_is_never_logged(
    azure_server: AzureServer, azure_container: str, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    blob = pytest.importorskip("azure.storage.blob")
    signature = blob.generate_container_sas(
        ACCOUNT,
        azure_container,
        account_key=ACCOUNT_KEY,
        permission="racwdl",
        expiry=datetime.now(UTC) + timedelta(hours=1),
        protocol="https,http",
    )
    given = {k: v for k, v in azure_server.storage_options.items() if k != "account_key"}
    store = AzureStore(Address.parse(root), given | {"sas_token": f"?{signature}"})
    caplog.set_level(logging.DEBUG)
    assert store.put_if_absent("a b", b"1") is Put.DONE
    assert [status.path for status in store.list_from("")] == ["a b"]
    assert store.read("a b") == b"1"
    store.delete("a b")
    secret = signature.partition("sig=")[2].partition("&")[0]
    assert secret and "sig=***" in caplog.text and secret not in caplog.text
    store.close()


def test_a_refused_overwrite_means_that_another_writer_was_first() -> None:
    # The error for a signature that may create but not overwrite.
    failure = AzureFailure(status=403, code="UnauthorizedBlobOverwrite", detail="")
    assert failure.precondition_failed and not failure.access and not failure.is_unsure
    failure = AzureFailure(status=409, code="BlobAlreadyExists", detail="")
    assert failure.precondition_failed and not failure.conflict
    failure = AzureFailure(status=409, code="BlobImmutableDueToPolicy", detail="")
    assert not (failure.precondition_failed or failure.conflict or failure.is_unsure)
    denied = AzureFailure(status=403, code="AuthorizationPermissionMismatch", detail="")
    assert denied.access and not denied.precondition_failed


def test_a_wrong_key_is_rejected_and_not_shown(azure_server: AzureServer, root: str) -> None:
    wrong = base64.b64encode(b"hunter2").decode()
    store = AzureStore(Address.parse(root), azure_server.storage_options | {"account_key": wrong})
    with pytest.raises(StorageAccessError, match="Azure rejects the request") as got:
        store.read("x")
    assert wrong not in str(got.value) and "\n" not in str(got.value)
    store.close()


@pytest.mark.server
def test_tokens_require_tls() -> None:
    store = AzureStore(
        Address.parse("az://data/t"), {"account_name": "a", "endpoint": "http://127.0.0.1:9"}
    )
    with pytest.raises(StorageAccessError, match="without TLS"):
        store.read("x")
    store.close()


def parse(
    given: dict[str, str], root: str = "az://data/t", environment: dict[str, str] | None = None
) -> AzureOptions:
    return AzureOptions.parse(given, AzureAddress.of(Address.parse(root)), environment)


@pytest.mark.parametrize(
    "given",
    [
        {"account_name": "acct", "account_key": "S2V5"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "azure_storage_account_key": "S2V5"},
        {"connection_string": "AccountName=acct;AccountKey=S2V5;EndpointSuffix=core.windows.net"},
        {"connection_string": "AccountName=acct;AccountKey=b2xk", "account_key": "S2V5"},
    ],
)
def test_the_names_of_adlfs_and_of_delta_rs_mean_the_same(given: dict[str, str]) -> None:
    endpoint = "https://acct.blob.core.windows.net"
    assert parse(given) == AzureOptions(account="acct", endpoint=endpoint, account_key="S2V5")


def test_an_address_may_name_the_account_and_its_endpoint() -> None:
    china = parse({}, "abfss://data@acct.dfs.core.chinacloudapi.cn/t")
    assert (china.account, china.endpoint) == ("acct", "https://acct.blob.core.chinacloudapi.cn")
    zone = parse({}, "abfss://data@acct.z12.dfs.storage.azure.net/t")
    assert zone.endpoint == "https://acct.z12.blob.storage.azure.net"


def test_credentials_of_the_environment_are_for_their_own_account_only() -> None:
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_ACCOUNT_KEY": "S2V5"}
    assert parse({}, environment=environment).account_key == "S2V5"
    other = parse({}, "abfss://data@other.dfs.core.windows.net/t", environment)
    assert (other.account, other.account_key) == ("other", None)
    chosen = parse({"sas_token": "sig=x"}, environment=environment)
    assert (chosen.account_key, chosen.sas_token) == (None, "sig=x")
    assert parse({"anon": "true"}, environment=environment).account_key is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "names no storage account"),
        ({"account_name": "a", "acount_key": "hunter2"}, "no storage option 'acount_key'"),
        ({"account_name": "a", "account_key": "hunter2"}, "not base64"),
        ({"account_name": "a", "client_secret": "hunter2"}, "needs tenant and client"),
        ({"account_name": "a", "sas_token": "hunter2", "anon": "true"}, "several credentials"),
        ({"account_name": "a", "endpoint": "https://me:hunter2@e"}, "not an address"),
        ({"connection_string": "hunter2"}, "neither account nor credentials"),
    ],
)
def test_an_unknown_option_is_named_without_its_value(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as got:
        parse(options)
    error: BaseException | None = got.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or error.__context__
    with pytest.raises(InvalidRequestError, match="another account"):
        parse({"account_name": "a"}, "abfss://data@b.dfs.core.windows.net/t")

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.rest import Answer
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.storage.gcs.client import GCSClient, GCSFailure, GCSOptions
from delta_maintenance.storage.gcs.store import GCSPut, GCSStore
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes
from tests.support.emulators.gcs_server import GCSServer
from tests.support.servers.loopback import Reply, serve

PART = 256 << 10


class TestGCSStore(StoreContract):
    @pytest.fixture
    def store(self, gcs_server: GCSServer, gcs_bucket: str) -> Iterator[GCSStore]:
        self.server = gcs_server
        self.opened = [
            GCSStore(
                Address.parse(f"gs://{gcs_bucket}/ware%20house/a b"), gcs_server.storage_options
            )
        ]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(GCSStore(store.address, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        bucket, _, prefix = store.root.removeprefix("gs://").partition("/")
        self.server.fill(bucket, [f"{prefix}/{path}" for path in paths])

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        options = self.server.storage_options
        return contend_in_processes(partial(GCSStore, store.address, options), paths)


@pytest.fixture
def store(gcs_server: GCSServer, gcs_bucket: str) -> Iterator[GCSStore]:
    store = GCSStore(
        Address.parse(f"gs://{gcs_bucket}/warehouse/table"), gcs_server.storage_options
    )
    yield store
    store.close()


def test_a_table_may_be_the_whole_bucket(gcs_server: GCSServer, gcs_bucket: str) -> None:
    store = GCSStore(Address.parse(f"gs://{gcs_bucket}/"), gcs_server.storage_options)
    assert store.put_if_absent("0.json", b"{}") is Put.DONE
    assert [status.path for status in store.list_from("")] == ["0.json"]
    assert store.root == f"gs://{gcs_bucket}"
    store.close()


def test_a_marker_of_a_folder_is_no_file(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    prefix = "warehouse/table/_delta_log/"
    gcs_server.fill(gcs_bucket, [prefix, f"{prefix}0.json", f"{prefix}/slash.json"])
    assert [status.path for status in store.list_from("_delta_log")] == ["_delta_log/0.json"]


def test_a_tree_is_listed_whole_and_in_pages(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    names = [f"p={number % 7}/{number}.parquet" for number in range(50)]
    gcs_server.fill(gcs_bucket, [f"warehouse/table/{name}" for name in names], b"four")
    gcs_server.fill(gcs_bucket, ["warehouse/table2/x", "warehouse/tabl"])
    gcs_server.page_size = 20
    pages = list(store.list_tree())
    assert len(pages) == 3
    assert sorted(path for page in pages for path in page["path"].to_pylist()) == sorted(names)
    assert {size for page in pages for size in page["size"].to_pylist()} == {4}
    below = [path for page in store.list_tree("p=3") for path in page["path"].to_pylist()]
    assert sorted(below) == sorted(name for name in names if name.startswith("p=3/"))


def test_a_level_is_listed_in_pages_without_its_subfolders(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    names = [f"p={number % 7}/{number}.parquet" for number in range(50)]
    gcs_server.fill(gcs_bucket, [f"warehouse/table/{name}" for name in [*names, "x", "p=3/"]])
    gcs_server.page_size = 3
    gcs_server.requests.clear()
    level = [(row["path"], row["kind"]) for row in store.list_level().to_pylist()]
    assert sorted(level) == [*((f"p={number}", 1) for number in range(7)), ("x", 0)]
    assert len(gcs_server.requests) == 3
    assert all("prefixes" in request for request in gcs_server.requests)


@pytest.mark.parametrize("count", [3 * PART, 3 * PART + 1, 3 * PART - 1])
def test_a_large_stream_goes_up_in_parts_and_appears_at_once(
    gcs_server: GCSServer, gcs_bucket: str, count: int
) -> None:
    options = gcs_server.storage_options
    store = GCSStore(
        Address.parse(f"gs://{gcs_bucket}/t"), options, multipart_size=PART, part_size=PART
    )
    data = os.urandom(count)
    with store.create("x") as file:
        file.write(data)
        assert store.stat("x") is None
    assert store.read("x") == data
    parts = [request for request in gcs_server.requests if request.startswith("PUT")]
    assert len(parts) == -(-count // PART)
    with pytest.raises(FileExistsError), store.create("x") as file:
        file.write(data[::-1])
    assert store.read("x") == data
    store.put_from("x", io.BytesIO(data[1:]))
    assert store.read("x") == data[1:]
    store.close()


def test_partly_stored_parts_are_resumed(gcs_server: GCSServer, gcs_bucket: str) -> None:
    options = gcs_server.storage_options
    store = GCSStore(
        Address.parse(f"gs://{gcs_bucket}/t"), options, multipart_size=PART, part_size=2 * PART
    )
    data = os.urandom(5 * PART)
    gcs_server.part_size = PART
    with store.create("x") as file:
        file.write(data)
    assert store.read("x") == data
    gcs_server.part_size = 0
    with pytest.raises(StorageError, match="NothingKept"), store.create("y") as file:
        file.write(data)
    assert store.stat("y") is None
    store.close()


def test_a_concurrent_file_is_kept_during_an_upload(
    gcs_server: GCSServer, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = gcs_server.storage_options
    store = GCSStore(
        Address.parse(f"gs://{gcs_bucket}/t"), options, multipart_size=PART, part_size=PART
    )
    rival = GCSStore(Address.parse(f"gs://{gcs_bucket}/t"), options)
    staged = GCSPut.stage

    def overtaken(put: GCSPut, key: str, source: BinaryIO, size: int, put_id: str) -> object:
        publish = staged(put, key, source, size, put_id)
        if put is store._creator:
            assert rival.put_if_absent("x", b"rival") is Put.DONE
        return publish

    monkeypatch.setattr(GCSPut, "stage", overtaken)
    with pytest.raises(FileExistsError), store.create("x") as file:
        file.write(bytes(2 * PART))
    assert rival.read("x") == b"rival"
    # The upload was given up.
    assert gcs_server.uploads == {}
    store.close()
    rival.close()


def test_data_that_contains_the_boundary_is_stored_completely(
    gcs_server: GCSServer, gcs_bucket: str
) -> None:
    store = GCSStore(
        Address.parse(f"gs://{gcs_bucket}/t"), gcs_server.storage_options, new_id=lambda: "id"
    )
    data = b"one\r\n--part-id\r\n\r\ntwo\r\n--part-id-\r\n--part-id--\r\nthree"
    assert store.put_if_absent("x", data) is Put.DONE
    assert store.read("x") == data
    store.close()


# Costs of operations.


def cost(server: GCSServer, operation: Callable[[], object]) -> int:
    server.requests.clear()
    operation()
    return len(server.requests)


def test_single_calls_cost_single_requests(gcs_server: GCSServer, store: GCSStore) -> None:
    # The server is probed once: two puts, one delete.
    assert cost(gcs_server, lambda: store.put_if_absent("_delta_log/0.json", b"{}")) == 4
    assert cost(gcs_server, lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 1
    assert cost(gcs_server, lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 2
    assert cost(gcs_server, lambda: store.put("hint", b"{}")) == 1
    assert cost(gcs_server, lambda: store.read("hint")) == 1
    assert cost(gcs_server, lambda: store.stat("hint")) == 1
    assert cost(gcs_server, lambda: store.delete("hint")) == 1
    assert cost(gcs_server, lambda: store.delete_many([f"x{n}" for n in range(201)])) == 3
    left = [status.path for status in store.list_from("_delta_log")]
    assert left == ["_delta_log/0.json", "_delta_log/1.json"]


def test_listing_a_log_costs_requests_for_its_tail_only(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    names = [f"{version:020}.json" for version in range(3_000)]
    gcs_server.fill(gcs_bucket, [f"warehouse/table/_delta_log/{name}" for name in names])
    for first, requests in ((2_999, 1), (2_010, 1), (1_500, 2), (0, 3)):
        start = f"{first:020}"
        assert cost(gcs_server, lambda s=start: list(store.list_from("_delta_log", s))) == requests


# Whether puts can be trusted.


@pytest.mark.conformance("LOG-09", "TXN-01")
def test_a_server_that_ignores_conditions_is_detected_before_writing(
    gcs_server: GCSServer, store: GCSStore
) -> None:
    gcs_server.honours_conditions = False
    with pytest.raises(RefusedError, match="file _delta_log/0.json: the store has no conditional"):
        store.put_if_absent("_delta_log/0.json", b"data")
    assert list(store.list_from("_delta_log")) == []


def test_for_google_buckets_only_the_location_type_is_requested(
    gcs_server: GCSServer, store: GCSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GCSClient, "is_google", True)
    assert cost(gcs_server, lambda: store.put_if_absent("0.json", b"{}")) == 2
    assert "storageLayout" in gcs_server.requests[0]
    assert cost(gcs_server, lambda: store.put_if_absent("1.json", b"{}")) == 1


@pytest.mark.conformance("TXN-01")
def test_a_zonal_bucket_is_refused(
    gcs_server: GCSServer, store: GCSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GCSClient, "is_google", True)
    gcs_server.location_type = "zone"
    for _ in range(2):
        with pytest.raises(RefusedError, match="zonal"):
            store.put_if_absent("0.json", b"{}")
    assert list(store.list_from("")) == []


def test_a_bucket_of_unknown_type_is_probed(
    gcs_server: GCSServer, store: GCSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GCSClient, "is_google", True)
    real = GCSClient.ask

    def ask(client: GCSClient, path: str, query: dict[str, object], **more: Any) -> object:
        if path.endswith("storageLayout"):
            raise GCSFailure(status=403, code="forbidden", detail="")
        return real(client, path, query, **more)

    monkeypatch.setattr(GCSClient, "ask", ask)
    assert cost(gcs_server, lambda: store.put_if_absent("0.json", b"{}")) == 4


# Deletes, reads, failures.


def test_undeletable_keys_are_reported_individually(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    gcs_server.fill(gcs_bucket, [f"warehouse/table/{number:03}" for number in range(150)])
    gcs_server.denied = {"warehouse/table/007", "warehouse/table/123"}
    kept = store.delete_many([f"{number:03}" for number in range(150)])
    assert sorted(kept) == ["007", "123"]
    assert all(isinstance(error, StorageAccessError) for error in kept.values())
    assert "storage.objects.delete" in str(kept["007"])
    assert [status.path for status in store.list_from("")] == ["007", "123"]
    with pytest.raises(StorageAccessError):
        store.delete("007")


def test_a_key_without_an_answer_counts_as_kept(
    store: GCSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GCSClient.send

    def send(client: GCSClient, method: str, path: str, **rest: object) -> Answer:
        answer = real(client, method, path, **rest)
        if not path.startswith("/batch"):
            return answer
        parts = answer.body.split(b"--answers")
        body = b"--answers".join([parts[0], *parts[2:]])
        return Answer(status=200, headers=answer.headers, body=body)

    monkeypatch.setattr(GCSClient, "send", send)
    for name in ("a", "b", "c"):
        store.put(name, b"")
    assert list(store.delete_many(["a", "b", "c"])) == ["a"]


def test_a_file_replaced_while_it_is_read_is_an_error(store: GCSStore) -> None:
    store.put("x", bytes(3 << 20))
    with store.open("x") as file:
        assert file.read(10) == bytes(10)
        store.put("x", b"1" * (3 << 20))
        with pytest.raises(StorageError, match="replaced while it was read"):
            file.read()
        store.delete("x")
        with pytest.raises(FileNotFoundError):
            file.read()


def test_a_missing_bucket_is_not_an_empty_table(gcs_server: GCSServer) -> None:
    store = GCSStore(Address.parse("gs://no-such-bucket/t"), gcs_server.storage_options)
    calls: list[Callable[[], object]] = [
        lambda: list(store.list_from("_delta_log")),
        lambda: store.read("x"),
        lambda: store.stat("x"),
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        lambda: store.delete("x"),
    ]
    for call in calls:
        with pytest.raises(StorageAccessError, match="NoSuchBucket") as got:
            call()
        assert "\n" not in str(got.value)
    assert list(store.delete_many(["x", "y"])) == ["x", "y"]
    store.close()


@pytest.mark.server
def test_an_answer_of_a_gateway_is_rejected() -> None:
    with serve(lambda request: Reply(status=200, body=b"<html>Sign in</html>")) as url:
        client = GCSClient(GCSOptions(endpoint_url=url), "bucket", sleep=lambda seconds: None)
        store = GCSStore(Address.parse("gs://bucket/t"), client=client)
        for call in (lambda: list(store.list_from("")), lambda: store.stat("x")):
            with pytest.raises(StorageError, match="NotJSON"):
                call()
        assert list(store.delete_many(["x", "y"])) == ["x", "y"]
        store.close()


# Options and credentials.


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, GCSOptions()),
        ({"token": "google_default"}, GCSOptions()),
        ({"token": "anon"}, GCSOptions(anonymous=True)),
        ({"google_skip_signature": "true"}, GCSOptions(anonymous=True)),
        ({"token": "/key.json"}, GCSOptions(key_file="/key.json")),
        ({"token": '{"type": "x"}'}, GCSOptions(key='{"type": "x"}')),
        ({"GOOGLE_SERVICE_ACCOUNT": "/key.json"}, GCSOptions(key_file="/key.json")),
        ({"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, GCSOptions(key="{}")),
        ({"endpoint_url": "https://e:1/"}, GCSOptions(endpoint_url="https://e:1")),
    ],
)
def test_the_names_of_gcsfs_and_of_delta_rs_are_understood(
    given: dict[str, str], meant: GCSOptions
) -> None:
    assert GCSOptions.parse(given) == meant


def test_an_emulator_named_by_the_environment_is_used() -> None:
    options = GCSOptions.parse({}, {"STORAGE_EMULATOR_HOST": "localhost:4443"})
    assert options.endpoint_url == "http://localhost:4443"
    given = GCSOptions.parse(
        {"endpoint_url": "https://e"}, {"STORAGE_EMULATOR_HOST": "http://localhost"}
    )
    assert given.endpoint_url == "https://e"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokne": "hunter2"}, "no storage option 'tokne'"),
        ({"token": "hunter2", "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, "several credentials"),
        ({"token": "anon", "GOOGLE_SERVICE_ACCOUNT_KEY": "hunter2"}, "several credentials"),
        ({"endpoint_url": "https://me:hunter2@e"}, "not an address"),
        ({"GOOGLE_SKIP_SIGNATURE": "hunter2"}, "neither true nor false"),
    ],
)
def test_an_unknown_option_is_named_without_its_value(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as got:
        GCSOptions.parse(options)
    assert "hunter2" not in str(got.value)


def test_a_service_account_signs_in_and_its_token_goes_with_every_request(
    gcs_server: GCSServer, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Newer releases ask Google itself, beside every sign-in, where an account may be used from.
    monkeypatch.setattr(
        "google.oauth2.service_account.Credentials._maybe_start_regional_access_boundary_refresh",
        lambda *given: None,
        raising=False,
    )
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization

    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key = {
        "type": "service_account",
        "client_email": "me@example.com",
        "private_key": pem.decode(),
        "private_key_id": "1",
        "token_uri": f"{gcs_server.url}/token",
    }
    options = gcs_server.storage_options | {"token": json.dumps(key)}
    store = GCSStore(Address.parse(f"gs://{gcs_bucket}/t"), options)
    assert pem.decode()[30:60] not in repr(store) + repr(GCSOptions.parse(options))
    store.put("x", b"1")
    assert store.read("x") == b"1"
    assert gcs_server.requests[0].endswith("/token")
    assert gcs_server.tokens[1:] == ["Bearer token"] * 2
    store.close()


@pytest.mark.parametrize("key", ["{not json", '{"type": "service_account"}', '{"type": "hunter2"}'])
@pytest.mark.server
def test_an_invalid_key_is_not_repeated(key: str) -> None:
    store = GCSStore(Address.parse("gs://bucket/t"), {"GOOGLE_SERVICE_ACCOUNT_KEY": key})
    with pytest.raises(StorageAccessError, match="NoCredentials") as got:
        store.read("x")
    assert "hunter2" not in str(got.value)
    store.close()

"""One client for many stores: sharing, lifetime and retries."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.storage import open_store
from delta_maintenance.storage.addresses import SharedClients
from delta_maintenance.storage.s3 import S3Options
from tests.support.emulators.s3_server import serve_s3

KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "region": "eu-west-1"}


def test_stores_of_the_same_options_share_a_client() -> None:
    clients = SharedClients()
    one = clients.of(Address.parse("s3://lake/a"), KEYS)
    assert clients.of(Address.parse("s3a://other/b"), {**KEYS}) is one
    assert (
        clients.of(Address.parse("s3://lake/a"), {**KEYS, "AWS_SECRET_ACCESS_KEY": "another"})
        is not one
    )
    assert clients.of(Address.parse("s3://lake/a"), None) is not one


def test_clients_of_google_and_azure_are_each_for_one_place() -> None:
    clients = SharedClients()
    google = {"endpoint_url": "http://127.0.0.1:1"}
    one = clients.of(Address.parse("gs://lake/a"), google)
    assert clients.of(Address.parse("gs://lake/b"), google) is one
    assert clients.of(Address.parse("gs://other/a"), google) is not one
    azure = {"AZURE_STORAGE_ACCOUNT_KEY": "aGk=", "endpoint": "http://127.0.0.1:1/here"}
    blob = clients.of(Address.parse("abfss://lake@acc.dfs.core.windows.net/a"), azure)
    assert clients.of(Address.parse("abfss://lake@acc.dfs.core.windows.net/b"), azure) is blob
    assert clients.of(Address.parse("abfss://pond@acc.dfs.core.windows.net/b"), azure) is not blob


def test_a_client_of_hdfs_is_for_all_folders_of_its_name_node() -> None:
    clients = SharedClients()
    one = clients.of(Address.parse("webhdfs://name-node:9870/a"), {"user": "me"})
    assert clients.of(Address.parse("webhdfs://name-node:9870/b"), {"user": "me"}) is one
    assert clients.of(Address.parse("webhdfs://name-node:9870/a"), {"user": "you"}) is not one
    assert clients.of(Address.parse("webhdfs://other:9870/a"), {"user": "me"}) is not one


def test_a_client_is_released_with_its_last_store() -> None:
    clients = SharedClients()
    store = open_store("s3://lake/a", KEYS, clients=clients)
    assert len(clients._clients) == 1
    del store
    gc.collect()
    assert len(clients._clients) == 0


def test_a_local_table_needs_no_client(tmp_path: Any) -> None:
    assert open_store(tmp_path, clients=SharedClients()).stat("a") is None


@pytest.mark.server
def test_without_pauses_a_request_is_sent_once() -> None:
    with serve_s3() as server:
        store = open_store("s3://lake/t", server.storage_options, clients=SharedClients(pauses=()))

        def throttle(application: Any) -> Any:
            def answer(environ: Any, start_response: Any) -> list[bytes]:
                start_response("503 Slow Down", [])
                return [b"<Error><Code>SlowDown</Code></Error>"]

            return answer

        server.intercept = throttle
        server.requests.clear()
        with pytest.raises(StorageError, match="SlowDown"):
            store.read("a")
        assert len(server.requests) == 1
        store.close()


def test_no_secret_is_printed() -> None:
    clients = SharedClients()
    client = clients.of(Address.parse("s3://lake/a"), KEYS)
    told = f"{clients!r} {vars(clients)!r} {client!r} {S3Options.parse(KEYS)!r}"
    assert "a-secret" not in told

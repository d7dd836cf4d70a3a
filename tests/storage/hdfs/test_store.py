"""The store at `webhdfs:` addresses, by HDFS over HTTP."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CommitUnknownError,
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.rest import HttpSession
from delta_maintenance.storage import Put, open_store
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.hdfs.options import WebHdfsOptions
from delta_maintenance.storage.hdfs.store import HdfsStore
from delta_maintenance.storage.hdfs.webhdfs_client import WebHdfsClient
from tests.storage.hdfs.contract import PATIENCE, HdfsStoreContract
from tests.support.faults.fault_proxy import FaultProxy, serve_faults
from tests.support.servers.hdfs_cluster import HdfsCluster, make_empty_files
from tests.support.servers.loopback import Reply, Request, serve
from tests.support.stores.fault_contract import FaultContract


def new_root(hdfs: HdfsCluster) -> str:
    return hdfs.address(f"/user/{uuid.uuid4()}/ware%20house/a b")


class TestHdfsStore(HdfsStoreContract):
    @pytest.fixture
    def root(self, hdfs: HdfsCluster) -> str:
        return new_root(hdfs)


class TestFaults(FaultContract):
    @pytest.fixture
    def proxy(self, hdfs: HdfsCluster) -> Iterator[FaultProxy]:
        self.root = f"/user/{uuid.uuid4()}/t"
        with serve_faults(hdfs.data_node_address()) as behind:
            redirects = {hdfs.data_node_address(): behind.url}
            with serve_faults(f"http://{hdfs.http}", redirects=redirects) as proxy:
                # One choice for the requests to both nodes.
                behind.choose = lambda request: proxy.choose(request)
                behind.injected = proxy.injected
                yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        root = f"webhdfs://{proxy.url.removeprefix('http://')}{self.root}"
        options = WebHdfsOptions.parse(None, Address.parse(root))
        session = HttpSession(timeout=(1, PATIENCE))
        return HdfsStore(
            Address.parse(root),
            client=WebHdfsClient(options, session=session, sleep=lambda _: None),
        )

    def publishes(self, request: Request) -> bool:
        return "op=RENAME" in request.target

    def reads(self, request: Request) -> bool:
        return "op=OPEN" in request.target and "namenoderpcaddress" in request.target


@pytest.fixture
def store(hdfs: HdfsCluster) -> Iterator[HdfsStore]:
    store = HdfsStore(Address.parse(new_root(hdfs)))
    yield store
    store.close()


def temporaries(store: Store, directory: str) -> list[str]:
    return [s.path for s in store.list_from(directory) if s.path.endswith(".tmp")]


# Writers and nodes that are killed.


def put_and_hang(root: str, path: str, step: str) -> None:
    """Ends nowhere: stops for good before a step of a put, when the file is under way."""
    store = HdfsStore(Address.parse(root))
    print("started", flush=True)
    if step == "rename":
        store._client.rename = lambda *_, **__: time.sleep(600)
        store._creator.is_trusted = lambda key: True  # type: ignore[method-assign]
        store.put_if_absent(path, b"late")
    else:
        # The data node waits for the second half of the bytes.
        assert isinstance(store._client, WebHdfsClient)
        place = store._client.send(
            "PUT", "CREATE", f"{store._folder}/{path}.tmp", overwrite="false"
        ).headers["Location"]
        host, _, target = place.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host)
        connection.putrequest("PUT", f"/{target}")
        connection.putheader("Content-Length", "2000000")
        connection.endheaders()
        connection.send(bytes(1_000_000))
        time.sleep(600)


@pytest.mark.parametrize("step", ["rename", "upload"])
def test_a_killed_writer_leaves_no_file_and_blocks_no_other(store: HdfsStore, step: str) -> None:
    path = "_delta_log/0.json"
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    writer = processes.Process(target=put_and_hang, args=(store.root, path, step))
    writer.start()
    deadline = time.monotonic() + 120
    while not temporaries(store, "_delta_log"):
        assert time.monotonic() < deadline and writer.is_alive()
        time.sleep(0.05)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert store.stat(path) is None
    # The lease of the dead writer is on its own temporary file.
    assert store.put_if_absent(path, b"next") is Put.DONE
    assert store.read(path) == b"next"
    left = temporaries(store, "_delta_log")
    assert len(left) == 1
    assert store.delete_many(left) == {}
    assert [status.path for status in store.list_from("_delta_log")] == [path]


def test_a_killed_data_node_loses_no_acknowledged_file(hdfs: HdfsCluster, store: HdfsStore) -> None:
    assert store.put_if_absent("a", b"before") is Put.DONE
    impatient = HdfsStore(
        store.address,
        client=WebHdfsClient(
            WebHdfsOptions.parse(None, store.address),
            session=HttpSession(timeout=(1, PATIENCE)),
            sleep=lambda _: None,
        ),
    )
    hdfs.kill_data_node(0)
    try:
        with pytest.raises(StorageError):
            impatient.read("a")
        # Nothing was published, so that is certain.
        with pytest.raises(StorageError) as got:
            impatient.put_if_absent("b", b"while it is gone")
        assert not isinstance(got.value, CommitUnknownError)
        assert store.stat("b") is None
        # Metadata is still available from the name node.
        assert [status.path for status in store.list_from("")] == ["a"]
    finally:
        impatient.close()
        hdfs.start_data_node(0)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert store.read("a") == b"before"
            assert store.put_if_absent("b", b"after") is Put.DONE
            break
        except StorageError:
            # Its blocks count again once it has reported them.
            assert time.monotonic() < deadline
    assert store.read("b") == b"after"


# Costs of operations, and the answering server.


def test_single_calls_cost_few_requests(hdfs: HdfsCluster) -> None:
    with serve_faults(f"http://{hdfs.http}") as proxy:
        asked: list[str] = []
        proxy.choose = lambda request: asked.append(request.target)
        store = HdfsStore(
            Address.parse(f"webhdfs://{proxy.url.removeprefix('http://')}/user/{uuid.uuid4()}")
        )

        def cost(operation: Callable[[], object]) -> int:
            asked.clear()
            operation()
            return len(asked)

        # The name node is asked once whether it knows a rename that replaces nothing. Requests to
        # data nodes are not counted.
        assert cost(lambda: store.put_if_absent("l/0.json", b"{}")) == 4
        assert cost(lambda: store.put_if_absent("l/1.json", b"{}")) == 3
        assert cost(lambda: store.put_if_absent("l/1.json", b"{}")) == 5
        assert cost(lambda: store.put("hint", b"{}")) == 3
        assert cost(lambda: store.read("hint")) == 1
        assert cost(lambda: store.stat("hint")) == 1
        assert cost(lambda: store.delete("hint")) == 1
        assert cost(lambda: list(store.list_from("l"))) == 1
        assert [status.path for status in store.list_from("l")] == ["l/0.json", "l/1.json"]
        store.close()


def test_a_listing_from_a_version_on_asks_for_its_tail_only(
    hdfs: HdfsCluster, store: HdfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []
    ask = WebHdfsClient.ask

    def counted(client: WebHdfsClient, operation: str, path: str, **query: object) -> Any:
        found = ask(client, operation, path, **query)
        listing = found["DirectoryListing"]["partialListing"]
        pages.append(len(listing["FileStatuses"]["FileStatus"]))
        return found

    make_empty_files(store, [f"_delta_log/{version:020}.json" for version in range(30)])
    monkeypatch.setattr(WebHdfsClient, "ask", counted)
    found = [status.path for status in store.list_from("_delta_log", f"{27:020}.json")]
    assert found == [f"_delta_log/{version:020}.json" for version in (27, 28, 29)]
    assert pages == [3]


def test_another_user_gets_an_error_with_the_missing_permission(
    hdfs: HdfsCluster, store: HdfsStore
) -> None:
    assert store.put_if_absent("a/x", b"1") is Put.DONE
    stranger = HdfsStore(store.address, {"user": "stranger"})
    assert stranger.read("a/x") == b"1"
    calls: list[Callable[[], object]] = [
        lambda: stranger.put_if_absent("a/y", b"2"),
        lambda: stranger.put("a/x", b"2"),
        lambda: stranger.delete("a/x"),
    ]
    for call in calls:
        with pytest.raises(StorageAccessError, match="grant w and x on the directory"):
            call()
    assert store.read("a/x") == b"1"
    stranger.close()


def test_only_an_empty_directory_is_removed(store: HdfsStore) -> None:
    store.put_if_absent("a/b/x", b"")
    assert not store.remove_empty_directory("a")
    assert not store.remove_empty_directory("a/b/x")
    store.delete("a/b/x")
    assert store.remove_empty_directory("a/b")
    assert store.remove_empty_directory("a/b")
    assert store.list_level("a").num_rows == 0


def test_a_name_whose_accents_java_would_compose_is_another_name(store: HdfsStore) -> None:
    store.put_if_absent("\u00fcber", b"composed")
    store.put_if_absent("u\u0308ber", b"in two")
    assert store.read("\u00fcber") == b"composed"
    assert store.read("u\u0308ber") == b"in two"


# Without a cluster.


def remote(name: str, message: str = "said", status: int = 403) -> Reply:
    body = {"RemoteException": {"exception": name, "message": message}}
    return Reply(status=status, body=json.dumps(body).encode())


@contextmanager
def opened(
    handle: Callable[[Request], Reply], options: dict[str, str] | None = None
) -> Iterator[HdfsStore]:
    with serve(handle) as url:
        root = f"webhdfs://{url.removeprefix('http://')}/t"
        client = WebHdfsClient(
            WebHdfsOptions.parse(options, Address.parse(root)),
            sleep=lambda _: None,
            pauses=(0,) * 3,
        )
        store = HdfsStore(Address.parse(root), client=client)
        yield store
        store.close()


def test_a_gateway_without_rename_options_is_refused_before_a_write() -> None:
    asked = []

    def gateway(request: Request) -> Reply:
        asked.append(request.target)
        return Reply(status=200, body=b'{"boolean": false}')

    with opened(gateway) as store, pytest.raises(RefusedError, match="a gateway answers"):
        store.put_if_absent("_delta_log/0.json", b"{}")
    assert len(asked) == 1 and "op=RENAME" in asked[0]


def test_the_active_name_node_is_found() -> None:
    status = {"FileStatus": {"pathSuffix": "", "type": "FILE", "length": 7, "fileId": 1}}
    status["FileStatus"]["modificationTime"] = 5
    active: list[str] = []

    def answer(request: Request) -> Reply:
        active.append("asked")
        return Reply(status=200, body=json.dumps(status).encode())

    with serve(answer) as url:
        other = {"name_nodes": url.removeprefix("http://")}
        with opened(lambda request: remote("StandbyException"), other) as store:
            for _ in range(2):
                found = store.stat("x")
                assert found is not None and found.size == 7
    # It is remembered.
    assert len(active) == 2


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (remote("AccessControlException", "no r"), StorageAccessError, "no r"),
        (remote("InvalidToken", "token expired"), StorageAccessError, "token expired"),
        (remote("SafeModeException", "safe mode"), StorageError, "safe mode"),
        (remote("NullPointerException", status=500), StorageError, "NullPointer"),
        (Reply(status=404, body=b"<html>"), StorageAccessError, "HTTP 404"),
        (Reply(status=401), StorageAccessError, "HTTP 401"),
        (Reply(status=200, body=b"<html>"), StorageError, "not an answer of WebHDFS"),
        (Reply(status=200, body=b'{"FileStatus": 1}'), StorageError, "not an answer of WebHDFS"),
    ],
)
def test_an_invalid_answer_is_explained_in_one_line(
    reply: Reply, error: type[StorageError], said: str
) -> None:
    with opened(lambda request: reply) as store:
        for call in (lambda: store.stat("x"), lambda: store.open("x")):
            with pytest.raises(StorageError, match=said) as got:
                call()
            assert type(got.value) is error and "\n" not in str(got.value)


def test_a_token_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def refuse(request: Request) -> Reply:
        asked.append(request.target)
        return remote("InvalidToken", "token hunter2 of alice")

    caplog.set_level("DEBUG")
    with (
        opened(refuse, {"token": "hunter2", "proxy_user": "bob"}) as store,
        pytest.raises(StorageAccessError) as got,
    ):
        store.read("x")
    assert "delegation=hunter2" in asked[0] and "doas=bob" in asked[0]
    assert "user.name" not in asked[0]
    assert "hunter2" not in str(got.value) + repr(store) + caplog.text
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(store)


@pytest.mark.parametrize(
    ("address", "given", "environment", "expected"),
    [
        ("webhdfs://nn:1/t", {}, {"HADOOP_USER_NAME": "a"}, {"user": "a"}),
        ("webhdfs://nn/t", {"user": "b"}, {"HADOOP_USER_NAME": "a"}, {"user": "b"}),
        ("webhdfs://nn/t", {}, {}, {"endpoints": ("http://nn:9870",)}),
        ("swebhdfs://nn/t", {}, {}, {"endpoints": ("https://nn:9871",)}),
        ("swebhdfs://nn/t", {"kerberos": "true"}, {}, {"user": None, "kerberos": True}),
        ("webhdfs://c@nn:1/t", {}, {}, {"user": "c"}),
        ("webhdfs://nn:1/t", {}, {"HADOOP_DELEGATION_TOKEN": "a0"}, {"user": None, "token": "a0"}),
        ("webhdfs://a:1/t", {"name_nodes": "b:2"}, {}, {"endpoints": ("http://a:1", "http://b:2")}),
    ],
)
def test_options_are_completed_by_the_environment_as_hadoop_does(
    address: str, given: dict[str, str], environment: dict[str, str], expected: dict[str, object]
) -> None:
    options = WebHdfsOptions.parse(given, Address.parse(address), environment)
    assert {name: getattr(options, name) for name in expected} == expected
    assert "a0" not in repr(options)
    again = {**options.public(), **{k: v for k, v in options.secrets().items() if v}}
    assert WebHdfsOptions.parse(again, Address.parse(address)) == options


@pytest.mark.parametrize("address", ["webhdfs://", "webhdfs:///t", "webhdfs://nn:x/t", "webhdfs:t"])
def test_an_address_without_a_name_node_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="webhdfs://HOST:9870/PATH|contains credentials"):
        open_store(address)


def test_without_its_package_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "requests_gssapi", None)
    with pytest.raises(InvalidRequestError, match=r"install delta-maintenance\[kerberos\]"):
        open_store("webhdfs://nn:1/t", {"kerberos": "true"})
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(InvalidRequestError, match=r"install delta-maintenance\[hdfs\]"):
        open_store("webhdfs://nn:1/t")

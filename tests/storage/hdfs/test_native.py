"""The store at `hdfs:` addresses, by Hadoop's own protocol."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CommitUnknownError,
    InvalidRequestError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.rest import failure as request_failure
from delta_maintenance.storage import Put, open_store
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.hdfs.native_client import NativeClient, _failure_of
from delta_maintenance.storage.hdfs.options import NativeOptions
from delta_maintenance.storage.hdfs.store import HdfsStore
from tests.storage.hdfs.contract import PATIENCE, HdfsStoreContract
from tests.support.faults.fault_proxy import FaultProxy, HttpFault
from tests.support.faults.rpc_faults import WRITES, serve_rpc_faults
from tests.support.kills.killed_writers import check, play
from tests.support.servers.hdfs_cluster import HdfsCluster
from tests.support.servers.loopback import Request
from tests.support.stores.fault_contract import FaultContract

BRIEFLY = {
    "dfs.client.failover.sleep.base.millis": "10",
    "dfs.client.failover.sleep.max.millis": "50",
    "dfs.client.failover.max.attempts": "2",
}
"""The package gives up after its second attempt, and pauses for milliseconds instead of seconds."""


@pytest.fixture(scope="module")
def name_node(hdfs: HdfsCluster) -> Iterator[str]:
    """The address of the name node through a proxy without faults, which closes files sooner."""
    with serve_rpc_faults(hdfs.rpc, hdfs.data_transfer_address()) as proxy:
        yield proxy.url


class TestNativeStore(HdfsStoreContract):
    @pytest.fixture
    def root(self, name_node: str) -> str:
        return f"{name_node}/user/{uuid.uuid4()}/ware%20house/a b"


class TestFaults(FaultContract):
    # After each packet that arrived whole; connections to data nodes are kept for some seconds.
    resumes_reads = True

    @pytest.fixture
    def proxy(self, hdfs: HdfsCluster) -> Iterator[FaultProxy]:
        self.folder = f"/user/{uuid.uuid4()}/t"
        with serve_rpc_faults(hdfs.rpc, hdfs.data_transfer_address()) as proxy:
            yield proxy

    def open_through(self, proxy: FaultProxy) -> Store:
        root = f"{proxy.url}{self.folder}"
        options = NativeOptions.parse(BRIEFLY, Address.parse(root))
        client = NativeClient(options, patience=PATIENCE, sleep=lambda _: None)
        return HdfsStore(Address.parse(root), client=client)

    def publishes(self, request: Request) -> bool:
        return request.target == "/rename2"

    def reads(self, request: Request) -> bool:
        return request.target == "/READ_BLOCK"


@pytest.mark.parametrize(
    ("call", "step"), [("create", "create"), ("addBlock", "write"), ("fsync", "sync")]
)
def test_an_upload_that_stalls_gets_a_second_attempt(
    hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch, call: str, step: str
) -> None:
    # A stall takes longer than the time in which further attempts may begin.
    monkeypatch.setattr(request_failure, "PATIENCE", PATIENCE / 2)
    with serve_rpc_faults(hdfs.rpc, hdfs.data_transfer_address()) as proxy:
        root = f"{proxy.url}/user/{uuid.uuid4()}"
        options = NativeOptions.parse(BRIEFLY, Address.parse(root))
        store = HdfsStore(Address.parse(root), client=NativeClient(options, patience=PATIENCE))
        remaining = [1]

        def stall(request: Request) -> HttpFault | None:
            if request.target != f"/{call}" or not remaining[0]:
                return None
            remaining[0] -= 1
            return HttpFault.SILENCE_BEFORE

        proxy.choose = stall
        store.put("a/x", b"1")
        assert proxy.injected == [HttpFault.SILENCE_BEFORE]
        remaining[0] = 3
        with pytest.raises(StorageError, match=f"no answer to {step} in {PATIENCE:g} s"):
            store.put("a/x", b"2")
        assert remaining == [1]
        assert store.read("a/x") == b"1"
        store.close()


def test_single_calls_cost_few_requests(hdfs: HdfsCluster) -> None:
    with serve_rpc_faults(hdfs.rpc, hdfs.data_transfer_address()) as proxy:
        asked: list[str] = []
        proxy.choose = lambda request: asked.append(request.target)
        store = HdfsStore(Address.parse(f"{proxy.url}/user/{uuid.uuid4()}"))

        def cost(operation: str, *given: object) -> list[str]:
            asked.clear()
            getattr(store, operation)(*given)
            return [name.removeprefix("/") for name in asked]

        upload = ["create", "addBlock", "fsync", "complete", "getFileInfo"]
        # The name node is asked once whether it knows a rename that replaces nothing, and the
        # package asks it once for its defaults.
        first = ["rename2", "getServerDefaults", *upload, "rename2"]
        assert cost("put_if_absent", "l/0.json", b"{}") == first
        assert cost("put_if_absent", "l/1.json", b"{}") == [*upload, "rename2"]
        refuted = [*upload, "rename2", "getFileInfo", "delete"]
        assert cost("put_if_absent", "l/1.json", b"{}") == refuted
        assert cost("stat", "l/1.json") == ["getFileInfo"]
        assert cost("delete", "l/1.json") == ["delete"]
        assert set(upload) & WRITES == {"create", "addBlock", "fsync", "complete"}
        store.close()


def test_another_user_gets_an_error_with_the_missing_permission(
    hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HdfsStore(Address.parse(hdfs.address(f"/user/{uuid.uuid4()}", scheme="hdfs")))
    assert store.put_if_absent("a/x", b"1") is Put.DONE
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    stranger = HdfsStore(store.address)
    assert stranger.read("a/x") == b"1"
    with pytest.raises(StorageAccessError, match="grant w and x on the directory"):
        stranger.put_if_absent("a/y", b"2")
    with pytest.raises(StorageAccessError, match="grant w and x on the directory"):
        stranger.delete("a/x")
    assert store.read("a/x") == b"1"
    stranger.close()
    store.close()


def test_both_addresses_of_a_folder_lead_to_the_same_files(hdfs: HdfsCluster) -> None:
    folder = f"/user/{uuid.uuid4()}/\u00fcber u\u0308ber"
    native, rest = (
        HdfsStore(Address.parse(hdfs.address(folder, scheme=s))) for s in ("hdfs", "webhdfs")
    )
    assert native.put_if_absent("l/u\u0308.json", b"1") is Put.DONE
    assert rest.put_if_absent("l/u\u0308.json", b"2") is Put.EXISTS
    assert rest.put_if_absent("l/\u00fc.json", b"2") is Put.DONE
    assert native.put_if_absent("l/\u00fc.json", b"1") is Put.EXISTS
    assert list(native.list_from("l")) == list(rest.list_from("l"))
    native.close()
    rest.close()


def test_the_configuration_of_hadoop_names_the_file_system(
    hdfs: HdfsCluster, tmp_path: Path
) -> None:
    folder, conf = f"/user/{uuid.uuid4()}", str(hdfs.folder / "conf")
    assert (
        HdfsStore(Address.parse(f"hdfs:{folder}"), {"config_dir": conf}).put_if_absent("x", b"1")
        is Put.DONE
    )
    service = {
        "dfs.ha.namenodes.lake": "gone,there",
        "dfs.namenode.rpc-address.lake.gone": "127.0.0.1:1",
        "dfs.namenode.rpc-address.lake.there": hdfs.rpc,
    }
    store = open_store(f"hdfs://lake{folder}", service)
    assert store.read("x") == b"1"
    assert store.put_if_absent("x", b"2") is Put.EXISTS
    store.close()


# Crashes, by either interface.


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_killed_writers_leave_no_partial_file_and_lose_no_commit(
    hdfs: HdfsCluster, name_node: str, scheme: str
) -> None:
    folder = f"/user/{uuid.uuid4()}"
    address = f"{name_node}{folder}" if scheme == "hdfs" else hdfs.address(folder)
    paths = [f"_delta_log/{version:020}.json" for version in range(30)]
    winners = play(partial(HdfsStore, Address.parse(address)), paths, kills=6)
    store = HdfsStore(Address.parse(address))
    check(store, paths, winners)
    store.close()


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_name_node_that_is_killed_and_restarted_forgets_no_commit(
    hdfs: HdfsCluster, scheme: str
) -> None:
    store = HdfsStore(Address.parse(hdfs.address(f"/user/{uuid.uuid4()}", scheme=scheme)))
    stop, told = threading.Event(), dict[str, Put]()

    def commit() -> None:
        version = 0
        while not stop.is_set():
            path = f"_delta_log/{version:020}.json"
            # Without the name node, nothing was published or the outcome is unknown.
            with suppress(StorageError, CommitUnknownError):
                told[path] = store.put_if_absent(path, path.encode())
            version += 1

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        wait_for(lambda: len(told) > 3)
        hdfs.kill_name_node()
        before = len(told)
        hdfs.start_name_node()
        wait_for(lambda: len(told) > before + 3)
    finally:
        stop.set()
        writer.join()
    listed = {status.path for status in store.list_from("_delta_log")}
    for path, outcome in told.items():
        assert outcome is Put.DONE and path in listed
        assert store.read(path) == path.encode()
    store.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Without a cluster.


@pytest.mark.parametrize(
    ("address", "given"),
    [
        ("hdfs://nn:8020/t", {"user": "me"}),
        ("hdfs://nn:8020/t", {"token": "hunter2"}),
        ("hdfs://me@nn:8020/t", {}),
    ],
)
def test_a_user_is_named_by_the_environment_only(address: str, given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="HADOOP_USER_NAME") as got:
        open_store(address, given)
    assert "hunter2" not in str(got.value)


@pytest.mark.parametrize(
    ("address", "given", "said"),
    [
        ("hdfs://a b:8020/t", {}, "HOST:PORT"),
        ("hdfs://n&n:8020/t", {}, "HOST:PORT"),
        ("hdfs://nn:8020/t", {"keytab": "x"}, "no storage option 'keytab'"),
        ("hdfs://nn:8020/t", {"fs.s3a.secret.key": "x"}, "no storage option"),
        ("hdfs://nn:8020/a\nb", {}, "not a clean path"),
        ("hdfs://lake/t", {}, "HDFS cannot be opened"),
        ("hdfs:/t", {}, "HDFS cannot be opened"),
        ("hdfs://lake/t", {}, "write hdfs://HOST:8020/PATH"),
        ("hdfs://a b:8020/t", {}, "write hdfs://HOST:8020/PATH"),
        ("hdfs://nn:8020/t", {"kerberos_keytab": "/k"}, "add kerberos_principal=NAME@REALM"),
        ("hdfs://nn:8020/t", {"kerberos_cache": "/c"}, "add kerberos_principal=NAME@REALM"),
    ],
)
def test_an_address_or_option_that_is_not_understood_is_refused(
    address: str, given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequestError, match=said) as got:
        open_store(address, given)
    assert "\n" not in str(got.value)


@pytest.mark.parametrize(
    ("text", "code", "meaning"),
    [
        ("hadoop.security.AccessControlException", "AccessControlException", "access"),
        ("hadoop.hdfs.server.namenode.SafeModeException", "SafeModeException", "conflict"),
        ("hadoop.ipc.StandbyException", "StandbyException", "conflict"),
        ("hadoop.security.token.SecretManager$InvalidToken", "InvalidToken", "access"),
    ],
)
def test_an_exception_of_a_server_is_one_line(text: str, code: str, meaning: str) -> None:
    message = f'RPCError("org.apache.{text}", "said of /t\\n\\tat org.apache.Server.call(1)")'
    failure = _failure_of(RuntimeError(message))
    assert str(failure) == f"{code}: said of /t"
    assert getattr(failure, meaning) and not failure.is_unsure


@pytest.mark.parametrize(
    ("kind", "code", "told", "said"),
    [
        (
            "GSS_S_FAILURE",
            2529638944,
            "Unspecified GSS failure.  Minor code may provide more information",
            "AuthenticationException: the Kerberos ticket has expired",
        ),
        (
            "GSS_S_CONTEXT_EXPIRED",
            0,
            "The referenced context has expired: Success",
            "AuthenticationException: the Kerberos ticket has expired",
        ),
        (
            "GSS_S_NO_CRED",
            2529639053,
            "No credentials were supplied: Success",
            "AuthenticationException: GSS_S_NO_CRED: No credentials were supplied: Success",
        ),
    ],
)
def test_an_error_of_kerberos_is_one_line(kind: str, code: int, told: str, said: str) -> None:
    codes = f'raw: "0x00070000", calling_error: "none", routine_error: "{kind}", more: "0x0000"'
    failure = _failure_of(
        RuntimeError(f'GSSAPIError(GssMajorCodes {{ {codes} }}, {code}, "{told}")')
    )
    assert str(failure) == said
    assert failure.access and failure.remedy is not None and "kinit" in failure.remedy


def test_without_the_libraries_of_kerberos_the_error_names_what_to_install() -> None:
    failure = _failure_of(RuntimeError('OperationFailed("Failed to load libgssapi_krb")'))
    assert failure.access
    assert failure.remedy == "install the system library libgssapi_krb5"


def test_a_path_below_a_file_does_not_exist() -> None:
    said = f"{'/long' * 100} (is not a directory)\\n\\tat org.apache"
    exception = "org.apache.hadoop.security.AccessControlException"
    failure = _failure_of(RuntimeError(f'RPCError("{exception}", "{said}")'))
    assert failure.missing and len(str(failure)) < 300


def test_options_survive_being_passed_on() -> None:
    given = {
        "config_dir": "/etc/hadoop",
        "kerberos_keytab": "/k",
        "kerberos_principal": "me@REALM",
        "kerberos_cache": "/tmp/cc",
        "dfs.ha.namenodes.lake": "a,b",
    }
    options = NativeOptions.parse(given, Address.parse("hdfs://lake/t"))
    assert options.public() == given
    assert hash(options) == hash(NativeOptions.parse(given, Address.parse("hdfs://lake/other")))


def test_without_its_package_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(InvalidRequestError, match=r"install delta-maintenance\[hdfs\]"):
        open_store("hdfs://nn:8020/t")

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.fsspec import FsspecStore, FsspecTree, as_arguments, modified_ms
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.testing.store_contract import StoreContract


class ReadThrough(LocalStore):
    """Writes to a folder of this machine, and reads the same folder through fsspec."""

    def __init__(self, folder: Path, reader: FsspecStore) -> None:
        super().__init__(folder)
        self.list_from = reader.list_from
        self.stat = reader.stat
        self.read = reader.read
        self.read_head = reader.read_head
        self.open = reader.open
        self.list_tree = reader.list_tree
        self.list_level = reader.list_level
        self.reader = reader


class TestLocalFiles(StoreContract):
    entries = 1_200
    doomed = 20

    @pytest.fixture
    def store(self, tmp_path: Path) -> ReadThrough:
        folder = tmp_path / "ware house"
        folder.mkdir()
        return ReadThrough(folder, FsspecStore(Address.parse(folder.as_uri())))


class TestWebServer(StoreContract):
    entries = 40
    doomed = 20

    @pytest.fixture
    def store(self, tmp_path: Path, web: str) -> ReadThrough:
        folder = tmp_path / "ware house"
        folder.mkdir()
        return ReadThrough(folder, FsspecStore(Address.parse(f"{web}/ware house")))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    with serve_files(tmp_path) as url:
        yield url


class serve_files(AbstractContextManager[str]):
    """Python's own Web server over a folder, with its index pages; it knows no ranges."""

    def __init__(self, folder: Path) -> None:
        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                return

        handler: Callable[..., Any] = partial(Handler, directory=os.fspath(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def store_over(system: Any, base: str, **options: Any) -> FsspecTree:
    return FsspecTree(system, base, sleep=lambda _: None, **options)


class Fragile:
    """A file system whose calls fail with given errors."""

    protocol = "fragile"
    async_impl = False

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def _strip_protocol(self, path: str) -> str:
        return path

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return [{"name": f"{path}/x", "type": "file", "size": 1, "mtime": 1.5}]


def test_the_memory_file_system_of_fsspec_is_read() -> None:
    system = fsspec.filesystem("memory")
    system.pipe({"/fsspec-store/t/a/x": b"four", "/fsspec-store/t/y": b""})
    store = FsspecStore(Address.parse("memory://fsspec-store/t"))
    assert store.read("a/x") == b"four"
    found = store.stat("a/x")
    assert found is not None and found.modified_ms > 1_700_000_000_000
    assert [status.path for status in store.list_from("")] == ["y"]
    tree = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    assert sorted(tree) == ["a", "a/x", "y"]


def test_a_chained_address_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a b.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("t/_delta_log/0.json", (2024, 5, 6, 7, 8, 10)), b"{}")
    store = open_store(f"zip://t::{tmp_path}/a b.zip")
    assert isinstance(store, FsspecStore)
    [status] = store.list_from("_delta_log")
    assert (status.path, status.size, status.modified_ms) == ("_delta_log/0.json", 2, 1714979290000)
    assert store.read("_delta_log/0.json") == b"{}"
    with store.open("_delta_log/0.json") as file:
        file.seek(1)
        assert file.read() == b"}"
    with pytest.raises(RefusedError, match="a chained address can only be read"):
        store.put("x", b"")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put_if_absent("_delta_log/9.json", b"{}"),
        lambda store: store.put("x", b""),
        lambda store: store.create("x").__enter__(),
        lambda store: store.delete("x"),
        lambda store: store.delete_many(["x"]),
        lambda store: store.remove_empty_directory("a"),
    ],
    ids=["put_if_absent", "put", "create", "delete", "delete_many", "remove_empty_directory"],
)
def test_writes_are_refused_with_reason_and_remedy(
    tmp_path: Path, call: Callable[[Store], object]
) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(RefusedError) as got:
        call(FsspecStore(Address.parse(tmp_path.as_uri())))
    text = str(got.value)
    assert "no call that creates a file exactly once" in text
    assert "docs/integrations/stores.md" in text
    assert "\n" not in text and len(text) < 1000
    assert (tmp_path / "x").read_bytes() == b"1" and len(list(tmp_path.iterdir())) == 1


def test_patterns_of_fsspec_are_literal(tmp_path: Path) -> None:
    for name in ("x1", "x*", "[x]", "x?"):
        (tmp_path / name).write_bytes(name.encode())
    store = FsspecStore(Address.parse(tmp_path.as_uri()))
    for name in ("x*", "[x]", "x?"):
        assert store.read(name) == name.encode()
    assert store.stat("x[1]") is None and store.stat("?1") is None


def test_an_ambiguous_name_is_not_read() -> None:
    class Stripping(Fragile):
        def _strip_protocol(self, path: str) -> str:
            return path.partition("?")[0]

        def cat_file(self, path: str, **options: object) -> bytes:
            return path.encode()

    tree = store_over(Stripping(), "/t")
    assert tree.get("x") == b"/t/x"
    with pytest.raises(Exception, match="interprets special characters"):
        tree.get("x?y")


def test_a_listing_is_never_taken_from_a_cache(tmp_path: Path, web: str) -> None:
    for root in (tmp_path.as_uri(), web):
        store, other = FsspecStore(Address.parse(root)), FsspecStore(Address.parse(root))
        name = f"{len(root)}"
        assert name not in [status.path for status in store.list_from("")]
        (tmp_path / name).write_bytes(b"1")
        assert name in [status.path for status in store.list_from("")]
        assert other._tree._system is not store._tree._system


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "secret").write_bytes(b"1")
    (tmp_path / "t" / "x").symlink_to(tmp_path / "secret")
    store = FsspecStore(Address.parse((tmp_path / "t").as_uri()))
    for look in (lambda: store.stat("x"), lambda: list(store.list_from(""))):
        with pytest.raises(RefusedError, match="link"):
            look()


def test_a_temporary_failure_is_retried_and_then_reported() -> None:
    broken = Fragile(ConnectionResetError("gone"), TimeoutError("late"))
    assert [entry.name for entry in store_over(broken, "/t").entries("")] == ["x"]
    assert broken.calls == 3
    with pytest.raises(Exception, match="ConnectionResetError: gone"):
        list(store_over(Fragile(*[ConnectionResetError("gone")] * 9), "/t").entries(""))


@pytest.mark.parametrize("name", ["/t/a/x", "/other/x"])
def test_a_listing_with_nested_names_is_not_tried_again(name: str) -> None:
    """Waiting does not help: the file system lists something else than the folder."""

    class Nested(Fragile):
        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            self.calls += 1
            return [{"name": name, "type": "file", "size": 1, "mtime": 1.5}]

    store = FsspecStore(Address.parse("memory://t"))
    store._tree = store_over(broken := Nested(), "/t")
    with pytest.raises(StorageAccessError, match=f"{name}, which is not directly in it") as refused:
        list(store.list_from(""))
    assert not refused.value.retryable
    assert refused.value.remedy == (
        "open the table at another address of its files; running again does not help"
    )
    assert broken.calls == 1


def test_a_permanent_failure_is_not_retried() -> None:
    for error in (PermissionError("no"), NotImplementedError(), FileNotFoundError()):
        broken = Fragile(error, error)
        with pytest.raises(Exception, match=type(error).__name__):
            list(store_over(broken, "/t").entries(""))
        assert broken.calls == 1


def test_a_file_that_an_archive_does_not_have_is_looked_up_without_a_pause(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t/_delta_log/0.json", b"{}")
    store = FsspecStore(Address.parse(f"zip://t::{tmp_path}/t.zip"))
    pauses: list[float] = []
    store._tree._sleep = pauses.append
    with pytest.raises(FileNotFoundError):
        store.read("_delta_log/_last_checkpoint")
    assert pauses == []


@pytest.mark.server
def test_a_failing_web_server_does_not_look_like_a_missing_file(tmp_path: Path) -> None:
    from tests.support.servers.loopback import Reply, serve

    statuses = {"/gone": 404, "/down": 500, "/mine": 403}
    with serve(lambda request: Reply(status=statuses[request.target])) as url:
        store = FsspecStore(Address.parse(url))
        store._tree._sleep = lambda _: None
        assert store.stat("gone") is None
        with pytest.raises(StorageError, match="down"):
            store.stat("down")
        with pytest.raises(StorageAccessError, match="mine"):
            store.stat("mine")


def test_options_reach_the_file_system_they_name() -> None:
    address = Address.parse("zip://t::sftp://host/a.zip")
    arguments = as_arguments(
        address, {"sftp.port": "2222", "sftp.password": "1234", "zip.allowZip64": "true"}
    )
    assert arguments["sftp"]["port"] == 2222
    assert arguments["sftp"]["password"] == "1234"
    assert arguments["allowZip64"] is True
    assert as_arguments(Address.parse("sftp://h/t"), {"username": "7"})["username"] == "7"
    with pytest.raises(InvalidRequestError, match="there is no storage option 'ftp.port'"):
        as_arguments(address, {"ftp.port": "1"})


def test_messages_contain_no_option_values() -> None:
    with pytest.raises(StorageError) as got:
        open_store("zip://t::/dev/null", {"mode": "hunter2 zip file"})
    assert "hunter2" not in str(got.value) and got.value.remedy
    with pytest.raises(InvalidRequestError, match="does not accept the address") as wrong:
        open_store("dbfs:/t", {"token": "hunter2"})
    assert "hunter2" not in str(wrong.value)


def test_files_without_a_time_are_an_error_and_not_old() -> None:
    class Timeless(Fragile):
        def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
            return [{"name": f"{path}/x", "type": "file", "size": 1}]

        def info(self, path: str) -> dict[str, Any]:
            return {"name": path, "type": "file", "size": 1}

        def modified(self, path: str) -> None:
            raise NotImplementedError

    with pytest.raises(Exception, match="NotImplementedError"):
        list(store_over(Timeless(), "/t").entries(""))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"mtime": 1.5}, 1500),
        ({"modificationTime": 1714979290000}, 1714979290000),
        ({"LastModified": datetime(2024, 5, 6, 7, 8, 10, tzinfo=UTC)}, 1714979290000),
        ({"Last-Modified": "Mon, 06 May 2024 07:08:10 GMT"}, 1714979290000),
        ({"updated": "2024-05-06T07:08:10Z"}, 1714979290000),
        ({"modify": "20240506070810"}, 1714979290000),
        ({"created": 1.5}, None),
        ({"mtime": "soon"}, None),
    ],
)
def test_a_time_is_read_as_each_file_system_writes_it(
    told: dict[str, Any], expected: int | None
) -> None:
    assert modified_ms(told) == expected

"""Reading from an SFTP server, with another implementation of the protocol on each side."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import RefusedError, StorageAccessError
from delta_maintenance.storage import open_store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.testing.store_contract import ODD_NAMES
from tests.support.servers.sftp import PASSWORD, USER, serve_sftp
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.server


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with serve_sftp(tmp_path) as port:
        yield port


def test_a_table_is_read_as_from_the_local_disk(tmp_path: Path, port: int) -> None:
    here = LocalStore(tmp_path / "ware house")
    table = TableBuilder(here)
    table.commit([protocol(), metadata()])
    table.commit([add("part=1/x.parquet"), add("y.parquet")])
    table.checkpoint()
    table.commit([remove("y.parquet")])
    options = {"port": str(port), "username": USER, "password": PASSWORD}
    address = "sftp://127.0.0.1/ware house"
    files = open_table(address, storage_options=options).snapshot().live_files()
    assert files.equals(open_table(here.root).snapshot().live_files())

    data = bytes(range(256)) * 1000
    for name in ODD_NAMES:
        here.put(f"odd/{name}", data)
    there = open_store(address, options)
    listed = zip(there.list_from("odd"), here.list_from("odd"), strict=True)
    for remote, local in listed:
        assert (remote.path, remote.size) == (local.path, local.size)
        # The protocol has whole seconds.
        assert remote.modified_ms == local.modified_ms // 1000 * 1000
    for name in ODD_NAMES[::6]:
        assert there.read(f"odd/{name}") == data
    assert there.read_head("odd/50%", 10) == data[:10]
    with there.open("odd/50%") as file:
        file.seek(-8, io.SEEK_END)
        assert file.read() == data[-8:]
    for path in ("odd", "nothing", "odd/50%/x"):
        assert there.stat(path) is None
        with pytest.raises(FileNotFoundError):
            there.read(path)
    with pytest.raises(RefusedError, match="sftp: addresses can only be read"):
        there.put_if_absent("_delta_log/9.json", b"")
    there.close()


def test_a_wrong_password_is_an_error_of_access_that_does_not_show_it(port: int) -> None:
    options = {"port": str(port), "username": USER, "password": "swordfish"}
    with pytest.raises(StorageAccessError, match="AuthenticationException") as got:
        open_store("sftp://127.0.0.1/t", options)
    assert "swordfish" not in str(got.value)

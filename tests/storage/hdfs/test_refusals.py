"""A name node that refuses writes for the moment: in safe mode, or because a quota is exhausted."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from delta_maintenance.address import Address
from delta_maintenance.cli.main import main
from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.storage import Put
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.hdfs.options import parse_options
from delta_maintenance.storage.hdfs.store import HdfsStore, open_client
from delta_maintenance.table.read import Table
from tests.support.servers.hdfs_cluster import HdfsCluster
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

SCHEMES = ("hdfs", "webhdfs")
FIRST, NEXT = (f"_delta_log/{version:020}.json" for version in (0, 1))
SAFE_MODE = r"SafeModeException: .*; run again when the name node has left safe mode \(hdfs dfsa"
NAMES = r"NSQuotaExceededException: .*; raise the name quota .*\(hdfs dfsadmin -setQuota\)"
SPACE = r"DSQuotaExceededException: .*; raise the space quota .*\(hdfs dfsadmin -setSpaceQuota\)"


class Folder:
    """A table in a folder of its own."""

    def __init__(self, hdfs: HdfsCluster, scheme: str) -> None:
        self.path = f"/user/{uuid.uuid4()}"
        self.root = hdfs.address(self.path, scheme=scheme)
        self.store = self.open()
        TableBuilder(self.store).commit([protocol(), metadata()])

    def open(self) -> HdfsStore:
        """A store that repeats every request once, and at once."""
        options = parse_options(HdfsStore(Address.parse(self.root)).address, None)
        client = open_client(options, pauses=(0,))
        client.sleep = lambda _: None
        return HdfsStore(Address.parse(self.root), client=client)

    def names(self) -> list[str]:
        return [status.path for status in self.store.list_from("_delta_log")]


@contextmanager
def folder_of(hdfs: HdfsCluster, scheme: str) -> Iterator[Folder]:
    folder = Folder(hdfs, scheme)
    yield folder
    folder.store.close()


def create(store: Store) -> None:
    with store.create("large") as sink:
        sink.write(bytes(3_000_000))


WRITES: list[Callable[[Store], object]] = [
    lambda store: store.put_if_absent(NEXT, b"{}"),
    lambda store: store.put(FIRST, b"{}"),
    create,
]


def check_refused(call: Callable[[], object], said: str) -> None:
    """Checks that the error is one line with the remedy, and that the outcome is known."""
    with pytest.raises(StorageError, match=f"^file .*{said}") as got:
        call()
    assert "\n" not in str(got.value)
    assert got.value.retryable and not isinstance(got.value, StorageAccessError)


def test_in_safe_mode_nothing_is_published_and_everything_can_be_read(hdfs: HdfsCluster) -> None:
    staged = threading.Barrier(
        len(SCHEMES), action=partial(hdfs.administer, "-safemode", "enter"), timeout=60
    )

    def commit_in_the_middle(folder: Folder) -> None:
        """The name node enters safe mode after the upload and before the rename."""
        rename, sent = folder.store._client.rename, list[str]()

        def delayed(path: str, target: str, *, replace: bool) -> None:
            if target.endswith(NEXT) and not sent:
                sent.append(path)
                staged.wait()
            rename(path, target, replace=replace)

        folder.store._client.rename = delayed  # type: ignore[method-assign]  # a place to wait
        check_refused(lambda: folder.store.put_if_absent(NEXT, b"{}"), SAFE_MODE)

    with ExitStack() as stack:
        folders = [stack.enter_context(folder_of(hdfs, scheme)) for scheme in SCHEMES]
        first = folders[0].store.read(FIRST)
        try:
            with ThreadPoolExecutor(len(folders)) as pool:
                list(pool.map(commit_in_the_middle, folders))
            for folder in folders:
                # The uploaded file cannot be deleted in safe mode. No reader takes it for another.
                [temporary] = set(folder.names()) - {FIRST}
                assert temporary.endswith(".tmp")
                # Also for a store that has not asked the name node anything yet.
                for store in (folder.store, folder.open()):
                    for write in WRITES:
                        check_refused(partial(write, store), SAFE_MODE)
                    check_refused(partial(store.delete, temporary), SAFE_MODE)
                    assert store.read(FIRST) == first
                    assert Table(store).snapshot().version == 0
                assert set(folder.names()) == {FIRST, temporary}
            # A commit goes on where safe mode ends before its next attempt.
            waiting = folders[0].open()
            waiting._client.sleep = lambda _: hdfs.administer("-safemode", "leave")
            assert waiting.put_if_absent("other", b"1") is Put.DONE
        finally:
            hdfs.administer("-safemode", "leave")
        for folder in folders:
            [temporary] = set(folder.names()) - {FIRST}
            assert folder.store.put_if_absent(NEXT, b"{}") is Put.DONE
            folder.store.delete(temporary)
            assert folder.names() == [FIRST, NEXT]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("quota", "said"), [({"names": 3}, NAMES), ({"space": 1}, SPACE)], ids=["names", "space"]
)
def test_an_exhausted_quota_refuses_a_commit_and_leaves_nothing(
    hdfs: HdfsCluster,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
    quota: dict[str, int],
    said: str,
) -> None:
    with folder_of(hdfs, scheme) as folder:
        first = folder.store.read(FIRST)
        hdfs.set_quota(folder.path, **quota)
        for store in (folder.store, folder.open()):
            for write in WRITES:
                check_refused(partial(write, store), said)
        commit = ["set-properties", folder.root, "--set", "delta.appendOnly=true"]
        assert main(commit) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert folder.root in line and re.search(said, line)
        assert folder.store.read(FIRST) == first
        # Names are free again as soon as they are deleted.
        assert folder.names() == [FIRST]
        hdfs.set_quota(folder.path)
        assert main(commit) == 0
        assert folder.names() == [FIRST, NEXT]
        assert Table(folder.store).snapshot().version == 1

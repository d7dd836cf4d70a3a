"""Files that go away between being listed and being read, as clean-up beside a reader does it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest

from delta_maintenance.errors import CorruptTableError, StorageError, VersionNotFoundError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus
from delta_maintenance.table.read import Snapshot, log_reader
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.log_file import relisting
from delta_maintenance.table.read.log_view import VanishedFileError
from tests.properties.model import State, replay, state_of
from tests.support.tables.actions import add, commit_info, features, metadata, remove
from tests.support.tables.table_builder import LOG, TableBuilder
from tests.table.failures import fails


class ShakyStore(MemoryStore):
    """Runs `before_reading` before every read and `before_listing` before every listing."""

    def __init__(self) -> None:
        super().__init__()
        self.before_reading: Callable[[str], None] = lambda path: None
        self.before_listing: Callable[[], None] = lambda: None

    def read(self, path: str) -> bytes:
        self.before_reading(path)
        return super().read(path)

    def open(self, path: str) -> BinaryIO:
        self.before_reading(path)
        return super().open(path)

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        self.before_listing()
        return super().list_from(directory, start)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails are read again at every use, like long ones."""
    monkeypatch.setattr(log_reader, "_KEPT_BYTES", 0)


def json_name(version: int) -> str:
    return f"{version:020d}.json"


def shaky() -> tuple[TableBuilder, ShakyStore]:
    """Versions 0 to 6, each with one new file and one removed."""
    store = ShakyStore()
    table = TableBuilder(store)
    table.commit([features("v2Checkpoint"), metadata(), add("0")])
    for version in range(1, 7):
        table.commit([commit_info(), remove(str(version - 1)), add(str(version))])
    return table, store


def expected(table: TableBuilder, version: int = 6) -> State:
    return replay([table.commits[number] for number in range(version + 1)])


def clean_up(table: TableBuilder, before: int) -> None:
    """Simulates a clean-up: writes a checkpoint, then deletes the commits before it."""
    table.checkpoint(before)
    table.drop(*(json_name(version) for version in range(before)))


def once(act: Callable[[], None], when: str = "") -> Callable[[str], None]:
    """Acts before the first read of a path that holds `when`."""
    pending = [act]

    def before_reading(path: str) -> None:
        if when in path and pending:
            pending.pop()()

    return before_reading


def missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file", path)


def test_a_file_that_is_missing_once_is_found_by_the_next_listing() -> None:
    for name in (json_name(3), json_name(6)):
        table, store = shaky()

        def fail(name: str = name) -> None:
            raise missing(name)

        store.before_reading = once(fail, name)
        assert state_of(table.open().snapshot()) == expected(table)
        store.before_reading = once(fail, name)
        assert len(table.open().history()) == 7


@pytest.mark.conformance("REC-09")
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_clean_up_while_a_snapshot_opens_leads_to_the_checkpoint_it_left(at: int) -> None:
    table, store = shaky()
    store.before_reading = once(lambda: clean_up(table, 4), json_name(at))
    # The threads determine how much was read in advance: the snapshot may use either base.
    snapshot = table.open().snapshot()
    assert snapshot.live_files()["path"].to_pylist() == ["6"]
    assert snapshot.log.segment.base_version in (-1, 4)
    assert table.open().snapshot().log.segment.base_version == 4


def test_a_clean_up_after_a_snapshot_was_opened_does_not_spoil_it() -> None:
    table, _ = shaky()
    reads: list[Callable[[Snapshot], object]] = [
        lambda snapshot: snapshot.live_files().to_pylist(),
        lambda snapshot: sorted(snapshot.tombstones()["path"].to_pylist()),
        lambda snapshot: snapshot.counts,
    ]
    plain = [read(table.open().snapshot()) for read in reads]
    snapshots = [table.open().snapshot() for _ in reads]
    other = table.open().snapshot()

    clean_up(table, 4)

    assert [read(opened) for read, opened in zip(reads, snapshots, strict=True)] == plain
    with pytest.raises(VanishedFileError) as failure:
        state_of(other)
    assert failure.value.file in {f"{LOG}/{json_name(version)}" for version in range(4)}
    reopened = other.avoiding(failure.value)
    assert (reopened.version, reopened.log.segment.base_version) == (6, 4)
    assert state_of(reopened) == expected(table)


def test_a_short_tail_is_read_once_and_outlives_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_KEPT_BYTES", 1 << 20)
    table, _ = shaky()
    snapshot = table.open().snapshot()
    clean_up(table, 4)
    assert state_of(snapshot) == expected(table)


@pytest.mark.conformance("CKPT-02")
def test_a_concurrently_deleted_version_is_reported() -> None:
    table, _ = shaky()
    snapshot = table.open().snapshot(version=3)
    clean_up(table, 4)
    with fails(VersionNotFoundError, "no longer retained", table=table, version=3, file=None):
        snapshot.live_files()


def test_a_file_that_is_listed_and_never_there_is_named() -> None:
    table, store = shaky()
    path = f"{LOG}/{json_name(3)}"

    def never(asked: str) -> None:
        if asked == path:
            raise missing(asked)

    store.before_reading = never
    with fails(CorruptTableError, "cannot be found", table=table, version=None, file=path):
        table.open().snapshot()
    with fails(CorruptTableError, "cannot be found", table=table, version=None, file=path):
        table.open().history()
    store.before_reading = lambda path: None
    snapshot = table.open().snapshot()
    store.before_reading = never
    with fails(CorruptTableError, "cannot be found", table=table, version=None, file=path):
        snapshot.live_files()


def test_a_file_that_keeps_vanishing_ends_in_an_error() -> None:
    table, store = shaky()
    path = f"{LOG}/{json_name(3)}"
    asked = 0

    def every_other_time(wanted: str) -> None:
        nonlocal asked
        if wanted == path:
            asked += 1
            assert asked < 100
            if asked % 2 == 0:
                raise missing(wanted)

    store.before_reading = every_other_time
    snapshot = table.open().snapshot()
    with fails(
        VanishedFileError,
        "deleted after the snapshot was opened",
        table=table,
        version=6,
        file=path,
    ):
        snapshot.live_files()


@pytest.mark.conformance("CKPT-24", "CKPT-32")
def test_a_sidecar_deleted_after_opening_is_replaced_by_the_commits() -> None:
    table, _ = shaky()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    snapshot = table.open().snapshot()
    table.drop(sidecars[1])
    assert sorted(snapshot.live_files()["path"].to_pylist()) == ["6"]

    table, _ = shaky()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    table.drop(*(json_name(version) for version in range(4)))
    snapshot = table.open().snapshot()
    table.drop(sidecars[1])
    with fails(
        UnusableCheckpointError, "no longer exists", table=table, version=4, file=f"{LOG}/{name}"
    ):
        snapshot.live_files()


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("kind", ["classic", "parts", "manifest", "sidecar"])
def test_a_checkpoint_deleted_before_opening_is_replaced(kind: str) -> None:
    table, store = shaky()
    match kind:
        case "classic":
            victim = table.checkpoint(4)[0]
        case "parts":
            victim = table.checkpoint(4, parts=3)[1]
        case "manifest":
            victim = table.v2_checkpoint(4)[0]
        case _:
            victim = table.v2_checkpoint(4, sidecars=1)[1]
    store.before_reading = once(lambda: table.drop(victim), victim)
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is None
    assert "no longer exists" in snapshot.warnings[0]
    assert state_of(snapshot) == expected(table)


@pytest.mark.conformance("COMP-07")
def test_a_deleted_compaction_is_replaced_by_its_commits() -> None:
    table, store = shaky()
    name = table.compaction(2, 5)
    store.before_reading = once(lambda: table.drop(name), name)
    snapshot = table.open().snapshot()
    assert state_of(snapshot) == expected(table)
    assert name in snapshot.warnings[0]


def test_a_failing_store_is_not_a_corrupt_table() -> None:
    table, store = shaky()
    table.truncate(table.checkpoint(4)[0], 9)
    listings = 0

    def second_fails() -> None:
        nonlocal listings
        listings += 1
        if listings > 1:
            raise StorageError("the store is down", remedy="try again")

    store.before_listing = second_fails
    with pytest.raises(StorageError) as failure:
        table.open().snapshot()
    assert (failure.value.table, failure.value.retryable) == (store.root, True)


@pytest.mark.parametrize("vanishing", [0, 1, 2])
def test_a_read_is_repeated_until_no_file_vanishes(vanishing: int) -> None:
    calls = 0

    def read() -> str:
        nonlocal calls
        calls += 1
        if calls <= vanishing:
            raise FileNotFoundError(2, "gone", f"_delta_log/{calls}.json")
        return "done"

    assert relisting(read) == "done"
    assert calls == vanishing + 1


def test_the_third_file_that_vanishes_is_named() -> None:
    gone = [FileNotFoundError(2, "gone", f"_delta_log/{number}.json") for number in range(3)]
    left = iter(gone)

    def read() -> None:
        raise next(left)

    with pytest.raises(StorageError, match="was deleted after it was listed; run again") as raised:
        relisting(read)
    assert raised.value.file == "_delta_log/2.json"


def test_other_failures_are_not_repeated() -> None:
    calls = 0

    def read() -> None:
        nonlocal calls
        calls += 1
        raise PermissionError

    with pytest.raises(PermissionError):
        relisting(read)
    assert calls == 1

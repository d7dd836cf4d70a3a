"""Listing a whole table, looking at some of its files and deleting them, on every kind of store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.azure.store import AzureStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.core.listing import (
    MOST_PATH_LENGTH,
    STATUSES,
    TREE,
    EntryKind,
    check_paths,
    unclean,
)
from delta_maintenance.storage.gcs.store import GCSStore
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.storage.local import walk as local_tree
from delta_maintenance.storage.local.descriptors import OpenDirectories
from delta_maintenance.storage.s3 import S3Store
from delta_maintenance.testing.store_contract import ODD_NAMES, UNCLEAN_PATHS

SERVED = [pytest.param(name, marks=pytest.mark.server) for name in ("s3", "gcs", "azure")]


@pytest.fixture(params=["memory", "local", *SERVED])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store over an empty root that has a neighbour of a similar name."""
    if request.param == "memory":
        made: tuple[Store, Store] = (
            MemoryStore(Address.parse(f"memory://x/{tmp_path.name}")),
            MemoryStore(Address.parse(f"memory://x/{tmp_path.name}2")),
        )
    elif request.param == "local":
        made = LocalStore(tmp_path / "t"), LocalStore(tmp_path / "t2")
    elif request.param == "s3":
        server, bucket = (request.getfixturevalue(f"s3_{name}") for name in ("server", "bucket"))
        options = server.storage_options
        made = (
            S3Store(Address.parse(f"s3://{bucket}/t"), options),
            S3Store(Address.parse(f"s3://{bucket}/t2"), options),
        )
    elif request.param == "azure":
        server = request.getfixturevalue("azure_server")
        place = f"az://{request.getfixturevalue('azure_container')}"
        options = server.storage_options
        made = (
            AzureStore(Address.parse(f"{place}/t"), options),
            AzureStore(Address.parse(f"{place}/t2"), options),
        )
    else:
        server, bucket = (request.getfixturevalue(f"gcs_{name}") for name in ("server", "bucket"))
        options = server.storage_options
        made = (
            GCSStore(Address.parse(f"gs://{bucket}/t"), options),
            GCSStore(Address.parse(f"gs://{bucket}/t2"), options),
        )
    store, neighbour = made
    neighbour.put("not-ours", b"x")
    yield store
    assert neighbour.read("not-ours") == b"x"
    for one in made:
        one.close()


def tree(store: Store, directory: str = "", **arguments: Any) -> pa.Table:
    batches = list(store.list_tree(directory, **arguments))
    for batch in batches:
        assert batch.schema == TREE
    return pa.concat_tables([TREE.empty_table(), *batches])


def files(listed: pa.Table) -> list[str]:
    return sorted(listed.filter(pc.equal(listed["kind"], int(EntryKind.FILE)))["path"].to_pylist())


def paths(*names: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(names, pa.string())])


def test_everything_is_listed_at_every_depth_under_its_own_name(store: Store) -> None:
    names = [f"{folder}{name}" for folder in ("", "_delta_log/", "a/.b/") for name in ODD_NAMES]
    for name in names:
        store.put(name, b"four")
    assert files(tree(store)) == sorted(names)
    assert files(tree(store, "a")) == sorted(name for name in names if name.startswith("a/"))
    assert files(tree(store, "nothing/here")) == []
    found = store.statuses(paths(*names, "absent", "a/absent", "a/.b"))
    assert found.schema == STATUSES
    assert sorted(found["path"].to_pylist()) == sorted(names)
    status = store.stat(names[-1])
    assert status is not None
    row = found.filter(pc.equal(found["path"], names[-1])).to_pylist()[0]
    assert (row["size"], row["modified_ms"]) == (4, status.modified_ms)


def test_one_level_has_the_directories_to_go_on_with(store: Store) -> None:
    for name in ("x", "a/y", "a/b/z", "c d/e/f", "_delta_log/0", "%20/g"):
        store.put(name, b"x")
    levels = {"": store.list_level(), "a": store.list_level("a")}
    if isinstance(store, MemoryStore):
        assert set(levels.values()) == {None}
        return
    found = {
        at: {(row["path"], row["kind"]) for row in level.to_pylist() if row["path"] != at}
        for at, level in levels.items()
        if level is not None
    }
    assert found[""] == {
        ("x", EntryKind.FILE),
        *((name, EntryKind.DIRECTORY) for name in ("a", "c d", "_delta_log", "%20")),
    }
    assert found["a"] == {("a/y", EntryKind.FILE), ("a/b", EntryKind.DIRECTORY)}


def test_a_listing_agrees_with_the_status_of_each_file(store: Store) -> None:
    store.put("a/x", b"123")
    listed = tree(store)
    row = listed.filter(pc.equal(listed["path"], "a/x")).to_pylist()[0]
    (looked,) = store.statuses(paths("a/x")).to_pylist()
    for name in ("size", "modified_ms"):
        assert row[name] in (None, looked[name])


def test_exactly_the_files_of_a_listing_are_deleted(store: Store) -> None:
    names = [f"p/{name}" for name in ODD_NAMES]
    for name in (*names, "p/stays", "q/x"):
        store.put(name, b"x")
    gone = store.statuses(paths(*names, "q/x"))
    store.delete("q/x")
    assert store.delete_unchanged(gone) == {}
    assert files(tree(store)) == ["p/stays"]
    assert store.delete_unchanged(STATUSES.empty_table()) == {}


@pytest.mark.parametrize("path", [p for p in UNCLEAN_PATHS if "\udc80" not in p])
def test_an_unclean_path_is_refused_everywhere(store: Store, path: str) -> None:
    store.put("a/b", b"x")
    with pytest.raises(InvalidRequestError):
        store.statuses(paths("a/b", path))
    row = pa.table({"path": ["a/b", path], "size": [1, 1], "modified_ms": [1, 1]}, schema=STATUSES)
    with pytest.raises(InvalidRequestError):
        store.delete_unchanged(row)
    with pytest.raises(InvalidRequestError):
        store.remove_empty_directory(path)
    assert store.read("a/b") == b"x"
    assert unclean(pa.array([path, "a/b"])).to_pylist() == [True, False]
    with pytest.raises(InvalidRequestError):
        check_paths(paths("a", path))


def test_a_directory_with_contents_is_never_removed(store: Store) -> None:
    store.put("a/b/x", b"x")
    for path in ("a", "a/b", "a/b/x"):
        assert not store.remove_empty_directory(path)
    assert store.read("a/b/x") == b"x"


# On a disk


@pytest.fixture
def disk(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_directories_links_and_other_entries_are_distinguished(
    disk: LocalStore, tmp_path: Path
) -> None:
    disk.put("a/b/x", b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "out").symlink_to("/etc")
    (tmp_path / "a" / "file").symlink_to(tmp_path / "a" / "b" / "x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"x")
    (tmp_path / os.fsdecode(b"dir\xff")).mkdir()
    disk.put("skipped/deep/y", b"x")
    listed = tree(disk, skip=lambda path: path == "skipped")
    kinds = {row["path"]: row["kind"] for row in listed.to_pylist()}
    assert kinds == {
        "a": EntryKind.DIRECTORY,
        "a/b": EntryKind.DIRECTORY,
        "a/b/x": EntryKind.FILE,
        "a/file": EntryKind.OTHER,
        "a/out": EntryKind.OTHER,
        "dir\\xff": EntryKind.OTHER,
        "empty": EntryKind.DIRECTORY,
        "pipe": EntryKind.OTHER,
        "skipped": EntryKind.DIRECTORY,
        "\\xff": EntryKind.OTHER,
    }
    times = {row["path"]: row["modified_ms"] for row in listed.to_pylist()}
    assert times["empty"] == os.stat(tmp_path / "empty").st_mtime_ns // 1_000_000
    assert times["skipped"] is None
    assert disk.statuses(paths("a/file", "pipe", "a/b", "a/b/x"))["path"].to_pylist() == ["a/b/x"]


def test_no_link_is_followed_on_the_way_to_a_file(disk: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"x")
    inside = LocalStore(tmp_path / "t")
    inside.put("real/x", b"x")
    (tmp_path / "t" / "linked").symlink_to(outside)
    with pytest.raises(RefusedError, match="symbolic link"):
        inside.statuses(paths("linked/victim"))
    rows = pa.table(
        {"path": ["linked/victim", "real/x"], "size": [1, 1], "modified_ms": [0, 0]},
        schema=STATUSES,
    )
    kept = inside.delete_unchanged(rows)
    assert set(kept) == {"linked/victim", "real/x"} and (outside / "victim").exists()
    assert not inside.remove_empty_directory("linked")
    with pytest.raises(RefusedError):
        list(inside.list_tree("linked"))


def test_a_file_swapped_for_a_link_is_not_deleted(disk: LocalStore, tmp_path: Path) -> None:
    disk.put("x", b"x")
    disk.put("y", b"y")
    listed = disk.statuses(paths("x"))
    (tmp_path / "x").unlink()
    (tmp_path / "x").symlink_to(tmp_path / "y")
    assert set(disk.delete_unchanged(listed)) == {"x"}
    assert (tmp_path / "x").is_symlink() and disk.read("y") == b"y"


def test_a_file_of_another_size_or_time_than_listed_is_kept(
    disk: LocalStore, tmp_path: Path
) -> None:
    for name in ("same", "grown", "touched"):
        disk.put(name, b"x")
    listed = disk.statuses(paths("same", "grown", "touched"))
    instant = os.stat(tmp_path / "grown").st_mtime_ns
    (tmp_path / "grown").write_bytes(b"xx")
    os.utime(tmp_path / "grown", ns=(instant, instant))
    touched = os.stat(tmp_path / "touched").st_mtime_ns
    os.utime(tmp_path / "touched", ns=(touched, touched + 1_000_000))
    kept = disk.delete_unchanged(listed)
    assert set(kept) == {"grown", "touched"} and not (tmp_path / "same").exists()


def test_a_directory_is_entered_once_however_its_files_are_ordered(
    disk: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"p={number % 5}/{number}" for number in range(100)]
    for name in names:
        disk.put(name, b"x")
    entered: list[str] = []
    real = OpenDirectories.enter
    monkeypatch.setattr(
        OpenDirectories, "enter", lambda self, path: entered.append(path) or real(self, path)
    )
    found = disk.statuses(paths(*names))
    assert sorted(found["path"].to_pylist()) == sorted(names)
    assert sorted(entered) == [f"p={number}" for number in range(5)]
    assert disk.delete_unchanged(found) == {}
    assert len(entered) == 10


def test_an_error_in_any_directory_is_an_error(
    disk: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        disk.put(f"p={number}/x", b"x")
    scandir = os.scandir
    for bad in (1, 2, 17, 41):
        for error, raised in (
            (OSError(5, "Input/output error"), StorageError),
            (PermissionError(13, "Permission denied"), StorageAccessError),
        ):
            errors = iter([None] * (bad - 1) + [error])

            def failing(descriptor: Any, errors: Iterator[Any] = errors) -> Any:
                if (failure := next(errors, None)) is not None:
                    raise failure
                return scandir(descriptor)

            monkeypatch.setattr(local_tree.os, "scandir", failing)
            with pytest.raises(raised):
                tree(disk)
    monkeypatch.undo()
    assert len(files(tree(disk))) == 40


def test_a_directory_that_vanishes_during_a_listing_is_no_error(
    disk: LocalStore, tmp_path: Path
) -> None:
    for number in range(6):
        disk.put(f"p={number}/x", b"x")
    listing = disk.list_tree()

    def vanish(path: str) -> bool:
        if path == "p=3":
            (tmp_path / "p=5" / "x").unlink(missing_ok=True)
            (tmp_path / "p=5").rmdir()
        return False

    listing = disk.list_tree(skip=vanish)
    found = {path for batch in listing for path in batch["path"].to_pylist()}
    assert {"p=0/x", "p=4/x"} <= found and "p=5/x" not in found


def test_folders_nested_without_end_are_refused_in_one_line(
    disk: LocalStore, tmp_path: Path
) -> None:
    name = "n" * 250
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(MOST_PATH_LENGTH // len(name) + 1):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(RefusedError, match="more than 8000") as refused:
        list(disk.list_tree())
    assert len(str(refused.value)) < 1000
    shutil.rmtree(tmp_path / name)


def test_empty_directories_are_removed_and_missing_ones_count_as_removed(
    disk: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert not disk.remove_empty_directory("a")
    assert disk.remove_empty_directory("a/b") and disk.remove_empty_directory("a/b")
    assert disk.remove_empty_directory("a") and not (tmp_path / "a").exists()


def test_a_disk_is_known_under_every_address_of_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert LocalStore("link").addresses == ("link", f"{tmp_path}/link", f"{tmp_path}/real")
    assert LocalStore(f"{tmp_path}/real/").addresses == (f"{tmp_path}/real",)

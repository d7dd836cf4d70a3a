from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import (
    CommitUnknownError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes
from tests.support.kills.killed_writers import check, play


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "warehouse" / "table")

    def reopen(self, store: Store) -> Store:
        return LocalStore(store.root)

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        for path in paths:
            file = Path(store.root, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        return contend_in_processes(partial(LocalStore, store.root), paths)


@pytest.mark.process
def test_killed_writers_leave_no_partial_file_and_lose_no_commit(tmp_path: Path) -> None:
    paths = [f"_delta_log/{version:020}.json" for version in range(60)]
    winners = play(partial(LocalStore, tmp_path / "t"), paths, kills=12)
    check(LocalStore(tmp_path / "t"), paths, winners)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "table"
    root.mkdir()
    return root


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


# Crashes.


@pytest.mark.process
def test_a_process_killed_while_it_streams_leaves_no_torn_file(root: Path) -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from delta_maintenance.storage.local.store import LocalStore\n"
            "with LocalStore(sys.argv[1]).create('_delta_log/1.checkpoint.parquet') as file:\n"
            "    file.write(b'half' * 100_000)\n"
            "    file.flush()\n"
            "    print('written', flush=True)\n"
            "    time.sleep(60)\n",
            str(root),
        ],
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        os.kill(child.pid, signal.SIGKILL)
    store = LocalStore(root)
    assert store.stat("_delta_log/1.checkpoint.parquet") is None
    (left,) = names(root / "_delta_log")
    assert left.startswith(".1.checkpoint.parquet.") and left.endswith(".tmp")
    with store.create("_delta_log/1.checkpoint.parquet") as file:
        file.write(b"whole")
    assert store.read("_delta_log/1.checkpoint.parquet") == b"whole"


@pytest.mark.process
def test_a_process_killed_while_it_commits_leaves_whole_commits_only(root: Path) -> None:
    size = 300_000
    seed = int(os.environ.get("SEED", time.time_ns()))
    print(f"SEED={seed}")
    delays = random.Random(seed)
    for _ in range(5):
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys\n"
                "from delta_maintenance.storage.local.store import LocalStore\n"
                "store, version = LocalStore(sys.argv[1]), 0\n"
                "while True:\n"
                f"    store.put_if_absent(f'{{version:020}}.json', b'x' * {size})\n"
                "    print(version, flush=True)\n"
                "    version += 1\n",
                str(root),
            ],
            stdout=subprocess.PIPE,
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(delays.uniform(0, 0.05))
            os.kill(child.pid, signal.SIGKILL)
            acknowledged = [0, *(int(line) for line in child.stdout)]
        commits = [status for status in LocalStore(root).list_from("", "0")]
        assert {status.size for status in commits} == {size}
        assert len(commits) >= acknowledged[-1] + 1


# File systems that fail.


def failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)


@pytest.mark.conformance("LOG-09")
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, "link", code)
    with pytest.raises(RefusedError, match="no hard links"):
        LocalStore(root).put_if_absent("0.json", b"{}")
    with pytest.raises(RefusedError, match="no hard links"), LocalStore(root).create("x") as file:
        file.write(b"data")
    assert names(root) == []


@pytest.mark.parametrize("call", ["link", "fsync"])
def test_a_failed_create_raises_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failing(monkeypatch, call, errno.EIO)
    with pytest.raises(StorageError, match=r"file 0.json: Input/output error; "):
        LocalStore(root).put_if_absent("0.json", b"{}")
    with (
        pytest.raises(StorageError, match="file x: Input/output error"),
        LocalStore(root).create("x") as file,
    ):
        file.write(b"data")
    assert names(root) == []


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_put_that_fails_leaves_the_old_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (root / "hint").write_bytes(b"old")
    failing(monkeypatch, call, errno.ENOSPC)
    with pytest.raises(StorageError, match="No space left"):
        LocalStore(root).put("hint", b"new")
    assert names(root) == ["hint"]
    assert (root / "hint").read_bytes() == b"old"


def test_a_link_whose_answer_is_lost_counts_as_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def applied_then_refused(*paths: str, **options: Any) -> None:
        link(*paths, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", applied_then_refused)
    assert LocalStore(root).put_if_absent("0.json", b"{}") is Put.DONE
    assert LocalStore(root).put_if_absent("0.json", b"{}") is Put.EXISTS
    assert names(root) == ["0.json"]


def test_a_commit_whose_directory_cannot_be_synced_is_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def failing_on_directories(descriptor: int) -> None:
        if os.path.isdir(f"/dev/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_on_directories)
    with pytest.raises(CommitUnknownError, match="may not survive a crash"):
        LocalStore(root).put_if_absent("0.json", b"{}")


def test_files_and_then_their_directory_are_synced(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for call in ("fsync", "link", "replace", "mkdir"):
        real = getattr(os, call)

        def recorded(*args: object, _call: str = call, _real: object = real, **kw: object) -> None:
            kind = ""
            if _call == "fsync":
                kind = " directory" if os.path.isdir(f"/dev/fd/{args[0]}") else " file"
            steps.append(_call + kind)
            _real(*args, **kw)  # type: ignore[operator]

        monkeypatch.setattr(os, call, recorded)
    store = LocalStore(root)
    store.put_if_absent("a/0", b"")
    assert steps == ["mkdir", "fsync directory", "fsync file", "link", "fsync directory"]
    steps.clear()
    with store.create("1"):
        assert steps == []
    assert steps == ["fsync file", "link", "fsync directory"]
    steps.clear()
    store.put("2", b"")
    assert steps == ["fsync file", "replace", "fsync directory"]


def test_a_full_disk_in_the_middle_of_a_stream_is_the_store_s_failure(root: Path) -> None:
    with (
        pytest.raises(StorageError, match="cannot write"),
        LocalStore(root).create("x") as file,
        open("/dev/full", "wb") as full,
    ):
        os.dup2(full.fileno(), file.fileno())
        file.write(b"x")
    assert names(root) == []


def test_an_unreadable_directory_is_not_an_empty_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "_delta_log").mkdir()
    for call in ("scandir", "open"):
        with monkeypatch.context() as patch:
            failing(patch, call, errno.EACCES)
            with pytest.raises(StorageAccessError, match="file _delta_log: no permission") as got:
                list(LocalStore(root).list_from("_delta_log"))
            assert not got.value.retryable
    failing(monkeypatch, "scandir", errno.EIO)
    with pytest.raises(StorageError) as failed:
        list(LocalStore(root).list_from("_delta_log"))
    assert failed.value.retryable


def test_a_file_deleted_during_a_listing_is_omitted(root: Path) -> None:
    for name in "abc":
        (root / name).touch()
    listing = LocalStore(root).list_from("")
    assert next(listing).path == "a"
    (root / "b").unlink()
    assert [status.path for status in listing] == ["c"]


# Other files in the directory.


def test_the_checksum_of_an_earlier_file_is_deleted_before_the_new_one_is_written(
    root: Path,
) -> None:
    store = LocalStore(root)
    for name in ("hint", "0.json", "1.parquet", "other"):
        (root / f".{name}.crc").write_bytes(b"stale")
    (root / "hint").write_bytes(b"old")
    store.put("hint", b"new")
    assert store.put_if_absent("0.json", b"{}") is Put.DONE
    with store.create("1.parquet") as file:
        file.write(b"data")
    assert names(root) == [".other.crc", "0.json", "1.parquet", "hint"]


def test_the_checksum_of_a_concurrent_winner_is_kept(root: Path) -> None:
    (root / "0.json").write_bytes(b"theirs")
    (root / ".0.json.crc").write_bytes(b"theirs")
    assert LocalStore(root).put_if_absent("0.json", b"ours") is Put.EXISTS
    with pytest.raises(FileExistsError), LocalStore(root).create("0.json"):
        pass
    assert names(root) == [".0.json.crc", "0.json"]


def test_the_root_may_be_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    LocalStore(f"{tmp_path}/link/").put_if_absent("a/0.json", b"{}")
    assert (root / "a" / "0.json").read_bytes() == b"{}"
    assert LocalStore(tmp_path / "link").root == f"{tmp_path}/link"


def test_no_link_below_the_root_is_followed(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "precious")
    (root / "dangling").symlink_to(outside / "nothing")
    store = LocalStore(root)
    for path in ("dir/precious", "dir/new", "dir/sub/new", "file", "dangling"):
        for call in (store.stat, store.read, store.open, store.delete):
            with pytest.raises(RefusedError, match="symbolic link"):
                call(path)
    for path in ("dir/precious", "dir/new", "dir/sub/new"):
        with pytest.raises(RefusedError, match="symbolic link"):
            store.put(path, b"overwritten")
        with pytest.raises(RefusedError, match="symbolic link"):
            store.put_if_absent(path, b"overwritten")
        with pytest.raises(RefusedError, match="symbolic link"), store.create(path):
            pass
    with pytest.raises(RefusedError, match="symbolic link"):
        list(store.list_from("dir"))
    assert store.put_if_absent("file", b"overwritten") is Put.EXISTS
    assert store.put_if_absent("dangling", b"overwritten") is Put.EXISTS
    store.put("file", b"replaces the link itself")
    assert names(outside) == ["precious"]
    assert (outside / "precious").read_bytes() == b"precious"
    assert not (root / "file").is_symlink()


def test_a_listing_with_a_link_is_refused(root: Path) -> None:
    (root / "5.json").write_bytes(b"{}")
    (root / "3.json").symlink_to(root / "5.json")
    store = LocalStore(root)
    with pytest.raises(RefusedError, match="file 3.json"):
        list(store.list_from(""))
    assert [status.path for status in store.list_from("", "4")] == ["5.json"]


def test_only_regular_files_count(root: Path) -> None:
    os.mkfifo(root / "pipe")
    store = LocalStore(root)
    assert store.stat("pipe") is None
    assert list(store.list_from("")) == []
    with pytest.raises(FileNotFoundError):
        store.read("pipe")


def test_names_that_are_not_utf_8_are_listed(root: Path) -> None:
    with open(os.fsencode(root) + b"/\xff", "wb"):
        pass
    assert [status.path for status in LocalStore(root).list_from("")] == ["\udcff"]


def test_times_are_in_milliseconds(root: Path) -> None:
    (root / "x").touch()
    os.utime(root / "x", ns=(0, 1_700_000_000_123_999_999))
    status = LocalStore(root).stat("x")
    assert status is not None and status.modified_ms == 1_700_000_000_123


def test_no_descriptor_is_left_open(root: Path) -> None:
    store = LocalStore(root)

    def use() -> None:
        store.put("a/b/c", b"")
        store.put_if_absent("a/b/d", b"")
        store.put_if_absent("a/b/d", b"")
        store.read("a/b/c")
        list(store.list_from("a/b"))
        next(store.list_from("a/b"))
        store.stat("a/b/c/d")
        store.delete("a/b/c")
        with pytest.raises(FileNotFoundError):
            store.open("x/y")
        with pytest.raises(ZeroDivisionError), store.create("z"):
            raise ZeroDivisionError

    use()
    before = len(os.listdir("/dev/fd"))
    use()
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("leaves", [False, True])
def test_the_steps_into_nested_directories_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    depth = 300
    here = tmp_path
    for _ in range(depth):
        here /= "d"
        (here / "leaf").mkdir(parents=True) if leaves else here.mkdir()
    steps = []
    enter = LocalStore._enter

    def counted(self: LocalStore, *args: Any, **options: Any) -> int:
        steps.append(args)
        return enter(self, *args, **options)

    monkeypatch.setattr(LocalStore, "_enter", counted)

    rows = sum(batch.num_rows for batch in LocalStore(tmp_path).list_tree())

    assert rows == depth * (2 if leaves else 1)
    # From the root each time, they would be 45,000 and 90,000.
    assert len(steps) < 10 * rows


def test_a_chain_of_empty_directories_is_removed_from_the_nearest_open_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = 300
    chain = ["/".join("d" * level) for level in range(1, depth + 1)]
    (tmp_path / chain[-1]).mkdir(parents=True)
    (tmp_path / "d" / "file").write_bytes(b"")
    steps = []
    enter = LocalStore._enter

    def counted(self: LocalStore, *args: Any, **options: Any) -> int:
        steps.append(args)
        return enter(self, *args, **options)

    monkeypatch.setattr(LocalStore, "_enter", counted)

    removed = list(LocalStore(tmp_path).remove_empty_directories([*chain[::-1], "gone", "d/file"]))

    assert removed == [*([True] * (depth - 1)), False, True, False]
    # From the root each time, they would be 45,000.
    assert len(steps) < 10 * depth

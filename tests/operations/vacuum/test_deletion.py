"""The checks for files that are never deleted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import delta_maintenance
from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.operations.vacuum.deletion import (
    Deletion,
    delete_data_files,
    remove_empty_directories,
    require_deletable_root,
)
from delta_maintenance.protocol.vacuum import Mask
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import STATUSES
from delta_maintenance.storage.local import LocalStore


def rows(*paths: str) -> pa.Table:
    return pa.table(
        {"path": paths, "size": [1] * len(paths), "modified_ms": [1] * len(paths)}, schema=STATUSES
    )


class Quiet:
    """No concurrent commits, except for files that are declared to be in use."""

    def __init__(self, *in_use: str) -> None:
        self.in_use = in_use
        self.asked: list[int] = []

    def check(self) -> None:
        pass

    def covers(self, paths: pa.StringArray) -> Mask:
        self.asked.append(len(paths))
        return np.array([path in self.in_use for path in paths.to_pylist()], np.bool_)


def delete(store: MemoryStore, *paths: str) -> Deletion:
    *_, last = delete_data_files(store, rows(*paths), watch=Quiet())
    return last


@pytest.mark.conformance("VAC-10", "VAC-12")
@pytest.mark.parametrize(
    "path",
    [
        "_delta_log/0.json",
        "_delta_log",
        "_Delta_Log/0.json",
        "sub/_delta_log/0.json",
        "../x",
        "a/../../x",
        "a/./b",
        "/etc/passwd",
        "a//b",
        "a/",
        "",
        "a\\b",
        "a\nb",
        "a\x00",
        "\x85",
    ],
)
def test_one_invalid_path_stops_all_deletions(path: str) -> None:
    store = MemoryStore()
    store.put("dead", b"x")
    with pytest.raises(RefusedError, match="not the path of a data file"):
        delete(store, "dead", path)
    with pytest.raises(RefusedError):
        list(remove_empty_directories(store, ["dead", path]))
    assert store.read("dead") == b"x"


@pytest.mark.parametrize(
    "path", ["a*b", "[1]", "x?versionId=1", "%2e%2e", "~", "a b+c", "..x", "ü"]
)
def test_unusual_legal_names_are_literal(path: str) -> None:
    store = MemoryStore()
    for name in (path, "aXb", "1", "x"):
        store.put(name, b"x")
    assert delete(store, path).deleted == 1
    assert store.stat(path) is None and all(store.stat(name) for name in ("aXb", "1", "x"))


class Flaky(MemoryStore):
    """Fails a number of times to delete a file."""

    def __init__(self, failures: dict[str, int]) -> None:
        super().__init__()
        self.failures = failures

    def delete(self, path: str) -> None:
        if self.failures.get(path, 0):
            self.failures[path] -= 1
            raise StorageError("slow down", file=path)
        super().delete(path)


def test_every_file_is_accounted_for() -> None:
    store = Flaky({"passing": 1, "stuck": 99})
    for name in ("passing", "stuck", "free"):
        store.put(name, b"x")
    done = delete(store, "passing", "stuck", "free", "gone-already")
    assert (done.deleted, done.bytes, done.failed) == (3, 3, 1)
    assert done.failures == {"stuck": "slow down"}
    assert store.stat("passing") is None and not done.gave_up


def test_files_in_use_again_are_kept() -> None:
    store = MemoryStore()
    names = [f"f{number:05}" for number in range(9000)]
    for name in names:
        store.put(name, b"x")
    watch = Quiet("f08000")
    *_, done = delete_data_files(store, rows(*names), watch=watch)
    assert watch.asked[:3] == [4000, 4000, 1000]
    assert (done.spared, done.deleted, done.lost) == (1, 8999, ())
    assert store.stat("f08000") is not None


def test_files_referenced_after_their_deletion_are_reported() -> None:
    store = MemoryStore()
    store.put("f0", b"x")
    watch = Quiet()
    rounds = delete_data_files(store, rows("f0"), watch=watch)
    assert next(rounds).lost == ()
    watch.in_use = ("f0",)
    assert next(rounds).lost == ("f0",)


def test_errors_of_the_log_check_stop_the_next_round() -> None:
    store = MemoryStore()
    for number in range(5):
        store.put(f"f{number}", b"x")

    class Refusing(Quiet):
        def check(self) -> None:
            raise RefusedError("the rules have changed")

    with pytest.raises(RefusedError, match="the rules"):
        list(delete_data_files(store, rows("f0", "f1"), watch=Refusing()))
    assert store.stat("f0") is not None


def test_roots_of_a_whole_store_or_a_home_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for root in ("/", str(tmp_path), ".", f"{tmp_path}/x/.."):
        with pytest.raises(RefusedError):
            require_deletable_root(LocalStore(root))
    require_deletable_root(LocalStore(tmp_path / "t"))


def test_no_other_module_deletes_files_of_a_table() -> None:
    """Every call that deletes files of a store is in one of these places."""
    source = Path(delta_maintenance.__file__).parent
    call = re.compile(r"\.(delete|delete_many|delete_unchanged|remove_empty_director(y|ies))\(")
    found = {
        str(path.relative_to(source))
        for layer in ("operations", "table", "spark", "cli")
        for path in (source / layer).rglob("*.py")
        if any(call.search(line) for line in path.read_text().splitlines())
    }
    assert found == {
        "operations/vacuum/deletion.py",
        # The names of kept versions, beside the log.
        "operations/holds/kept_versions.py",
        # Staged files that are not the only copy of a commit; `log_deletion` names them.
        "table/read/managed_log.py",
        # Files of the log, and what was written and never announced.
        "table/write/log_deletion.py",
        # A new checkpoint of which another process has just deleted a sidecar.
        "table/write/checkpoint_writer.py",
        # The manifests of partitions that have no live files any more.
        "table/commit/manifests.py",
        # The copies of commits beside Delta Spark.
        "table/commit/guarded.py",
        "table/evidence/overwritten_commits.py",
        # New data files of a commit that failed for certain, or of a bin that was not finished.
        "table/commit/beside_writers.py",
        "table/data/rewrite.py",
        # The file that tells the time of the store.
        "table/store_clock.py",
        "operations/fsck/repair.py",
        "spark/sidecars.py",
    }

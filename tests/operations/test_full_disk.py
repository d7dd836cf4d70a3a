"""Stores without room: a commit that fails leaves no new data file behind, unless it may have
succeeded after all, and a vacuum makes room where there is none for a byte.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CommitUnknownError,
    DeltaMaintenanceError,
    FullStoreError,
    StorageError,
)
from delta_maintenance.operations.expire import commits
from delta_maintenance.operations.rewriting import run as rewriting
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.storage.core import Put, Store
from tests.operations.expire import test_operation as expiring
from tests.operations.expire.test_operation import FEED, Aged
from tests.support.operations.row_ids import RacedStore
from tests.support.operations.vacuum_cases import removed
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.rewrites.table_rows import actions_of, latest
from tests.support.tables.actions import add, metadata, protocol, txn
from tests.support.tables.vacuum_tables import Folder, operations

_COMMIT = re.compile(r"_delta_log/[0-9]{20}\.json")
FULL = FullStoreError("no space left on the device")


class FullStore(RacedStore):
    """Fails a commit, and every later request that writes. `rival` runs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: DeltaMaintenanceError | None = None
        self.remaining = 0
        """The commits that succeed before."""
        self.rival: Callable[[], object] | None = None

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.error is not None and _COMMIT.fullmatch(path):
            if not self.remaining:
                if self.rival is not None:
                    rival, self.rival, error, self.error = self.rival, None, self.error, None
                    rival()
                    self.error = error
                raise self.error
            self.remaining -= 1
        return super().put_if_absent(path, data)


def unreferenced(store: Store) -> set[str]:
    """The data files and deletion vectors that no version refers to."""
    found = {
        path
        for batch in store.list_tree()
        for path in batch["path"].to_pylist()
        if path.endswith((".parquet", ".bin")) and not path.startswith("_delta_log/")
    }
    for version in range(latest(store) + 1):
        for action in actions_of(store, version):
            for file in (action.get(kind) for kind in ("add", "remove", "cdc")):
                if file is None:
                    continue
                found.discard(unquote(file["path"]))
                if (vector := file.get("deletionVector")) is not None:
                    found.discard(DeletionVectorDescriptor.from_json(vector).relative_path() or "")
    return found


def commit_beside(store: Store) -> None:
    """Commits the next version, as another writer."""
    store.put(f"_delta_log/{latest(store) + 1:020}.json", json.dumps(txn("other", 1)).encode())


@pytest.mark.conformance("RW-44")
@pytest.mark.parametrize("remaining", [0, 1, 2])
@pytest.mark.parametrize(
    ("mixed", "configuration"), [("deletion-vectors", {}), ("rewrite", {}), ("rewrite", FEED)]
)
def test_an_expire_whose_commit_fails_leaves_no_file_behind(
    mixed: str, configuration: dict[str, str], remaining: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "FILES_READ_PER_COMMIT", 2)
    aged = Aged(FullStore(), **configuration)
    store = aged.store
    assert isinstance(store, FullStore)
    store.error, store.remaining = FULL, remaining
    with suppress(StorageError):
        assert expiring.run(store, mixed=mixed).status == "partly"
    assert unreferenced(store) == set()
    store.error = None
    expiring.run(store, mixed=mixed, seed=8)
    assert expiring.numbers(store) == expiring.KEPT[mixed] and unreferenced(store) == set()


@pytest.mark.conformance("RW-44")
@pytest.mark.parametrize("remaining", [0, 1])
def test_a_rewrite_whose_commit_fails_leaves_no_file_behind(
    remaining: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "COMMIT_BYTES", 1)
    monkeypatch.setattr(rewriting, "MOST_COMMITS", 1 << 40)
    made = Rewritten(store=FullStore())
    store = made.store
    assert isinstance(store, FullStore)
    store.now_ms = lambda: epoch_millis(expiring.NOW)
    store.error, store.remaining = FULL, remaining
    with suppress(StorageError):
        assert made.optimize().status == "partly"
    assert unreferenced(store) == set()


@pytest.mark.parametrize("is_unknown", [False, True])
def test_files_of_a_commit_that_may_have_succeeded_stay(
    is_unknown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer was lost, or another writer has committed the version meanwhile."""
    for work in ("expire", "optimize"):
        table = Aged(FullStore()) if work == "expire" else Rewritten(store=FullStore())
        store = table.store
        assert isinstance(store, FullStore)
        store.error = CommitUnknownError("no answer") if is_unknown else FULL
        # The first commit of an expire only removes files.
        store.remaining = int(work == "expire")
        store.rival = None if is_unknown else partial(commit_beside, store)
        with suppress(CommitUnknownError, StorageError):
            if isinstance(table, Aged):
                expiring.run(store, mixed="rewrite")
            else:
                table.optimize()
        assert unreferenced(store)
        assert is_unknown or "a vacuum will delete its new files" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("error", [FULL, StorageError("the store does not answer")])
def test_a_vacuum_goes_on_without_its_first_commit_only_if_there_is_no_room(
    error: StorageError,
) -> None:
    store = FullStore()
    table = Folder(store)
    table.file("dead.parquet")
    store.error = error
    if not isinstance(error, FullStoreError):
        with pytest.raises(StorageError, match="does not answer"):
            table.vacuum()
        assert table.files() == {"dead.parquet"}
        return
    result = table.vacuum()
    assert (result.status, result.deleted, table.files()) == ("vacuumed", 1, set())
    assert (result.start_version, result.end_version) == (None, None)
    notes = [f"VACUUM {part} is not in the log: {FULL.problem}" for part in ("START", "END")]
    assert [note for note in result.notes if "VACUUM" in note] == notes


@pytest.fixture
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """A folder in which no byte can be written, and whether deletions change that: a full file
    system, or any folder for processes that may write no byte.
    """
    is_mounted = request.param == "full"
    if is_mounted:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
        if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("NO MOUNT: this user cannot mount a file system")
    try:
        yield tmp_path, is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("full", "verb"), [("full", "vacuum"), ("quota", "run")], indirect=["full"]
)
def test_a_vacuum_makes_room_on_a_disk_without_a_free_byte(
    full: tuple[Path, bool], verb: str
) -> None:
    root, frees = full
    table = Folder(root / "t", now=clock.now(), first=[protocol(), metadata()])
    table.log(add("old.parquet"))
    table.log(removed("old.parquet", 90))
    table.file("old.parquet", data=bytes(100_000))
    (root / "state").mkdir()
    (root / "policy.yaml").write_text(
        f"version: 1\nledger: {root}/ledger\ndefaults: {{limits: {{max_deleted_share: 1}}}}\n"
        f"tables: [{{uri: {root}/t, checkpoint: {{max_commits: 2}}, vacuum: true}}]\n"
    )
    command = [sys.executable, "-m", "delta_maintenance", verb]
    command += [str(root / "t")] if verb == "vacuum" else [str(root / "policy.yaml")]
    command += ["--state", str(root / "state")] if verb == "run" else []
    if frees:
        with suppress(OSError), (root / "rest").open("wb", buffering=0) as rest:
            for size in (4096, 1):
                with suppress(OSError):
                    while True:
                        rest.write(bytes(size))
        assert os.statvfs(root).f_bavail == 0
    else:
        command = ["bash", "-c", 'trap "" XFSZ; ulimit -f 0; exec "$@"', "bash", *command]
    environment = {**os.environ, "TMPDIR": str(root / "state")}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert not (root / "t/old.parquet").exists(), ended.stderr
    # Only the checkpoint, which comes first, has found no room.
    assert ended.returncode == (verb == "run"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert [name for name, _ in operations(table)][3:] == (["VACUUM END"] if frees else [])
    assert (verb == "vacuum") == ("VACUUM START is not in the log" in ended.stdout)

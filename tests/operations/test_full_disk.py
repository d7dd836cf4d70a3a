"""A commit that fails leaves no new data file behind, unless it may have succeeded after all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import unquote

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, StorageError
from delta_maintenance.operations.expire import commits
from delta_maintenance.operations.rewriting import run as rewriting
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.testing.actions import txn
from tests.operations.expire import test_operation as expiring
from tests.operations.expire.test_operation import FEED, Aged
from tests.support.operations.row_ids import RacedStore
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.rewrites.table_rows import actions_of, latest

_COMMIT = re.compile(r"_delta_log/[0-9]{20}\.json")
FULL = StorageError("no space left on the device")


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

"""Writers of other engines, each with its own way to create a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from delta_maintenance.errors import CommitConflictError, CommitUnknownError, StorageError
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.table.read.segment import latest_version, list_log
from tests.properties.model import State
from tests.simulation.actors import Actor
from tests.simulation.ledger import Effect, is_on
from tests.simulation.world import UNCONDITIONAL
from tests.simulation.writers import new_file
from tests.support.tables.actions import Action, commit_info, remove
from tests.support.tables.table_builder import log_text

_PUTS_OF_LOG_STORE = 5


class Engine(Actor):
    """Appends, deletes and compacts files. Its snapshot is what the log held when it listed it."""

    def __init__(
        self, *args: Any, create: CreateCommit, pauses_ms: Sequence[int], **kwargs: Any
    ) -> None:
        """`pauses_ms` are the times that may pass right before the put of a commit, in a writer
        that looks first after its look."""
        super().__init__(*args, **kwargs)
        self.create = create
        self.pauses_ms = pauses_ms

    def run(self, task: str) -> None:
        for number, store in self.attempts(longest=6):
            if self.tried(store, partial(self._attempt, f"{task}/{number}", store)):
                return

    def pause_before_put(self) -> None:
        self.rest(self.chance.choice(self.pauses_ms))

    def _attempt(self, txn_id: str, store: Store) -> None:
        """One transaction. After a lost race it goes on behind the newest version, as Delta Spark
        does, unless another writer removed its files or changed the metadata."""
        ledger = self.world.ledger
        version, state = self._read(store)
        removes, adds, effect = self._change(store, state)
        ledger.effects[txn_id] = effect
        engine = UNCONDITIONAL if self.create is without_log_store else self.create.__name__
        info = {"txnId": txn_id, "engineInfo": engine, "timestamp": self.world.now_ms}
        files = [{"add": add} for add in adds]
        files += [remove(a["path"], deletionTimestamp=self.world.now_ms) for a in removes]

        def render() -> bytes:
            if is_on(state, "delta.enableInCommitTimestamps"):
                previous_ms = ledger.in_commit_ms or 0
                info["inCommitTimestamp"] = max(self.world.now_ms, previous_ms + 1)
            return log_text([commit_info("WRITE", **info), *files])

        while not self.create(self, store, f"_delta_log/{version + 1:020d}.json", render()):
            version, newest = self._read(store)
            gone = {(add["path"], None) for add in removes} - newest.live.keys()
            if gone or (newest.metadata, newest.protocol) != (state.metadata, state.protocol):
                raise CommitConflictError("another writer has removed a file of this commit")

    def _read(self, store: Store) -> tuple[int, State]:
        version = latest_version(list_log(store))
        assert version is not None
        return version, self.world.ledger.states[version]

    def _change(self, store: Store, state: State) -> tuple[list[Action], list[Action], Effect]:
        """The removed and the added files, and the effect on the rows."""
        ledger = self.world.ledger
        whole = sorted(path for path, vector in state.live if vector is None)
        kind = self.chance.choice(("append", "append", "delete", "compact"))
        if kind == "append" or not whole:
            file = new_file(self.world, store)
            return [], [file], Effect(inserted=ledger.rows_of[file["path"]])
        chosen = self.chance.sample(whole, min(len(whole), 1 if kind == "delete" else 2))
        removes = [state.live[path, None] for path in chosen]
        rows = frozenset().union(*(ledger.rows_of[path] for path in chosen))
        if kind == "delete":
            return removes, [], Effect(deleted=rows)
        return removes, [new_file(self.world, store, rows, dataChange=False)], Effect()


CreateCommit = Callable[[Engine, Store, str, bytes], bool]
"""Creates the commit; False if the file exists already. Raises the errors of the store."""


def without_log_store(engine: Engine, store: Store, path: str, text: bytes) -> bool:
    """Delta Spark on S3: looks for the file, and then puts it whether or not it exists by then."""
    if store.stat(path) is not None:
        return False
    engine.pause_before_put()
    store.put(path, text)
    return True


def with_log_store(engine: Engine, store: Store, path: str, text: bytes) -> bool:
    """`ConditionalPutLogStore`: settles every failure by reading the file back."""
    engine.pause_before_put()
    for _ in range(_PUTS_OF_LOG_STORE):
        try:
            if store.put_if_absent(path, text) is Put.DONE:
                return True
        except (CommitUnknownError, StorageError) as error:
            failure = error
            if store.stat(path) is None:
                continue
        return store.read(path) == text
    raise failure


def like_delta_rs(engine: Engine, store: Store, path: str, text: bytes) -> bool:
    """A conditional put, whose failure ends the transaction."""
    engine.pause_before_put()
    return store.put_if_absent(path, text) is Put.DONE

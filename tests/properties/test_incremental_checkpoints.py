"""A checkpoint that takes over sidecars has the contents of a replay of all commits."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from delta_maintenance.protocol.delta_log import most_sidecars
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.properties.model import State, replay, state_of
from tests.support.logs.checkpointing import KEEP_TOMBSTONES, NOW, write
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, TableBuilder

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_INCREMENTAL_ROUNDS", examples(12)))
"""Histories to play; a heavy run takes 1000."""
CHECKPOINTS = 8
FOLDERS = ("", "day=1/", "day=2%20x/", "file:/elsewhere/", "s3://bucket/a%2Fb/", "\u00fc/")
VECTORS = (None, deletion_vector("u1"), deletion_vector("u2", offset=9))


class History:
    """Commits that add, remove and restore files and change their deletion vectors."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.live: dict[str, Action | None] = {}
        self.names = 0

    def first(self) -> list[Action]:
        configuration = {"delta.checkpointPolicy": "v2", **KEEP_TOMBSTONES}
        return [
            features("v2Checkpoint", "deletionVectors", writer_only=["domainMetadata"]),
            metadata(configuration=configuration),
            *(self.added() for _ in range(self.chance.randint(0, 30))),
        ]

    def commit(self) -> list[Action]:
        lines = [commit_info(), *(self.added() for _ in range(self.chance.choice((0, 1, 1, 6))))]
        touched = self.chance.sample(
            sorted(self.live), min(len(self.live), self.chance.choice((0, 0, 1, 3)))
        )
        added = {line["add"]["path"] for line in lines if "add" in line}
        for path in touched:
            if path not in added:
                lines += self.changed(path)
        if self.chance.random() < 0.2:
            lines.append(txn(self.chance.choice("ab"), self.names))
        if self.chance.random() < 0.2:
            lines.append(domain("d", str(self.names), removed=self.chance.random() < 0.3))
        return lines

    def added(self) -> Action:
        path = f"{self.chance.choice(FOLDERS)}f{self.names}"
        gone = [] if self.chance.random() < 0.8 else sorted(self.gone())
        if gone:
            path = self.chance.choice(gone)
        self.names += 1
        self.live[path] = None
        return add(path, size=self.chance.randint(0, 9))

    def gone(self) -> set[str]:
        return {f"{folder}f{n}" for folder in FOLDERS for n in range(self.names)} - set(self.live)

    def changed(self, path: str) -> list[Action]:
        before = self.live[path]
        lines = [remove(path, dv=before, size=1, deletionTimestamp=self.names)]
        if self.chance.random() < 0.4:
            after = self.chance.choice([vector for vector in VECTORS if vector != before])
            self.live[path] = after
            lines.append(add(path, dv=after))
        else:
            del self.live[path]
        return lines


@pytest.mark.conformance("CKPT-03", "CKPT-23", "CKPT-24", "REC-02")
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_incremental_checkpoint_replaces_the_log(seed: int) -> None:
    history = History(seed)
    table = TableBuilder(MemoryStore())
    table.commit(history.first())
    per_sidecar = history.chance.choice((2, 8, 50))
    taken_over = 0
    for _ in range(CHECKPOINTS):
        for _ in range(history.chance.choice((1, 1, 4))):
            table.commit(history.commit())
        before = alone(table, table.version, [])
        has_base = bool(
            before.snapshot().log.checkpoint and before.snapshot().log.checkpoint.sidecars
        )
        how = "always" if has_base else "auto"
        result = write(table.open(), per_sidecar=per_sidecar, incremental=how, now=NOW)
        taken_over += result.sidecars_taken_over
        expected = replay([table.commits[version] for version in range(table.version + 1)])
        assert result.path is not None
        copy = alone(table, table.version, [result.path]).snapshot()
        assert without_change(state_of(copy)) == without_change(expected)
        assert (copy.counts.num_files, copy.counts.num_tombstones) == (
            result.num_files,
            result.num_tombstones,
        )
        assert result.sidecars <= most_sidecars(result.num_files, per_sidecar) + most_sidecars(
            result.num_tombstones, per_sidecar
        )
    assert taken_over


def alone(table: TableBuilder, version: int, checkpoints: Sequence[str]) -> Table:
    """Returns the table with only these checkpoints, or all, and the commits of their versions."""
    if not checkpoints:
        return table.open()
    copy = MemoryStore()
    for status in [*table.store.list_from(LOG), *table.store.list_from(f"{LOG}/_sidecars")]:
        own = status.path == f"{LOG}/{version:020d}.json"
        if own or status.path in checkpoints or "/_sidecars/" in status.path:
            copy.put(status.path, table.store.read(status.path))
    return Table(copy)


def without_change(state: State) -> State:
    for files in (state.live, state.tombstones):
        for value in files.values():
            value.pop("dataChange", None)
    return state

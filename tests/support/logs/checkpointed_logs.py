"""Logs with a checkpoint of every kind, and their expected state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import UnusableCheckpointError
from tests.properties.model import State, replay, state_of
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
from tests.table.failures import fails

CLASSIC = f"{4:020d}.checkpoint.parquet"
Write = Callable[[TableBuilder], list[str]]


def new(path: str, **fields: Any) -> Action:
    """An add to the partition `x`."""
    return add(path, **({"partitionValues": {"part": "x"}} | fields))


def busy(store: MemoryStore | None = None) -> TableBuilder:
    """Five commits with every action that a checkpoint can contain, and one commit after them."""
    table = TableBuilder(store)
    table.commit(
        [
            commit_info("CREATE"),
            features("deletionVectors", "v2Checkpoint"),
            metadata(partitioned_by=["part"], configuration={"k": "v"}),
        ]
    )
    full: Action = {
        "size": 7,
        "stats": '{"numRecords":2}',
        "tags": {"t": "1"},
        "partitionValues": {"part": "x"},
        "baseRowId": 5,
        "defaultRowCommitVersion": 1,
        "clusteringProvider": "liquid",
        "shiny": {"n": [1, 2]},
    }
    table.commit([add("a", **full), add("b", dv=deletion_vector(), **full), txn("app", 9)])
    table.commit([new("c"), new("d"), domain("user", "x"), domain("gone", "y")])
    table.commit([remove("c"), remove("b", dv=deletion_vector()), new("b"), txn("app", 4)])
    table.commit([new("e"), new("f"), new("g"), domain("gone", "y", removed=True)])
    table.commit([remove("a"), new("h"), txn("app", 5)])
    return table


def expected(table: TableBuilder, version: int = 5) -> State:
    return replay([table.commits[number] for number in range(version + 1)])


def leave_only_the_checkpoint(table: TableBuilder) -> None:
    """Deletes every commit that the checkpoint of version 4 replaces."""
    table.drop(*(f"{version:020d}.json" for version in range(5)))


def check_falls_back(table: TableBuilder, problem: str, *, name: str = CLASSIC) -> None:
    """Checks that the damaged checkpoint `name` changes no result, and is the error if it is
    needed.
    """
    for version in (4, 5):
        snapshot = table.open().snapshot(version=version)
        assert state_of(snapshot) == expected(table, version)
        assert snapshot.log.checkpoint is None
        [warning] = snapshot.warnings
        assert problem in warning
        assert name in warning
    leave_only_the_checkpoint(table)
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{name}"):
        table.open().snapshot()


KINDS: dict[str, Write] = {
    "classic": lambda table: table.checkpoint(4),
    "row groups of 1": lambda table: table.checkpoint(4, rows_per_group=1),
    "parts": lambda table: table.checkpoint(4, parts=3),
    "more parts than rows": lambda table: table.checkpoint(4, parts=40),
    "json": lambda table: table.v2_checkpoint(4),
    "json with sidecar": lambda table: table.v2_checkpoint(4, sidecars=1),
    "json with sidecars": lambda table: table.v2_checkpoint(4, sidecars=3),
    "json with empty sidecars": lambda table: table.v2_checkpoint(4, sidecars=30),
    "parquet": lambda table: table.v2_checkpoint(4, encoding="parquet"),
    "parquet with sidecars": lambda table: table.v2_checkpoint(4, encoding="parquet", sidecars=2),
    "v2 by classic name": lambda table: table.v2_checkpoint(4, uuid=None),
    "v2 by classic name with sidecars": lambda table: table.v2_checkpoint(4, uuid=None, sidecars=2),
}

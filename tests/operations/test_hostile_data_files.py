"""Data files that contradict the log or themselves, under the verbs that read them to write.

Each run ends in one line that names the file. No row of another file is lost, and only what is
damaged is called damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.operations import backfill_row_ids, purge
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.parquet.thrift import (
    I64,
    ListValue,
    Struct,
    read_struct,
    struct_bytes,
)
from delta_maintenance.table.read import Table
from tests.support.hostile.encrypted_files import encrypted
from tests.support.rewrites.data_files import DataTable, inline_vector, parquet
from tests.support.rewrites.data_files import field as column
from tests.support.rewrites.table_rows import actions_of, latest
from tests.support.tables import actions as log
from tests.support.tables.droppable_tables import Clock, drop

NUM_ROWS, ROW_GROUPS, GROUP_ROWS = 3, 4, 3
"""Fields of a footer and of its row groups."""
VECTORS = {"delta.enableDeletionVectors": "true"}


def rows(first: int, count: int = 50) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"text {n}" for n in numbers]})


SOUND = parquet(rows(100), compression="none")


def with_footer(count: int, *, of_group: int | None = None) -> bytes:
    """The sound file, whose footer states other numbers of rows."""
    size = int.from_bytes(SOUND[-8:-4], "little")
    footer, _ = read_struct(SOUND[-8 - size : -8])
    footer.put(NUM_ROWS, I64, count)
    if of_group is not None:
        groups = footer.get(ROW_GROUPS)
        assert isinstance(groups, ListValue) and isinstance(groups.values[0], Struct)
        groups.values[0].put(GROUP_ROWS, I64, of_group)
    text = struct_bytes(footer)
    return bytes(SOUND[: -8 - size] + text + len(text).to_bytes(4, "little") + b"PAR1")


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """The content of a file, and what the log states of it."""

    data: bytes = SOUND
    add: Mapping[str, Any] = field(default_factory=dict)
    sized: bool = True
    """Whether the log states the size of the content."""
    damaged: bool = True
    counted: bool = False
    """Whether the footer still tells the number of rows."""


HOSTILE = {
    "garbage": Hostile(data=b"x" * len(SOUND)),
    "empty": Hostile(data=b""),
    "without its end": Hostile(data=SOUND[:-5], sized=False),
    "pages of zeros": Hostile(data=SOUND[:4] + bytes(396) + SOUND[400:], counted=True),
    "footer of the middle": Hostile(data=SOUND[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1"),
    "more rows in the footer": Hostile(data=with_footer(51)),
    "negative rows": Hostile(data=with_footer(-1, of_group=-1)),
    "absurd rows": Hostile(data=with_footer(2**62, of_group=2**62), counted=True),
    "fewer rows in the log": Hostile(add={"stats": '{"numRecords":49}'}, counted=True),
    "absurd size in the log": Hostile(add={"size": 2**62}, sized=False, counted=True),
    "another file of the table": Hostile(
        data=parquet(rows(0, 49), compression="none"), sized=False, counted=True
    ),
    "vector past the end": Hostile(
        add={"stats": None, "deletionVector": inline_vector([10, 50])}, counted=True
    ),
    "encrypted": Hostile(data=encrypted(rows(100), "a", footer=True), damaged=False),
    "encrypted column": Hostile(
        data=encrypted(rows(100), "a", footer=False), damaged=False, counted=True
    ),
}


def hostile_table(case: Hostile, *, vectors: bool) -> tuple[DataTable, str]:
    """Three files with deleted rows, of which the second is hostile."""
    made = DataTable(
        column("a", "long"),
        column("b", "string"),
        features=["deletionVectors"] if vectors else [],
        configuration=VECTORS if vectors else {},
    )
    paths = made.append(rows(0), rows(100), rows(200), writing={"compression": "none"})
    if vectors:
        for path in paths:
            made.delete(path, [3, 7])
    path = paths[1]
    made.store.put(path, case.data)
    add = made.live[path] | ({"size": len(case.data)} if case.sized else {}) | dict(case.add)
    if not vectors:
        # The rows are counted from the footer.
        add = {name: value for name, value in add.items() if name != "deletionVector"}
        add["stats"] = None
    made.builder.commit([log.commit_info("WRITE"), {"add": add}])
    made.live[path] = add
    return made, path


def live(made: DataTable) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for version in range(latest(made.store) + 1):
        for action in actions_of(made.store, version):
            for kind, value in action.items():
                if kind == "remove":
                    found.pop(value["path"], None)
                elif kind == "add":
                    found[value["path"]] = value
    return found


def purged(made: DataTable, clock: Clock) -> tuple[str, bool]:
    table = Table(made.store)
    plan = purge.plan(
        table.snapshot(), PurgeOptions(engine="local", workers=1), context=RunContext.at(clock())
    )
    result = purge.apply(table, plan, context=RunContext.at(clock))
    for refused in result.refused:
        assert refused.damaged == (result.status == "failed")
        return refused.problem, refused.damaged
    raise AssertionError(f"the file was accepted: {result}")


def dropped(made: DataTable, clock: Clock) -> tuple[str, bool]:
    result = drop(made.store, clock, "deletionVectors")
    raise AssertionError(f"the file was accepted: {result}")


def backfilled(made: DataTable, clock: Clock) -> tuple[str, bool]:
    table = Table(made.store)
    plan = backfill_row_ids.plan(table.snapshot(), context=RunContext.at(clock()))
    result = backfill_row_ids.apply(table, plan, context=RunContext.at(clock))
    raise AssertionError(f"the file was accepted: {result}")


VERBS: dict[str, Callable[[DataTable, Clock], tuple[str, bool]]] = {
    "purge": purged,
    "drop-feature": dropped,
    "backfill-row-ids": backfilled,
}
CASES = [
    (verb, name)
    for verb in VERBS
    for name, case in HOSTILE.items()
    # A backfill reads footers only, and believes one that does not contradict itself.
    if verb != "backfill-row-ids" or not case.counted
]


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_a_hostile_file_is_named_in_one_line_and_nothing_is_lost(verb: str, name: str) -> None:
    case, clock = HOSTILE[name], Clock()
    made, path = hostile_table(case, vectors=verb != "backfill-row-ids")
    assert isinstance(made.store, MemoryStore)
    clock.govern(made.store)
    before = made.store.read(path)
    try:
        problem, damaged = VERBS[verb](made, clock)
    except DeltaMaintenanceError as error:
        problem, damaged = str(error), isinstance(error, CorruptTableError)
    assert path in problem and "\n" not in problem, problem
    if verb == "backfill-row-ids":
        assert ("is encrypted" in problem) != case.damaged, problem
    else:
        assert damaged == case.damaged and ("backup" in problem) <= case.damaged, problem
    # The hostile file stays as it is, and the rows of the others are all there.
    found = live(made)
    assert made.store.read(path) == before and found[path] == made.live[path]
    others = [add for name, add in found.items() if name != path]
    kept = sum(
        json.loads(add["stats"])["numRecords"]
        - (add.get("deletionVector") or {}).get("cardinality", 0)
        for add in others
    )
    assert kept == (100 if verb == "backfill-row-ids" else 96)

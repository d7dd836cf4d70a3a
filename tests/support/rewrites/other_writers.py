"""Tables with nested columns, and files that several writers add to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance import clock
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.rewrites.table_rows import latest, live_adds


def nested(first: int, count: int, *, element: str = "element") -> pa.Table:
    """Rows with lists, maps and structs, some of them null or empty.

    `element` is the name of list elements. `deltalake` keeps it if it creates the table.
    """

    def array(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field(element, kind))

    values = range(first, first + count)
    columns = {
        "id": pa.array(values, pa.int64()),
        "items": pa.array(
            [[{"a": n, "b": f"text {n}"}, None][: n % 3] for n in values],
            array(pa.struct({"a": pa.int32(), "b": pa.string()})),
        ),
        "pairs": pa.array(
            [None if n % 5 == 0 else [("k", [n / 7, None]), ("l", None)] for n in values],
            pa.map_(pa.string(), array(pa.float64())),
        ),
        "box": pa.array(
            [{"inner": {"y": n} if n % 2 else None, "tags": [str(n)] * (n % 4)} for n in values],
            pa.struct({"inner": pa.struct({"y": pa.int64()}), "tags": array(pa.string())}),
        ),
    }
    return pa.table(columns)


NESTED = """
    SELECT id,
        slice(array(named_struct('a', int(id), 'b', concat('text ', id)), null), 1, int(id % 3))
            AS items,
        if(id % 5 = 0, null, map('k', array(id / 7.0D, null), 'l', null)) AS pairs,
        named_struct('inner', if(id % 2 = 0, null, named_struct('y', id)),
            'tags', array_repeat(string(id), int(id % 4))) AS box
    FROM range({first}, {last}, 1, 1)
"""
"""A query of Spark with the same rows."""


def add_file(path: Path, name: str, rows: pa.Table, **options: Any) -> None:
    """Adds a file of pyarrow to a table."""
    pq.write_table(rows, path / name, **options)
    commit_file(path, name, rows.num_rows)


def commit_file(path: Path, name: str, rows: int) -> None:
    """Commits a file with so many rows, which is in the folder of the table."""
    add = {
        "path": name,
        "partitionValues": {},
        "size": (path / name).stat().st_size,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    version = latest(LocalStore(path)) + 1
    commit = path / "_delta_log" / f"{version:020}.json"
    commit.write_text(json.dumps({"commitInfo": {"operation": "WRITE"}}) + "\n")
    with commit.open("a") as file:
        file.write(json.dumps({"add": add}) + "\n")


def optimized(path: Path) -> OptimizeResult:
    """Runs `optimize` on a table."""
    table = Table(LocalStore(path))
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(clock.now())
    )
    return optimize.apply(table, planned)


def groups_of(path: Path) -> Sequence[Sequence[int]]:
    """The rows of the row groups of each live file."""
    found = []
    for name in live_adds(LocalStore(path)):
        metadata = pq.read_metadata(path / unquote(name))
        every = range(metadata.num_row_groups)
        found.append([metadata.row_group(at).num_rows for at in every])
    return sorted(found)

"""The work for a file grows with the number of its columns, not with the square of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.operations import optimize, recompute_stats
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import field, parquet, schema_string
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

FEW, MANY = 150, 600
PROPERTIES = {"delta.dataSkippingNumIndexedCols": "-1"}
Verb = Callable[[Table], object]


def wide_table(columns: int) -> Table:
    """Two files without statistics, with half of their columns in a struct."""
    names = [f"c{at}" for at in range(columns // 2)]
    values = [pa.array([1, None]) for _ in names]
    rows = pa.table([*values, pa.StructArray.from_arrays(values, names)], [*names, "s"])
    longs = [field(name, "long") for name in names]
    schema = schema_string(*longs, field("s", {"type": "struct", "fields": longs}))
    builder = TableBuilder(MemoryStore())
    content = parquet(rows)
    for path in ("a.parquet", "b.parquet"):
        builder.store.put(path, content)
    files = [add(path, size=len(content)) for path in ("a.parquet", "b.parquet")]
    builder.commit([protocol(), metadata(schema=schema, configuration=PROPERTIES), *files])
    return builder.open()


def run_optimize(table: Table) -> object:
    options = optimize.OptimizeOptions()
    plan = optimize.plan(table.snapshot(), options, RunContext())
    return optimize.apply(table, plan, RunContext())


def run_recompute_stats(table: Table) -> object:
    options = recompute_stats.RecomputeStatsOptions()
    plan = recompute_stats.plan(table.snapshot(), options, RunContext())
    return recompute_stats.apply(table, plan, RunContext())


def count_calls(verb: Verb, table: Table) -> int:
    """Returns how many functions are called in all threads, those in C included."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        verb(table)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


@pytest.mark.parametrize("verb", [run_optimize, run_recompute_stats])
def test_four_times_the_columns_take_at_most_five_times_the_calls(
    verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb(wide_table(4))  # loads modules
    # Arrow visits all fields of a struct to take one.
    taken: list[object] = []
    struct_field = pc.struct_field
    monkeypatch.setattr(
        pc,
        "struct_field",
        lambda *given, **more: taken.append(given) or struct_field(*given, **more),
    )
    few = count_calls(verb, wide_table(FEW))
    taken_of_few = len(taken)
    many = count_calls(verb, wide_table(MANY))

    assert many < 5 * few
    assert len(taken) - taken_of_few <= taken_of_few

"""The memory that a plan states holds while files are rewritten, whatever their size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.registry import find
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.table.read.table import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW, ids
from tests.support.suite.usage import measured

TEXT = 8 << 10
"""Bytes of a text."""


def texts(count: int) -> pa.Table:
    """Different texts that compress to nearly nothing, so that the files take no memory."""
    numbers = pa.array(range(count), pa.int64()).cast(pa.string())
    return pa.table({"b": pc.utf8_rpad(numbers, TEXT, "x")})


@pytest.mark.conformance("RW-43")
def test_a_rewrite_takes_no_more_memory_than_its_plan_states() -> None:
    made = DataTable(field("b", "string"))
    rows = 24_000
    file = texts(rows)
    made.append(file, file, writing={"compression": "zstd", "use_dictionary": False})
    del file
    made.store.now_ms = lambda: epoch_millis(NOW)
    settings = OptimizeOptions(workers=1)
    table = Table(made.store)
    planned = optimize.plan(table.snapshot(), settings, context=RunContext.at(NOW))
    # The table is larger, so that a rewrite that held it as a whole would exceed the bound.
    own = planned.memory_bytes - (200 << 20)
    assert own < 2 * rows * TEXT
    with measured() as taken:
        result = optimize.apply(
            table, planned, context=RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
        )
    assert result.status == "rewritten" and result.rows == 2 * rows
    # What Python and Arrow themselves take was there before.
    assert taken.memory < own


def shared(values: list[str], rows: int) -> pa.Array:
    """Rows that refer to a few long texts, one after another."""
    return pa.DictionaryArray.from_arrays(np.arange(rows, dtype=np.int32) % len(values), values)


LONG = [str(number) + "v" * 300_000 for number in range(5)]
TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
NUMBERS = {"type": "array", "elementType": "long", "containsNull": True}
HOSTILE: dict[str, tuple[object, Callable[[], pa.Array], bool]] = {
    "shared texts": ("string", lambda: shared(LONG, 3000), False),
    "shared texts in structs": (
        {"type": "struct", "fields": [field("s", "string")]},
        lambda: pa.StructArray.from_arrays([shared(LONG, 1500)], ["s"]),
        False,
    ),
    "shared texts in lists": (
        TEXTS,
        lambda: pa.ListArray.from_arrays(np.arange(0, 1501, 3, np.int32), shared(LONG, 1500)),
        False,
    ),
    "shared texts in one row": (
        TEXTS,
        lambda: pa.ListArray.from_arrays(np.array([0, 1500], np.int32), shared(LONG, 1500)),
        True,
    ),
    "a list of one number": (
        NUMBERS,
        lambda: pa.ListArray.from_arrays(
            np.array([0, 0, 20_000_000], np.int32), pa.repeat(pa.scalar(3), 20_000_000)
        ),
        True,
    ),
    "one long text": ("string", lambda: pa.array(["\0" * (40 << 20)]), True),
}
"""The type of a column, its values, and whether no batch can hold one of its rows."""


@pytest.mark.conformance("RW-15", "RW-43")
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("verb", ["optimize", "purge"])
def test_a_small_file_with_large_rows_takes_no_more(kind: str, verb: str) -> None:
    delta, values, is_refused = HOSTILE[kind]
    made = DataTable(field("c", delta), field("dropped", "long"), features=["deletionVectors"])
    rows = pa.table({"c": values()})
    few = rows.slice(0, 1) if not is_refused else pa.table({"c": pa.nulls(1, rows["c"].type)})
    options = {"compression": "zstd", "store_schema": False, "use_dictionary": kind[:3] != "one"}
    options["dictionary_pagesize_limit"] = 1 << 30
    path, *_ = made.append(rows, few, few, writing=options)
    del rows, few
    if verb == "purge":
        for each in list(made.live):
            made.delete(each, [0])
    made.store.now_ms = lambda: epoch_millis(NOW)
    record = find(verb)
    table = Table(made.store)
    operation = {"optimize": optimize, "purge": purge}[verb]
    planned = operation.plan(table.snapshot(), record.options(workers=1), RunContext.at(NOW))
    with measured() as taken:
        result = operation.apply(
            table, planned, RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
        )
    assert taken.memory < planned.memory_bytes - (200 << 20)
    assert [(file.path, file.damaged) for file in result.refused] == [(path, False)] * is_refused
    assert all("backup" not in file.problem for file in result.refused)

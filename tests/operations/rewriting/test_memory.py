"""The memory that a plan states holds while files are rewritten, whatever their size."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import new_files
from delta_maintenance.operations.rewriting.models import Reader
from delta_maintenance.table.data import GROUP_BYTES
from delta_maintenance.table.read import Table
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
@pytest.mark.parametrize("reader", [None, "direct-lake"])
def test_a_rewrite_takes_no_more_memory_than_its_plan_states(
    reader: Reader | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_files, "LARGE_GROUP_BYTES", GROUP_BYTES)
    made = DataTable(field("b", "string"))
    rows = 24_000
    file = texts(rows)
    made.append(file, file, writing={"compression": "zstd", "use_dictionary": False})
    del file
    made.store.now_ms = lambda: epoch_millis(NOW)
    settings = OptimizeOptions(workers=1, reader=reader)
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

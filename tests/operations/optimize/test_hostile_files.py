"""Data files as no writer of today makes them, and tables that changed over the years."""

from __future__ import annotations

import pyarrow as pa
import pytest
from rewrites.data_files import DataTable, field
from rewrites.rewritten_tables import NOW, ids
from rewrites.table_rows import live_rows

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.table.read.table import Table


def optimized(made: DataTable) -> OptimizeResult:
    made.store.now_ms = lambda: epoch_millis(NOW)
    table, options = Table(made.store), OptimizeOptions(workers=1)
    planned = optimize.plan(table.snapshot(), options, now=NOW)
    return optimize.apply(table, planned, now=lambda: NOW, new_id=ids(), sleep=lambda _: None)


@pytest.mark.conformance("RW-08")
def test_a_text_that_repeats_may_be_missing_in_older_files() -> None:
    made = DataTable(field("a", "long"), field("b", "string"))
    # Enough rows for the writer to decide that `b` repeats its values.
    numbers = range(20_000)
    made.append(pa.table({"a": list(numbers), "b": [f"x{n % 3}" for n in numbers]}))
    made.append(pa.table({"a": [-1, -2]}))
    before = live_rows(made.store)
    assert optimized(made).status == "rewritten"
    assert live_rows(made.store) == before

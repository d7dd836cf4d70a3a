"""Data files with every encoding of the Parquet format, by several writers, in one rewrite."""

from __future__ import annotations

from pathlib import Path

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.table.data import row_batches
from delta_maintenance.table.read import Table
from tests.support.rewrites.encodings import FIRST, encoded_table
from tests.support.rewrites.rewritten_tables import NOW, ids
from tests.support.rewrites.table_rows import live_rows


@pytest.mark.conformance("RW-08", "RW-13", "RW-15")
@pytest.mark.parametrize("batch_bytes", [1 << 10, 8 << 20])
def test_every_encoding_of_every_type_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """After so many rows that text columns are asked for as dictionaries."""
    monkeypatch.setattr(row_batches, "BATCH_BYTES", batch_bytes)
    made = encoded_table(tmp_path)
    before = live_rows(made.store)
    assert len(before) > FIRST + 18 * 300
    made.store.now_ms = lambda: epoch_millis(NOW)
    table = Table(made.store)
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(NOW)
    )
    result = optimize.apply(
        table, planned, context=RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
    )
    assert (result.status, result.refused, result.files_after) == ("rewritten", (), 1)
    assert live_rows(made.store) == before

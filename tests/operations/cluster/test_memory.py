"""The memory that a plan states holds while rows are sorted, whatever the size of the files."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import cluster
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.rewriting import cluster_planning
from delta_maintenance.table.data.clustering.keys import Clustering
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.suite.usage import measured

TEXT = 8 << 10
"""Bytes of a text."""


def texts(count: int, seed: int) -> pa.Table:
    """Different texts that compress to nearly nothing, so that the files take no memory."""
    numbers = pa.array(range(count), pa.int64()).cast(pa.string())
    keys = np.random.default_rng(seed).integers(0, 1000, count)
    return pa.table({"x": keys, "b": pc.utf8_rpad(numbers, TEXT, "x")})


@pytest.mark.conformance("RW-43")
@pytest.mark.parametrize("by", ["x", "b"])
def test_sorting_takes_no_more_memory_than_the_plan_states(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_planning, "Clustering", partial(Clustering, sort_bytes=8 << 20))
    made = DataTable(field("x", "long"), field("b", "string"))
    rows = 26_000
    for seed in range(2):
        writing = {"compression": "zstd", "use_dictionary": False}
        made.append(texts(rows, seed), writing=writing)
    made.store.now_ms = lambda: epoch_millis(NOW)
    table = Table(made.store)
    options = ClusterOptions(workers=1, by=(by,))
    planned = cluster.plan(table.snapshot(), options, context=RunContext.at(NOW))
    # The table is larger, so that a run that held it as a whole would exceed the bound.
    own = planned.memory_bytes - (200 << 20)
    assert own < 2 * rows * TEXT
    with measured() as taken:
        result = cluster.apply(table, planned)
    assert result.status == "rewritten" and result.rows == 2 * rows
    # What Python and Arrow themselves take was there before.
    assert taken.memory < own

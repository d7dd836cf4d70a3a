"""Row groups of files with partition columns are copied without these columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.storage import MemoryStore
from tests.support.rewrites.data_files import field, parquet
from tests.support.rewrites.typed_rows import (
    FIELDS,
    OPTIONS,
    groups_of,
    metadata_of,
    rewritten,
    rows,
    spec_of,
    stored,
)

PARTITIONED = spec_of(*FIELDS, field("p", "string"), field("x", "long"), partitioned_by=("x", "p"))
"""A struct of the table has a field with the name of the second partition column."""


def partitioned(table: pa.Table, at: int) -> bytes:
    """A file with both partition columns, whose values are not those of the log."""
    for name, value in (("x", 7), ("p", "value")):
        table = table.add_column(at, name, pa.array([value] * len(table)))
    return parquet(table, **OPTIONS | {"store_schema": True})


@pytest.mark.conformance("RW-25")
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("at", [0, 11, 12, 14])
def test_row_groups_are_copied_without_partition_columns(at: int, count: int) -> None:
    """The new file is as if no file had any."""
    files = {f"f{seed}": parquet(rows(seed), **OPTIONS) for seed in range(3)}
    wider = files | {f"f{seed}": partitioned(rows(seed), at) for seed in range(count)}
    found: list[Any] = []
    wanted: list[Any] = []
    for sources, into in ((wider, found), (files, wanted)):
        store = MemoryStore()
        done = rewritten(store, sources, PARTITIONED, partition={"p": "value", "x": "7"})
        assert done.copied and groups_of(store, done) == [40, 40, 20] * 3
        metadata = metadata_of(store, done)
        sizes = [metadata.row_group(group).total_byte_size for group in range(9)]
        into += [repr(stored(store, done).to_pylist()), metadata.schema, sizes, metadata.metadata]
        into.append(done.outputs[0].stats)
    assert found == wanted

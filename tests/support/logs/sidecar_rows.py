"""The file actions of a checkpoint as plain values, for comparing two engines."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq

from delta_maintenance.table.read import Table

FOLDER = "_delta_log/_sidecars"


def sidecar_rows(table: Table, version: int) -> Counter[str]:
    """Counts every row of every sidecar of the checkpoint of `version`, as JSON."""
    checkpoint = table.snapshot(version=version).log.checkpoint
    assert checkpoint is not None and checkpoint.files.version == version
    rows: Counter[str] = Counter()
    for sidecar in checkpoint.sidecars:
        data = table.store.read(f"{FOLDER}/{sidecar.path}")
        assert len(data) == sidecar.size_in_bytes
        columns = pq.read_table(io.BytesIO(data))
        assert columns.column_names == ["add", "remove"]
        rows.update(json.dumps(_present(row), default=str) for row in columns.to_pylist())
    return rows


def sidecar_files(table: Table) -> set[str]:
    """Returns the names of all existing sidecars, whether or not they are referred to."""
    return {status.path.rpartition("/")[2] for status in table.store.list_from(FOLDER)}


def _present(value: Any) -> Any:
    # A struct with only nulls is equivalent to a missing field.
    if isinstance(value, dict):
        return {name: _present(item) for name, item in value.items() if item is not None}
    return value

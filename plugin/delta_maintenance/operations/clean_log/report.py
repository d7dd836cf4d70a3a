"""The complete list of files of a log clean-up as Parquet, for approval and for reference."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from delta_maintenance.operations.clean_log.options import CleanLogPlan
from delta_maintenance.operations.core.parquet_report import write_rows
from delta_maintenance.storage.core.base import Store


def write_report(
    plan: CleanLogPlan,
    address: str,
    *,
    table: Store,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Writes the files that a plan deletes, in order of deletion, to a new Parquet file.

    Its columns are `kind`, as in the groups of the plan, and `name`, relative to `_delta_log`.
    `RefusedError` as in `write_rows`.
    """
    schema = pa.schema({"kind": pa.string(), "name": pa.string()})
    parts = [
        pa.table([pa.repeat(pa.scalar(group.kind), len(group.names)), group.names], schema=schema)
        for group in plan.groups
    ]
    rows = pa.concat_tables([schema.empty_table(), *parts])
    write_rows(rows, address, table=table, storage_options=storage_options)

"""The rows of a table with data files, which no verb may change."""

from __future__ import annotations

import io
import json
from collections import Counter

import pyarrow.parquet as pq

from delta_maintenance import open_table
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.table.data.deleted_rows import DeletedRows
from delta_maintenance.table.data.locations import location_of

Rows = Counter[tuple[object, ...]]


def rows_of(address: str) -> Rows | None:
    """Each row with its number; None if the table, or one of its files, cannot be read.

    The log is read by the library, and the rows by PyArrow.
    """
    try:
        table = open_table(address)
        snapshot = table.snapshot()
        fields = json.loads(snapshot.metadata.schema_string)["fields"]
        columns = [f["name"] for f in fields if f["name"] in ("id", "name")]
        deleted = DeletedRows(table.store)
        rows: Rows = Counter()
        for batch in snapshot.log.scan():
            for add in batch.adds.to_pylist():
                data = pq.read_table(
                    io.BytesIO(table.store.read(location_of(table.store, add["path"])))
                )
                vector = add["deletionVector"]
                descriptor = None if vector is None else DeletionVectorDescriptor.from_json(vector)
                gone = set(deleted.of(descriptor, data.num_rows))
                # A value that is missing is read as null.
                values_of = add["partitionValues"] or []
                part = tuple(sorted(pair for pair in values_of if pair[1] is not None))
                values = [
                    data[name].to_pylist() if name in data.column_names else [None] * data.num_rows
                    for name in columns
                ]
                found = zip(*values, strict=True) if values else [()] * data.num_rows
                rows.update((*row, part) for at, row in enumerate(found) if at not in gone)
    except Exception:
        return None
    return rows

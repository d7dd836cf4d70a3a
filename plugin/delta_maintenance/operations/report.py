"""Lists that are too long for a Result, as files of their own."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.path_audit import below_root
from delta_maintenance.storage import open_store
from delta_maintenance.storage.base import Store


def write_rows(
    rows: pa.Table,
    address: str,
    *,
    table: Store,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Writes rows about a table to a new Parquet file of any store.

    `RefusedError` where there is a file already, and for a place inside the table, which is none
    for other files.
    """
    written = pa.array([address], pa.string())
    if any(below_root(written, root=root)[0].is_valid for root in table.addresses):
        raise RefusedError(
            "the report would lie inside the table", file=address, remedy="write it elsewhere"
        )
    folder, slash, name = address.rpartition("/")
    store = open_store(folder or slash or ".", storage_options)
    try:
        with store.create(name) as file:
            pq.write_table(rows, file, compression="zstd")
    except FileExistsError:
        raise RefusedError(
            "there is a file of this name already",
            file=address,
            remedy="name another one: a report replaces nothing",
        ) from None
    finally:
        store.close()

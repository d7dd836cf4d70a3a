"""Parquet reports for lists that are too long for a Result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.address import Address
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.paths import below_root
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store


def write_rows(
    rows: pa.Table, address: str, *, table: Store, storage_options: Mapping[str, str] | None = None
) -> None:
    """Writes rows about a table to a new Parquet file. See `write_batches`."""
    write_batches([rows], rows.schema, address, table=table, storage_options=storage_options)


def write_batches(
    batches: Iterable[pa.Table],
    schema: pa.Schema,
    address: str,
    *,
    table: Store,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Writes rows about a table, batch by batch, to a new Parquet file in any store.

    If a batch raises, no file is created. `RefusedError` if the file already exists, and for an
    address inside the table, whose folder must not contain other files.
    """
    written = pa.array([address], pa.string())
    if any(below_root(written, root=root)[0].is_valid for root in table.addresses):
        raise RefusedError(
            "the report would be inside the table", file=address, remedy="write it elsewhere"
        )
    location = Address.parse(address)
    store = open_store(location.parent, storage_options)
    try:
        with (
            store.create(location.name) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for batch in batches:
                writer.write_table(batch)
    except FileExistsError:
        raise RefusedError(
            "a file with this name already exists",
            file=address,
            remedy="choose another name: a report never replaces a file",
        ) from None
    finally:
        store.close()

"""The exact list of a vacuum's files, kept as Parquet: to be approved, or to undo by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.path_audit import below_root
from delta_maintenance.protocol.vacuum_rules import Reason
from delta_maintenance.storage import open_store
from delta_maintenance.storage.base import Store
from delta_maintenance.storage.tree import STATUSES

_SCHEMA = pa.schema([*STATUSES, ("reason", pa.string())])
_LABELS = pa.array([reason.label for reason in Reason])


def with_labels(files: pa.Table) -> pa.Table:
    """The dead files of a survey with `path`, `size`, `modified_ms` and `reason` as text."""
    labels = _LABELS.take(files["reason"].cast(pa.int64()).combine_chunks())
    at = files.column_names.index("reason")
    return files.set_column(at, "reason", pa.chunked_array([labels]))


def write_report(
    batches: Iterable[pa.Table],
    address: str,
    *,
    table: Store,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Writes the dead files of a survey, batch by batch, to a new Parquet file.

    `RefusedError` where there is a file already, and for a place inside the table, whose folder is
    no place for other files.
    """
    given = pa.array([address], pa.string())
    if any(below_root(given, root=root)[0].is_valid for root in table.addresses):
        raise RefusedError(
            "the report would lie inside the table", file=address, remedy="write it elsewhere"
        )
    folder, slash, name = address.rpartition("/")
    store = open_store(folder or slash or ".", storage_options)
    try:
        with (
            store.create(name) as sink,
            pq.ParquetWriter(sink, _SCHEMA, compression="zstd") as writer,
        ):
            for batch in batches:
                writer.write_table(with_labels(batch))
    except FileExistsError:
        raise RefusedError(
            "there is a report of this name already",
            file=address,
            remedy="name another file: a report is never overwritten",
        ) from None
    finally:
        store.close()

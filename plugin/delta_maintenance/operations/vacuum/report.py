"""The exact list of a vacuum's files, kept as Parquet: to be approved, or to undo by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.protocol.vacuum.visibility import Reason
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES

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

    `RefusedError` as of `write_batches`.
    """
    labelled = map(with_labels, batches)
    write_batches(labelled, _SCHEMA, address, table=table, storage_options=storage_options)

"""The complete list of files of a vacuum as Parquet, for approval, restoring or display."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.operations.vacuum.engine import Found
from delta_maintenance.protocol.vacuum.visibility import Reason
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES

_SCHEMA = pa.schema([*STATUSES, ("reason", pa.string())])
_SHOWN = ("path", "size", "reason")
_ROWS_AT_ONCE = 10_000
_LABELS = pa.array([reason.label for reason in Reason])


def with_labels(files: pa.Table) -> pa.Table:
    """Returns the files of a survey with `path`, `size`, `modified_ms`, and `reason` as text."""
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
    """Writes the files of a survey, batch by batch, to a new Parquet file.

    `RefusedError` as in `write_batches`.
    """
    labelled = map(with_labels, batches)
    write_batches(labelled, _SCHEMA, address, table=table, storage_options=storage_options)


@dataclass(frozen=True, slots=True)
class DeadFileListing:
    """The files and the empty directories of a survey, of which there may be millions."""

    found: Found

    def json_lists(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yields `directory_list`, and `file_list` with path, size and reason of every file."""
        yield "directory_list", sorted(self.found.directories)
        yield "file_list", (dict(zip(_SHOWN, row, strict=True)) for row in self._rows())

    def lines(self, *, reported: bool) -> Iterator[str]:
        """Yields size, reason and path of every file, then the directories."""
        if not reported:
            for path, size, reason in self._rows():
                yield f"{size}\t{reason}\t{path}"
        for path in sorted(self.found.directories):
            yield f"\tempty-directory\t{path}/"

    def _rows(self) -> Iterator[tuple[str, int, str]]:
        for table in self.found.batches():
            for batch in with_labels(table).to_batches(max_chunksize=_ROWS_AT_ONCE):
                yield from zip(*(batch[name].to_pylist() for name in _SHOWN), strict=True)

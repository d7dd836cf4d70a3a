"""Physical row counts of data files, read from their footers.

Row tracking needs the number of rows in a file, including deleted ones. The Parquet footer contains
it for files whose statistics do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from errno import ENOENT
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.parquet.footer_reader import SMALL_FOOTER, StoredFooter
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root, file_locations
from delta_maintenance.protocol.data_files.layout import DataFileLayout, lacking_column
from delta_maintenance.protocol.row_tracking.backfill import RowIdFindings
from delta_maintenance.protocol.schema.data_columns import StoredColumns
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.data.row_batches import reading_error, require_column_ids

PARALLEL_READS = 16
MOST_FOOTER = 256 << 20
"""The maximum memory of a footer in bytes. One large footer is decoded at a time."""
MEMORY = PARALLEL_READS * SMALL_FOOTER + MOST_FOOTER
"""The maximum memory for reading footers in bytes."""


class MissingColumnError(CorruptTableError):
    """A data file lacks a NOT NULL column, so that Delta Spark refuses to read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The row counts of data files, in the given order of the files."""

    counts: pa.Int64Array
    """Null for files that cannot be read."""
    problems: tuple[str, ...] = ()
    """For each null: the path as in the log, and the problem of the file."""
    errors: tuple[type[DeltaMaintenanceError], ...] = ()
    """For each null: the kind of the problem. `UnsupportedFeatureError` for a file that is not
    damaged, but encrypted, or of another kind that this release does not read; `RefusedError` for
    a file whose types only the missing feature `typeWidening` allows; `MissingColumnError`.
    """
    footers: tuple[Any, ...] = ()
    """What `read_footer` returned for each file; None for files that cannot be read."""


RowCounter = Callable[[pa.StringArray], RowCounts]
"""Counts the rows of data files, whose paths are those of the log."""


def count_rows(
    store: Store,
    paths: pa.StringArray,
    *,
    layout: DataFileLayout | None = None,
    threads: int = PARALLEL_READS,
    read_footer: Callable[[pq.FileMetaData], Any] | None = None,
) -> RowCounts:
    """Reads the footers of data files below the table's root, `threads` at a time.

    With `layout`, the types of the columns are compared too, and NOT NULL columns are looked for.
    `read_footer` is called with each footer that is sound.
    Files that are missing, damaged, encrypted or outside the root appear in `problems`. Errors of
    the store are raised.
    """
    elsewhere = pc.and_(
        pc.match_substring_regex(paths, ABSOLUTE), pc.is_null(below_root(paths, root=store.root))
    )
    locations = pc.if_else(elsewhere, None, file_locations(paths, root=store.root)).to_pylist()
    alone, types = Lock(), None if layout is None else _ColumnTypes(layout)

    def read(location: bytes | None) -> tuple[int | DeltaMaintenanceError, Any]:
        return _rows(store, location, alone, types, read_footer)

    with ThreadPoolExecutor(threads) as pool:
        files = list(pool.map(read, locations))
    counted = [rows for rows, _ in files]
    return RowCounts(
        footers=tuple(footer for _, footer in files),
        counts=pa.array([rows if isinstance(rows, int) else None for rows in counted], pa.int64()),
        problems=tuple(
            f"{path}: {rows.problem}"
            for path, rows in zip(paths.to_pylist(), counted, strict=True)
            if not isinstance(rows, int)
        ),
        errors=tuple(type(rows) for rows in counted if not isinstance(rows, int)),
    )


def with_last_count(findings: RowIdFindings, count: RowCounter) -> RowIdFindings:
    """Counts the rows of the file with the highest row ID if the log does not state their number,
    and the file can be read.
    """
    if findings.last_uncounted is None:
        return findings
    rows = count(pa.array([findings.last_uncounted], pa.string())).counts[0].as_py()
    if rows is None:
        return findings
    return replace(findings, highest=findings.highest + rows - 1, last_uncounted=None)


@contextmanager
def decoded_footer(
    store: Store, location: str, alone: Lock, *, file: str
) -> Iterator[tuple[StoredFooter, pq.FileMetaData]]:
    """Decodes the footer of a data file; a large one while the lock is held.

    Errors of reading and decoding, also those within the block, become errors about `file`:
    `CorruptTableError` and `UnsupportedFeatureError`. Raises `RefusedError` for a footer that takes
    too much memory, and errors of the store.
    """
    try:
        with store.open(location) as source:
            footer = StoredFooter(source)
            with alone if footer.is_large else nullcontext():
                yield footer, footer.decoded(max_bytes=MOST_FOOTER, exact_above=MOST_FOOTER)[0]
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, ENOENT):
            # An error of the disk. The errors of pyarrow for a damaged file have no number.
            raise
        raise reading_error(error, file=file) from None


def stated_rows(footer: pq.FileMetaData) -> int:
    """Returns the number of rows; `ArrowInvalid` if the footer contradicts itself."""
    rows = [int(footer.row_group(at).num_rows) for at in range(footer.num_row_groups)]
    if sum(rows) != footer.num_rows or min(rows, default=0) < 0:
        raise pa.ArrowInvalid(
            f"the footer states {footer.num_rows} rows, and its row groups {sum(rows)}"
        )
    return sum(rows)


def _rows(
    store: Store,
    location: bytes | None,
    alone: Lock,
    types: _ColumnTypes | None,
    read_footer: Callable[[pq.FileMetaData], Any] | None,
) -> tuple[int | DeltaMaintenanceError, Any]:
    try:
        path = check_path((location or b"").decode())
    except (UnicodeDecodeError, InvalidRequestError):
        return CorruptTableError("it is not below the table's root"), None
    try:
        with decoded_footer(store, path, alone, file=path) as (_, metadata):
            rows = stated_rows(metadata)
            schema = None if types is None else metadata.schema.to_arrow_schema()
    except RefusedError as error:
        return UnsupportedFeatureError(error.problem, file=path, remedy=error.remedy), None
    except (CorruptTableError, UnsupportedFeatureError) as error:
        return error, None
    try:
        if types is not None and schema is not None:
            types.require(schema)
        return rows, None if read_footer is None else read_footer(metadata)
    except (CorruptTableError, RefusedError) as error:
        return error, None


class _ColumnTypes:
    """Compares the schemas of files with the columns of a table."""

    def __init__(self, layout: DataFileLayout) -> None:
        self._layout = layout
        self._stored = StoredColumns(mode=layout.mode, widens=layout.widens)
        self._last: pa.Schema | None = None

    def require(self, schema: pa.Schema) -> None:
        """Raises the errors of `StoredColumns.require_types`, and `MissingColumnError`."""
        # Files of one writer usually have the same schema.
        if self._last is None or not schema.equals(self._last, check_metadata=True):
            require_column_ids(schema, self._layout.mode)
            self._stored.require_types(self._layout.columns, list(schema))
            required = [column for column in self._layout.required if not column.is_partition]
            lacking = lacking_column(required, list(schema), self._stored)
            if lacking is not None:
                raise MissingColumnError(f"it lacks {lacking.name}, which is NOT NULL")
            self._last = schema

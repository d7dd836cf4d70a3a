"""Physical row counts of data files, read from their footers.

For files whose statistics do not tell: row tracking needs the number of rows that a file holds,
deleted ones included, which is exactly what a Parquet footer says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root, locations
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path

PARALLEL_READS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The rows of some data files, in the order in which the files were given."""

    counts: pa.Int64Array
    """Null where the file cannot be read."""
    problems: tuple[str, ...] = ()
    """One for each null: the path as in the log, and what is wrong with the file."""


RowCounter = Callable[[pa.StringArray], RowCounts]
"""Counts the rows of data files, given by their paths as in the log."""


def count_rows(store: Store, paths: pa.StringArray, *, threads: int = PARALLEL_READS) -> RowCounts:
    """Reads the footers of data files below the table's root, some at a time.

    A file that is gone, damaged or outside of the root is a problem of that file. What keeps the
    store from answering is raised.
    """
    elsewhere = pc.and_(
        pc.match_substring_regex(paths, ABSOLUTE), pc.is_null(below_root(paths, root=store.root))
    )
    places = pc.if_else(elsewhere, None, locations(paths, root=store.root)).to_pylist()
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda place: _rows(store, place), places))
    return RowCounts(
        counts=pa.array([rows if isinstance(rows, int) else None for rows in found], pa.int64()),
        problems=_problems(paths, found),
    )


def _rows(store: Store, place: bytes | None) -> int | str:
    try:
        path = check_path((place or b"").decode())
    except (UnicodeDecodeError, InvalidRequestError):
        return "it is not below the table's root"
    try:
        with store.open(path) as file:
            rows: int = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        return "the data file is gone"
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            # The disk's own: of a damaged file pyarrow says less.
            raise
        return f"its footer cannot be read ({' '.join(str(error).split())})"
    return rows


def _problems(paths: pa.StringArray, found: Sequence[int | str]) -> tuple[str, ...]:
    bad = [at for at, rows in enumerate(found) if isinstance(rows, str)]
    return tuple(f"{paths[at].as_py()}: {found[at]}" for at in bad)

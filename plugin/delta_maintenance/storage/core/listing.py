"""Listings as Arrow columns, because a table can have millions of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.storage.core.file_status import FileStatus
from delta_maintenance.storage.core.paths import check_path

_UNCLEAN = r"[\x00-\x1f\x7f-\x{9f}\\]|(^|/)\.{0,2}(/|$)"
"""Arrow strings cannot contain a lone surrogate."""


class EntryKind(IntEnum):
    """The kind of an entry in a tree."""

    FILE = 0
    DIRECTORY = 1
    """Listed only by stores that have directories. A directory that was not entered has no time."""
    OTHER = 2
    """A link, a pipe, or a name that is not UTF-8: never followed, read or deleted."""


STATUSES = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64())])
"""Existing files: paths relative to the store's root, bytes, milliseconds since 1970-01-01 UTC."""

TREE = pa.schema([*STATUSES, ("kind", pa.uint8())])
"""Entries of a tree, each with its `EntryKind`.

Size and time are null if the store would need a request for each file.
"""

Skip = Callable[[str], bool]
"""Returns whether the directory of the given path can be skipped."""


def tree_of(
    paths: Sequence[str] | pa.StringArray,
    kind: EntryKind,
    *,
    sizes: Sequence[int | None] | None = None,
    times: Sequence[int | None] | None = None,
) -> pa.Table:
    """Builds a `TREE` table of entries of one kind."""
    rows = len(paths)
    unknown = pa.nulls(rows, pa.int64())
    columns = [
        paths if isinstance(paths, pa.Array) else pa.array(paths, pa.string()),
        unknown if sizes is None else pa.array(sizes, pa.int64()),
        unknown if times is None else pa.array(times, pa.int64()),
        pa.repeat(pa.scalar(int(kind), pa.uint8()), rows),
    ]
    return pa.Table.from_arrays(columns, schema=TREE)


def directories_of(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the directory of each file; empty for the root."""
    return pc.replace_substring_regex(paths, "(^|/)[^/]*$", "")


def unclean(paths: pa.Array) -> pa.BooleanArray:
    """Returns which paths `check_path` would refuse."""
    return pc.match_substring_regex(paths, _UNCLEAN)


def check_paths(paths: pa.ChunkedArray) -> None:
    """Applies `check_path` to all paths."""
    for chunk in paths.chunks:
        for path in chunk.filter(unclean(chunk)).to_pylist():
            check_path(path)


def statuses_by_listing(
    list_directory: Callable[[str], Iterable[FileStatus]], paths: pa.ChunkedArray
) -> pa.Table:
    """Returns the existing files among `paths`, by one listing of each of their directories."""
    check_paths(paths)
    found = []
    for directory in pc.unique(directories_of(paths)).to_pylist():
        listed = list(list_directory(directory))
        columns = [
            pa.array([status.path for status in listed], pa.string()),
            pa.array([status.size for status in listed], pa.int64()),
            pa.array([status.modified_ms for status in listed], pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, schema=STATUSES)
        found.append(table.filter(pc.is_in(table["path"], value_set=paths)))
    return pa.concat_tables([STATUSES.empty_table(), *found])

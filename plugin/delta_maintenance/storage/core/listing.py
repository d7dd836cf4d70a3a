"""Listings as columns, because a table can have millions of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.storage.core.file_status import FileStatus
from delta_maintenance.storage.core.paths import check_path

_UNCLEAN = r"[\x00-\x1f\x7f-\x{9f}\\]|(^|/)\.{0,2}(/|$)"
"""No text of Arrow holds a lone surrogate."""


class EntryKind(IntEnum):
    """The kind of an entry."""

    FILE = 0
    DIRECTORY = 1
    """Only stores that have directories list them; one that is not entered has no time."""
    OTHER = 2
    """A link, a pipe, a name that is no UTF-8: never followed, never read, never deleted."""


STATUSES = pa.schema([("path", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64())])
"""Files that are there: paths relative to the store's root, bytes, milliseconds since 1970-01-01
UTC."""

TREE = pa.schema([*STATUSES, ("kind", pa.uint8())])
"""Entries of a tree, each with its `EntryKind`. Size and time are null where the store would have
to ask file by file."""

Skip = Callable[[str], bool]
"""Whether a directory, given by its path, need not be entered."""


def tree_of(
    paths: Sequence[str] | pa.StringArray,
    kind: EntryKind,
    *,
    sizes: Sequence[int | None] | None = None,
    times: Sequence[int | None] | None = None,
) -> pa.Table:
    """Entries of one kind as a `TREE`."""
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
    """The directory that each file is in; empty for the root."""
    return pc.replace_substring_regex(paths, "(^|/)[^/]*$", "")


def unclean(paths: pa.Array) -> pa.BooleanArray:
    """Which of the paths no store takes: those that `check_path` refuses."""
    return pc.match_substring_regex(paths, _UNCLEAN)


def check_paths(paths: pa.ChunkedArray) -> None:
    """`check_path` for each of the paths."""
    for chunk in paths.chunks:
        for path in chunk.filter(unclean(chunk)).to_pylist():
            check_path(path)


def statuses_by_listing(
    list_directory: Callable[[str], Iterable[FileStatus]], paths: pa.ChunkedArray
) -> pa.Table:
    """Those of the files that are there, by one listing of each directory that they are in."""
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

"""Listings as Arrow columns, because a table can have millions of files, and recursive listing for
stores that list one directory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.storage.core.paths import FileStatus, check_path
from delta_maintenance.storage.core.streams import StreamingPool

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

ARCHIVES = ("GLACIER", "DEEP_ARCHIVE", "Archive")
"""The storage classes from which no file can be read at once: two of S3, and one of Azure. All
classes of GCS can be read at once. The archive tiers of S3 Intelligent-Tiering are in no listing.
"""

TREE = pa.schema([*STATUSES, ("kind", pa.uint8()), ("archive", pa.uint8())])
"""Entries of a tree, each with its `EntryKind`, and the index of its class in `ARCHIVES`; null for
files that can be read at once, and if the listing does not tell.

Size and time are null if the store would need a request for each file.
"""

_ARCHIVE_OF = {name: number for number, name in enumerate(ARCHIVES)}

Skip = Callable[[str], bool]
"""Returns whether the directory of the given path can be skipped."""


def tree_of(
    paths: Sequence[str] | pa.StringArray,
    kind: EntryKind,
    *,
    sizes: Sequence[int | None] | None = None,
    times: Sequence[int | None] | None = None,
    classes: Sequence[str | None] | None = None,
) -> pa.Table:
    """Builds a `TREE` table of entries of one kind. `classes` are their storage classes."""
    rows = len(paths)
    unknown = pa.nulls(rows, pa.int64())
    columns = [
        paths if isinstance(paths, pa.Array) else pa.array(paths, pa.string()),
        unknown if sizes is None else pa.array(sizes, pa.int64()),
        unknown if times is None else pa.array(times, pa.int64()),
        pa.repeat(pa.scalar(int(kind), pa.uint8()), rows),
        pa.nulls(rows, pa.uint8())
        if classes is None or not any(classes)
        else pa.array([_ARCHIVE_OF.get(name or "") for name in classes], pa.uint8()),
    ]
    return pa.Table.from_arrays(columns, schema=TREE)


def directories_of(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the directory of each file; empty for the root."""
    # A third of the time of a regular expression.
    parts = pc.split_pattern(paths, "/", max_splits=1, reverse=True)
    is_below = pc.equal(pc.list_value_length(parts), 2)
    return pc.if_else(is_below, pc.list_element(parts, 0), "")


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
    tables = []
    for directory in pc.unique(directories_of(paths)).to_pylist():
        listed = list(list_directory(directory))
        columns = [
            pa.array([status.path for status in listed], pa.string()),
            pa.array([status.size for status in listed], pa.int64()),
            pa.array([status.modified_ms for status in listed], pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, schema=STATUSES)
        tables.append(table.filter(pc.is_in(table["path"], value_set=paths)))
    return pa.concat_tables([STATUSES.empty_table(), *tables])


MOST_PATH_LENGTH = 8_000
"""The maximum length of a directory's path below the root, in characters, as in HDFS.

In a chain of nested directories, the total length of the paths grows quadratically.
"""
_FILES_PER_BATCH = 1 << 15


@dataclass(slots=True)
class Listing:
    """The content of some directories; paths are relative to the store's root."""

    files: list[str] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    """Sizes of the files in bytes; empty if the store would need a request for each file."""
    modified: list[int | None] = field(default_factory=list)
    """Modification times of the files in milliseconds since 1970-01-01 UTC; empty like `sizes`."""
    entered: list[str] = field(default_factory=list)
    """Directories that have been listed."""
    times: list[int | None] = field(default_factory=list)
    """Modification times of the listed directories."""
    skipped: list[str] = field(default_factory=list)
    """Directories that are skipped."""
    others: list[str] = field(default_factory=list)
    """Links and special files."""
    below: list[str] = field(default_factory=list)
    """Directories that are still to be listed."""

    def take(self, other: Listing) -> None:
        """Adds another listing, except for its directories that are still to be listed."""
        self.files += other.files
        self.sizes += other.sizes
        self.modified += other.modified
        self.entered += other.entered
        self.times += other.times
        self.skipped += other.skipped
        self.others += other.others

    def table(self) -> pa.Table:
        """Returns the entries as a `listing.TREE`."""
        return pa.concat_tables(
            [
                tree_of(
                    self.files,
                    EntryKind.FILE,
                    sizes=self.sizes or None,
                    times=self.modified or None,
                ),
                tree_of(self.entered, EntryKind.DIRECTORY, times=self.times),
                tree_of(self.skipped, EntryKind.DIRECTORY),
                tree_of(self.others, EntryKind.OTHER),
            ]
        )


def walk(
    scan: Callable[[str], Listing],
    directory: str,
    *,
    parallel: int,
    pool_type: type[StreamingPool] = StreamingPool,
) -> Iterator[pa.Table]:
    """Lists a directory recursively, in batches, several directories at a time.

    `scan` lists one directory; an error that it raises ends the walk. The most recently found
    directory is listed next, so directories are listed soon after their parents. `RefusedError` for
    a directory whose path is longer than `MOST_PATH_LENGTH`.
    """
    pending, running = [directory], deque[Future[Listing]]()
    found = Listing()
    with pool_type(parallel) as pool:
        while pending or running:
            while pending and len(running) < parallel:
                running.append(pool.submit(scan, pending.pop()))
            listing = running.popleft().result()
            for path in listing.below:
                if len(path) > MOST_PATH_LENGTH:
                    raise _too_deep(path)
            pending.extend(listing.below)
            found.take(listing)
            if len(found.files) >= _FILES_PER_BATCH:
                yield found.table()
                found = Listing()
        yield found.table()


def _too_deep(path: str) -> RefusedError:
    return RefusedError(
        f"folders are nested until their path has {len(path)} characters, more than "
        f"{MOST_PATH_LENGTH}",
        file=f"{path[:80]}…",
        remedy="move or remove the innermost folders, and run again",
    )

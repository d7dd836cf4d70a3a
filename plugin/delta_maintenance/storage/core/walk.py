"""Recursive listing for stores that list one directory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from delta_maintenance.errors import RefusedError
from delta_maintenance.storage.core.listing import EntryKind, tree_of
from delta_maintenance.storage.core.streaming_pool import StreamingPool

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


def walk(scan: Callable[[str], Listing], directory: str, *, parallel: int) -> Iterator[pa.Table]:
    """Lists a directory recursively, in batches, several directories at a time.

    `scan` lists one directory; an error that it raises ends the walk. The most recently found
    directory is listed next, so directories are listed soon after their parents. `RefusedError` for
    a directory whose path is longer than `MOST_PATH_LENGTH`.
    """
    pending, running = [directory], deque[Future[Listing]]()
    found = Listing()
    with StreamingPool(parallel) as pool:
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

"""Bulk work on files of a local directory: listing, status and deletion.

Every directory is opened step by step without following links, once for all of its files. Several
directories are processed at a time to hide the latency of network file systems.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.storage.core.listing import STATUSES, Listing, Skip, walk
from delta_maintenance.storage.core.streams import LocalPool
from delta_maintenance.storage.local.descriptors import reason, remove_if_empty, storage_error

Answer = TypeVar("Answer")
Enter = Callable[[str], AbstractContextManager[int]]
"""Opens a directory, by its path below the root, for the duration of a block.

Errors in the block are converted to errors of this library. `FileNotFoundError` if the directory
does not exist.
"""

Entering = Callable[[], AbstractContextManager[Enter]]
"""A context manager for bulk work, which provides an `Enter`."""

_PARALLEL = 4
_FILES_PER_TASK = 512


def list_tree(entering: Entering, directory: str, skip: Skip | None) -> Iterator[pa.Table]:
    """See `Store.list_tree`. A directory that has been deleted in the meantime counts as empty."""
    with entering() as enter:
        yield from walk(
            lambda path: _scan(enter, path, skip),
            directory,
            parallel=_PARALLEL,
            pool_type=LocalPool,
        )


def list_level(entering: Entering, directory: str) -> pa.Table:
    """See `Store.list_level`."""
    with entering() as enter:
        return _scan(enter, directory, lambda _: True).table()


def statuses(entering: Entering, paths: Iterable[str]) -> pa.Table:
    """See `Store.statuses`. Only regular files count."""

    def found_in(here: int, names: list[str], within: str) -> pa.Table:
        there, sizes, times = [], [], []
        for name in names:
            try:
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_error(error, within + name) from error
            if stat.S_ISREG(status.st_mode):
                there.append(within + name)
                sizes.append(status.st_size)
                times.append(_millis(status))
        columns = [
            pa.array(c, f.type) for c, f in zip((there, sizes, times), STATUSES, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=STATUSES)

    with entering() as enter:
        return pa.concat_tables([STATUSES.empty_table(), *_by_directory(enter, paths, found_in)])


def delete_unchanged(entering: Entering, files: pa.Table) -> dict[str, StorageError]:
    """See `Store.delete_unchanged`."""
    expected = {
        path: (size, modified)
        for path, size, modified in zip(
            *(files[name].to_pylist() for name in STATUSES.names), strict=True
        )
    }

    def unlink(here: int, names: list[str], within: str) -> dict[str, StorageError]:
        failures = {}
        for name in names:
            try:
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    problem = "it is no longer a regular file"
                elif (status.st_size, _millis(status)) != expected[within + name]:
                    problem = "it has changed since it was listed"
                else:
                    os.unlink(name, dir_fd=here)
                    continue
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = reason(error)
            failures[within + name] = StorageError(problem, file=within + name)
        return failures

    failures: dict[str, StorageError] = {}
    with entering() as enter:
        for answer in _by_directory(enter, expected, unlink, failed=_all_kept):
            failures |= answer
    return failures


def remove_empty_directories(entering: Entering, paths: Iterable[str]) -> Iterator[bool]:
    """See `Store.remove_empty_directories`."""
    with entering() as enter:
        for path in paths:
            parent, _, name = path.rpartition("/")
            try:
                with enter(parent) as here:
                    removed = remove_if_empty(name, here)
            except FileNotFoundError:
                removed = True
            except DeltaMaintenanceError:
                removed = False
            yield removed


def _all_kept(
    error: DeltaMaintenanceError, names: list[str], within: str
) -> dict[str, StorageError]:
    return {within + name: StorageError(error.problem, file=within + name) for name in names}


def _scan(enter: Enter, directory: str, skip: Skip | None) -> Listing:
    within = f"{directory}/" if directory else ""
    listing = Listing()
    try:
        with enter(directory) as here:
            with os.scandir(here) as entries:
                for entry in entries:
                    path = within + entry.name
                    if entry.is_file(follow_symlinks=False):
                        listing.files.append(path)
                    elif not entry.is_dir(follow_symlinks=False):
                        listing.others.append(path)
                    elif skip is not None and _is_text(path) and skip(path):
                        listing.skipped.append(path)
                    else:
                        listing.below.append(path)
            if directory:
                listing.entered, listing.times = [directory], [_millis(os.fstat(here))]
    except FileNotFoundError:
        return Listing()
    if not _is_text("".join((*listing.files, *listing.below))):
        listing.others += [path for path in (*listing.files, *listing.below) if not _is_text(path)]
        listing.files = list(filter(_is_text, listing.files))
        listing.below = list(filter(_is_text, listing.below))
    listing.others = [
        os.fsencode(path).decode(errors="backslashreplace") for path in listing.others
    ]
    return listing


def _by_directory(
    enter: Enter,
    paths: Iterable[str],
    work: Callable[[int, list[str], str], Answer],
    failed: Callable[[DeltaMaintenanceError, list[str], str], Answer] | None = None,
) -> Iterator[Answer]:
    """Calls `work` for the files of each directory, several at a time, and yields its answers.

    `work` gets the directory's descriptor, some names in it, and their common path prefix. If the
    directory cannot be entered, the answer is that of `failed`; without `failed`, the error is
    raised.
    """

    def task(within: str, names: list[str]) -> Answer | None:
        try:
            with enter(within.rstrip("/")) as here:
                return work(here, names, within)
        except FileNotFoundError:
            return None
        except DeltaMaintenanceError as error:
            if failed is None:
                raise
            return failed(error, names, within)

    by_directory: dict[str, list[str]] = {}
    for path in paths:
        cut = path.rfind("/") + 1
        by_directory.setdefault(path[:cut], []).append(path[cut:])
    with LocalPool(_PARALLEL) as pool:
        tasks = []
        for within, names in by_directory.items():
            for start in range(0, len(names), _FILES_PER_TASK):
                tasks.append(pool.submit(task, within, names[start : start + _FILES_PER_TASK]))
        for done in tasks:
            answer = done.result()
            if answer is not None:
                yield answer


def _millis(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1_000_000


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True

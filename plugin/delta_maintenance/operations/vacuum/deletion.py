"""The only place that deletes data files, and the files that it always refuses to delete.

Deletes exact paths of a listing, below the root, never in a log, never through a link, and never a
directory with contents. Every file is reported as deleted, or with the reason why it was not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.operations.holds.clones import Clone
from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.vacuum import Mask, in_a_log
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import unclean
from delta_maintenance.storage.core.streams import StreamingPool

_BATCH = 1000
_AT_ONCE = 4
"""The number of batches that are deleted in parallel between two checks of the log."""

_SHOWN = 20


class Watch(Protocol):
    """The commits of other writers during the deletion."""

    kept: frozenset[str]
    """The names of the kept versions in the log that were known when the files were found."""
    clones: tuple[Clone, ...]
    """The shallow clones, as they were when the files were found."""

    def check(self) -> None:
        """Reads the commits since the last check; raises if they forbid further deletions."""

    def covers(self, paths: pa.StringArray) -> Mask:
        """Returns which of these paths have been referenced since, as of the last check."""


@dataclass(slots=True)
class Deletion:
    """The progress of the deletion."""

    deleted: int = 0
    """Deleted files, including those that another process deleted first."""
    bytes: int = 0
    spared: int = 0
    """Files that were referenced again before they would have been deleted."""
    failed: int = 0
    """Files that may still exist."""
    failures: dict[str, str] = field(default_factory=dict)
    """The first files that could not be deleted, with reasons."""
    gave_up: bool = False
    """Whether no file of a whole round could be deleted."""
    lost: tuple[str, ...] = ()
    """The first files that were referenced again right after their deletion."""

    def take(self, other: Deletion) -> None:
        """Adds the outcome for other files."""
        self.deleted += other.deleted
        self.bytes += other.bytes
        self.spared += other.spared
        self.failed += other.failed
        self.failures = dict(islice((self.failures | other.failures).items(), _SHOWN))
        self.gave_up |= other.gave_up
        self.lost = (*self.lost, *other.lost)[:_SHOWN]


def require_deletable_root(store: Store) -> None:
    """Raises `RefusedError` for a root that cannot be that of a single table."""
    for address in (store.address, *map(Address.parse, store.addresses[1:])):
        if address.is_local:
            too_high = os.path.normpath(address.path) in (os.sep, os.path.expanduser("~"))
        else:
            # A chained address leads into a single archive or the like, and is read-only.
            freely = address.kind is StoreKind.MEMORY or address.is_chained
            too_high = not address.path and not freely
        if too_high:
            raise RefusedError(
                "no file is deleted if the table's root is the root of a store or a home directory",
                table=store.root,
                remedy="move the table into a folder of its own",
            )


def delete_data_files(store: Store, files: pa.Table, *, watch: Watch) -> Iterator[Deletion]:
    """Deletes files (`tree.STATUSES`) in rounds of a few batches, and reports progress after each
    round.

    The log is checked before every round, and once more at the end; an error of the check stops the
    deletion. Raises `RefusedError`, before anything is deleted, for a path that cannot be that of a
    data file.
    """
    require_deletable_root(store)
    require_data_paths(files["path"])
    done = Deletion()
    deleted: list[pa.StringArray] = []
    with StreamingPool(_AT_ONCE) as pool:
        for first_row in range(0, files.num_rows, _BATCH * _AT_ONCE):
            watch.check()
            batch = files.slice(first_row, _BATCH * _AT_ONCE)
            used = watch.covers(_one(batch["path"]))
            done.spared += int(used.sum())
            batch = batch.filter(booleans(~used))
            batches = [batch.slice(at, _BATCH) for at in range(0, batch.num_rows, _BATCH)]
            failures: dict[str, StorageError] = {}
            for answer in pool.map(lambda part: _delete(store, part), batches):
                failures |= answer
            if failures:
                names = pa.array(list(failures), pa.string())
                batch = batch.filter(pc.invert(pc.is_in(batch["path"], value_set=names)))
            deleted.append(_one(batch["path"]))
            done.take(
                Deletion(
                    deleted=batch.num_rows,
                    bytes=pc.sum(batch["size"]).as_py() or 0,
                    failed=len(failures),
                    failures={path: error.problem for path, error in failures.items()},
                    gave_up=bool(failures) and not batch.num_rows,
                )
            )
            yield done
            if done.gave_up:
                break
    # The result can no longer prevent a deletion.
    with suppress(DeltaMaintenanceError):
        watch.check()
    for paths in deleted:
        back = paths.filter(booleans(watch.covers(paths))).to_pylist()
        done.take(Deletion(lost=tuple(back)))
    yield done


def remove_empty_directories(store: Store, directories: Iterable[str]) -> Iterator[bool]:
    """Removes directories, each with one call that fails if the directory is not empty.

    The deepest directories are removed first. Returns for each directory whether it was removed;
    one that could not be holds no data, and the next run tries again.
    """
    deepest_first = sorted(directories, key=lambda path: (-path.count("/"), path))
    if deepest_first:
        require_data_paths(pa.chunked_array([deepest_first], pa.string()))
    return store.remove_empty_directories(deepest_first)


def require_data_paths(paths: pa.ChunkedArray) -> None:
    """Raises `RefusedError` if a path is not that of a file below the root and outside of
    all logs.
    """
    for chunk in paths.chunks:
        wrong = in_a_log(chunk) | to_bools(unclean(chunk))
        if wrong.any():
            raise RefusedError(
                "this is not the path of a data file, so nothing was deleted",
                file=chunk.filter(booleans(wrong))[0].as_py(),
                remedy="report this error: the file should never have been planned",
            )


def _delete(store: Store, files: pa.Table) -> dict[str, StorageError]:
    failures = _try_delete(store, files)
    if failures:
        # A temporary failure of one request must not leave a thousand files for the next run.
        again = pc.is_in(files["path"], value_set=pa.array(list(failures), pa.string()))
        failures = _try_delete(store, files.filter(again))
    return failures


def _try_delete(store: Store, files: pa.Table) -> dict[str, StorageError]:
    try:
        return store.delete_unchanged(files)
    except StorageError as error:
        return dict.fromkeys(files["path"].to_pylist(), error)


def _one(column: pa.ChunkedArray) -> pa.StringArray:
    return pa.concat_arrays([pa.array([], pa.string()), *column.chunks])

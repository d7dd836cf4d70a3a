"""The engine interface of a vacuum, the local engine, and lists of the files that one finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.operations.vacuum import DeadFolder
from delta_maintenance.operations.vacuum.candidates import (
    DeadFiles,
    ReasonTally,
    Search,
    Sum,
    find_dead_files,
    list_folder,
    path_digest,
    require_no_missing,
)
from delta_maintenance.operations.vacuum.deletion import Deletion, Watch, delete_data_files
from delta_maintenance.operations.vacuum.held_files import HeldFiles
from delta_maintenance.operations.vacuum.references import FileReferences, read_references
from delta_maintenance.protocol.vacuum import ProtectedPaths, Reason
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES
from delta_maintenance.table.read.snapshot import Snapshot

_SCHEMA = pa.schema([*STATUSES, ("reason", pa.string())])
_SHOWN = ("path", "size", "reason")
_ROWS_AT_ONCE = 10_000
_LABELS = pa.array([reason.label for reason in Reason])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The search criteria for an engine."""

    snapshot: Snapshot
    search: Search
    deleted_before_ms: int
    """Tombstones deleted at or after this instant protect their files; milliseconds since
    1970 UTC.
    """
    held: Sequence[HeldFiles]
    """Files that are kept for holders."""
    requires_all: bool
    """Whether a missing live file is an error."""
    complete: Callable[[FileReferences], Snapshot]
    """Adds further protected files to the references, after these were read and the folder was
    listed. Returns the version up to which the log was read.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The findings of an engine."""

    latest: Snapshot
    problem: str | None
    """The reason why nothing may be deleted, as one clause: paths that readers interpret
    differently.
    """
    tallies: tuple[ReasonTally, ...]
    paths_digest: str
    """The `path_digest` of the files to delete."""
    kept: Mapping[str, int]
    """The number of kept files by reason."""
    held: Mapping[str, Sum]
    """The files that are kept for each holder alone or with other holders."""
    archived: Mapping[str, Sum]
    """The unreferenced files that cannot be read at once, by storage class."""
    listed: int
    directories: tuple[str, ...]
    """Directories to remove once they are empty."""
    live_files: int
    live_bytes: int
    ageless_tombstones: int
    """The number of tombstones that protect their files because their age is unknown."""
    oldest: datetime | None = None
    """When the first of the files to delete was modified, if the engine knows."""
    folders: tuple[DeadFolder, ...] = ()
    """The folders with the most bytes to delete, if the engine counts them."""
    batches: Callable[[], Iterator[pa.Table]]
    """Yields the files to delete (`candidates.DEAD_FILES`), batch by batch."""
    first_of: Callable[[ProtectedPaths], str | None]
    """Returns the path of a file to delete that is in the set."""
    deletion: Callable[[Watch], Iterator[Deletion]]
    """Deletes the files, and reports progress regularly."""

    def files(self) -> pa.Table:
        """Returns all files to delete in one table."""
        return pa.concat_tables([DeadFiles().files, *self.batches()])


class VacuumEngine(Protocol):
    """Finds unreferenced files in a folder, and deletes them."""

    def find(self, request: Request) -> Found:
        """Finds the files to delete. The folder is listed before the log is read. See `survey` for
        errors.
        """


class LocalVacuum:
    """Finds and deletes files in this process."""

    def __init__(self, entries: Sequence[pa.Table] | None = None) -> None:
        """`entries` (`listing.TREE`) replace the listing of the folder."""
        self._entries = entries

    def find(self, request: Request) -> Found:
        """See `VacuumEngine`."""
        snapshot, search = request.snapshot, request.search
        store = snapshot.log.store
        entries = self._entries
        if entries is None:
            entries = list_folder(store, search.rules)
        references, problem = read_references(
            snapshot, deleted_before_ms=request.deleted_before_ms, keeps_live=request.requires_all
        )
        references.held = [(h.holder, h.as_protected_paths(store.addresses)) for h in request.held]
        latest = request.complete(references)
        if problem is None and request.requires_all:
            require_no_missing(store, references, entries)
        dead = DeadFiles() if problem else find_dead_files(store, entries, references, search)
        return Found(
            latest=latest,
            problem=problem,
            tallies=dead.tallies(),
            paths_digest=path_digest(dead.files["path"].chunks),
            kept=dead.kept,
            held=dead.held,
            archived=dead.archived,
            listed=dead.listed,
            directories=dead.directories,
            live_files=references.num_live,
            live_bytes=references.live_bytes,
            ageless_tombstones=references.ageless_tombstones,
            oldest=dead.oldest(),
            folders=dead.largest_folders(),
            batches=lambda: iter([dead.files]),
            first_of=partial(first_covered, dead.files),
            deletion=lambda watch: delete_data_files(
                store, dead.files.select(STATUSES.names), watch=watch
            ),
        )


def first_covered(files: pa.Table, protected: ProtectedPaths) -> str | None:
    """Returns the first path of some files that is in the set."""
    for paths in files["path"].chunks:
        covered = protected.covers(paths)
        if covered.any():
            path: str = paths[int(covered.argmax())].as_py()
            return path
    return None


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

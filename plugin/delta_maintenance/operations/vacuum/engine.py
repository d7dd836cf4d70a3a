"""The engine interface of a vacuum, which finds and deletes files, and the local engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from delta_maintenance.operations.vacuum.candidates import (
    DeadFiles,
    Search,
    Tally,
    find_dead_files,
    list_folder,
    require_no_missing,
)
from delta_maintenance.operations.vacuum.deletion import Deletion, Watch, delete_data_files
from delta_maintenance.operations.vacuum.path_digest import path_digest
from delta_maintenance.operations.vacuum.references import FileReferences, read_references
from delta_maintenance.storage.core.listing import STATUSES
from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The search criteria for an engine."""

    snapshot: Snapshot
    search: Search
    deleted_before_ms: int
    """Tombstones deleted at or after this instant protect their files; milliseconds since
    1970 UTC.
    """
    kept_versions: Sequence[Snapshot]
    """Versions whose live files are kept."""
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
    tallies: tuple[Tally, ...]
    paths_digest: str
    """The `path_digest` of the files to delete."""
    kept: Mapping[str, int]
    """The number of kept files by reason."""
    listed: int
    directories: tuple[str, ...]
    """Directories to remove once they are empty."""
    live_files: int
    live_bytes: int
    ageless_tombstones: int
    """The number of tombstones that protect their files because their age is unknown."""
    batches: Callable[[], Iterator[pa.Table]]
    """Yields the files to delete (`candidates.DEAD_FILES`), batch by batch."""
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


class LocalEngine:
    """Finds and deletes files in this process."""

    def __init__(self, entries: Sequence[pa.Table] | None = None) -> None:
        """`entries` (`listing.TREE`) replace the listing of the folder."""
        self._entries = entries

    def find(self, request: Request) -> Found:
        """See `VacuumEngine`."""
        snapshot, search = request.snapshot, request.search
        store = snapshot.store
        entries = self._entries
        if entries is None:
            entries = list_folder(store, search.rules)
        references, problem = read_references(
            snapshot,
            deleted_before_ms=request.deleted_before_ms,
            kept_versions=request.kept_versions,
            keeps_live=request.requires_all,
        )
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
            listed=dead.listed,
            directories=dead.directories,
            live_files=references.num_live,
            live_bytes=references.live_bytes,
            ageless_tombstones=references.ageless_tombstones,
            batches=lambda: iter([dead.files]),
            deletion=lambda watch: delete_data_files(
                store, dead.files.select(STATUSES.names), watch=watch
            ),
        )

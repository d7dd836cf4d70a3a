"""The folders outside a table to which its log refers: by them, shallow clones are found."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.holds.clones import (
    take_checkpoint,
    take_committed,
    take_foreign_paths,
)
from delta_maintenance.protocol.actions.paths import location_of_root, written_locations
from delta_maintenance.storage import FileStatus, Store
from delta_maintenance.table.read.log_file import LogEntry, read_ahead
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_STALE = timedelta(days=1)
"""A table with references is read in full after this time, so that former ones are forgotten."""
_MOST_FOLDERS = 64
_PIECE_BYTES = 4 << 20
_MOST_LINE_BYTES = 64 << 20
_PARTITIONS = r"(/[^/]*=[^/]*)+$"
_WRITTEN = re.compile(
    rb'"(?:path|pathOrInlineDv)"\s*:\s*("(?:\\?/|[A-Za-z][A-Za-z0-9+.-]*:)(?:[^"\\]|\\.)*")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The folders outside a table to which its log refers, as of one version."""

    version: int = -1
    commit: tuple[int, int] | None = None
    """The size and the time of the commit of that version."""
    folders: tuple[str, ...] = ()
    """Normalised locations, without the folders of partitions. Of many, folders above them."""
    read_at: datetime
    """When the whole log was read."""
    seen_at: datetime
    """When the log was last looked at."""
    problem: str | None = None
    """Why the log could not be read then. The folders are those of its readable files, and of
    earlier times."""
    is_whole: bool = True
    """Whether the log was ever read up to that version. Otherwise, there may be other folders."""
    is_slow: bool = False
    """Whether the last look that did not fail was slow, although only newer commits were read."""
    known_until: datetime | None = None
    """When the last look began that did not fail."""

    def or_failed(self, problem: str, folders: Iterable[str], *, now: datetime) -> References:
        """Returns what is known of a table whose log cannot be read now, except in part."""
        together = tuple(sorted({*self.folders, *folders}))
        return replace(self, folders=together, problem=problem, seen_at=now)


def references_of(
    table: Table, known: References | None, *, now: datetime, folders: Folders
) -> References:
    """Returns the folders outside a table to which its log refers, which are in `folders` as soon
    as they are read.

    If the log continues what is `known`, only its newer commits are read. `FileNotFoundError` if a
    file of the log was deleted meanwhile; otherwise the errors of `Table.snapshot`.
    """
    if known is not None and known.commit is not None:
        listing = list_log(table.store, first_version=known.version)
        stale = bool(known.folders) and now - known.read_at >= _STALE
        if not stale and _continues(listing, known):
            return _with_newer(table, listing, known, now=now, folders=folders)
    snapshot = table.snapshot()
    take_foreign_paths(snapshot, now=now, take=folders.take)
    last_commit = snapshot.log.segment.last_commit
    return References(
        version=snapshot.version,
        commit=mark_of(None if last_commit is None else last_commit.status),
        folders=folders.sorted_folders(),
        read_at=now,
        seen_at=now,
    )


def folders_of(snapshot: Snapshot, *, now: datetime) -> set[str]:
    """Returns the folders outside a table to which the log of its latest version refers, as
    normalised locations without the folders of partitions; of many, folders above them.
    """
    folders = Folders(snapshot.log.store.addresses)
    take_foreign_paths(snapshot, now=now, take=folders.take)
    return set(folders.sorted_folders())


def _continues(listing: LogListing, known: References) -> bool:
    """Whether a listing has all commits since the known one, which is unchanged."""
    newest = max(listing.commits, default=-1)
    entry = listing.commits.get(known.version)
    return (
        entry is not None
        and mark_of(entry.status) == known.commit
        and all(version in listing.commits for version in range(known.version, newest))
        and all(checkpoint.version <= newest for checkpoint in listing.checkpoints)
    )


def _with_newer(
    table: Table, listing: LogListing, known: References, *, now: datetime, folders: Folders
) -> References:
    new = [listing.commits[v] for v in sorted(listing.commits) if v > known.version]
    folders.include(known.folders)
    take_committed(table, new, take=folders.take)
    last_status = new[-1].status if new else None
    return replace(
        known,
        version=max(listing.commits),
        commit=known.commit if last_status is None else mark_of(last_status),
        folders=folders.sorted_folders(),
        seen_at=now,
        problem=None,
    )


def references_in_readable_files(
    table: Table, known: References, problem: str, *, now: datetime, folders: Folders
) -> References:
    """Searches what can be read of a damaged or unsupported log for absolute paths: the text of
    commits, whatever else they contain, and the checkpoints if commits are missing or unreadable.

    The result is whole if the text of all commits since the `known` ones was read. Raises the
    errors of a listing.
    """
    listing = list_log(table.store)
    newest = max(
        [*listing.commits, *(checkpoint.version for checkpoint in listing.checkpoints)], default=-1
    )
    first = known.version + 1 if known.is_whole else 0
    whole = newest >= 0 and all(version in listing.commits for version in range(first, newest + 1))
    entries = [listing.commits[v] for v in sorted(listing.commits) if v >= first or not whole]
    entries += () if whole else listing.compactions
    search = partial(_search_text, table.store, folders=folders)
    for _, is_read in read_ahead(table.store, entries, search):
        whole = whole and is_read
    if whole:
        # Read in full as soon as that is possible.
        known = replace(known, version=newest, commit=None, read_at=now, is_whole=True)
    else:
        for checkpoint in reversed(listing.checkpoints):
            with suppress(DeltaMaintenanceError, FileNotFoundError):
                take_checkpoint(table.store, checkpoint, take=folders.take)
    return known.or_failed(problem, folders.sorted_folders(), now=now)


def _search_text(store: Store, entry: LogEntry, *, folders: Folders) -> bool:
    """Searches the text of a commit for absolute paths; returns whether all of it was read."""
    left = b""
    try:
        if entry.status.size <= _PIECE_BYTES:
            _take_written(store.read(entry.path), folders)
            return True
        with store.open(entry.path) as file:
            while piece := file.read(_PIECE_BYTES):
                lines, _, left = (left + piece).rpartition(b"\n")
                _take_written(lines, folders)
                if len(left) > _MOST_LINE_BYTES:
                    return False
        _take_written(left, folders)
    except (DeltaMaintenanceError, OSError, ValueError):
        # Also of a text that is no JSON, or that no column can hold.
        return False
    return True


def _take_written(text: bytes, folders: Folders) -> None:
    written = _WRITTEN.findall(text)
    if written:
        folders.take(pa.array([json.loads(path) for path in written], pa.string()))


class Folders:
    """The folders of absolute paths, outside some roots. Thread-safe, also while it is filled."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self.exclude(roots)
        self._found: set[str] = set()
        self._lock = threading.Lock()

    def exclude(self, roots: Iterable[str]) -> None:
        """States the addresses of the table, below which folders are its own."""
        self._own = [location_of_root(root).decode(errors="replace") for root in roots]

    def sorted_folders(self) -> tuple[str, ...]:
        """Returns the folders until now."""
        with self._lock:
            return tuple(sorted(self._found))

    def include(self, folders: Iterable[str]) -> None:
        """Adds folders as normalised locations; many of them become folders above them."""
        with self._lock:
            self._found |= {
                folder
                for folder in folders
                if not any(f"{folder}/".startswith(f"{own}/") for own in self._own)
            }
            while len(self._found) > _MOST_FOLDERS:
                deepest = max(folder.count("/") for folder in self._found)
                if not deepest:
                    break
                self._found = {
                    folder.rpartition("/")[0] if folder.count("/") == deepest else folder
                    for folder in self._found
                }

    def take(self, paths: pa.StringArray) -> None:
        """Adds the folders of absolute paths, as written."""
        try:
            locations = written_locations(paths).cast(pa.string())
        except pa.ArrowInvalid:
            texts = (
                location.decode(errors="replace")
                for location in written_locations(paths).to_pylist()
            )
            locations = pa.array(texts, pa.string())
        folders = pc.unique(pc.replace_substring_regex(locations, r"(?s)/[^/]*$", ""))
        folders = pc.unique(pc.replace_substring_regex(folders, _PARTITIONS, ""))
        self.include(folders.to_pylist())


def refers_to(references: References, roots: Iterable[str]) -> bool:
    """Whether a table may need files of the table at one of these locations."""
    return any(_may_be_of(folder, root) for folder in references.folders for root in roots)


def _may_be_of(folder: str, root: str) -> bool:
    """Whether files in a folder may be those of the table at a root, both as locations.

    A store can have several addresses, but the name of the table's folder is usually the same.
    """
    return overlap(folder, root) or folder.rpartition("/")[2] == root.rpartition("/")[2]


def overlap(folder: str, root: str) -> bool:
    """Whether one of two locations is, or contains, the other."""
    return f"{folder}/".startswith(f"{root}/") or f"{root}/".startswith(f"{folder}/")


def mark_of(status: FileStatus | None) -> tuple[int, int] | None:
    """Returns what tells a file from another one at its path: its size and its time."""
    return None if status is None else (status.size, status.modified_ms)

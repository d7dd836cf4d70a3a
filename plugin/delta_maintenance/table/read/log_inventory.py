"""The files of a log by kind, and the files that other files depend on.

Implements the reading side of "Metadata Cleanup": before part of a log is deleted, the remaining
part must have been opened.
"""

from __future__ import annotations

from dataclasses import dataclass

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import REMOVE_TYPES, empty
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.delta_log.file_names import (
    SIDECAR_DIRECTORY,
    STAGED_COMMIT_DIRECTORY,
    LogFileKind,
    parse_log_file_name,
)
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import active_files
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, stated_files
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing, arrange, list_entries


@dataclass(frozen=True, slots=True)
class LogInventory:
    """Every file of a log, including sidecars and staged commits, from one listing per folder."""

    entries: tuple[LogEntry, ...]
    listing: LogListing

    @property
    def empty_checkpoints(self) -> tuple[LogEntry, ...]:
        """Checkpoint files of zero bytes, which readers ignore."""
        names = set(self.listing.incomplete)
        return tuple(e for e in self.entries if e.file.name in names and not e.status.size)


@dataclass(frozen=True, slots=True)
class SoundCheckpoint:
    """A checkpoint that has been read together with every file that its version depends on."""

    checkpoint: Checkpoint
    protocol: Protocol
    live: Tally
    """The sums over its live files."""
    actions: int
    """The number of rows."""


def take_inventory(store: Store) -> LogInventory:
    """Lists the log and its folders. Reads no file."""
    entries = list(list_entries(store))
    listing = arrange(entries)
    for folder in (SIDECAR_DIRECTORY, STAGED_COMMIT_DIRECTORY):
        entries.extend(list_entries(store, folder))
    return LogInventory(tuple(entries), listing)


def newest_sound_checkpoint(
    store: Store, listing: LogListing, *, version: int
) -> tuple[SoundCheckpoint | None, tuple[str, ...]]:
    """Returns the newest usable checkpoint at or before a version, if there is one.

    It is complete, the commit of its version exists, and it has been read: all parts, all sidecars,
    protocol, metadata and the key of every file. No file is in it twice, and its files are those
    that a checksum of its version counts. Also returns why newer checkpoints were skipped.

    Takes 8 bytes of memory for each file action.
    """
    skipped = []
    for files in reversed(listing.checkpoints):
        if files.version > version:
            continue
        if files.version not in listing.commits:
            skipped.append(f"skipped {files.name}: the commit of its version was deleted")
            continue
        try:
            return _open_checkpoint(store, files), tuple(skipped)
        except UnusableCheckpointError as error:
            skipped.append(f"skipped {files.name}: {error.problem}")
    return None, tuple(skipped)


def referenced_sidecars(store: Store, listing: LogListing, *, oldest: int) -> frozenset[str]:
    """Returns the sidecars of all checkpoints from a version on, relative to the table root.

    Raises `UnusableCheckpointError` if one of these checkpoints cannot be read.
    """
    for name in listing.incomplete:
        file = parse_log_file_name(name)
        # Multi-part checkpoints and single parts have no sidecars. An empty file may become a
        # checkpoint with sidecars ("V2 Spec").
        if file.kind is not LogFileKind.MULTIPART_CHECKPOINT and (file.version or 0) >= oldest:
            raise UnusableCheckpointError("the file is empty", file=f"{LOG_DIRECTORY}/{name}")
    paths: set[str] = set()
    for files in listing.checkpoints:
        if files.version >= oldest and files.kind is not LogFileKind.MULTIPART_CHECKPOINT:
            paths.update(Checkpoint(store, files, open_sidecars=False).sidecar_paths)
    return frozenset(paths)


def require_every_commit(listing: LogListing, first: int, last: int) -> None:
    """Raises `CorruptTableError`, which names the first missing commit of a range."""
    for version in range(first, last + 1):
        if version not in listing.commits:
            raise CorruptTableError(
                f"commit {version} is missing",
                version=last,
                file=LOG_DIRECTORY,
                remedy="restore it; no file is deleted from an incomplete log",
            )


def _open_checkpoint(store: Store, files: CheckpointFiles) -> SoundCheckpoint:
    checkpoint = Checkpoint(store, files)
    protocol, metadata = checkpoint.singles.protocol, checkpoint.singles.metadata
    if protocol is None or metadata is None:
        missing = "protocol" if protocol is None else "metaData"
        raise UnusableCheckpointError(f"the checkpoint has no {missing}", version=files.version)
    live, actions = Tally(), 0
    fields = {"add": ("path", "deletionVector", "size"), "remove": ("path", "deletionVector")}
    keys, replay = MapKeys(partition_columns=frozenset()), FileReplay()
    for batch in checkpoint.file_actions(keys=keys, fields=fields):
        active = active_files(batch.adds, batch.removes, replay)
        live.include(batch.adds, empty(REMOVE_TYPES))
        actions += batch.adds.num_rows + batch.removes.num_rows
        active_count = active.adds.num_rows + active.tombstones.num_rows
        if active_count < batch.adds.num_rows + batch.removes.num_rows:
            raise UnusableCheckpointError("it names a file twice", version=files.version)
    # The commits that are deleted would have shown which of the two is right.
    stated = stated_files(store, files.version)
    if stated is not None and stated != (live.adds, live.size):
        raise UnusableCheckpointError(
            f"it has {live.adds} files of {live.size} bytes, and the checksum of its version "
            f"states {stated[0]} files of {stated[1]} bytes",
            version=files.version,
        )
    singles = checkpoint.singles
    other_actions = len(singles.txns) + len(singles.domains) + len(singles.sidecars)
    other_actions += 2 + len(singles.checkpoint_metadata)
    return SoundCheckpoint(checkpoint, protocol, live, actions + other_actions)

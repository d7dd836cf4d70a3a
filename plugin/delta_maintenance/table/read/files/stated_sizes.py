"""The sizes of the live files of a snapshot from a version checksum, if the log confirms it.

A checksum is a hint. Its protocol, metadata, transactions and domains must be those of the log, and
its number of files must be that of the checkpoint after the same commits; so must its number of
bytes, if the checkpoint contains it. Otherwise there is no result, and the caller replays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    FileSizeHistogram,
    VersionChecksum,
    differences,
    is_consistent,
    parse_checksum,
)
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.table.read.files.changes import (
    MOST_TAIL_BYTES,
    FileChanges,
    RolledCommits,
)
from delta_maintenance.table.read.log_file import read_hint
from delta_maintenance.table.read.segment import LogEntry
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.summary import FEWEST_FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedSizes:
    """The live files of a snapshot, according to a checksum and the commits after it."""

    checksum_version: int
    sizes: FileSizeHistogram
    vectors: int
    """Deletion vectors."""


def stated_sizes(snapshot: Snapshot, checksums: Iterable[LogEntry]) -> StatedSizes | None:
    """Returns the sizes according to the newest of the checksums; None if a replay is needed.

    Takes one request. `checksums` are entries of the log; other files among them are ignored.
    """
    segment, checkpoint = snapshot.segment, snapshot.checkpoint
    newest = max(
        (
            entry
            for entry in checksums
            if entry.file.kind is LogFileKind.CHECKSUM
            and segment.base_version <= (entry.file.version or 0) <= segment.version
        ),
        key=lambda entry: entry.file.version or 0,
        default=None,
    )
    compacted = any(entry.file.end_version is not None for entry in segment.tail)
    too_long = sum(entry.status.size for entry in segment.tail) > MOST_TAIL_BYTES
    if checkpoint is None or newest is None or compacted or too_long:
        return None
    try:
        stated = parse_checksum(read_hint(snapshot.store, newest.path))
    except (CorruptTableError, FileNotFoundError):
        return None
    if (stated.num_files or 0) < FEWEST_FILES or not is_consistent(stated):
        return None
    at = newest.file.version or 0
    texts = list(snapshot.tail.texts())
    since = RolledCommits.of(each for each in texts if (each[0].file.version or 0) > at)
    if not _is_state_of(snapshot, stated, since.state):
        return None
    whole, changes = RolledCommits.of(texts).changes(), since.changes()
    if whole is None or changes is None or not _agree(snapshot, stated, changes, whole):
        return None
    return _brought_forward(snapshot, stated, changes, at)


def _is_state_of(snapshot: Snapshot, stated: VersionChecksum, since: StateReplay) -> bool:
    """Whether the small state of a checksum, after later commits, equals that of the snapshot."""
    since.add(
        protocol=stated.protocol,
        metadata=stated.metadata,
        txns=stated.txns or (),
        domains=stated.domains or (),
    )
    state = snapshot.state
    rolled = VersionChecksum(
        protocol=since.protocol,
        metadata=since.metadata,
        txns=None if stated.txns is None else tuple(since.txns.values()),
        domains=None if stated.domains is None else tuple(since.present_domains().values()),
    )
    found = VersionChecksum(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=tuple(state.txns.values()),
        domains=tuple(state.domains.values()),
    )
    return next(differences(rolled, found), None) is None


def _agree(
    snapshot: Snapshot, stated: VersionChecksum, since: FileChanges, whole: FileChanges
) -> bool:
    """Whether checkpoint and checksum have the same totals, each with the commits after it."""
    assert snapshot.checkpoint is not None
    adds, size = snapshot.checkpoint.stated_adds
    if adds is None or adds + whole.files != (stated.num_files or 0) + since.files:
        return False
    return size is None or size + whole.size == (stated.table_size or 0) + since.size


def _brought_forward(
    snapshot: Snapshot, stated: VersionChecksum, since: FileChanges, version: int
) -> StatedSizes | None:
    vectors = stated.num_deletion_vectors
    if not supports(snapshot.protocol, "deletionVectors"):
        vectors = vectors or 0
    if stated.file_sizes is None or vectors is None:
        return None
    sizes = stated.file_sizes.changed(removed=since.removed, added=since.added)
    vectors += since.vectors
    if min((*sizes.file_counts, *sizes.total_bytes, vectors)) < 0:
        return None
    return StatedSizes(checksum_version=version, sizes=sizes, vectors=vectors)

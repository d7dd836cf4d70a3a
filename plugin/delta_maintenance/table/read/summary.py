"""Protocol, metadata and totals of the newest version, from a version checksum if possible.

A replay reads every file action for the totals. A checksum contains them, so only the commits after
it are read. The result is for people and reports, because a checksum is only a hint. Operations
that delete or commit read a `Snapshot`, which uses nothing from checksums.

The result is None if it could differ from that of a replay, as far as the files that are read show.
The caller then opens a snapshot. The top-level file of a V2 checkpoint is read anyway, so the
checksum is compared with everything that this file and the commits after it state. For
`stated_sizes`, the checksum must also state the protocol, metadata, transactions, domains and
number of files of the snapshot, and its number of bytes if the checkpoint contains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Self

from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.sidecars import exact_counts
from delta_maintenance.protocol.delta_log.version_checksum import (
    FileSizeHistogram,
    VersionChecksum,
    differences,
    is_consistent,
    parse_checksum,
    stated_tombstones,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.features.registry import (
    Operation,
    check_protocol,
    require_supported,
    supports,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import FileCounts
from delta_maintenance.table.read.checkpoint_reader import Checkpoint
from delta_maintenance.table.read.file_changes import MOST_TAIL_BYTES, FileChanges, RolledCommits
from delta_maintenance.table.read.log_file import LogEntry, read_hint
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import (
    CheckpointFiles,
    LogListing,
    LogSegment,
    arrange,
    choose_segment,
    hinted_version,
    list_entries,
)
from delta_maintenance.table.read.snapshot import Snapshot

FEWEST_FILES = 10_000
"""A table with fewer live files is replayed, which takes at most 100 ms."""
_PAGE = 1000
"""The number of names that one request lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """The checkpoint that a reader starts from."""

    version: int
    kind: str
    """`classic`, `multi-part`, `v2-classic`, `v2-json` or `v2-parquet`."""
    sidecars: int
    sidecar_bytes: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Summarises a checkpoint whose top-level file is open."""
        return cls(
            version=checkpoint.files.version,
            kind=checkpoint.kind,
            sidecars=len(checkpoint.sidecars),
            sidecar_bytes=sum(sidecar.size_in_bytes for sidecar in checkpoint.sidecars),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """The newest version of a table without its files."""

    table: str
    version: int
    timestamp_ms: int | None
    """Milliseconds since 1970-01-01 UTC; None if the commit of this version was deleted."""
    protocol: Protocol
    metadata: Metadata
    txns: dict[str, int]
    domain_metadata: dict[str, str]
    counts: FileCounts
    segment: LogSegment
    checkpoint: CheckpointSummary | None
    oldest_commit: int | None
    """The oldest commit in the log."""
    checksum_version: int
    """The version of the checksum from which the totals are computed."""
    warnings: tuple[str, ...] = ()
    """Always empty: a log with skipped files is replayed."""


def summarize(store: Store) -> TableSummary | None:
    """Summarises the newest version of the table from a version checksum.

    Takes three requests if the checksum is that of the newest version and the log has at most 1,000
    files: the listing, the checksum, and the top-level file of a V2 checkpoint. Each commit after
    the checksum takes another one, or each commit after a V2 checkpoint. None if the table must be
    opened.
    """
    try:
        return _summarize(store)
    except (DeltaMaintenanceError, FileNotFoundError):
        # A replay either skips the failed file, or reports the failure.
        return None


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
    segment, checkpoint = snapshot.log.segment, snapshot.log.checkpoint
    newest = _newest_checksum(checksums, segment)
    compacted = any(entry.file.end_version is not None for entry in segment.tail)
    too_long = sum(entry.status.size for entry in segment.tail) > MOST_TAIL_BYTES
    if checkpoint is None or newest is None or compacted or too_long:
        return None
    try:
        stated = parse_checksum(read_hint(snapshot.log.store, newest.path))
    except (CorruptTableError, FileNotFoundError):
        return None
    if (stated.num_files or 0) < FEWEST_FILES or not is_consistent(stated):
        return None
    at = newest.file.version or 0
    texts = list(snapshot.log.tail.texts())
    since = RolledCommits.of(text for text in texts if (text[0].file.version or 0) > at)
    if not _is_state_of(snapshot, stated, since.state):
        return None
    all_changes, changes = RolledCommits.of(texts).changes(), since.changes()
    if all_changes is None or changes is None or not _agree(snapshot, stated, changes, all_changes):
        return None
    return _brought_forward(snapshot, stated, changes, at)


def _newest_checksum(entries: Iterable[LogEntry], segment: LogSegment) -> LogEntry | None:
    """Returns the newest of the checksums for a version of the segment."""
    return max(
        (
            entry
            for entry in entries
            if entry.file.kind is LogFileKind.CHECKSUM
            and segment.base_version <= (entry.file.version or 0) <= segment.version
        ),
        key=lambda entry: entry.file.version or 0,
        default=None,
    )


def _summarize(store: Store) -> TableSummary | None:
    entries, listing, oldest = _list_log(store)
    segment = choose_segment(listing)
    newest = _newest_checksum(entries, segment)
    compacted = any(entry.file.end_version is not None for entry in segment.tail)
    if newest is None or compacted or segment.last_commit is None:
        return None
    at = newest.file.version or 0
    stated = parse_checksum(read_hint(store, newest.path))
    if (stated.num_files or 0) < FEWEST_FILES or not is_consistent(stated):
        return None
    since = [entry for entry in segment.commits if (entry.file.version or 0) > at]
    rolled = _Rolled(store, stated, since)
    state = rolled.state
    if rolled.changes is None or state is None or not (state.protocol and state.metadata):
        return None
    check_protocol(state.protocol)
    require_supported(state.protocol, Operation.READ, table=store.root, version=segment.version)
    if supports(state.protocol, "catalogManaged"):
        return None
    opened = _checkpoint(store, segment.checkpoint, state.protocol)
    if opened is None:
        return None
    checkpoint, v2 = opened
    if v2 is not None and not _confirms(v2, store, segment, stated, at):
        return None
    checkpointed = None if v2 is None or at != segment.base_version else _exact_counts(v2)
    counts = _counts(rolled.changes, stated, checkpointed)
    if counts is None:
        return None
    timestamp_ms: int | None = segment.last_commit.status.modified_ms
    if in_commit_timestamps.is_active(state.protocol, state.metadata.configuration):
        timestamp_ms = rolled.in_commit_timestamp
        if timestamp_ms is None:
            return None
    return TableSummary(
        table=store.root,
        version=segment.version,
        timestamp_ms=timestamp_ms,
        protocol=state.protocol,
        metadata=state.metadata,
        txns={name: txn.version for name, txn in sorted(state.txns.items())},
        domain_metadata={
            name: domain.configuration for name, domain in sorted(state.present_domains().items())
        },
        counts=counts,
        segment=segment,
        checkpoint=checkpoint,
        oldest_commit=oldest,
        checksum_version=at,
    )


def _list_log(store: Store) -> tuple[list[LogEntry], LogListing, int | None]:
    """Lists the log from its newest checkpoint or earlier. Also returns the version of its oldest
    commit.

    The first page of names is enough for most logs, and contains the oldest commit of every log.
    """
    names = list_entries(store)
    entries = list(islice(names, _PAGE))
    commits = (e.file.version for e in entries if e.file.kind is LogFileKind.COMMIT)
    oldest = min((version for version in commits if version is not None), default=None)
    first_version = 0
    if len(entries) == _PAGE:
        first_version = hinted_version(store) or 0
        entries = [
            *(
                list_entries(store, start=f"{first_version:020}")
                if first_version
                else (*entries, *names)
            )
        ]
    return entries, arrange(entries, first_version=first_version), oldest


class _Rolled:
    """A checksum updated with the commits after it. `state` is None if the result is uncertain."""

    def __init__(self, store: Store, stated: VersionChecksum, since: list[LogEntry]) -> None:
        self.changes: FileChanges | None = None
        """The changes since the checksum."""
        self.in_commit_timestamp = stated.in_commit_timestamp
        self.state: StateReplay | None = None
        if stated.txns is None or stated.domains is None:
            return
        rolled = RolledCommits.of(LogTail(store, since).texts())
        if since:
            info = rolled.commit_info
            self.in_commit_timestamp = None if info is None else info.in_commit_timestamp
        rolled.state.add(
            protocol=stated.protocol,
            metadata=stated.metadata,
            txns=stated.txns,
            domains=stated.domains,
        )
        self.changes = rolled.changes()
        if self.changes is not None:
            self.state = rolled.state


def _counts(
    since: FileChanges, stated: VersionChecksum, checkpointed: tuple[int, int] | None
) -> FileCounts | None:
    """Returns the totals, or None. `checkpointed` are the adds and removes of a checkpoint of the
    same version as the checksum, which must agree.
    """
    tombstones = stated_tombstones(stated)
    if checkpointed is not None:
        if checkpointed[0] != stated.num_files or tombstones not in (None, checkpointed[1]):
            return None
        tombstones = checkpointed[1]
    vectors, deleted = stated.num_deletion_vectors, stated.num_deleted_records
    protocol = stated.protocol
    if protocol is not None and not supports(protocol, "deletionVectors"):
        vectors, deleted = vectors or 0, deleted or 0
    before = (stated.num_files, stated.table_size, tombstones, vectors, deleted)
    changes = (since.files, since.size, since.tombstones, since.vectors, since.deleted_rows)
    if any(number is None for number in before):
        return None
    totals = [(number or 0) + change for number, change in zip(before, changes, strict=True)]
    if min(totals) < 0:
        return None
    counts = FileCounts(
        num_files=totals[0],
        total_size=totals[1],
        num_tombstones=totals[2],
        num_deletion_vectors=totals[3],
        num_deleted_rows=totals[4],
    )
    return counts


def _confirms(
    checkpoint: Checkpoint, store: Store, segment: LogSegment, stated: VersionChecksum, version: int
) -> bool:
    """Whether a checksum of some version agrees with the checkpoint and the commits up to it."""
    commits = [entry for entry in segment.commits if (entry.file.version or 0) <= version]
    if sum(entry.status.size for entry in commits) > MOST_TAIL_BYTES:
        return False
    rolled = RolledCommits.of(LogTail(store, commits).texts())
    changes, state, singles = rolled.changes(), rolled.state, checkpoint.singles
    if changes is None:
        return False
    state.add(
        protocol=singles.protocol,
        metadata=singles.metadata,
        txns=singles.txns.values(),
        domains=singles.domains.values(),
    )
    adds, size = checkpoint.stated_adds
    live_state = VersionChecksum(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=tuple(state.txns.values()),
        domains=tuple(state.present_domains().values()),
        num_files=None if adds is None else adds + changes.files,
        table_size=None if size is None else size + changes.size,
    )
    return next(differences(stated, live_state), None) is None


def _exact_counts(checkpoint: Checkpoint) -> tuple[int, int] | None:
    metadata = checkpoint.singles.checkpoint_metadata
    return exact_counts(metadata[0].tags) if metadata and checkpoint.sidecars else None


def _checkpoint(
    store: Store, files: CheckpointFiles | None, protocol: Protocol
) -> tuple[CheckpointSummary | None, Checkpoint | None] | None:
    """Returns the checkpoint, opened if its name says that it is V2; None if its name does not tell
    its kind.
    """
    if files is None:
        return None, None
    if files.kind is not LogFileKind.UUID_CHECKPOINT:
        if supports(protocol, "v2Checkpoint"):
            # A V2 checkpoint may have a classic name.
            return None
        kind = "multi-part" if files.kind is LogFileKind.MULTIPART_CHECKPOINT else "classic"
        summary = CheckpointSummary(version=files.version, kind=kind, sidecars=0, sidecar_bytes=0)
        return summary, None
    opened = Checkpoint(store, files, open_sidecars=False)
    return CheckpointSummary.of(opened), opened


def _is_state_of(snapshot: Snapshot, stated: VersionChecksum, since: StateReplay) -> bool:
    """Whether the small state of a checksum, after later commits, equals that of the snapshot."""
    since.add(
        protocol=stated.protocol,
        metadata=stated.metadata,
        txns=stated.txns or (),
        domains=stated.domains or (),
    )
    state = snapshot.log.state
    rolled = VersionChecksum(
        protocol=since.protocol,
        metadata=since.metadata,
        txns=None if stated.txns is None else tuple(since.txns.values()),
        domains=None if stated.domains is None else tuple(since.present_domains().values()),
    )
    live_state = VersionChecksum(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=tuple(state.txns.values()),
        domains=tuple(state.domains.values()),
    )
    return next(differences(rolled, live_state), None) is None


def _agree(
    snapshot: Snapshot, stated: VersionChecksum, since: FileChanges, all_changes: FileChanges
) -> bool:
    """Whether checkpoint and checksum have the same totals, each with the commits after it."""
    assert snapshot.log.checkpoint is not None
    adds, size = snapshot.log.checkpoint.stated_adds
    if adds is None or adds + all_changes.files != (stated.num_files or 0) + since.files:
        return False
    return size is None or size + all_changes.size == (stated.table_size or 0) + since.size


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

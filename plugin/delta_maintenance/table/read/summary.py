"""Protocol, metadata and totals of the newest version, from a version checksum if possible.

A replay reads every file action for the totals. A checksum contains them, so only the commits after
it are read. The result is for people and reports, because a checksum is only a hint. Operations
that delete or commit read a `Snapshot`, which uses nothing from checksums.

The result is None if it could differ from that of a replay, as far as the files that are read show.
The caller then opens a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.delta_log.checkpoint_tags import exact_counts
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    VersionChecksum,
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
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import FileCounts
from delta_maintenance.table.read.checkpoint_reader import Checkpoint
from delta_maintenance.table.read.log_file import read_hint
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import (
    CheckpointFiles,
    LogEntry,
    LogListing,
    LogSegment,
    arrange,
    choose_segment,
    hinted_version,
    list_entries,
)

FEWEST_FILES = 10_000
"""A table with fewer live files is replayed, which takes at most 100 ms."""
_PAGE = 1000
"""The number of names that one request lists."""
_NEW_FILES = frozenset(
    {
        "COPY INTO",
        "DELETE",
        "MERGE",
        "OPTIMIZE",
        "STREAMING UPDATE",
        "TRUNCATE",
        "UPDATE",
        "WRITE",
    }
)
"""Operations that add files which were not live or removed before, and remove live ones. Commits of
other operations may repeat files, for which the state before them is needed."""
_FIELDS = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "size", "extendedFileMetadata"),
}


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
    the checksum takes another one. None if the table must be opened.
    """
    try:
        return _summarize(store)
    except (DeltaMaintenanceError, FileNotFoundError):
        # A replay either skips the failed file, or reports the failure.
        return None


def _summarize(store: Store) -> TableSummary | None:
    entries, listing, oldest = _listed(store)
    segment = choose_segment(listing)
    newest = max(
        (
            entry
            for entry in entries
            if entry.file.kind is LogFileKind.CHECKSUM
            and segment.base_version <= (entry.file.version or 0) <= segment.version
        ),
        key=lambda entry: entry.file.version or 0,
        default=None,
    )
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
    if state is None or state.protocol is None or state.metadata is None:
        return None
    check_protocol(state.protocol)
    require_supported(state.protocol, Operation.READ, table=store.root, version=segment.version)
    if supports(state.protocol, "catalogManaged"):
        return None
    opened = _checkpoint(store, segment.checkpoint, state.protocol)
    if opened is None:
        return None
    checkpoint, checkpointed = opened
    counts = _counts(rolled, stated, None if at != segment.base_version else checkpointed)
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


def _listed(store: Store) -> tuple[list[LogEntry], LogListing, int | None]:
    """Lists the log from its newest checkpoint or earlier. Also returns the version of its oldest
    commit.

    The first page of names is enough for most logs, and contains the oldest commit of every log.
    """
    names = list_entries(store)
    entries = list(islice(names, _PAGE))
    commits = (e.file.version for e in entries if e.file.kind is LogFileKind.COMMIT)
    oldest = min((version for version in commits if version is not None), default=None)
    first = 0
    if len(entries) == _PAGE:
        first = hinted_version(store) or 0
        entries = [*(list_entries(store, start=f"{first:020}") if first else (*entries, *names))]
    return entries, arrange(entries, first_version=first), oldest


class _Rolled:
    """A checksum updated with the commits after it. `state` is None if the result is uncertain."""

    def __init__(self, store: Store, stated: VersionChecksum, since: list[LogEntry]) -> None:
        self.files = self.size = self.vectors = self.deleted_rows = self.tombstones = 0
        """Changes since the checksum."""
        self.in_commit_timestamp = stated.in_commit_timestamp
        self.state: StateReplay | None = None
        if stated.txns is None or stated.domains is None:
            return
        state, lines, plain = StateReplay(), [], True
        for number, (_, text) in enumerate(LogTail(store, since).texts()):
            actions, beside = parse_other_lines(text, commit_info=True)
            state.add(
                protocol=actions.protocol,
                metadata=actions.metadata,
                txns=actions.txns.values(),
                domains=actions.domains.values(),
            )
            info = actions.commit_info
            if number == 0:
                self.in_commit_timestamp = None if info is None else info.in_commit_timestamp
            found = FileLines.of(text, beside)
            if found.runs:
                lines.append(found)
                plain &= info is not None and info.operation in _NEW_FILES
            plain &= not actions.unknown
        state.add(
            protocol=stated.protocol,
            metadata=stated.metadata,
            txns=stated.txns,
            domains=stated.domains,
        )
        if plain and (not lines or self._counts(lines)):
            self.state = state

    def _counts(self, lines: list[FileLines]) -> bool:
        """Adds up the file actions; False if the result is uncertain."""
        parsed = parse_file_actions(
            lines, keys=MapKeys(partition_columns=frozenset()), fields=_FIELDS
        )
        for sign, batch in ((1, parsed.adds), (-1, parsed.removes)):
            keys = logical_file_keys(batch)
            if pc.count_distinct(keys).as_py() < len(keys):
                return False
            sizes = batch["size"] if "size" in batch.column_names else None
            if batch.num_rows and (sizes is None or sizes.null_count):
                return False
            if sign < 0 and not _states_sizes(batch):
                return False
            vectors, deleted = _vectors(batch)
            self.files += sign * batch.num_rows
            self.size += sign * (pc.sum(sizes).as_py() or 0 if sizes is not None else 0)
            self.vectors += sign * vectors
            self.deleted_rows += sign * deleted
        self.tombstones = parsed.removes.num_rows
        return True


def _states_sizes(removes: pa.Table) -> bool:
    """Whether the sizes of all removes are reliable ("Add File and Remove File")."""
    if "extendedFileMetadata" not in removes.column_names:
        return not len(removes)
    stated = pc.fill_null(removes["extendedFileMetadata"], False)
    return bool(pc.all(stated, min_count=0).as_py())


def _vectors(batch: pa.Table) -> tuple[int, int]:
    """Returns the number of deletion vectors of some files, and of the rows that they delete."""
    if "deletionVector" not in batch.column_names:
        return 0, 0
    column = batch["deletionVector"]
    deleted = pc.sum(pc.struct_field(column, "cardinality")).as_py() or 0
    return len(column) - column.null_count, deleted


def _counts(
    rolled: _Rolled, stated: VersionChecksum, checkpointed: tuple[int, int] | None
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
    since = (rolled.files, rolled.size, rolled.tombstones, rolled.vectors, rolled.deleted_rows)
    if any(number is None for number in before):
        return None
    totals = [(number or 0) + change for number, change in zip(before, since, strict=True)]
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


def _checkpoint(
    store: Store, files: CheckpointFiles | None, protocol: Protocol
) -> tuple[CheckpointSummary | None, tuple[int, int] | None] | None:
    """Returns the checkpoint, and its numbers of adds and removes if known; None if it must be
    opened.
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
    metadata = opened.singles.checkpoint_metadata
    stated = exact_counts(metadata[0].tags) if metadata and opened.sidecars else None
    return CheckpointSummary.of(opened), stated

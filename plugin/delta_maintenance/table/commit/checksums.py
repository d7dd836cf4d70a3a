"""Version checksums: that of a commit that just landed, and that of all files of a snapshot.

Implements "Writer Requirements" and the schema of "Version Checksum File", with every field that
Delta Spark writes. Delta Spark reads protocol and metadata from these files and fails if their
numbers are wrong. The checksum of a commit is therefore written only if all of its numbers follow
from known facts: the state before the commit, and the changes of the commit to files that its
writer had read. No file actions are scanned for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, unknown_columns
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.commit.build import BuiltCommit
from delta_maintenance.protocol.commit.staged import (
    ReadSet,
    StagedActions,
    locations_of,
    logical_locations,
)
from delta_maintenance.protocol.delta_log.file_names import checksum_name
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.delta_log.version_checksum import (
    MOST_DOMAINS,
    MOST_FILES,
    MOST_INDEXED_COLUMNS,
    MOST_TXNS,
    Counts,
    FileSizeHistogram,
    VersionChecksum,
    deleted_record_counts,
    differences,
    parse_checksum,
    render_checksum,
    with_tombstones,
)
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.read.active_files import ActiveFiles, FileCounts
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, read_hint, stated_files
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE

_FIELDS: Mapping[str, tuple[str, ...]] = {"add": ("size",), "remove": ()}


def write_checksum(snapshot: Snapshot, commit: BuiltCommit, *, reads: ReadSet) -> bool:
    """Writes the checksum of a commit that landed directly after the snapshot.

    `reads` contains the live files that the commit depends on, with their `size`. Takes at most two
    requests: a read of the checksum of the snapshot's version, and a put of the new one. Returns
    False if a number would not be certain or if the checksum already exists.
    """
    change = _change(commit.actions, reads, snapshot.table)
    if change is None or commit.version != snapshot.version + 1:
        return False
    before = _before(snapshot)
    if before is None:
        return False
    checksum = replace(
        _with_file_counts(_state_after(snapshot, commit.actions), before, *change),
        txn_id=commit.commit_info["txnId"],
        in_commit_timestamp=commit.in_commit_timestamp,
    )
    path = f"{LOG_DIRECTORY}/{checksum_name(commit.version)}"
    return snapshot.log.store.put_if_absent(path, render_checksum(checksum)) is Put.DONE


def state_of(snapshot: Snapshot) -> VersionChecksum:
    """The checksum fields of the snapshot that do not describe files.

    Transactions are None if some of them may have expired, because the list must be complete.
    """
    state = snapshot.log.state
    expiring = snapshot.properties.set_transaction_retention is not None
    info = state.commit_info
    txn_id = None if info is None else info.values.get("txnId")
    return VersionChecksum(
        txn_id=txn_id if isinstance(txn_id, str) else None,
        txns=None if expiring else tuple(txn for _, txn in sorted(state.txns.items())),
        domains=tuple(domain for _, domain in sorted(state.domains.items())),
        metadata=state.metadata,
        protocol=state.protocol,
    )


def computed_checksum(snapshot: Snapshot) -> VersionChecksum:
    """The checksum of the snapshot, from one pass over all file actions.

    Memory is bounded by the keys of the files. A table of at most `MOST_FILES` files is read a
    second time for `allFiles`. Raises `CorruptTableError` if readers disagree about the live files;
    `RefusedError` if a file has no size, or if the checkpoint disagrees with the checksum of its
    own version; and `UnusableCheckpointError` for a damaged checkpoint.
    """
    totals, audit, base = _Totals(), PathAudit(snapshot.table), _Base()
    replay = FileReplay()
    for batch in snapshot.log.scan_tail(replay, fields=_FIELDS):
        audit.add(
            batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
        )
        totals.include(batch)
    for batch in snapshot.log.scan_checkpoint(replay, fields=_FIELDS, watch_batch=base.include):
        audit.add(
            batch.adds, batch.tombstones, key_hashes=batch.add_hashes, repeated=batch.repeated
        )
        totals.include(batch)
    if (contradiction := audit.problem()) is not None:
        raise CorruptTableError(
            contradiction, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
        )
    problem = totals.problem or base.problem(snapshot)
    if problem is not None:
        raise RefusedError(
            f"a version checksum would not be certain: {problem}",
            table=snapshot.table,
            version=snapshot.version,
            remedy="run fsck, which names the files",
        )
    state = state_of(snapshot)
    active = in_commit_timestamps.is_active(snapshot.protocol, snapshot.metadata.configuration)
    checksum = replace(
        state,
        table_size=totals.size,
        num_files=totals.files,
        num_deleted_records=totals.deleted_rows,
        num_deletion_vectors=totals.vectors,
        in_commit_timestamp=snapshot.timestamp_ms if active else None,
        txns=_if_few(state.txns, MOST_TXNS),
        domains=_if_few(state.domains, MOST_DOMAINS),
        file_sizes=totals.histogram,
        deleted_record_counts=tuple(totals.bins.tolist()),
        all_files=_all_files(snapshot) if totals.files <= MOST_FILES else None,
    )
    return with_tombstones(checksum, totals.tombstones)


@dataclass(frozen=True, slots=True)
class _Files:
    """The numbers of some live files that a checksum sums up."""

    sizes: Counts
    deleted: Counts
    """Rows that the deletion vector of each file marks, 0 without one."""
    has_vector: Counts
    """1 for a file with a deletion vector, 0 for others."""

    @classmethod
    def of(cls, batch: pa.Table) -> Self:
        sizes = batch["size"].to_numpy()
        if "deletionVector" not in batch.column_names:
            return cls(sizes, np.zeros_like(sizes), np.zeros_like(sizes))
        vectors = batch["deletionVector"].combine_chunks()
        deleted = pc.fill_null(pc.struct_field(vectors, "cardinality"), 0)
        has_vector = pc.is_valid(vectors).cast(pa.int64())
        return cls(sizes, deleted.to_numpy(zero_copy_only=False), has_vector.to_numpy())


def _change(actions: StagedActions, reads: ReadSet, root: str) -> tuple[_Files, _Files] | None:
    """The live files that the commit removed or repeated, and the files it added in their place.

    None if this is uncertain: an added path that was not read may be new or already live, and a
    removed path that was not read may not have been live.
    """
    adds, removes, files = actions.adds, actions.removes, reads.files
    if files is None:
        unread = adds.num_rows or removes.num_rows
        return None if unread else (_Files.of(adds), _Files.of(adds))
    if "size" not in files.column_names or files["size"].null_count or adds["size"].null_count:
        return None
    before = logical_locations(files, root=root)
    added, removed = (logical_locations(batch, root=root) for batch in (adds, removes))
    swapped = pc.is_in(locations_of(adds, root=root), value_set=locations_of(removes, root=root))
    has_fate = pc.or_(pc.is_in(added, value_set=before), swapped)
    certain = (
        pc.count_distinct(before).as_py() == len(before)
        and pc.all(pc.is_in(removed, value_set=before), min_count=0).as_py()
        and pc.all(has_fate, min_count=0).as_py()
    )
    if not certain:
        return None
    touched = pc.or_(pc.is_in(before, value_set=added), pc.is_in(before, value_set=removed))
    return _Files.of(files.filter(touched)), _Files.of(adds)


def _before(snapshot: Snapshot) -> VersionChecksum | None:
    """The numbers of the snapshot's version, from its counts or from its checksum.

    A checksum is used only if it belongs to the commit in the log and agrees with its state.
    """
    # Only if already computed: counting would read every file action.
    counts: FileCounts | None = vars(snapshot).get("counts")
    if counts is not None:
        return VersionChecksum(
            table_size=counts.total_size,
            num_files=counts.num_files,
            num_deleted_records=counts.num_deleted_rows,
            num_deletion_vectors=counts.num_deletion_vectors,
        )
    try:
        data = read_hint(snapshot.log.store, f"{LOG_DIRECTORY}/{checksum_name(snapshot.version)}")
        stated = parse_checksum(data)
    except (FileNotFoundError, CorruptTableError):
        return None
    state = state_of(snapshot)
    usable = (
        None not in (stated.table_size, stated.num_files, stated.protocol, stated.metadata)
        and stated.txn_id is not None
        and stated.txn_id == state.txn_id
        and next(differences(stated, state), None) is None
    )
    return stated if usable else None


def _state_after(snapshot: Snapshot, actions: StagedActions) -> VersionChecksum:
    metadata = actions.metadata or snapshot.metadata
    txns = {**snapshot.log.state.txns, **{txn.app_id: txn for txn in actions.txns}}
    domains = {
        **snapshot.log.state.domains,
        **{domain.domain: domain for domain in actions.domains},
    }
    present = tuple(domain for _, domain in sorted(domains.items()) if not domain.removed)
    expiring = "delta.setTransactionRetentionDuration" in metadata.configuration
    return VersionChecksum(
        protocol=actions.protocol or snapshot.protocol,
        metadata=metadata,
        txns=None
        if expiring or len(txns) > MOST_TXNS
        else tuple(txn for _, txn in sorted(txns.items())),
        domains=present if len(present) <= MOST_DOMAINS else None,
    )


def _with_file_counts(
    checksum: VersionChecksum, before: VersionChecksum, removed: _Files, added: _Files
) -> VersionChecksum:
    """Adds the numbers about files; numbers that were unknown before stay unknown."""
    sizes, bins = before.file_sizes, before.deleted_record_counts
    return replace(
        checksum,
        table_size=_sum(before.table_size, added.sizes, removed.sizes),
        num_files=_sum(before.num_files, np.ones_like(added.sizes), np.ones_like(removed.sizes)),
        num_deleted_records=_sum(before.num_deleted_records, added.deleted, removed.deleted),
        num_deletion_vectors=_sum(
            before.num_deletion_vectors, added.has_vector, removed.has_vector
        ),
        file_sizes=None
        if sizes is None
        else sizes.changed(removed=removed.sizes, added=added.sizes),
        deleted_record_counts=None
        if bins is None
        else tuple(
            count - removed_count + added_count
            for count, removed_count, added_count in zip(
                bins,
                deleted_record_counts(removed.deleted),
                deleted_record_counts(added.deleted),
                strict=True,
            )
        ),
    )


def _sum(before: int | None, plus: Counts, minus: Counts) -> int | None:
    return None if before is None else before + int(plus.sum()) - int(minus.sum())


class _Totals:
    """Totals of the live files and the tombstones, batch by batch."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.files = self.size = self.vectors = self.deleted_rows = self.tombstones = 0
        self.histogram = FileSizeHistogram.of(none)
        self.bins: Counts = np.array(deleted_record_counts(none), np.int64)
        self.problem: str | None = None

    def include(self, batch: ActiveFiles) -> None:
        """Adds the files of a batch."""
        self.tombstones += batch.tombstones.num_rows
        adds = batch.adds
        if not adds.num_rows:
            return
        column = adds["size"] if "size" in adds.column_names else None
        if column is None or column.null_count or pc.min(column).as_py() < 0:
            self.problem = "a live file has no size"
            return
        sizes = column.to_numpy()
        deleted = np.zeros(len(sizes), np.int64)
        if "deletionVector" in adds.column_names:
            vectors = adds["deletionVector"].combine_chunks()
            marked = pc.struct_field(vectors, "cardinality")
            if marked.null_count > vectors.null_count:
                self.problem = "a deletion vector does not state how many rows it deletes"
                return
            marked = pc.if_else(pc.is_valid(vectors), marked, 0)
            deleted = marked.to_numpy(zero_copy_only=False).astype(np.int64)
            self.vectors += len(vectors) - vectors.null_count
        self.files += len(sizes)
        self.size += int(sizes.sum())
        self.deleted_rows += int(deleted.sum())
        self.bins = self.bins + np.array(deleted_record_counts(deleted), np.int64)
        self.histogram = self.histogram.changed(removed=sizes[:0], added=sizes)


class _Base:
    """Totals of the adds of a checkpoint, to compare with the checksum of its version."""

    def __init__(self) -> None:
        self.files = self.size = 0

    def include(self, batch: FileActionBatch) -> None:
        """Adds the adds of a batch, whether or not a later commit removed them."""
        self.files += batch.adds.num_rows
        if "size" in batch.adds.column_names:
            self.size += pc.sum(batch.adds["size"], min_count=0).as_py()

    def problem(self, snapshot: Snapshot) -> str | None:
        """The difference between the checkpoint and the checksum of its version, if any."""
        if snapshot.log.checkpoint is None:
            return None
        version = snapshot.log.checkpoint.files.version
        stated = stated_files(snapshot.log.store, version)
        if stated is None or stated == (self.files, self.size):
            return None
        return (
            f"the checkpoint of version {version} has {self.files} files of {self.size} bytes, but "
            f"the checksum of that version states {stated[0]} files of {stated[1]} bytes"
        )


def _if_few(actions: Any, limit: int) -> Any:
    return actions if actions is None or len(actions) <= limit else None


def _all_files(snapshot: Snapshot) -> tuple[dict[str, Any], ...] | None:
    """The `add` objects of a table of few files; None if they would not be complete."""
    if snapshot.properties.data_skipping_num_indexed_columns > MOST_INDEXED_COLUMNS:
        return None
    files: list[dict[str, Any]] = []
    for batch in snapshot.log.scan():
        adds = batch.adds
        if unknown_columns(adds, ADD_TYPES) or _has_only_parsed_statistics(adds):
            return None
        columns = [name for name in ADD_TYPES if name in adds.column_names]
        files.extend(_object(row) for row in adds.select(columns).to_pylist())
    return tuple(files)


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    # As in Delta Spark: the list describes a state, not a change of data.
    return {**_present(row), "dataChange": False}


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not null; maps, which Arrow returns as pairs, as objects."""
    present: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            present[name] = _present(value)
        elif value is not None:
            present[name] = dict(value) if isinstance(value, list) else value
    return present


def _has_only_parsed_statistics(adds: pa.Table) -> bool:
    if "stats_parsed" not in adds.column_names:
        return False
    stated = adds.num_rows - adds["stats_parsed"].null_count
    as_text = adds.num_rows - adds["stats"].null_count if "stats" in adds.column_names else 0
    return bool(as_text < stated)

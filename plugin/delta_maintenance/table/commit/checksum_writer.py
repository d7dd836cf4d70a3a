"""Writing the version checksum of a commit that just landed.

Implements "Writer Requirements" of "Version Checksum File". Delta Spark reads protocol and metadata
from these files and fails if their numbers are wrong. A checksum is therefore written only if all
of its numbers follow from known facts: the state before the commit, and the changes of the commit
to files that its writer had read. No file actions are scanned for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.commit.build import BuiltCommit
from delta_maintenance.protocol.commit.staged import ReadSet, StagedActions, logical_places, places
from delta_maintenance.protocol.delta_log.file_names import checksum_name
from delta_maintenance.protocol.delta_log.version_checksum import (
    MOST_DOMAINS,
    MOST_TXNS,
    Counts,
    VersionChecksum,
    deleted_record_counts,
    differences,
    parse_checksum,
    render_checksum,
)
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.read.active_files import FileCounts
from delta_maintenance.table.read.log_file import read_hint
from delta_maintenance.table.read.segment import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot


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
    return snapshot.store.put_if_absent(path, render_checksum(checksum)) is Put.DONE


def state_of(snapshot: Snapshot) -> VersionChecksum:
    """The checksum fields of the snapshot that do not describe files.

    Transactions are None if some of them may have expired, because the list must be complete.
    """
    state = snapshot.state
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
    before = logical_places(files, root=root)
    added, removed = (logical_places(batch, root=root) for batch in (adds, removes))
    swapped = pc.is_in(places(adds, root=root), value_set=places(removes, root=root))
    known = pc.or_(pc.is_in(added, value_set=before), swapped)
    certain = (
        pc.count_distinct(before).as_py() == len(before)
        and pc.all(pc.is_in(removed, value_set=before), min_count=0).as_py()
        and pc.all(known, min_count=0).as_py()
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
        data = read_hint(snapshot.store, f"{LOG_DIRECTORY}/{checksum_name(snapshot.version)}")
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
    txns = {**snapshot.state.txns, **{txn.app_id: txn for txn in actions.txns}}
    domains = {**snapshot.state.domains, **{domain.domain: domain for domain in actions.domains}}
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
            count - less + more
            for count, less, more in zip(
                bins,
                deleted_record_counts(removed.deleted),
                deleted_record_counts(added.deleted),
                strict=True,
            )
        ),
    )


def _sum(before: int | None, plus: Counts, minus: Counts) -> int | None:
    return None if before is None else before + int(plus.sum()) - int(minus.sum())

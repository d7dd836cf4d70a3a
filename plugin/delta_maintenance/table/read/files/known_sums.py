"""Sums over the files of a table that outlast a snapshot and follow usual commits.

The sums are for reports: as in `files.changes`, a commit of an operation that may repeat files is
not followed, and the caller replays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.ndjson.parse import MapKeys, parse_file_actions
from delta_maintenance.table.read.files.changes import (
    MOST_TAIL_BYTES,
    FileChanges,
    RolledCommits,
)
from delta_maintenance.table.read.segment import LogEntry
from delta_maintenance.table.read.snapshot import Snapshot

Counts = npt.NDArray[np.int64]

BUCKETS = 65
"""One bucket for empty files, then one for each power of two."""
REMOVE_FIELDS = ("path", "deletionVector", "size", "deletionTimestamp", "extendedFileMetadata")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SizeBuckets:
    """The number and the bytes of files by size, in buckets of powers of two."""

    files: Counts
    bytes: Counts

    @classmethod
    def of(cls, sizes: Counts) -> Self:
        """Sorts files into the buckets."""
        # The exponent of 0 is 0, and that of 2^n is n + 1.
        buckets = np.frexp(sizes.astype(np.float64))[1].clip(0, BUCKETS - 1)
        totals = np.zeros(BUCKETS, np.int64)
        np.add.at(totals, buckets, sizes)
        return cls(np.bincount(buckets, minlength=BUCKETS), totals)

    def changed(self, *, added: Counts, removed: Counts) -> SizeBuckets:
        """Returns the buckets after files with these sizes, in bytes, were added and removed."""
        plus, minus = SizeBuckets.of(added), SizeBuckets.of(removed)
        return SizeBuckets(
            self.files + plus.files - minus.files, self.bytes + plus.bytes - minus.bytes
        )


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Some tombstones. Takes 25 bytes for each."""

    paths: Hashes
    deleted_ms: Counts
    """Milliseconds since 1970-01-01 UTC; the largest integer without a deletion time."""
    sizes: Counts
    """Bytes; 0 if the tombstone states no reliable size."""
    with_vector: npt.NDArray[np.bool_]
    """Whether the removed logical file had a deletion vector."""

    @classmethod
    def of(cls, removes: pa.Table) -> Self:
        """Takes over the needed columns of remove actions."""
        paths = [hash_texts(chunk) for chunk in removes["path"].chunks]
        sizes = integers(removes, "size")
        return cls(
            np.concatenate([np.empty(0, np.uint64), *paths]),
            # A tombstone without a deletion timestamp never expires.
            integers(removes, "deletionTimestamp", missing=_NEVER),
            np.where(_is_reliable(removes), sizes, 0),
            _has_vector(removes),
        )

    @classmethod
    def joined(cls, parts: list[Tombstones]) -> Self:
        """Concatenates tombstones."""
        return cls(
            np.concatenate([np.empty(0, np.uint64), *(part.paths for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.deleted_ms for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.sizes for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.with_vector for part in parts)]),
        )

    def between(self, first_ms: int, end_ms: int) -> Tombstones:
        """Returns the tombstones of a time, the end excluded."""
        chosen = (self.deleted_ms >= first_ms) & (self.deleted_ms < end_ms)
        return Tombstones(
            self.paths[chosen],
            self.deleted_ms[chosen],
            self.sizes[chosen],
            self.with_vector[chosen],
        )

    def expired(self, before_ms: int) -> int:
        """Returns the number of tombstones from before a time."""
        return int(np.count_nonzero(self.deleted_ms < before_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSums:
    """The sums over the files of one version, and what is needed to follow later commits.

    Takes 25 bytes of memory for each tombstone and, if deletion vectors are supported, 8 for each
    live file.
    """

    table_id: str | None
    version: int
    commit: LogEntry | None
    """The commit of the version. A table that was replaced by a copy of an earlier state has the
    same ID, but other commits.
    """
    with_vectors: bool
    """Whether the table supports deletion vectors."""
    live: SizeBuckets
    live_paths: Hashes | None
    """The paths of live files, if deletion vectors are supported, because tombstones with another
    vector can have them; None if they were not read."""
    vectors: int
    deleted_rows: int
    rows: int | None
    tombstones: Tombstones
    checksum_version: int | None

    def at(self, snapshot: Snapshot) -> KnownSums | None:
        """Returns the sums at a later version, from the commits since; None if uncertain."""
        segment = snapshot.segment
        newer = [entry for entry in segment.tail if (entry.file.version or 0) > self.version]
        if (
            snapshot.metadata.id != self.table_id
            or supports(snapshot.protocol, "deletionVectors") is not self.with_vectors
            or self.commit is None
            or self.commit not in (segment.base_commit, *segment.commits)
            or any(entry.file.end_version is not None for entry in segment.tail)
            or sum(entry.status.size for entry in newer) > MOST_TAIL_BYTES
        ):
            return None
        rolled = RolledCommits.of(
            each for each in snapshot.tail.texts() if (each[0].file.version or 0) > self.version
        )
        changes = rolled.changes()
        if changes is None:
            return None
        followed = self._followed(rolled, changes) if rolled.lines else self
        if followed is None or not _is_checkpointed(snapshot, self):
            return None
        return replace(followed, version=segment.version, commit=segment.last_commit)

    def _followed(self, rolled: RolledCommits, changes: FileChanges) -> KnownSums | None:
        if self.with_vectors or self.vectors or changes.vectors or changes.deleted_rows:
            # Removes need not state the number of rows that their files had.
            return None
        live = self.live.changed(added=changes.added, removed=changes.removed)
        if min(live.files.min(), live.bytes.min()) < 0:
            return None
        removes = parse_file_actions(
            list(rolled.lines),
            keys=MapKeys(partition_columns=frozenset()),
            fields={"add": ("path", "deletionVector"), "remove": REMOVE_FIELDS},
        ).removes
        gone = Tombstones.joined([self.tombstones, Tombstones.of(removes)])
        return replace(self, live=live, tombstones=gone)


@dataclass(slots=True)
class SumMemory:
    """Keeps the sums of the last look at a table for the next look of the same process."""

    known: KnownSums | None = None

    def at(self, snapshot: Snapshot) -> KnownSums | None:
        """Returns the sums of the files of a snapshot, if they follow from those of the last look.

        Raises `FileNotFoundError` for a commit that was deleted after the snapshot was opened.
        """
        return None if self.known is None else self.known.at(snapshot)


def _is_checkpointed(snapshot: Snapshot, known: KnownSums) -> bool:
    """Whether a checkpoint of the known version, if there is one, states the same totals."""
    checkpoint = snapshot.checkpoint
    if checkpoint is None or snapshot.segment.base_version != known.version:
        return True
    adds, size = checkpoint.stated_adds
    found = (int(known.live.files.sum()), int(known.live.bytes.sum()))
    return adds in (None, found[0]) and size in (None, found[1])


def integers(table: pa.Table, name: str, *, missing: int = 0) -> Counts:
    """Returns a column of integers, with `missing` instead of nulls."""
    if name not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    column = pc.fill_null(table[name], missing)
    return np.asarray(column.to_numpy(), np.int64)


def _has_vector(removes: pa.Table) -> npt.NDArray[np.bool_]:
    if "deletionVector" not in removes.column_names:
        return np.zeros(removes.num_rows, np.bool_)
    return np.asarray(pc.is_valid(removes["deletionVector"]).to_numpy(), np.bool_)


def _is_reliable(removes: pa.Table) -> npt.NDArray[np.bool_]:
    if "extendedFileMetadata" not in removes.column_names:
        return np.zeros(removes.num_rows, np.bool_)
    column = pc.fill_null(removes["extendedFileMetadata"], False)
    return np.asarray(column.to_numpy(), np.bool_)

"""Keys, sizes and deletion vectors of the files of a snapshot, to follow commits without a replay.

The index has levels. New commits add a small level and mark the files that they name in older ones,
so a step costs the size of the commits, and one byte for each file of a level that they change.
Neighbouring levels of similar size are merged, so there are few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns import Hashes, hash_texts
from delta_maintenance.table.read.active_files import ActiveFiles, FileCounts

_Counts = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The files of a snapshot. Takes 25 bytes for each live file and 9 for each tombstone.

    Files are identified by hashes of 64 bits. Among ten million files, two have the same hash with
    a probability of one in 360,000; the totals are then wrong by one file. Therefore the index is
    only used for reports.
    """

    levels: tuple[_Level, ...]
    """The oldest first."""
    counts: FileCounts
    """The totals of the files."""

    @classmethod
    def of(cls, batches: Iterable[ActiveFiles]) -> Self:
        """Builds the index of active files, each of which occurs once."""
        level = _Level.of(batches)
        return cls((level,), level.counts)

    def followed_by(self, newer: FileIndex) -> FileIndex:
        """Returns the index after newer commits, whose own active files are `newer`."""
        named_locations = np.concatenate(
            [keys for level in newer.levels for keys in (level.live, level.tombstones)]
        )
        levels, counts = [], newer.counts
        for level in self.levels:
            remaining, gone = level.without(named_locations)
            levels.append(remaining)
            counts = _sum(counts, gone, sign=-1)
        for level in newer.levels:
            levels.append(level)
            while len(levels) > 1 and levels[-2].size <= 2 * levels[-1].size:
                levels[-2:] = [levels[-2].merge(levels[-1])]
        return FileIndex(tuple(levels), _sum(self.counts, counts))


@dataclass(frozen=True, slots=True)
class _Level:
    """Some files, in the order of their hashes."""

    live: Hashes
    sizes: _Counts
    deleted: _Counts
    """Rows that the deletion vector marks; -1 without one."""
    tombstones: Hashes
    gone: _Flags
    """The live files that a later level names."""
    superseded: _Flags
    """The tombstones that a later level names."""

    @classmethod
    def of(cls, batches: Iterable[ActiveFiles]) -> Self:
        none = np.empty(0, np.uint64)
        live, tombstones = [none], [none]
        sizes, deleted = [none.astype(np.int64)], [none.astype(np.int64)]
        for batch in batches:
            adds = batch.adds
            if adds.num_rows:
                live.append(_hashes(adds))
                sizes.append(_sizes(adds))
                deleted.append(_deleted_counts(adds))
            if batch.tombstones.num_rows:
                tombstones.append(_hashes(batch.tombstones))
        return cls._sort_files(
            np.concatenate(live),
            np.concatenate(sizes),
            np.concatenate(deleted),
            np.concatenate(tombstones),
        )

    @classmethod
    def _sort_files(
        cls, live: Hashes, sizes: _Counts, deleted: _Counts, tombstones: Hashes
    ) -> Self:
        order = np.argsort(live, kind="stable")
        return cls(
            live[order],
            sizes[order],
            deleted[order],
            np.sort(tombstones),
            np.zeros(len(live), np.bool_),
            np.zeros(len(tombstones), np.bool_),
        )

    @property
    def size(self) -> int:
        return len(self.live) + len(self.tombstones)

    @property
    def counts(self) -> FileCounts:
        """The totals of a level without superseded files."""
        return _counts(self.sizes, self.deleted, len(self.tombstones))

    def without(self, locations: Hashes) -> tuple[_Level, FileCounts]:
        """Returns the level without the named files, and the totals of the files that it loses."""
        gone = _locations(self.live, locations, but=self.gone)
        superseded = _locations(self.tombstones, locations, but=self.superseded)
        lost = _counts(self.sizes[gone], self.deleted[gone], len(superseded))
        level = self
        if len(gone):
            level = replace(level, gone=_mark_rows(level.gone, gone))
        if len(superseded):
            level = replace(level, superseded=_mark_rows(level.superseded, superseded))
        return level, lost

    def merge(self, newer: _Level) -> _Level:
        """Merges the remaining files of two neighbouring levels."""
        levels = (self, newer)
        return _Level._sort_files(
            np.concatenate([level.live[~level.gone] for level in levels]),
            np.concatenate([level.sizes[~level.gone] for level in levels]),
            np.concatenate([level.deleted[~level.gone] for level in levels]),
            np.concatenate([level.tombstones[~level.superseded] for level in levels]),
        )


def _locations(ascending: Hashes, sought: Hashes, *, but: _Flags) -> _Counts:
    """Returns the positions of `sought` in ascending hashes, except marked ones."""
    if not len(ascending):
        return np.empty(0, np.int64)
    sought = np.unique(sought)
    at = np.minimum(np.searchsorted(ascending, sought), len(ascending) - 1)
    row_counts: _Counts = at[ascending[at] == sought]
    row_counts = row_counts[~but[row_counts]]
    return row_counts


def _mark_rows(flags: _Flags, at: _Counts) -> _Flags:
    marked = flags.copy()
    marked[at] = True
    return marked


def _counts(sizes: _Counts, deleted: _Counts, tombstones: int) -> FileCounts:
    vectors = deleted[deleted >= 0]
    return FileCounts(
        num_files=len(sizes),
        total_size=int(sizes.sum()),
        num_tombstones=tombstones,
        num_deletion_vectors=len(vectors),
        num_deleted_rows=int(vectors.sum()),
    )


def _sum(counts: FileCounts, change: FileCounts, *, sign: int = 1) -> FileCounts:
    return FileCounts(
        num_files=counts.num_files + sign * change.num_files,
        total_size=counts.total_size + sign * change.total_size,
        num_tombstones=counts.num_tombstones + sign * change.num_tombstones,
        num_deletion_vectors=counts.num_deletion_vectors + sign * change.num_deletion_vectors,
        num_deleted_rows=counts.num_deleted_rows + sign * change.num_deleted_rows,
    )


def _hashes(files: pa.Table) -> Hashes:
    return np.concatenate([hash_texts(keys) for keys in logical_file_keys(files).chunks])


def _sizes(adds: pa.Table) -> _Counts:
    if "size" not in adds.column_names:
        return np.zeros(adds.num_rows, np.int64)
    return np.asarray(pc.fill_null(adds["size"], 0).to_numpy(), np.int64)


def _deleted_counts(adds: pa.Table) -> _Counts:
    if "deletionVector" not in adds.column_names:
        return np.full(adds.num_rows, -1, np.int64)
    vectors = adds["deletionVector"]
    marked = pc.fill_null(pc.struct_field(vectors, "cardinality"), 0)
    return np.asarray(pc.if_else(pc.is_valid(vectors), marked, -1).to_numpy(), np.int64)

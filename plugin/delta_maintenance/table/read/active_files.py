"""Live files and tombstones of a version: the rows of each batch that remain after log replay.

Both engines read the log through this module. The local engine reads it as one stream; Spark
divides the logical files into shares, and reads each share as a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.arrays import booleans
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.table.read.log_reader import TailBatch

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ActiveFiles:
    """A batch of file actions in effect in the snapshot, with the requested fields."""

    adds: pa.Table
    """Live files."""
    tombstones: pa.Table
    add_hashes: Hashes | None = None
    """The hashes of the keys of the adds, if they are known (`protocol/columns/key_hash`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCounts:
    """Totals over the files of a snapshot."""

    num_files: int
    total_size: int
    """The size of the live data files in bytes."""
    num_tombstones: int
    num_deletion_vectors: int
    num_deleted_rows: int


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Keys, sizes and deletion vectors of the files of a snapshot.

    It takes 24 bytes for each live file and 8 for each tombstone. Files are identified by hashes of
    64 bits. Among ten million files, two have the same hash with a probability of one in 360,000;
    the totals are then wrong by one file. Therefore the index is only used for reports.
    """

    live: Hashes
    """Ascending."""
    sizes: _Counts
    deleted: _Counts
    """The number of rows that the deletion vector marks; -1 without one."""
    tombstones: Hashes
    """Ascending."""

    @classmethod
    def of(cls, batches: Iterable[ActiveFiles]) -> Self:
        """Builds the index of active files, each of which occurs once."""
        none = np.empty(0, np.uint64)
        live, sizes, deleted, tombstones = [none], [none.astype(np.int64)], [], [none]
        deleted.append(none.astype(np.int64))
        for batch in batches:
            adds = batch.adds
            if adds.num_rows:
                live.append(_hashes(adds))
                sizes.append(_sizes(adds))
                deleted.append(_deleted(adds))
            if batch.tombstones.num_rows:
                tombstones.append(_hashes(batch.tombstones))
        keys = np.concatenate(live)
        order = np.argsort(keys, kind="stable")
        return cls(
            keys[order],
            np.concatenate(sizes)[order],
            np.concatenate(deleted)[order],
            np.sort(np.concatenate(tombstones)),
        )

    def followed_by(self, newer: FileIndex) -> FileIndex:
        """Returns the index after newer commits, whose own active files are `newer`."""
        named = np.concatenate([newer.live, newer.tombstones])
        stays = ~_within(self.live, named)
        live, sizes, deleted = self.live[stays], self.sizes[stays], self.deleted[stays]
        at = np.searchsorted(live, newer.live)
        tombstones = self.tombstones[~_within(self.tombstones, named)]
        return FileIndex(
            np.insert(live, at, newer.live),
            np.insert(sizes, at, newer.sizes),
            np.insert(deleted, at, newer.deleted),
            np.insert(tombstones, np.searchsorted(tombstones, newer.tombstones), newer.tombstones),
        )

    @property
    def counts(self) -> FileCounts:
        """The totals of the files."""
        vectors = self.deleted[self.deleted >= 0]
        return FileCounts(
            num_files=len(self.live),
            total_size=int(self.sizes.sum()),
            num_tombstones=len(self.tombstones),
            num_deletion_vectors=len(vectors),
            num_deleted_rows=int(vectors.sum()),
        )


def active_in_tail(batches: Iterable[TailBatch], replay: FileReplay) -> Iterator[ActiveFiles]:
    """Yields the active file actions of commits and compactions, which come newest first."""
    for batch in batches:
        order = np.argsort(
            # If a commit adds and removes the same file, which is invalid, the add wins, because
            # keeping a file loses no data.
            np.concatenate([batch.add_order * 2, batch.remove_order * 2 + 1]),
            kind="stable",
        )
        yield active_files(batch.adds, batch.removes, replay, order=order)


def active_files(
    adds: pa.Table,
    removes: pa.Table,
    replay: FileReplay,
    *,
    order: np.ndarray | None = None,
    remember: bool = True,
) -> ActiveFiles:
    """Returns the active file actions of a batch that is older than all batches passed to `replay`
    before.

    `order` lists the adds and then the removes from the newest to the oldest; without it, all have
    the same age. Use `remember=False` for a checkpoint, because nothing older follows.
    """
    keys = pa.concat_arrays(
        [*logical_file_keys(adds).chunks, *logical_file_keys(removes).chunks]
        or [pa.nulls(0, pa.string())]
    )
    hashes = hash_texts(keys)
    if order is None:
        order = np.arange(len(keys))
    stands = np.zeros(len(keys), bool)
    stands[replay.surviving(keys, order=order, hashes=hashes, remember=remember)] = True
    add_stands, remove_stands = stands[: adds.num_rows], stands[adds.num_rows :]
    add_hashes = hashes[: adds.num_rows][add_stands]
    return ActiveFiles(_rows(adds, add_stands), _rows(removes, remove_stands), add_hashes)


def _rows(batch: pa.Table, stands: np.ndarray) -> pa.Table:
    return batch if stands.all() else batch.filter(booleans(stands))


def _within(ascending: Hashes, some: Hashes) -> npt.NDArray[np.bool_]:
    """Marks which of the ascending hashes are among `some`, a small set."""
    found = np.zeros(len(ascending), np.bool_)
    if len(ascending):
        at = np.minimum(np.searchsorted(ascending, some), len(ascending) - 1)
        found[at[ascending[at] == some]] = True
    return found


def _hashes(files: pa.Table) -> Hashes:
    return np.concatenate([hash_texts(keys) for keys in logical_file_keys(files).chunks])


def _sizes(adds: pa.Table) -> _Counts:
    if "size" not in adds.column_names:
        return np.zeros(adds.num_rows, np.int64)
    return np.asarray(pc.fill_null(adds["size"], 0).to_numpy(), np.int64)


def _deleted(adds: pa.Table) -> _Counts:
    if "deletionVector" not in adds.column_names:
        return np.full(adds.num_rows, -1, np.int64)
    vectors = adds["deletionVector"]
    marked = pc.fill_null(pc.struct_field(vectors, "cardinality"), 0)
    return np.asarray(pc.if_else(pc.is_valid(vectors), marked, -1).to_numpy(), np.int64)

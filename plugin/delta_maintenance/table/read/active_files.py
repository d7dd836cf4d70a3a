"""Live files and tombstones of a version: the rows of each batch that remain after log replay.

Both engines read the log through this module. The local engine reads it as one stream; Spark
divides the logical files into shares, and reads each share as a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.arrays import booleans
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.table.read.log_reader import TailBatch


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

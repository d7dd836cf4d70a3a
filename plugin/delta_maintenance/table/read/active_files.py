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

_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class ActiveFiles:
    """A batch of file actions in effect in the snapshot, with the requested fields."""

    adds: pa.Table
    """Live files."""
    tombstones: pa.Table
    add_hashes: Hashes | None = None
    """The hashes of the keys of the adds, if they are known (`protocol/columns/key_hash`)."""
    repeated: str | None = None
    """The path of a file for which one commit of the batch has two actions, which is invalid."""


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
        ages = np.concatenate([batch.add_order, batch.remove_order])
        # If a commit adds and removes the same file, which is invalid, the add wins, because
        # keeping a file loses no data.
        is_remove = np.arange(len(ages)) >= len(batch.add_order)
        order = np.argsort(ages * 2 + is_remove, kind="stable")
        yield active_files(batch.adds, batch.removes, replay, order=order, ages=ages)


def active_files(
    adds: pa.Table,
    removes: pa.Table,
    replay: FileReplay,
    *,
    order: np.ndarray | None = None,
    ages: np.ndarray | None = None,
    remember: bool = True,
) -> ActiveFiles:
    """Returns the active file actions of a batch that is older than all batches passed to `replay`
    before.

    `order` lists the adds and then the removes from the newest to the oldest; without it, all have
    the same age. `ages` number the commits of the adds and then of the removes. Use
    `remember=False` for a checkpoint, because nothing older follows.
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
    return ActiveFiles(
        _rows(adds, add_stands),
        _rows(removes, remove_stands),
        hashes[: adds.num_rows][add_stands],
        None if ages is None else _repeated(adds, removes, hashes, ages),
    )


def _repeated(adds: pa.Table, removes: pa.Table, hashes: Hashes, ages: np.ndarray) -> str | None:
    """Returns the path of a file for which one commit has two actions.

    Among a million file actions, the probability of a false result is one in ten million.
    """
    mixed = hashes + ages.astype(np.uint64) * _ODD
    by_value = np.argsort(mixed, kind="stable")
    twice = by_value[1:][mixed[by_value][1:] == mixed[by_value][:-1]]
    if not len(twice):
        return None
    row = int(twice[0])
    side = adds if row < adds.num_rows else removes
    path: str = side["path"][row if side is adds else row - adds.num_rows].as_py()
    return path


def _rows(batch: pa.Table, stands: np.ndarray) -> pa.Table:
    return batch if stands.all() else batch.filter(booleans(stands))

"""Live files and tombstones of a version: the rows of each batch that remain after log replay.

Both engines read the log through this module. The local engine reads it as one stream; Spark
divides the logical files into shares, and reads each share as a stream. The views are what users
see of the files: one row per file, with the documented fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    REMOVE_TYPES,
    ROW_COUNT,
    deletion_vector_ids,
    logical_file_keys,
)
from delta_maintenance.protocol.columns import Hashes, booleans, column_of, hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.protocol.statistics.stats import stated_row_counts
from delta_maintenance.table.read.log_reader import TailBatch

_ODD = np.uint64(0x9E3779B97F4A7C15)
_ROWS_PER_SLICE = 512
"""If fewer than one row in this number goes, joining the slices between is faster than a filter."""


@dataclass(frozen=True, slots=True)
class ActiveFiles:
    """A batch of file actions in effect in the snapshot, with the requested fields."""

    adds: pa.Table
    """Live files."""
    tombstones: pa.Table
    add_hashes: Hashes | None = None
    """The hashes of the keys of the adds, if they are known (`protocol/columns`)."""
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
    watch: Callable[[Hashes], None] | None = None,
) -> ActiveFiles:
    """Returns the active file actions of a batch that is older than all batches passed to `replay`
    before.

    `order` lists the adds and then the removes from the newest to the oldest; without it, all have
    the same age. `ages` number the commits of the adds and then of the removes. Use
    `remember=False` for a checkpoint, because nothing older follows. `watch` is called with the
    hashes of the keys of all adds.
    """
    keys = pa.concat_arrays(
        [*logical_file_keys(adds).chunks, *logical_file_keys(removes).chunks]
        or [pa.nulls(0, pa.string())]
    )
    hashes = hash_texts(keys)
    if watch is not None:
        watch(hashes[: adds.num_rows])
    if order is None:
        order = np.arange(len(keys))
    stands = np.zeros(len(keys), bool)
    stands[replay.surviving(keys, order=order, hashes=hashes, remember=remember)] = True
    add_stands, remove_stands = stands[: adds.num_rows], stands[adds.num_rows :]
    return ActiveFiles(
        _rows(adds, add_stands),
        _rows(removes, remove_stands),
        hashes[: adds.num_rows][add_stands],
        None if ages is None else _repeated_path(adds, removes, hashes, ages),
    )


class FirstActions:
    """Collects the oldest action of each logical file. Takes 9 bytes for each action."""

    def __init__(self) -> None:
        self._hashes: list[Hashes] = []
        self._is_remove: list[np.ndarray] = []

    def watching(self, batches: Iterator[TailBatch]) -> Iterator[TailBatch]:
        """Yields the batches of commits, which come newest first, and collects their actions."""
        for batch in batches:
            order = np.concatenate([batch.add_order, batch.remove_order])
            # Of an add and a remove in one commit, the remove comes first: it names the file as it
            # was before.
            is_remove = np.repeat([False, True], [len(batch.add_order), len(batch.remove_order)])
            oldest_last = np.lexsort((is_remove, order))
            hashes = np.concatenate([key_hashes(batch.adds), key_hashes(batch.removes)])
            self._hashes.append(hashes[oldest_last])
            self._is_remove.append(is_remove[oldest_last])
            yield batch

    def oldest(self) -> tuple[Hashes, np.ndarray]:
        """Returns the hash of the key of each file, ascending, and whether its oldest action is a
        remove.
        """
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])[::-1]
        is_remove = np.concatenate([np.empty(0, np.bool_), *self._is_remove])[::-1]
        distinct_hashes, first_rows = np.unique(hashes, return_index=True)
        return distinct_hashes, is_remove[first_rows]

    def removes(self) -> Hashes:
        """Returns the hashes of the keys of files whose oldest action is a remove, ascending."""
        oldest_hashes, is_remove = self.oldest()
        removed: Hashes = oldest_hashes[is_remove]
        return removed


def key_hashes(actions: pa.Table) -> Hashes:
    """Returns the hash of the logical file of each action."""
    chunks = logical_file_keys(actions).chunks if actions.num_rows else []
    return np.concatenate([np.empty(0, np.uint64), *map(hash_texts, chunks)])


def file_view(batch: pa.Table) -> pa.Table:
    """Returns the rows of `Snapshot.live_files` for a batch of adds."""
    return pa.table(
        {
            "path": batch["path"],
            "dv": deletion_vector_ids(batch),
            "size": column_of(batch, "size", ADD_TYPES),
            "partition_values": column_of(batch, "partitionValues", ADD_TYPES),
            "num_records": record_counts(batch, stated=stated_row_counts),
            "base_row_id": column_of(batch, "baseRowId", ADD_TYPES),
            "default_row_commit_version": column_of(batch, "defaultRowCommitVersion", ADD_TYPES),
        }
    )


def view_keys(view: pa.Table) -> pa.ChunkedArray:
    """Returns the logical file of each row as one string."""
    path, vector = view["path"], view["dv"]
    with_vector = pc.binary_join_element_wise(pc.fill_null(vector, ""), path, "\0")
    return pc.if_else(pc.is_valid(vector), with_vector, path)


def tombstone_view(batch: pa.Table) -> pa.Table:
    """Returns the rows of `Snapshot.tombstones` for a batch of removes."""
    vouched = pc.fill_null(column_of(batch, "extendedFileMetadata", REMOVE_TYPES), False)
    view = file_view(batch)
    for index, name in ((2, "size"), (3, "partition_values")):
        column = view[name]
        view = view.set_column(index, name, _where(vouched, column))
    return view.append_column(
        "deletion_timestamp", column_of(batch, "deletionTimestamp", REMOVE_TYPES)
    )


def _repeated_path(
    adds: pa.Table, removes: pa.Table, hashes: Hashes, ages: np.ndarray
) -> str | None:
    """Returns the path of a file for which one commit has two actions.

    Among a million file actions, the probability of a false result is one in ten million.
    """
    mixed = hashes + ages.astype(np.uint64) * _ODD
    ascending = np.sort(mixed)
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if not len(twice):
        return None
    row = int(np.flatnonzero(mixed == twice[0])[1])
    side = adds if row < adds.num_rows else removes
    path: str = side["path"][row if side is adds else row - adds.num_rows].as_py()
    return path


def _rows(batch: pa.Table, stands: np.ndarray) -> pa.Table:
    if stands.all():
        return batch
    gone = np.flatnonzero(~stands)
    if len(gone) * _ROWS_PER_SLICE > len(stands):
        return batch.filter(booleans(stands))
    starts, ends = [0, *(gone + 1)], [*gone, len(stands)]
    slices = [batch.slice(a, b - a) for a, b in zip(starts, ends, strict=True) if b > a]
    return pa.concat_tables(slices).combine_chunks()


def _where(condition: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pc.all(condition).as_py() in (True, None):
        return column
    rows = pc.if_else(condition, pa.array(np.arange(len(column))), pa.scalar(None, pa.int64()))
    return column.take(rows)


def record_counts(
    batch: pa.Table,
    *,
    stated: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray] = num_records,
) -> pa.ChunkedArray:
    """Returns the physical rows of each add of a scan, from either form of its statistics, or null.

    `stated` reads them from JSON: `num_records` for decisions, `stated_row_counts` for totals. A
    scan with the field `ROW_COUNT` has already done the latter.
    """
    if ROW_COUNT in batch.column_names:
        counts = batch[ROW_COUNT]
    else:
        counts = stated(column_of(batch, "stats", ADD_TYPES))
        counts = pa.chunked_array([counts]) if isinstance(counts, pa.Array) else counts
    if "stats_parsed" not in batch.column_names or not counts.null_count:
        return counts
    parsed = []
    for chunk in batch["stats_parsed"].chunks:
        names = [field.name for field in chunk.type]
        parsed.append(
            pc.struct_field(chunk, "numRecords").cast(pa.int64())
            if "numRecords" in names
            else pa.nulls(len(chunk), pa.int64())
        )
    return pc.coalesce(counts, pa.chunked_array(parsed, pa.int64()))

"""The survey of a table for `cluster`: the columns, the tags of new files, and the bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa

from delta_maintenance.clock import NewId, epoch_millis
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.layout.reading import columns_of, read_bounds
from delta_maintenance.operations.rewriting.choice import limited
from delta_maintenance.operations.rewriting.cluster_choice import BIN_BYTES, ClusterRules, choose
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.engine import default_workers
from delta_maintenance.operations.rewriting.live_columns import (
    LiveColumns,
    Mask,
    Numbers,
    live_columns,
)
from delta_maintenance.operations.rewriting.new_files import contract_for
from delta_maintenance.operations.rewriting.planning import (
    Survey,
    archived_in,
    archived_note,
    asked_partitions,
    chosen_engine,
    doubled_note,
    written_lately_in,
)
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.protocol.schema.types import to_arrow_type
from delta_maintenance.protocol.statistics.bounds import ColumnBounds, order_keys
from delta_maintenance.protocol.statistics.clustering import (
    CUBE,
    CUBE_COLUMNS,
    ClusteringColumn,
    ClusteringTags,
    columns_text,
    current_columns,
    named_columns,
    newest_cube,
)
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.protocol.statistics.measures import overlap_elsewhere
from delta_maintenance.protocol.statistics.ranks import KEY_BITS, can_be_ranked
from delta_maintenance.table.data.clustering.keys import Clustering
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_writable


def files_apart(
    snapshot: Snapshot,
    files: LiveColumns,
    columns: Sequence[ClusteringColumn],
    rows: Numbers,
    unit: Numbers,
) -> Mask:
    """Returns which of some files have no value in common with a file of another unit, in at least
    one of the columns. Sorting them with files of other units would not make readers skip more.

    `rows` are the files, and `unit` is the number of the unit of each, whose files are in one
    partition. The statistics of the log are read again for this.
    """
    columns_by_path = {column.physical: column for column in columns_of(snapshot).values()}
    bounded = [columns_by_path[column.path] for column in columns if column.path in columns_by_path]
    bounds = read_bounds(snapshot, [column for column in bounded if column.is_bounded])
    apart = np.zeros(len(rows), np.bool_)
    if not np.array_equal(bounds.size, files.size):
        # A damaged checkpoint was left out, so that the log has another order.
        return apart
    for column_bounds in bounds.columns.values():
        apart |= ~_overlap(column_bounds.take(rows), files.partition[rows], unit)
    return apart


def _overlap(bounds: ColumnBounds, partition: Numbers, unit: Numbers) -> Mask:
    """A file without bounds overlaps every file of its partition."""
    has_bounds = bounds.known
    overlap = np.isin(partition, partition[~has_bounds])
    rows = np.flatnonzero(has_bounds)
    at = pa.array(rows)
    low, high = order_keys(bounds.least.take(at), bounds.greatest.take(at))
    overlap[rows] |= overlap_elsewhere(low, high, partition[rows], unit[rows])
    return overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The columns by which the rows of a table are ordered."""

    columns: tuple[ClusteringColumn, ...]
    """Those whose values have an order that this release knows."""
    others: tuple[ClusteringColumn, ...]
    """Further clustering columns of the table."""
    of_table: bool
    """Whether these are the clustering columns of the table, and not those of a request."""


def order_of(snapshot: Snapshot, options: ClusterOptions) -> Order:
    """Returns the order of rows that the table or the request demands.

    `InvalidRequestError` or `RefusedError` if there is none.
    """
    protocol, metadata = snapshot.protocol, snapshot.metadata
    current = current_columns(protocol, metadata, snapshot.domain_metadata)
    partitioned = {name.lower() for name in metadata.partition_columns}
    # A partitioned table must not be clustered, so that its columns can only be removed.
    change = f"with set-clustering {'--none' if partitioned else '--by'}"
    if options.by and current:
        raise InvalidRequestError(
            f"the table is clustered by {_names(current)}, so other columns cannot be named",
            remedy=f"leave out the columns, or first {'remove' if partitioned else 'change'} those "
            f"of the table {change}",
        )
    if not options.by and not current:
        raise InvalidRequestError(
            "the table has no clustering columns, and none are named",
            remedy="name columns with --by" + ("" if partitioned else f", or set some {change}"),
        )
    clustering = current or named_columns(options.by, protocol, metadata)
    for column in clustering:
        if column.name.lower() in partitioned:
            raise InvalidRequestError(
                f"{column.name} is a partition column, of which all rows of a file have the same "
                "value",
                remedy=f"remove it {change}" if current else "name other columns",
            )
    kinds = [to_arrow_type(column.type) for column in clustering]
    ordered = tuple(
        column
        for column, kind in zip(clustering, kinds, strict=True)
        if kind is not None and can_be_ranked(kind)
    )
    others = tuple(column for column in clustering if column not in ordered)
    if not ordered or (others and not current):
        raise RefusedError(
            f"rows cannot be ordered by {_names(others)}: the type has no order for clustering",
            remedy="name columns of numbers, texts, dates or timestamps"
            + (f" {change}" if current and not partitioned else ""),
        )
    return Order(columns=ordered[:KEY_BITS], others=others, of_table=bool(current))


def surveyed(
    snapshot: Snapshot, options: ClusterOptions, now: datetime, *, new_id: NewId
) -> Survey:
    """Chooses the bins. Reads only the log.

    Raises the errors of `order_of`, and `UnsupportedFeatureError` or `RefusedError` if this release
    must not rewrite the table.
    """
    require_writable(snapshot, Operation.REWRITE_DATA)
    order = order_of(snapshot, options)
    files = live_columns(snapshot)
    tags = _tags(order)
    contract = _contract(snapshot, options, order, int(files.size.sum()))
    bin_bytes = min(BIN_BYTES, BIN_BYTES if options.max_bytes is None else options.max_bytes)
    partitions = asked_partitions(snapshot, files, options.where)
    lately = written_lately_in(files, options.quiet_for, now)
    archived = archived_in(snapshot, files, now)
    choice = choose(
        files,
        ClusterRules(
            tags=tags,
            bin_bytes=bin_bytes,
            bin_files=options.max_files,
            target_bytes=contract.spec.target_bytes,
            full=options.full,
        ),
        partitions=partitions,
        written_lately=lately,
        apart=partial(files_apart, snapshot, files, order.columns),
        taken=None if options.as_of is None else files.modified > epoch_millis(options.as_of),
        archived=archived,
    )
    wanted = len(choice.rows)
    choice = limited(files, choice, max_bytes=options.max_bytes, max_files=options.max_files)
    if tags.cube_columns:
        tags = replace(tags, cube=_cube(files, tags.cube_columns, choice.rows) or new_id())
    engine, engine_reason = chosen_engine(options, int(files.size[choice.rows].sum()))
    notes = [*archived_note(int(archived.sum())), *doubled_note(int(files.doubled.sum()))]
    if order.others:
        notes.append(
            f"rows are not ordered by {_names(order.others)}, whose type has no order; new files "
            "are not called clustered"
        )
    if beyond := wanted - len(choice.rows):
        notes.append(f"beyond the limits of this run: {count_text(beyond, 'file')}")
    return Survey(
        snapshot=snapshot,
        files=files,
        choice=choice,
        contract=replace(contract, clustering=tags),
        engine=engine,
        why=engine_reason,
        workers=options.workers or (default_workers() if engine == "local" else None),
        notes=tuple(notes),
    )


def _tags(order: Order) -> ClusteringTags:
    """Returns the tags of new files, except for their cube."""
    paths = columns_text([".".join(column.path) for column in order.columns])
    if not order.of_table or order.others:
        return ClusteringTags(group_columns=paths)
    names = columns_text([column.name for column in order.columns])
    return ClusteringTags(group_columns=paths, cube_columns=names)


def _cube(files: LiveColumns, columns: str, chosen: Numbers) -> str | None:
    """Returns the cube that new files join; None if there is none with room.

    `chosen` are the files that the new ones replace.
    """
    cubes = files.tags[CUBE].cast(pa.string()).combine_chunks()
    of = files.tags[CUBE_COLUMNS].cast(pa.string()).to_numpy(zero_copy_only=False) == columns
    encoded = cubes.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(of & (codes >= 0))
    if not len(rows):
        return None
    count = len(encoded.dictionary)
    stays = rows[~np.isin(rows, chosen)]
    sizes = np.bincount(codes[stays], files.size[stays], count).astype(np.int64)
    times = np.full(count, -1, np.int64)
    np.maximum.at(times, codes[rows], files.modified[rows])
    timed = np.flatnonzero(times >= 0)
    names = encoded.dictionary.take(pa.array(timed)).to_pylist()
    return newest_cube(names, sizes[timed], times[timed])


def _contract(
    snapshot: Snapshot, options: ClusterOptions, order: Order, total_bytes: int
) -> Contract:
    contract = contract_for(snapshot, options, total_bytes)
    paths = tuple(column.path for column in order.columns)
    statistics = StatisticsColumns.of(
        snapshot.protocol, snapshot.metadata, snapshot.domain_metadata, joining=paths
    )
    spec = replace(
        contract.spec,
        files=replace(contract.spec.files, statistics=statistics),
        clustering=Clustering(columns=paths, curve=options.curve),
    )
    return replace(contract, spec=spec)


def _names(columns: Sequence[ClusteringColumn]) -> str:
    return ", ".join(column.name for column in columns)

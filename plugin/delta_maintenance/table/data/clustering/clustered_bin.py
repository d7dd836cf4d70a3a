"""Rewrites a bin with its rows in the order of a curve, and proves the new files.

Row IDs and commit versions are columns of the rows, so they stay with their rows. The digest of the
rows does not depend on their order. `sorter` bounds the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from delta_maintenance.clock import NewId, new_id
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.schema.types import StructType
from delta_maintenance.protocol.statistics.ranks import ColumnRanks, Ranks, depth_of, file_bounds
from delta_maintenance.protocol.statistics.ranks import Path as ColumnPath
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import (
    Bin,
    ClusteredOutcome,
    DigestKind,
    RewriteSpec,
    RewrittenBin,
    RowsDigest,
    RowsSum,
    rows_of_sources,
)
from delta_maintenance.table.data.clustering.keys import Clustering, SourceBoxes
from delta_maintenance.table.data.clustering.sorter import RowSorter, SortedRows
from delta_maintenance.table.data.data_file_reader import DataFileReader
from delta_maintenance.table.data.data_file_writer import DataFileWriter, WrittenFile
from delta_maintenance.table.data.read_back import require_sums, stored_sums
from delta_maintenance.table.parallel import IdleWorkers, OverlappedTasks

_KEYS_AHEAD = 4 << 20
"""The size in memory of the clustering columns that an idle worker decodes in advance."""


class ClusteredRewrite(Protocol):
    """Rewrites a bin like `clustered_bin`."""

    def __call__(
        self,
        store: Store,
        file_bin: Bin,
        spec: RewriteSpec,
        clustering: Clustering,
        *,
        new_id: NewId,
        idle_workers: IdleWorkers | None = None,
    ) -> RewrittenBin:
        """See `clustered_bin`."""


def clustered_bin(
    store: Store,
    file_bin: Bin,
    spec: RewriteSpec,
    clustering: Clustering,
    *,
    new_id: NewId = new_id,
    idle_workers: IdleWorkers | None = None,
) -> RewrittenBin:
    """Rewrites one bin in the order of `clustering`.

    Raises `SourceError` for a source that cannot be preserved exactly, `VerificationError` if the
    new files do not contain the rows of the sources, and `StorageError`.
    """
    layout = spec.files.layout
    kind: DigestKind = "sums" if spec.proof == "rows" else "counts"
    digest = RowsDigest(layout.schema, dict(file_bin.partition_values), kind)
    reader = DataFileReader(store, layout, bloom_filters=spec.files.bloom_filters)

    def sample_keys() -> Iterator[pa.RecordBatch]:
        # Nothing is taken from the sources meanwhile, so their helper would soon have to wait.
        sources.release()
        yield from key_columns(store, file_bin, layout, clustering, idle_workers=idle_workers)
        sources.help()

    proof = _Proof(store, file_bin, spec, kind, idle_workers)
    with RowSorter(layout.schema, clustering, sample_keys) as sorter, closing(proof):
        sources = rows_of_sources(
            store,
            reader,
            file_bin,
            ahead_bytes=spec.files.group_bytes,
            idle_workers=idle_workers,
            prepare=sorter.with_keys,
        )
        with closing(sources):
            for number, batches in enumerate(sources):
                sources.help()
                for batch_rows, live in batches:
                    digest.add(batch_rows.batch, batch_rows.gone())
                    if live.num_rows:
                        sorter.add(number, live)
        size = sum(source.size for source in file_bin.sources)
        writers = written(
            store,
            file_bin,
            spec,
            sorter.read_sorted(),
            most_rows=-(-sorter.rows // max(1, round(size / spec.target_bytes))),
            new_id=new_id,
            idle_workers=idle_workers,
            finish=proof.finish,
        )
        sums = proof.total(writers[-1:])
        require_sums(file_bin, sums, digest.total())
        outputs = tuple(writer.result() for writer in writers)
        return RewrittenBin(
            bin=file_bin,
            outputs=outputs,
            runs=(),
            sums=sums,
            clustered=measure_depth(
                layout.schema,
                outputs,
                ranks=sorter.columns,
                sources=sorter.sources,
                points=sorter.points,
                group=new_id(),
            ),
        )


class _Proof:
    """Reads each new file back while the rows of the next one are sorted, if a worker is idle."""

    def __init__(
        self,
        store: Store,
        file_bin: Bin,
        spec: RewriteSpec,
        kind: DigestKind,
        idle_workers: IdleWorkers | None,
    ) -> None:
        self._stored_sums = partial(
            stored_sums, store, file_bin, spec, kind=kind, idle_workers=idle_workers
        )
        self._overlapped = OverlappedTasks(idle_workers)
        self._reading: Future[RowsSum] | None = None
        self._sums = RowSums()

    def finish(self, file: ExitStack, writer: DataFileWriter) -> None:
        """Begins to encode the last rows of a file, to close it and to read it back."""
        self._wait()
        # Its worker is idle then.
        writer.wait()
        read_back = partial(self._read_back, file.pop_all(), writer)
        self._reading = self._overlapped.begin(read_back)

    def total(self, last: Sequence[DataFileWriter]) -> RowsSum:
        """Returns the digest of the rows of all files. `last` are those after the finished ones."""
        self._add(self._stored_sums([writer.result() for writer in last], last))
        self._wait()
        return self._sums

    def close(self) -> None:
        """Waits for a file that is read."""
        self._overlapped.close()

    def _read_back(self, file: ExitStack, writer: DataFileWriter) -> RowsSum:
        file.close()
        return self._stored_sums([writer.result()], [writer])

    def _wait(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self._add(reading.result())

    def _add(self, sums: RowsSum) -> None:
        assert isinstance(sums, RowSums)
        self._sums += sums


def key_columns(
    store: Store,
    file_bin: Bin,
    layout: DataFileLayout,
    clustering: Clustering,
    *,
    idle_workers: IdleWorkers | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads the clustering columns of all sources, with the columns of structs around them."""
    key_names = {path[0] for path in clustering.columns}
    columns = tuple(item for item in layout.columns.fields if item.name in key_names)
    narrow = replace(
        layout,
        columns=StructType(fields=columns),
        row_id_column=None,
        row_version_column=None,
        materializes_partitions=False,
    )
    reader = DataFileReader(store, narrow)
    sources = rows_of_sources(
        store, reader, file_bin, ahead_bytes=_KEYS_AHEAD, idle_workers=idle_workers
    )
    with closing(sources):
        for batches in sources:
            sources.help()
            yield from (live for _, live in batches)


def written(
    store: Store,
    file_bin: Bin,
    spec: RewriteSpec,
    sorted_rows: Iterable[SortedRows],
    *,
    most_rows: int,
    new_id: NewId,
    idle_workers: IdleWorkers | None = None,
    finish: Callable[[ExitStack, DataFileWriter], None] = lambda file, _: file.close(),
) -> list[DataFileWriter]:
    """Writes rows in their order to files of at most this number of rows.

    `finish` closes a file but the last one, or does so while the next one is written.
    """
    assert spec.clustering is not None
    partition = dict(file_bin.partition_values)
    writers: list[DataFileWriter] = []
    with ExitStack() as open_file:
        by_value: bool | None = None
        for piece in sorted_rows:
            rows = piece.rows
            while rows.num_rows:
                writer = writers[-1] if writers else None
                if (
                    writer is None
                    or writer.rows >= most_rows
                    or writer.written >= spec.target_bytes * 3 // 2
                    or piece.by_value is not by_value
                ):
                    if writer is not None:
                        finish(open_file, writer)
                    by_value = piece.by_value
                    codec = spec.files.codec
                    name = spec.naming.name(partition, len(writers), new_id(), codec)
                    path = spec.clustering.columns[0] if by_value else None
                    writer = DataFileWriter(store, name, spec.files, idle_workers, sorted_by=path)
                    writers.append(open_file.enter_context(writer))
                count = min(rows.num_rows, most_rows - writer.rows)
                writer.write(rows.slice(0, count))
                rows = rows.slice(count)
    return writers


def measure_depth(
    schema: pa.Schema,
    outputs: Sequence[WrittenFile],
    *,
    ranks: Mapping[ColumnPath, ColumnRanks],
    sources: SourceBoxes,
    points: Ranks,
    group: str,
) -> ClusteredOutcome:
    """Measures the depth of the sources by their rows, and of the new files by their bounds."""
    types = {path: _type_at(schema, path) for path in ranks}
    texts = pa.array([output.bounds or output.stats for output in outputs], pa.string())
    bounds = file_bounds(texts, types)
    # These are all bounds that are known.
    bounds = replace(bounds, omits_maxima=booleans(np.zeros(len(outputs), np.bool_)))
    missing = [path for path in types if not bounds.is_complete(path).all()]
    return ClusteredOutcome(
        group=group,
        before=depth_of(sources.boxes(), points),
        after=depth_of(bounds.boxes(ranks), points),
        unbounded=".".join(missing[0]) if missing else None,
    )


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType:
    kind: pa.DataType = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind

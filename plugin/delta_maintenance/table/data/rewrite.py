"""Rewrites data files, for any reason, and proves that the new files contain the same rows.

A bin is the unit of work, of proof and of conflict. Its rows are read once and written in the same
order, unless a clustering orders them (`clustering`). The new files are then read back from the
store, and the digest of their rows must equal that of the rows that were read, including row IDs
and commit versions. The new files are not committed here, so readers do not see them. This module
runs in threads of this process and on executors; all arguments and results can be pickled.

For one bin, memory holds a row group before it is encoded (`DataFileSpec.group_bytes`), the
compressed bytes of a row group of the current source (at most 32 MiB, or the files read ahead), and
one batch. An idle worker holds as much: it decodes in advance, and encodes a row group while the
next one is filled.

`size_ratio` estimates the size of new files from a few rows, without writing a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import pyarrow as pa

from delta_maintenance.clock import NewId, new_id
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.memory import MemoryStore
from delta_maintenance.table.data.bins import (
    Bin,
    RefusedSource,
    RewriteSpec,
    RewrittenBin,
    RowsDigest,
    RowsSum,
    Run,
    SourceError,
    rows_of_sources,
)
from delta_maintenance.table.data.clustering.clustered_bin import ClusteredRewrite, clustered_bin
from delta_maintenance.table.data.copying.copied_bin import copied_bin, copied_sources
from delta_maintenance.table.data.data_file_reader import (
    DataFileReader,
    LostBloomFilters,
    SourceFile,
)
from delta_maintenance.table.data.data_file_writer import DataFileWriter, WrittenFile, memory_bytes
from delta_maintenance.table.data.footers import count_rows
from delta_maintenance.table.data.read_back import require_same_rows
from delta_maintenance.table.parallel import IdleWorkers

_SAMPLE = "sample.parquet"
_ROW_BYTES = 4 << 20
"""The size in memory of the rows that are read from a file, in bytes; one batch can exceed it."""


def rewrite_bin(
    store: Store,
    file_bin: Bin,
    spec: RewriteSpec,
    *,
    new_id: NewId = new_id,
    idle_workers: IdleWorkers | None = None,
    clustered: ClusteredRewrite = clustered_bin,
) -> RewrittenBin:
    """Rewrites one bin, in the calling thread and in idle workers.

    `clustered` rewrites bins with a clustering.

    A source that cannot be preserved exactly is left out, and the bin is started again without it.
    If the remaining sources are then not worth rewriting, nothing is written: the result has
    neither outputs nor runs. Raises `VerificationError` if the new files do not contain the rows of
    the sources, and `StorageError`.
    """
    refused: list[RefusedSource] = []
    while True:
        if not file_bin.sources or (refused and not _still_worth(file_bin)):
            nothing = replace(file_bin, sources=(), reasons=())
            return RewrittenBin(
                bin=nothing, outputs=(), runs=(), sums=RowSums(), refused=tuple(refused)
            )
        _require_one_partition(file_bin)
        try:
            if spec.clustering is not None:
                done = clustered(
                    store, file_bin, spec, spec.clustering, new_id=new_id, idle_workers=idle_workers
                )
                return replace(done, refused=tuple(refused))
            copied = copied_bin(store, file_bin, spec, new_id=new_id)
            if copied is not None:
                return replace(copied, refused=tuple(refused))
            attempt = _Attempt(store, file_bin, spec, new_id, idle_workers)
            attempt.run()
        except LostBloomFilters:
            # All sources are asked, so that the bin is started again only once.
            reader = DataFileReader(store, spec.files.layout)
            bloom_filters = frozenset().union(*map(reader.bloom_filters, file_bin.sources))
            spec = replace(
                spec,
                files=replace(spec.files, bloom_filters=spec.files.bloom_filters | bloom_filters),
            )
            continue
        except SourceError as error:
            source = file_bin.sources[error.source]
            refusal = RefusedSource(source=source, problem=error.problem, damaged=error.damaged)
            refused.append(refusal)
            file_bin = _without(file_bin, error.source)
            continue
        return RewrittenBin(
            bin=file_bin,
            outputs=tuple(attempt.outputs),
            runs=tuple(attempt.runs),
            sums=attempt.prove(),
            refused=tuple(refused),
        )


def size_ratio(store: Store, files: Sequence[SourceFile], spec: RewriteSpec) -> float | None:
    """Returns the expected ratio of bytes after to bytes before a rewrite of these files.

    Encodes some rows of each file in memory, deleted rows included. Files whose row groups are
    copied keep their size. Files without rows and files that cannot be read do not count; None if
    no file counts.
    """
    counts = count_rows(store, pa.array([file.path for file in files], pa.string())).counts
    # Row IDs only have to exist: those of new files take next to no space.
    files = [
        replace(
            file,
            deletion_vector=None,
            num_records=rows,
            base_row_id=0,
            default_row_commit_version=0,
        )
        for file, rows in zip(files, counts.to_pylist(), strict=True)
        if rows
    ]
    copied = _copied_sources(store, files, spec)
    decoded = [file for number, file in enumerate(files) if number not in copied]
    unchanged = sum(file.size for file in files) - sum(file.size for file in decoded)
    encoded = _encoded_ratio(store, decoded, spec)
    if encoded is None:
        return 1.0 if unchanged else None
    size = sum(file.size for file in decoded)
    return (unchanged + encoded * size) / (unchanged + size)


class _Attempt:
    def __init__(
        self,
        store: Store,
        file_bin: Bin,
        spec: RewriteSpec,
        new_id: NewId,
        idle_workers: IdleWorkers | None,
    ) -> None:
        self._store = store
        self._work = file_bin
        self._spec = spec
        self._new_id = new_id
        self._idle_workers = idle_workers
        self._partition: Mapping[str, str | None] = dict(file_bin.partition_values)
        self._digest = RowsDigest(
            spec.files.layout.schema, self._partition, file_bin.digest_kind(spec)
        )
        self._writers: list[DataFileWriter] = []
        self._names: list[str] = []
        self.outputs: list[WrittenFile] = []
        self.runs: list[Run] = []

    def run(self) -> None:
        """Writes the new files. If the bin ends or is started again, they are deleted."""
        try:
            self._write()
        except (LostBloomFilters, SourceError, StorageError):
            with suppress(StorageError):
                self._store.delete_many(self._names)
            raise

    def _write(self) -> None:
        files = self._spec.files
        reader = DataFileReader(self._store, files.layout, bloom_filters=files.bloom_filters)
        sources = rows_of_sources(
            self._store,
            reader,
            self._work,
            ahead_bytes=files.group_bytes,
            idle_workers=self._idle_workers,
        )
        with closing(sources), ExitStack() as open_file:
            for number, batches in enumerate(sources):
                if self._writers and self._writers[-1].written >= self._spec.target_bytes * 3 // 2:
                    open_file.close()
                offset: int | None = None
                rows = 0
                for batch_rows, live in batches:
                    self._digest.add(batch_rows.batch, batch_rows.gone())
                    if not live.num_rows:
                        continue
                    writer = self._writer(open_file)
                    offset = writer.rows if offset is None else offset
                    writer.write(live)
                    rows += live.num_rows
                    reader.dictionaries = writer.dictionaries
                    if writer.has_chosen_encodings:
                        # Not earlier: the columns that are read as dictionaries are known now.
                        sources.help()
                output = max(0, len(self._writers) - 1)
                run = Run(source=number, output=output, offset=offset or 0, rows=rows)
                self.runs.append(run)
        self.outputs = [writer.result() for writer in self._writers]

    def prove(self) -> RowsSum:
        """Returns the digest of the rows; `VerificationError` if the written rows differ."""
        return require_same_rows(
            self._store,
            self._work,
            self._spec,
            self.outputs,
            self._writers,
            self._digest,
            idle_workers=self._idle_workers,
        )

    def _writer(self, open_file: ExitStack) -> DataFileWriter:
        """Returns the writer of the current file; begins a new file if there is none."""
        if not self._writers or self._writers[-1].is_closed:
            codec = self._spec.files.codec
            name = self._spec.naming.name(
                self._partition, len(self._writers), self._new_id(), codec
            )
            self._names.append(name)
            writer = DataFileWriter(self._store, name, self._spec.files, self._idle_workers)
            self._writers.append(open_file.enter_context(writer))
        return self._writers[-1]


def _still_worth(file_bin: Bin) -> bool:
    """Whether the remaining sources are worth rewriting: two, or one with a reason of its own.

    Files that were only to be sorted again with new ones have no reason of their own.
    """
    if all(reasons == ("group-grew",) for reasons in file_bin.reasons):
        return False
    return len(file_bin.sources) > 1 or any(reason != "small" for reason in file_bin.reasons[0])


def _without(file_bin: Bin, number: int) -> Bin:
    numbers = [at for at in range(len(file_bin.sources)) if at != number]
    return replace(
        file_bin,
        sources=tuple(file_bin.sources[at] for at in numbers),
        reasons=tuple(file_bin.reasons[at] for at in numbers),
    )


def _require_one_partition(file_bin: Bin) -> None:
    for source in file_bin.sources:
        if source.partition_values != file_bin.partition_values:
            raise RefusedError(
                "files of different partitions must not be merged",
                file=source.path,
                remedy="plan again",
            )


def _copied_sources(store: Store, files: Sequence[SourceFile], spec: RewriteSpec) -> frozenset[int]:
    file_bin = Bin(number=0, sources=tuple(files), reasons=(("small",),) * len(files))
    try:
        return copied_sources(store, file_bin, spec)
    except (DeltaMaintenanceError, SourceError):
        return frozenset()


def _encoded_ratio(store: Store, files: Sequence[SourceFile], spec: RewriteSpec) -> float | None:
    before = 0.0
    scratch = MemoryStore()
    reader = DataFileReader(store, spec.files.layout)
    with DataFileWriter(scratch, _SAMPLE, spec.files) as writer:
        for file in files:
            before += _offer_first_rows(reader, file, writer)
    return writer.result().size / before if before else None


def _offer_first_rows(reader: DataFileReader, file: SourceFile, writer: DataFileWriter) -> float:
    """Writes the first rows of a file. Returns their share of the bytes of the file."""
    assert file.num_records
    rows = size = 0
    try:
        for file_rows in reader.read(file):
            writer.write(file_rows.batch)
            rows += file_rows.batch.num_rows
            size += memory_bytes(file_rows.batch)
            if size >= _ROW_BYTES:
                break
    except DeltaMaintenanceError:
        # The rewrite reports it.
        pass
    return file.size * min(1.0, rows / file.num_records)

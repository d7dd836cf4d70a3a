"""Estimates the size of rewritten data files from a few of their rows, without writing a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.data.bins import Bin, RewriteSpec
from delta_maintenance.table.data.copying.copied_bin import copied_sources
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.data.data_file_writer import DataFileWriter, memory_bytes
from delta_maintenance.table.data.footers import count_rows
from delta_maintenance.table.data.source_rows import SourceError

_SAMPLE = "sample.parquet"
_ROW_BYTES = 4 << 20
"""The size in memory of the rows that are read from a file, in bytes; one batch can exceed it."""


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
    copied = _copied(store, files, spec)
    decoded = [file for number, file in enumerate(files) if number not in copied]
    unchanged = sum(file.size for file in files) - sum(file.size for file in decoded)
    encoded = _encoded_ratio(store, decoded, spec)
    if encoded is None:
        return 1.0 if unchanged else None
    size = sum(file.size for file in decoded)
    return (unchanged + encoded * size) / (unchanged + size)


def _copied(store: Store, files: Sequence[SourceFile], spec: RewriteSpec) -> frozenset[int]:
    work = Bin(number=0, sources=tuple(files), reasons=(("small",),) * len(files))
    try:
        return copied_sources(store, work, spec)
    except (DeltaMaintenanceError, SourceError):
        return frozenset()


def _encoded_ratio(store: Store, files: Sequence[SourceFile], spec: RewriteSpec) -> float | None:
    before = 0.0
    kept = MemoryStore()
    reader = DataFileReader(store, spec.files.layout)
    with DataFileWriter(kept, _SAMPLE, spec.files) as writer:
        for file in files:
            before += _offered(reader, file, writer)
    return writer.result().size / before if before else None


def _offered(reader: DataFileReader, file: SourceFile, writer: DataFileWriter) -> float:
    """Writes the first rows of a file. Returns their share of the bytes of the file."""
    assert file.num_records
    rows = size = 0
    try:
        for found in reader.read(file):
            writer.write(found.batch)
            rows += found.batch.num_rows
            size += memory_bytes(found.batch)
            if size >= _ROW_BYTES:
                break
    except DeltaMaintenanceError:
        # The rewrite reports it.
        pass
    return file.size * min(1.0, rows / file.num_records)

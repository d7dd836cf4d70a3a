"""Writing a Parquet file of actions: a classic checkpoint, or a sidecar."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout

_ROW_GROUP_ROWS = 1 << 16
_WRITES_IN_FLIGHT = 2
# Columns whose values repeat. A dictionary of the others would only cost time.
_REPEATING = ("key_value.key", "key_value.value", "modificationTime", "clusteringProvider")
_CODECS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
    "zstd": "zstd",
}


@dataclass(frozen=True, slots=True)
class ParquetStyle:
    """How the Parquet files of a checkpoint are encoded ("Table Properties")."""

    codec: str = "zstd"
    page_version: str = "1.0"

    @classmethod
    def of_table(cls, codec: str | None, format_version: str | None) -> Self:
        """From `delta.parquet.compression.codec` and `delta.parquet.format.version`.

        `RefusedError` for values that the protocol does not list.
        """
        known = _CODECS.get((codec or "zstd").strip().lower())
        if known is None:
            raise RefusedError(
                f"delta.parquet.compression.codec is {codec!r}, which is no Parquet codec",
                remedy=f"set it to one of {', '.join(sorted(_CODECS))}",
            )
        version = (format_version or "1.0.0").strip()
        if version != "1.0.0" and not version.startswith("2."):
            raise RefusedError(
                f"delta.parquet.format.version is {format_version!r}",
                remedy="set it to 1.0.0 or 2.x.y",
            )
        return cls(known, "1.0" if version == "1.0.0" else "2.0")


@dataclass(slots=True)
class Tally:
    """What a set of file actions adds up to, whatever their order; two equal sets are equal."""

    adds: int = 0
    tombstones: int = 0
    size: int = 0
    """Bytes of the live data files."""
    keys: int = 0
    """Sum of the hashes of all logical file keys, modulo 2^64, tombstones told apart from adds."""

    @classmethod
    def of(cls, adds: pa.Table, tombstones: pa.Table) -> Self:
        """The tally of one batch."""
        tally = cls()
        tally.include(adds, tombstones)
        return tally

    def include(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Counts a batch. `add_hashes` are those of the keys of its adds, where at hand."""
        self.adds += adds.num_rows
        self.tombstones += tombstones.num_rows
        self.size += pc.sum(adds["size"]).as_py() or 0 if adds.num_rows else 0
        for batch, weight, hashes in ((adds, 1, add_hashes), (tombstones, 3, None)):
            total = _sum(hashes) if hashes is not None else _sum_of_keys(batch)
            self.keys = (self.keys + weight * total) % 2**64

    def add(self, other: Tally) -> None:
        """Counts what another tally counted."""
        self.adds += other.adds
        self.tombstones += other.tombstones
        self.size += other.size
        self.keys = (self.keys + other.keys) % 2**64


def _sum_of_keys(batch: pa.Table) -> int:
    if not batch.num_rows:
        return 0
    return sum(_sum(hash_texts(chunk)) for chunk in logical_file_keys(batch).chunks)


def _sum(hashes: Hashes) -> int:
    return int(np.add.reduce(hashes, dtype=np.uint64))


class ActionFile:
    """A Parquet file of actions under way. Row groups hold one kind of action each.

    A reader that wants only the protocol, or only the live files, can so leave out the rest.
    Encoding runs in a thread of its own while the caller reads on.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, layout: FileActionLayout, style: ParquetStyle
    ) -> None:
        self._layout = layout
        self._schema = schema
        self.tally = Tally()
        self._waiting: dict[str, list[pa.ChunkedArray]] = {"add": [], "remove": []}
        self._thread = ThreadPoolExecutor(1)
        self._in_flight: list[Future[None]] = []
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=style.codec,
            compression_level=1 if style.codec == "zstd" else None,
            data_page_version=style.page_version,
            use_dictionary=_dictionary_columns(schema),
            coerce_timestamps="us",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def close(self) -> None:
        """Writes what is left and completes the file."""
        try:
            for action in self._waiting:
                self._flush(action)
            for future in self._in_flight:
                future.result()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the file as it is."""
        self._thread.shutdown()
        self._writer.close()

    def write_files(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Appends file actions, in the columns of a snapshot's scan."""
        self.tally.include(adds, tombstones, add_hashes=add_hashes)
        if adds.num_rows:
            self._put("add", self._layout.adds(adds))
        if tombstones.num_rows:
            self._put("remove", self._layout.removes(tombstones))

    def write_singles(self, table: pa.Table) -> None:
        """Appends the other actions, as a row group of their own."""
        self._submit(table)

    def _put(self, action: str, rows: pa.ChunkedArray) -> None:
        self._waiting[action].append(rows)
        if sum(len(part) for part in self._waiting[action]) >= _ROW_GROUP_ROWS:
            self._flush(action)

    def _flush(self, action: str) -> None:
        parts, self._waiting[action] = self._waiting[action], []
        if parts:
            chunks = [chunk for part in parts for chunk in part.chunks]
            self._submit(pa.table({action: pa.chunked_array(chunks)}))

    def _submit(self, table: pa.Table) -> None:
        while len(self._in_flight) >= _WRITES_IN_FLIGHT:
            self._in_flight.pop(0).result()
        self._in_flight.append(self._thread.submit(self._write, table))

    def _write(self, table: pa.Table) -> None:
        columns = [
            table[name]
            if name in table.column_names
            else pa.chunked_array([pa.nulls(table.num_rows, kind)])
            for name, kind in zip(self._schema.names, self._schema.types, strict=True)
        ]
        self._writer.write_table(
            pa.table(columns, schema=self._schema), row_group_size=_ROW_GROUP_ROWS
        )


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    columns: list[str] = []
    for column in schema.names:
        kind = schema.field(column).type
        columns.extend(path for path in _leaves(column, kind) if path.endswith(_REPEATING))
    return columns


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path

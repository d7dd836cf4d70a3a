"""The content of a checkpoint: its kind, its columns, the expiry of tombstones, and its files.

An `ActionFile` is a Parquet file of actions: a classic checkpoint, or a sidecar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.columns import Hashes
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.delta_log.sidecars import ByteRange, SidecarSummary, SummaryBuilder
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    DeltaType,
    StructType,
    column_mapping_mode,
    parse_schema,
    physical_name,
)
from delta_maintenance.protocol.statistics.stats import statistics_arrow_type
from delta_maintenance.table.read.snapshot import Snapshot

WrittenKind = Literal["classic", "v2-classic", "v2-json", "v2-parquet"]

_ROW_GROUP_ROWS = 1 << 16
_WRITES_IN_FLIGHT = 2
# Columns with repeated values. Dictionaries of the other columns would only cost time.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """Everything besides the snapshot that determines the content of a checkpoint."""

    kind: WrittenKind
    actions_per_sidecar: int
    """0 stores file actions in the top-level file."""
    layout: FileActionLayout
    style: ParquetStyle
    deleted_after_ms: int | None
    """Tombstones deleted at or before this instant are omitted; None keeps all."""
    txns_updated_after_ms: int | None
    """Transactions last updated at or before this instant are omitted; None keeps all."""

    @property
    def is_v2(self) -> bool:
        """Whether its content is that of a V2 checkpoint."""
        return self.kind != "classic"


def layout_of(snapshot: Snapshot, *, zone: tzinfo | None) -> FileActionLayout:
    """The columns that the table's properties and schema require.

    Partition values are typed only if their text is unambiguous; timestamps require a zone for
    that.
    """
    properties, metadata = snapshot.properties, snapshot.metadata
    as_struct = properties.write_stats_as_struct
    # Without structs there is nothing to convert, and the schema does not matter.
    if metadata.schema_string is None or not (as_struct or snapshot.log.checkpoint is not None):
        return FileActionLayout(stats_as_json=properties.write_stats_as_json, statistics_type=None)
    schema = parse_schema(metadata.schema_string)
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    statistics_type = statistics_arrow_type(
        schema,
        partition_columns=metadata.partition_columns,
        mode=mode,
        tight_bounds=supports(snapshot.protocol, "deletionVectors"),
    )
    partitions = _partition_types(metadata, schema, mode) if as_struct else {}
    zoneless = zone is None and any(str(kind) == "timestamp" for kind in partitions.values())
    return FileActionLayout(
        stats_as_json=properties.write_stats_as_json,
        statistics_type=statistics_type if as_struct else None,
        source_type=statistics_type,
        partition_types=None if zoneless or not partitions else partitions,
        zone=zone,
        columns=frozenset(physical_name(column, mode) for column in schema.fields),
    )


def adds_for_commits(snapshot: Snapshot, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields adds of a version with the fields of a commit, without empty batches.

    Statistics that only the structs of a checkpoint contain are rendered as JSON. Raises
    `RefusedError` if that would lose any.
    """
    layout = replace(
        layout_of(snapshot, zone=None),
        stats_as_json=True,
        statistics_type=None,
        partition_types=None,
    )
    for adds in batches:
        if adds.num_rows:
            layout = layout.widen(adds.schema, pa.schema([]))
            chunks = layout.adds(adds).chunks
            yield pa.Table.from_batches([pa.RecordBatch.from_struct_array(c) for c in chunks])


@dataclass(frozen=True, slots=True)
class ParquetStyle:
    """The encoding of the Parquet files of a checkpoint ("Table Properties")."""

    codec: str = "zstd"
    page_version: str = "1.0"

    @classmethod
    def of_table(cls, codec: str | None, format_version: str | None) -> Self:
        """From `delta.parquet.compression.codec` and `delta.parquet.format.version`.

        Raises `RefusedError` for values that the protocol does not list.
        """
        arrow_codec = _CODECS.get((codec or "zstd").strip().lower())
        if arrow_codec is None:
            raise RefusedError(
                f"delta.parquet.compression.codec is {codec!r}, which is not a Parquet codec",
                remedy=f"set it to one of {', '.join(sorted(_CODECS))}",
            )
        version = (format_version or "1.0.0").strip()
        if version != "1.0.0" and not version.startswith("2."):
            raise RefusedError(
                f"delta.parquet.format.version is {format_version!r}",
                remedy="set it to 1.0.0 or 2.x.y",
            )
        return cls(arrow_codec, "1.0" if version == "1.0.0" else "2.0")


class ActionFile:
    """A Parquet file of actions that is being written. Each row group has one kind of action.

    Readers that only need the protocol, or only the live files, can thus skip the rest. Encoding
    runs in a thread of its own, while the caller reads on. A sidecar ends with a filter of its
    locations (`membership_filter`), between the last row group and the footer, and with its summary
    in the metadata of the footer.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        layout: FileActionLayout,
        style: ParquetStyle,
        *,
        is_sidecar: bool = False,
    ) -> None:
        self._name = path.name
        self._layout = layout
        self._schema = schema
        self._tally = Tally()
        self._contents = SummaryBuilder() if is_sidecar else None
        self.summary: SidecarSummary | None = None
        """The summary of a sidecar, once it is closed."""
        self._waiting: dict[str, list[pa.ChunkedArray]] = {"add": [], "remove": []}
        self._thread = ThreadPoolExecutor(1)
        self._in_flight: list[Future[None]] = []
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=style.codec,
            compression_level=1 if style.codec == "zstd" else None,
            data_page_version=style.page_version,
            use_dictionary=[path for path, _ in _leaves(schema) if path.endswith(_REPEATING)],
            # Arrow leaves NaN out of bounds, and readers may skip rows by those of `stats_parsed`.
            write_statistics=[
                path for path, kind in _leaves(schema) if not pa.types.is_floating(kind)
            ],
            coerce_timestamps="us",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def close(self) -> None:
        """Writes the remaining rows and completes the file."""
        try:
            for action in self._waiting:
                self._flush(action)
            for future in self._in_flight:
                future.result()
            if self._contents is not None:
                self.summary = self._append_summary(self._contents)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file without completing it."""
        self._thread.shutdown()
        self._writer.close()
        self._sink.close()

    @property
    def tally(self) -> Tally:
        """The totals of the file actions written so far."""
        return self._tally if self._contents is None else self._contents.tally

    def _append_summary(self, contents: SummaryBuilder) -> SidecarSummary:
        locations, byte_range = contents.filter(), None
        if locations.is_even:
            data = locations.to_bytes()
            byte_range = ByteRange(offset=self._sink.tell(), length=len(data))
            self._sink.write(data)
        summary = contents.summary(byte_range)
        self._writer.add_key_value_metadata(summary.to_tags(self._name))
        return summary

    def write_files(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Appends file actions, in the columns of a snapshot's scan."""
        contents = self._tally if self._contents is None else self._contents
        contents.include(adds, tombstones, add_hashes=add_hashes)
        if adds.num_rows:
            self._put("add", self._layout.adds(adds))
        if tombstones.num_rows:
            self._put("remove", self._layout.removes(tombstones))

    def write_singles(self, table: pa.Table) -> None:
        """Appends the other actions, in a row group of their own."""
        self._submit(table)

    def _put(self, action: str, rows: pa.ChunkedArray) -> None:
        self._waiting[action].append(rows)
        if sum(len(waiting_rows) for waiting_rows in self._waiting[action]) >= _ROW_GROUP_ROWS:
            self._flush(action)

    def _flush(self, action: str) -> None:
        waiting, self._waiting[action] = self._waiting[action], []
        if waiting:
            chunks = [chunk for rows in waiting for chunk in rows.chunks]
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


def _partition_types(
    metadata: Metadata, schema: StructType, mode: ColumnMappingMode
) -> dict[str, DeltaType]:
    partitions = {}
    for name in metadata.partition_columns:
        column = schema.find(name)
        if column is None:
            raise RefusedError(
                f"the partition column {name!r} is not in the schema",
                remedy="repair the table's metadata first",
            )
        partitions[physical_name(column, mode)] = column.type
    return partitions


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    for field in schema:
        yield from _leaves_of(field.name, field.type)


def _leaves_of(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves_of(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaves_of(f"{path}.key_value.key", kind.key_type)
        yield from _leaves_of(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves_of(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind

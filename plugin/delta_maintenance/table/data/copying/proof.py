"""Verifies a new data file with copied row groups, and computes its statistics.

Arrow parses the footer of the stored file; at the positions that it finds, each column chunk must
have the CRC-32 of the bytes that were copied, and all other metadata must equal that of the source.
The rows of encoded row groups are decoded and hashed, and so are encoded columns of row tracking.

Statistics come from footers that are exact. Footers are not used for INT96, whose order is
undefined, and for lists and maps, because footers do not count their nulls. For strings and for
decimals stored as bytes, only the footers of some writers are used. All other columns must be
decoded. Implements "Per-file Statistics" for rows that are not decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.checksums import crc32
from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.collect import ColumnStatistics, StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.table.data.bins import RowsDigest
from delta_maintenance.table.data.copying.sources import NotCopiedError, reading_sources
from delta_maintenance.table.data.data_file_writer import DataFileSpec, leaf_names
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter
from delta_maintenance.table.data.parquet.footers import COLUMNS, ROW_GROUPS
from delta_maintenance.table.data.parquet.row_groups import CopiedChunk
from delta_maintenance.table.data.parquet.thrift import Struct
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.read_back import require_schema

_LONG = 64
"""The length in bytes from which some writers truncate strings in footers."""
_COMPLETE = ("parquet-mr version ", "parquet-cpp-arrow version ")
"""Writers whose footers contain complete strings or none."""
_EXACT = Context(prec=38)
_FLOATS = ("FLOAT", "DOUBLE")
_INTEGERS = ("INT32", "INT64")
_BYTES = ("FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY")


@dataclass(slots=True)
class TrackingChecksums:
    """The CRC-32 of row IDs and of row commit versions, in the order of the rows."""

    rows: int = 0
    crcs: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, batch: pa.RecordBatch | pa.Table) -> bool:
        """Adds rows with these two columns. Returns False, and adds nothing, if a value is null."""
        if any(column.null_count for column in batch.columns):
            return False
        self.rows += batch.num_rows
        for at, column in enumerate(batch.columns):
            for chunk in getattr(column, "chunks", [column]):
                values = chunk.to_numpy(zero_copy_only=True)
                self.crcs[at] = crc32(values.data.cast("B"), self.crcs[at])
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedGroup:
    """A row group in the new file."""

    tree: Struct
    source: pq.RowGroupMetaData
    created_by: str
    chunks: tuple[CopiedChunk, ...]
    origin: Literal["first", "next", "encoded"]
    """Whether this is the first or another row group of a source, or was encoded in memory."""
    tracking: TrackingChecksums | None
    """The checksums of the columns of row tracking, if these were encoded for this row group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the row groups of a new file must contain."""

    rows: int
    groups: Sequence[CopiedGroup]
    encoded: StatisticsCollector
    """The statistics of the encoded row groups."""
    digest: RowsDigest
    """Receives the encoded rows as they are read back."""


def read_back_copy(
    file: BinaryIO, name: str, expected: Expected, spec: DataFileSpec, *, piece: int | None
) -> str:
    """Returns the statistics of the new file, and adds its encoded rows to their digest.

    The bytes are compared in pieces of this size; without `piece`, neither bytes nor rows are read,
    and rows are counted. Raises `VerificationError` if the file differs from what was written,
    and `NotCopiedError` if the bytes of a source cannot be decoded.
    """
    groups, schema = expected.groups, spec.layout.schema
    with ParquetInput(file) as parquet:
        if (parquet.rows, parquet.row_groups) != (expected.rows, len(groups)):
            raise VerificationError(
                f"the new data file has {parquet.rows} rows in {parquet.row_groups} row groups "
                f"instead of {expected.rows} in {len(groups)}",
                file=name,
            )
        require_schema(parquet.schema_in_utc, schema, name)
        trees = StoredFooter(file).tree.structs(ROW_GROUPS)
        for number, (group, tree) in enumerate(zip(groups, trees, strict=True)):
            row_group = parquet.metadata.row_group(number)
            problem = _difference(file, group, tree, row_group, piece)
            if problem is not None:
                raise VerificationError(f"the new data file has {problem}", file=name)
        _require_row_tracking(parquet, name, groups, spec.layout)
        _add_encoded(parquet, expected, schema)
        # These are the bytes of the sources: if they cannot be decoded, a source is damaged.
        with reading_sources():
            if piece is not None:
                for number, group in enumerate(groups):
                    if group.origin == "first":
                        parquet.decode_first(schema.names, number)
            return _statistics(parquet, expected, spec)


def bounds_of(
    leaf: StatisticsLeaf, kind: pa.DataType, chunk: pq.ColumnChunkMetaData, created_by: str
) -> ColumnStatistics | None:
    """Returns the bounds of a column chunk in the footer; None if the column must be decoded.

    `kind` is the type of the column in the table and in the file. Lists and maps have no chunk of
    their own. A chunk with NaN must have no bounds (`without_nan_bounds`).
    """
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    nulls = int(statistics.null_count)
    if not 0 <= nulls <= chunk.num_values:
        return None
    if not leaf.bounded or nulls == chunk.num_values:
        return ColumnStatistics(nulls=nulls, kind=kind)
    if not statistics.has_min_max:
        return None
    lowest, greatest = statistics.min_raw, statistics.max_raw
    if pa.types.is_string(kind):
        return _of_texts(nulls, kind, lowest, greatest, created_by)
    if pa.types.is_decimal(kind) and chunk.physical_type in _BYTES:
        return _of_decimals(nulls, kind, lowest, greatest, created_by)
    if pa.types.is_floating(kind) and chunk.physical_type in _FLOATS:
        return _of_floats(nulls, kind, lowest, greatest)
    if pa.types.is_boolean(kind) and isinstance(lowest, bool) and isinstance(greatest, bool):
        return ColumnStatistics(nulls=nulls, kind=kind, least=lowest, greatest=greatest)
    integers = isinstance(lowest, int) and isinstance(greatest, int)
    if chunk.physical_type not in _INTEGERS or not integers:
        return None
    if pa.types.is_decimal(kind):
        lowest, greatest = (_decimal(value, kind.scale) for value in (lowest, greatest))
    elif not is_integral(kind):
        return None
    return ColumnStatistics(nulls=nulls, kind=kind, least=lowest, greatest=greatest)


def _add_encoded(parquet: ParquetInput, expected: Expected, schema: pa.Schema) -> None:
    """Adds the rows that were encoded in memory to their digest."""
    numbers = [at for at, group in enumerate(expected.groups) if group.origin == "encoded"]
    digest = expected.digest
    if digest.kind == "counts":
        digest.rows += sum(expected.groups[at].source.num_rows for at in numbers)
    elif numbers:
        for batch in parquet.batches(schema.names, numbers):
            digest.add(batch)


def _require_row_tracking(
    parquet: ParquetInput, name: str, groups: Sequence[CopiedGroup], layout: DataFileLayout
) -> None:
    """Checks that each row has a row ID and a row commit version, and that encoded ones are right.

    A footer of a source may wrongly say that there are no nulls.
    """
    if not layout.tracks_rows:
        return
    columns = layout.row_tracking.schema.names
    for number, group in enumerate(groups):
        checksums = TrackingChecksums()
        with reading_sources() if group.tracking is None else nullcontext():
            complete = all(checksums.add(batch) for batch in parquet.batches(columns, (number,)))
        if group.tracking is None and not complete:
            raise NotCopiedError("rows have no row ID, although the footer says that all have one")
        if group.tracking is not None and not (complete and checksums == group.tracking):
            raise VerificationError("the new data file has other row IDs", file=name)


def _difference(
    file: BinaryIO,
    group: CopiedGroup,
    tree: Struct,
    stored_group: pq.RowGroupMetaData,
    piece: int | None,
) -> str | None:
    """Returns the first difference of a row group from its source, as a clause, or None."""
    columns = tree.structs(COLUMNS)
    if stored_group.num_rows != group.source.num_rows or len(columns) != len(group.chunks):
        return "a row group with other rows or columns"
    for at, (copied, column) in enumerate(zip(group.chunks, columns, strict=True)):
        stored = stored_group.column(at)
        if not copied.has_metadata(file, column, stored):
            return f"other metadata for the column {stored.path_in_schema}"
        if piece is not None and not copied.has_bytes(file, column, piece):
            return f"other bytes for the column {stored.path_in_schema}"
    return None


def _statistics(parquet: ParquetInput, expected: Expected, spec: DataFileSpec) -> str:
    """Returns the JSON text of `stats`. The bounds of copied row groups come from their footers or,
    where necessary, from decoded rows.
    """
    schema = spec.layout.schema
    columns = {names: at for at, names in enumerate(leaf_names(schema, schema.names))}
    copied = {
        at: bounds_of_group
        for at, bounds_of_group in enumerate(expected.groups)
        if bounds_of_group.origin != "encoded"
    }
    footers = {at: parquet.metadata.row_group(at) for at in copied}
    collector = expected.encoded
    collector.rows = expected.rows
    decoded: list[StatisticsLeaf] = []
    for leaf in spec.statistics.leaves:
        kind, at = _type_of(spec.layout, leaf.path), columns.get(tuple(leaf.path))
        bounds = [
            None if at is None else bounds_of(leaf, kind, footers[of].column(at), group.created_by)
            for of, group in copied.items()
        ]
        known_bounds = [
            bounds_of_group for bounds_of_group in bounds if bounds_of_group is not None
        ]
        if len(known_bounds) < len(bounds):
            decoded.append(leaf)
            continue
        for bounds_of_group in known_bounds:
            collector.offer_bounds(leaf.path, bounds_of_group)
    if decoded:
        decoded_names = {leaf.path[0] for leaf in decoded}
        part_schema = pa.schema([field for field in schema if field.name in decoded_names])
        reading = StatisticsCollector(
            StatisticsColumns(leaves=tuple(decoded), tight_bounds=False), part_schema
        )
        for batch in parquet.batches(part_schema.names, list(copied)):
            # Arrow returns INT96 without a time zone.
            reading.offer(
                batch.cast(part_schema) if parquet.int96.intersection(part_schema.names) else batch
            )
        collector.add(reading)
    return collector.render()


def _type_of(layout: DataFileLayout, path: Sequence[str]) -> pa.DataType:
    kind = layout.schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind


def _of_texts(
    nulls: int, kind: pa.DataType, lowest: Any, greatest: Any, created_by: str
) -> ColumnStatistics | None:
    values = [value.encode() if isinstance(value, str) else value for value in (lowest, greatest)]
    if not all(isinstance(value, bytes) and len(value) < _LONG for value in values):
        return None
    if not created_by.startswith(_COMPLETE):
        return None
    return ColumnStatistics(nulls=nulls, kind=kind, least=values[0], greatest=values[1])


def _of_floats(
    nulls: int, kind: pa.DataType, lowest: Any, greatest: Any
) -> ColumnStatistics | None:
    """Zeros need no care: in the log, each bound of zero has the safe sign."""
    if not (isinstance(lowest, float) and isinstance(greatest, float)):
        return None
    if math.isnan(lowest) or math.isnan(greatest):
        return None
    return ColumnStatistics(nulls=nulls, kind=kind, least=lowest, greatest=greatest)


def _of_decimals(
    nulls: int, kind: pa.DataType, lowest: Any, greatest: Any, created_by: str
) -> ColumnStatistics | None:
    """Decodes unscaled values in two's complement. Arrow hides the bounds of releases that compared
    them as unsigned bytes.
    """
    if not (isinstance(lowest, bytes) and isinstance(greatest, bytes)):
        return None
    if not created_by.startswith(_COMPLETE):
        return None
    values = [
        _decimal(int.from_bytes(raw, "big", signed=True), kind.scale) for raw in (lowest, greatest)
    ]
    if values[0] > values[1]:
        return None
    return ColumnStatistics(nulls=nulls, kind=kind, least=values[0], greatest=values[1])


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def is_integral(kind: pa.DataType) -> bool:
    """Whether Arrow shows the bounds of a type as they are in the log."""
    return bool(
        pa.types.is_signed_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )

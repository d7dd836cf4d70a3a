"""The part of a footer that all row groups of a file share, and which files can have it in common.

Implements "File Metadata" of the Parquet format.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from delta_maintenance import __version__
from delta_maintenance.table.compact_protocol import (
    BINARY,
    I32,
    STRUCT,
    ListValue,
    Struct,
    Value,
)
from delta_maintenance.table.data.copying.chunks import (
    COLUMN_ORDERS,
    CREATED_BY,
    KEY,
    KEY_VALUE,
    KEY_VALUES,
    SCHEMA,
    VERSION,
    footer_of,
)
from delta_maintenance.table.data.parquet_input import ParquetInput

TRACKING_COLUMNS = 2
"""The number of hidden columns of row tracking, which are the last ones of a file."""
_NUM_CHILDREN = 5
_SPARK_VERSION = b"org.apache.spark.version"
_SPARK, _ARROW_SCHEMA = b"org.apache.spark.", b"ARROW:schema"
_TODAYS_CALENDAR = b"3.1.0"
"""The first version of Spark whose dates and timestamps are all proleptic Gregorian."""
_SOUND_WRITERS = re.compile(
    rb"parquet-mr version (1\.(1\d|[2-9]\d)|[2-9])|parquet-cpp-arrow version ([4-9]|\d\d)|"
    rb"(parquet|delta)-rs version"
)
"""Writers whose statistics all readers trust."""
_OURS = f"delta-maintenance version {__version__} (build copied)".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFrame:
    """The properties that all row groups of a file share."""

    version: int
    schema: Value
    column_orders: Value
    is_own: bool
    """Whether readers see the columns of a file that `DataFileWriter` encodes."""
    int96: bool
    """Whether timestamps have the physical type INT96."""
    codecs: frozenset[str]
    """Names as in Arrow, such as `SNAPPY`."""
    created_by: bytes
    key_values: Mapping[bytes, bytes | None]

    def joined(self, other: FileFrame) -> FileFrame | None:
        """Returns the frame of a file with the row groups of both; None if they do not fit."""
        same = (self.schema, self.column_orders) == (other.schema, other.column_orders)
        if self.codecs != other.codecs or not (same or (self.is_own and other.is_own)):
            return None
        created_by = self.created_by
        if created_by != other.created_by:
            both = (created_by, other.created_by)
            # Spark and Hive can be told to convert INT96 of all writers but parquet-mr.
            if self.int96 or not all(_SOUND_WRITERS.match(name) or name == _OURS for name in both):
                return None
            created_by = _OURS
        ours, theirs = self.key_values, other.key_values
        if (_SPARK_VERSION in ours) != (_SPARK_VERSION in theirs):
            # Spark 3 rebases early dates of only one of the two files.
            return None
        key_values = {key: value for key, value in ours.items() if theirs.get(key) == value}
        if _SPARK_VERSION in ours:
            key_values.setdefault(_SPARK_VERSION, _TODAYS_CALENDAR)
        return replace(
            self,
            version=max(self.version, other.version),
            created_by=created_by,
            key_values=key_values,
        )

    def with_encoded(self, own: FileFrame, *, rows: bool) -> FileFrame | None:
        """Returns the frame of a file to which columns of row tracking are added, or also `rows`.

        `own` is the frame of a file of `DataFileWriter`. None if they do not fit.
        """
        if rows and not self.is_own:
            return None
        calendar = {_SPARK_VERSION: _TODAYS_CALENDAR} if self.names_calendar else {}
        added = replace(
            own,
            schema=self.schema,
            column_orders=self.column_orders,
            codecs=self.codecs,
            key_values=calendar,
        )
        return self.joined(added)

    @property
    def names_calendar(self) -> bool:
        """Whether the footer says that early dates are in the proleptic Gregorian calendar."""
        return _SPARK_VERSION in self.key_values


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """The footer of a file that `DataFileWriter` encodes, for comparison with those of sources."""

    frame: FileFrame
    schema: pq.ParquetSchema
    untracked: pq.ParquetSchema
    """The schema without the hidden columns of row tracking."""

    @classmethod
    def of(cls, tracked: bytes, untracked: bytes) -> OwnFile:
        """Parses two files without rows: with the columns of row tracking, and without them."""
        with ParquetInput(tracked) as parquet, ParquetInput(untracked) as less:
            frame = _frame(footer_of(io.BytesIO(tracked))[0], parquet, is_own=True)
            return cls(frame=frame, schema=parquet.parquet_schema, untracked=less.parquet_schema)


def frame_of(
    tree: Struct, parquet: ParquetInput, own: OwnFile, *, complete: bool
) -> FileFrame | None:
    """Returns the frame of a source, with the columns of row tracking. None if it has no orders of
    columns to which those of the added ones could be appended.
    """
    count = parquet.metadata.num_columns
    ours, theirs = own.frame.column_orders, tree.get(COLUMN_ORDERS)
    wanted = own.schema if complete else own.untracked
    is_own = _first(ours, count) == theirs and bool(parquet.parquet_schema.equals(wanted))
    frame = _frame(tree, parquet, is_own=is_own)
    if complete:
        return frame
    if is_own:
        return replace(frame, schema=own.frame.schema, column_orders=ours)
    if not (isinstance(theirs, ListValue) and isinstance(ours, ListValue)):
        return None
    schema = tree.structs(SCHEMA)
    added = _elements(own.frame.schema)[-TRACKING_COLUMNS:]
    root = schema[0].copy()
    root.put(_NUM_CHILDREN, I32, (root.number(_NUM_CHILDREN) or 0) + len(added))
    orders = [*theirs.values, *ours.values[-len(added) :]]
    return replace(
        frame,
        schema=ListValue(STRUCT, [root, *schema[1:], *added]),
        column_orders=ListValue(theirs.element, orders),
    )


def key_value_list(pairs: Mapping[bytes, bytes | None]) -> Sequence[Struct]:
    """Returns key-value metadata as structs."""
    found = []
    for key, value in pairs.items():
        entry = Struct()
        entry.put(KEY, BINARY, key)
        if value is not None:
            entry.put(KEY_VALUE, BINARY, value)
        found.append(entry)
    return found


def _frame(tree: Struct, parquet: ParquetInput, *, is_own: bool) -> FileFrame:
    return FileFrame(
        version=tree.number(VERSION) or 1,
        schema=tree.get(SCHEMA),
        column_orders=tree.get(COLUMN_ORDERS),
        is_own=is_own,
        int96=bool(parquet.int96),
        codecs=_codecs(parquet.metadata),
        created_by=_text(tree.get(CREATED_BY)),
        key_values=_key_values(tree),
    )


def _first(orders: Value, count: int) -> Value:
    if not isinstance(orders, ListValue):
        return orders
    return ListValue(orders.element, orders.values[:count])


def _elements(schema: Value) -> list[Value]:
    return schema.values if isinstance(schema, ListValue) else []


def _codecs(metadata: pq.FileMetaData) -> frozenset[str]:
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    return frozenset(
        group.column(at).compression for group in groups for at in range(group.num_columns)
    )


def _key_values(tree: Struct) -> Mapping[bytes, bytes | None]:
    """Returns the key-value metadata that readers of the new file may need."""
    found: dict[bytes, bytes | None] = {}
    for entry in tree.structs(KEY_VALUES):
        key, value = _text(entry.get(KEY)), entry.get(KEY_VALUE)
        if key == _ARROW_SCHEMA or key.startswith(_SPARK):
            found[key] = value if isinstance(value, bytes) else None
    return found


def _text(value: Value) -> bytes:
    return value if isinstance(value, bytes) else b""

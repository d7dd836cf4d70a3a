"""Rows in types that Spark returns bit for bit.

Spark converts values of some types, such as timestamps, decimals and texts. The rows of a shuffle
therefore have only integers, booleans, bytes, lists and structs, which are other views of the same
buffers: a NaN keeps its payload, and a text that is not UTF-8 its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.ranks import comparable

_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_WIDE = pa.binary(16)
"""The view of decimals, which Spark receives as bytes without a fixed length."""
_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}
_SIGN = np.uint64(1 << 63)


class CarriedRows:
    """Converts the rows of one schema. Can be sent to executors."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sent = [_carried_type(field.type, pa.binary()) for field in schema]
        self._viewed = [_carried_type(field.type, _WIDE) for field in schema]

    @property
    def spark_types(self) -> Sequence[str]:
        """The types of the columns in Spark."""
        return [spark_type(kind) for kind in self._sent]

    def to_spark(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Returns the columns for Spark."""
        return [
            column.view(viewed).cast(sent)
            for column, viewed, sent in zip(rows.columns, self._viewed, self._sent, strict=True)
        ]

    def from_spark(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Returns the rows, given columns of Spark."""
        arrays = [
            _view_as(column.cast(viewed), field.type)
            for column, viewed, field in zip(columns, self._viewed, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def nulls(self, rows: int) -> list[pa.Array]:
        """Returns columns for Spark without values."""
        return [pa.nulls(rows, kind) for kind in self._sent]


def spark_type(kind: pa.DataType) -> str:
    """Returns the name in Spark of the type of a carried column."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {spark_type(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    return _NAMES[kind]


def sortable(values: pa.Array) -> pa.Array:
    """Returns values of a clustering column in a type by which Spark sorts as `RowSorter` does."""
    sort_keys = comparable(values)
    if not pa.types.is_decimal(sort_keys.type):
        return sort_keys
    # Bytes are compared from the first one on, as unsigned numbers.
    words = np.frombuffer(sort_keys.view(_WIDE).buffers()[1], "<u8").reshape(-1, 2)
    words = words[sort_keys.offset : sort_keys.offset + len(sort_keys)]
    turned = np.stack([words[:, 1] ^ _SIGN, words[:, 0]], axis=1).astype(">u8")
    data = pa.Array.from_buffers(_WIDE, len(sort_keys), [None, pa.py_buffer(turned)])
    return pc.if_else(sort_keys.is_valid(), data.cast(pa.binary()), None)


def _view_as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind) or all(field.nullable for field in kind):
        return values.view(kind)
    # A variant has no nulls inside, but Arrow needs bytes there for a variant that is null.
    fields = [pc.fill_null(values.field(number), b"") for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())


def _carried_type(kind: pa.DataType, decimal: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        fields = [pa.field("f0", kind.key_type), pa.field("f1", kind.item_type)]
        return _carried_type(pa.list_(pa.struct(fields)), decimal)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _carried_type(kind.value_type, decimal)))
    if pa.types.is_struct(kind):
        fields = [_carried_type(field.type, decimal) for field in kind]
        return pa.struct([pa.field(f"f{number}", part) for number, part in enumerate(fields)])
    if pa.types.is_boolean(kind):
        return kind
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.binary()
    return decimal if pa.types.is_decimal128(kind) else _INTEGERS[kind.bit_width]

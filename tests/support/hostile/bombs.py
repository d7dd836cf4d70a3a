"""Parquet files that are small on disk and huge in memory, each in the form of a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.tables.actions import Action
from tests.support.tables.table_builder import log_table

Bomb = Callable[[Sequence[Action], int], bytes]
"""Builds a checkpoint of these actions that takes about this many bytes in memory."""


def shared_text(actions: Sequence[Action], size: int, *, rows: int = 1000) -> bytes:
    """Statistics of many files that share one dictionary entry."""
    text = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0), rows), ["x" * (size // rows)])
    return _written(actions, _adds(rows, {"stats": text}))


def shared_prefixes(actions: Sequence[Action], size: int, *, rows: int = 1000) -> bytes:
    """Paths, each of which repeats a prefix of the previous one."""
    adds = _adds(rows, {"stats": pa.repeat(pa.scalar("x" * (size // rows)), rows)})
    encodings = {"add.stats": "DELTA_BYTE_ARRAY"}
    return _written(actions, adds, use_dictionary=False, column_encoding=encodings)


def inflating_page(actions: Sequence[Action], size: int, *, rows: int = 1000) -> bytes:
    """A page that repeats a single character."""
    adds = _adds(rows, {"stats": pa.array(["x" * (size // rows)] * rows)})
    return _written(actions, adds, use_dictionary=False, data_page_size=size)


def crowded_row(actions: Sequence[Action], size: int) -> bytes:
    """A file with a map of millions of entries, all from one dictionary."""
    entries = size // 64
    values = pa.MapArray.from_arrays(
        [0, entries], pa.repeat(pa.scalar("k" * 32), entries), pa.repeat(pa.scalar("v"), entries)
    )
    return _written(actions, _adds(1, {"partitionValues": values}))


def null_rows(actions: Sequence[Action], size: int) -> bytes:
    """Rows without any action."""
    nulls = pa.nulls(size // 64, pa.struct([("path", pa.string())]))
    return _written(
        actions, pa.table({"add": nulls}), write_statistics=False, max_rows_per_page=size
    )


def many_columns(actions: Sequence[Action], size: int) -> bytes:
    """A footer with a huge number of columns, written by hand because libraries would take too
    long.
    """
    count = size // 1024
    head = b"\x15\x04\x25\x02\x18\x07"
    leaves = [head + b"c%06d" % number + b"\x00" for number in range(count)]
    root = b"\x48\x04root\x15" + _zigzag(count) + b"\x00"
    elements = b"\xfc" + _varint(count + 1) + root + b"".join(leaves)
    footer = b"\x15\x02\x19" + elements + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


BOMBS: dict[str, Bomb] = {
    bomb.__name__: bomb
    for bomb in (shared_text, shared_prefixes, inflating_page, crowded_row, null_rows, many_columns)
}


def _adds(rows: int, columns: dict[str, Any]) -> pa.Table:
    fields = {
        "path": pa.array([f"bomb-{row}" for row in range(rows)]),
        "size": pa.repeat(pa.scalar(1), rows),
        "modificationTime": pa.repeat(pa.scalar(1), rows),
        "dataChange": pa.repeat(pa.scalar(False), rows),
        **columns,
    }
    struct = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    return pa.table({"add": struct})


def _written(actions: Sequence[Action], adds: pa.Table, **options: Any) -> bytes:
    """Writes the adds in a separate row group after the non-file actions."""
    others = log_table([action for action in actions if not action.keys() & {"add", "remove"}])
    others = others.drop_columns(["add", "remove"])
    schema = pa.unify_schemas([others.schema, adds.schema])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", **options) as writer:
        for table in (others, adds):
            columns = [
                table[field.name]
                if field.name in table.column_names
                else pa.nulls(table.num_rows, field.type)
                for field in schema
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=1 << 30)
    return sink.getvalue()


def _zigzag(value: int) -> bytes:
    return _varint(value << 1)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])

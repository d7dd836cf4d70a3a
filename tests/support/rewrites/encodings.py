"""Data files with every encoding of the Parquet format, by several writers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties, write_deltalake

from tests.support.rewrites.data_files import DataTable, field, parquet

FIRST = 17_000
"""Rows after which the writer knows which columns repeat their values."""
PARQUET_MR = Path(__file__).with_name("parquet_mr")
"""Files of parquet-mr 1.17, which `of_parquet_mr` in `tests/spark/test_encodings.py` made."""
TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
TYPES: dict[str, tuple[object, pa.DataType]] = {
    "i": ("integer", pa.int32()),
    "l": ("long", pa.int64()),
    "h": ("short", pa.int16()),
    "f": ("float", pa.float32()),
    "d": ("double", pa.float64()),
    "b": ("boolean", pa.bool_()),
    "s": ("string", pa.string()),
    "x": ("binary", pa.binary()),
    "t": ("timestamp", pa.timestamp("us", "UTC")),
    "y": ("date", pa.date32()),
    "m": ("decimal(9,2)", pa.decimal128(9, 2)),
    "n": ("decimal(38,2)", pa.decimal128(38, 2)),
    "a": (TEXTS, pa.list_(pa.string())),
    "r": ({"type": "struct", "fields": [field("s", "string")]}, pa.struct({"s": pa.string()})),
}
INTEGERS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
STRINGS = ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
ENCODINGS = {
    **dict.fromkeys(("i", "l", "h", "t", "y", "m"), INTEGERS),
    **dict.fromkeys(("f", "d"), ("PLAIN", "BYTE_STREAM_SPLIT")),
    "b": ("PLAIN", "RLE"),
    **dict.fromkeys(("s", "x", "a.list.element", "r.s"), STRINGS),
    "n": ("PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"),
}
"""The encodings of each leaf besides dictionaries."""


def rows(count: int, first: int = 0) -> pa.Table:
    """Rows with nulls, in which most columns repeat their values."""
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for number in range(first, first + count):
        few, text = number % 5, f"city-{number % 5}"
        values = {
            "i": few,
            "l": number,
            "h": -few,
            "f": few / 2,
            "d": number / 4,
            "b": few < 2,
            "s": text,
            "x": text.encode(),
            "t": datetime(2024, 1, 1 + few, tzinfo=UTC),
            "y": date(2024, 1, 1 + few),
            "m": Decimal(few) / 4,
            "n": Decimal(few) / 4 * 4,
            "a": [text, None, text][: number % 4],
            "r": {"s": text},
        }
        for at, (name, value) in enumerate(values.items()):
            columns[name].append(None if name != "l" and number % 17 == at else value)
    return pa.table({name: pa.array(columns[name], TYPES[name][1]) for name in TYPES})


def choices() -> Iterator[dict[str, Any]]:
    """Each encoding of each leaf in at least one choice."""
    for at in range(3):
        yield {name: known[at % len(known)] for name, known in ENCODINGS.items()}


def of_arrow(made: pa.Table) -> Iterator[bytes]:
    for page in ("1.0", "2.0"):
        yield parquet(made, data_page_version=page)
        yield parquet(made, data_page_version=page, dictionary_pagesize_limit=20)
        for chosen, codec in zip(choices(), ("zstd", "snappy", "none"), strict=True):
            yield parquet(
                made,
                data_page_version=page,
                use_dictionary=False,
                column_encoding=chosen,
                compression=codec,
                store_decimal_as_integer=True,
                data_page_size=100,
                write_batch_size=7,
            )


def of_deltalake(made: pa.Table, folder: Path) -> Iterator[bytes]:
    options: list[dict[str, Any]] = [{}, {"dictionary_page_size_limit": 20}]
    for chosen in choices():
        columns = {
            name: ColumnProperties(dictionary_enabled=False, encoding=encoding)
            for name, encoding in chosen.items()
        }
        options.append({"column_properties": columns, "data_page_row_count_limit": 25})
    for at, each in enumerate(options):
        path = folder / f"deltalake-{at}"
        properties = WriterProperties(compression="SNAPPY", write_batch_size=7, **each)
        write_deltalake(path, made, writer_properties=properties)
        [file] = path.glob("*.parquet")
        yield file.read_bytes()


def of_duckdb(made: pa.Table, folder: Path) -> Iterator[bytes]:
    with duckdb.connect() as connection:
        connection.register("made", made)
        for version in ("V1", "V2"):
            path = folder / f"{version}.parquet"
            connection.execute(
                f"COPY (SELECT * FROM made) TO '{path}' (FORMAT parquet, PARQUET_VERSION {version})"
            )
            yield path.read_bytes()


def of_polars(made: pa.Table) -> Iterator[bytes]:
    sink = io.BytesIO()
    polars.DataFrame(made).write_parquet(sink)
    yield sink.getvalue()


def encoded_table(folder: Path, files: Sequence[bytes] = (), **shape: Any) -> DataTable:
    """A table with one large file, those of all writers, and `files`."""
    made = DataTable(*(field(name, kind) for name, (kind, _) in TYPES.items()), **shape)
    made.append(rows(FIRST))
    part = rows(300, FIRST)
    of_parquet_mr = [path.read_bytes() for path in sorted(PARQUET_MR.glob("*.parquet"))]
    others = [
        *of_arrow(part),
        *of_deltalake(part, folder),
        *of_duckdb(part, folder),
        *of_polars(part),
    ]
    stated = set[tuple[str, str]]()
    for data in [*of_parquet_mr, *files, *others]:
        metadata = pq.read_metadata(io.BytesIO(data))
        [path] = made.append(part.slice(0, metadata.num_rows), size=len(data))
        made.store.put(path, data)
        stated |= encodings(metadata)
    wanted = {(name, each) for name, known in ENCODINGS.items() for each in known}
    assert stated >= wanted | {(name, "RLE_DICTIONARY") for name in ENCODINGS if name != "b"}
    assert len(of_parquet_mr) == 4
    return made


def encodings(metadata: pq.FileMetaData) -> set[tuple[str, str]]:
    """Each leaf with each of its encodings."""
    columns = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
    return {(column.path_in_schema, name) for column in columns for name in column.encodings}

"""Data files with every encoding of the Parquet format, by several writers, in one rewrite."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.table.data import parquet_input
from delta_maintenance.table.read.table import Table
from tests.support.rewrites.data_files import DataTable, field, parquet
from tests.support.rewrites.rewritten_tables import NOW, ids
from tests.support.rewrites.table_rows import live_rows

FIRST = 17_000
"""Rows after which the writer knows which columns repeat their values."""
TEXTS = {"type": "array", "elementType": "string", "containsNull": True}
TYPES: dict[str, tuple[object, pa.DataType]] = {
    "i": ("integer", pa.int32()),
    "l": ("long", pa.int64()),
    "f": ("float", pa.float32()),
    "d": ("double", pa.float64()),
    "b": ("boolean", pa.bool_()),
    "s": ("string", pa.string()),
    "x": ("binary", pa.binary()),
    "t": ("timestamp", pa.timestamp("us", "UTC")),
    "y": ("date", pa.date32()),
    "n": ("decimal(38,2)", pa.decimal128(38, 2)),
    "a": (TEXTS, pa.list_(pa.string())),
    "r": ({"type": "struct", "fields": [field("s", "string")]}, pa.struct({"s": pa.string()})),
}
INTEGERS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
STRINGS = ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
ENCODINGS = {
    **dict.fromkeys(("i", "l", "t", "y"), INTEGERS),
    **dict.fromkeys(("f", "d"), ("PLAIN", "BYTE_STREAM_SPLIT")),
    "b": ("PLAIN", "RLE"),
    **dict.fromkeys(("s", "x", "a.list.element", "r.s"), STRINGS),
    "n": ("PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"),
}


def rows(count: int, first: int = 0) -> pa.Table:
    """Rows with nulls, in which most columns repeat their values."""
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for number in range(first, first + count):
        few, text = number % 5, f"city-{number % 5}"
        values = {
            "i": few,
            "l": number,
            "f": few / 2,
            "d": number / 4,
            "b": few < 2,
            "s": text,
            "x": text.encode(),
            "t": datetime(2024, 1, 1 + few, tzinfo=UTC),
            "y": date(2024, 1, 1 + few),
            "n": Decimal(few) / 4 * 4,
            "a": [text, None, text][: number % 4],
            "r": {"s": text},
        }
        for at, (name, value) in enumerate(values.items()):
            columns[name].append(None if name != "l" and number % 13 == at else value)
    return pa.table({name: pa.array(columns[name], TYPES[name][1]) for name in TYPES})


def of_arrow(made: pa.Table) -> Iterator[bytes]:
    for page in ("1.0", "2.0"):
        yield parquet(made, data_page_version=page)
        yield parquet(made, data_page_version=page, dictionary_pagesize_limit=20)
        for at in range(3):
            chosen = {name: known[at % len(known)] for name, known in ENCODINGS.items()}
            yield parquet(
                made,
                data_page_version=page,
                use_dictionary=False,
                column_encoding=chosen,
                compression=("zstd", "snappy", "none")[at],
                data_page_size=100,
                write_batch_size=7,
            )


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


@pytest.mark.conformance("RW-08", "RW-13", "RW-15")
@pytest.mark.parametrize("batch_bytes", [1 << 10, 8 << 20])
def test_every_encoding_of_every_type_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """After so many rows that text columns are asked for as dictionaries."""
    monkeypatch.setattr(parquet_input, "BATCH_BYTES", batch_bytes)
    made = DataTable(*(field(name, kind) for name, (kind, _) in TYPES.items()))
    made.append(rows(FIRST))
    part = rows(300, FIRST)
    files = [*of_arrow(part), *of_duckdb(part, tmp_path), *of_polars(part)]
    stated = {name for data in files for name in encodings(data)}
    assert stated >= {*INTEGERS, *STRINGS, "RLE_DICTIONARY", "RLE"}
    paths = [made.append(part, size=len(data))[0] for data in files]
    for path, data in zip(paths, files, strict=True):
        made.store.put(path, data)
    before = live_rows(made.store)
    assert len(before) == FIRST + len(files) * 300
    made.store.now_ms = lambda: epoch_millis(NOW)
    table = Table(made.store)
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(NOW)
    )
    result = optimize.apply(
        table, planned, context=RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
    )
    assert (result.status, result.refused, result.files_after) == ("rewritten", (), 1)
    assert live_rows(made.store) == before


def encodings(data: bytes) -> set[str]:
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    return {name for at in range(group.num_columns) for name in group.column(at).encodings}

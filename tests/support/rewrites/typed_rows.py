"""Rows with a column of each type, in files whose row groups can be copied."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files import DataFileLayout, FileNaming
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import Bin, DataFileSpec, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.rewrite import rewrite_bin
from tests.support.rewrites.arrow_features import bloom_filter
from tests.support.rewrites.data_files import field, put, schema_string, source

INSTANT = datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)
STRUCT = {"type": "struct", "fields": [field("x", "long"), field("y", "string")]}
ARRAY = {"type": "array", "elementType": "string", "containsNull": True}
FIELDS = (
    field("l", "long"),
    field("i", "integer"),
    field("h", "short"),
    field("f", "double"),
    field("s", "string"),
    field("b", "binary"),
    field("o", "boolean"),
    field("d", "date"),
    field("t", "timestamp"),
    field("m", "decimal(9,2)"),
    field("w", "decimal(30,3)"),
    field("n", STRUCT),
    field("a", ARRAY),
    field("e", "string"),
)
TYPES: Mapping[str, pa.DataType] = {
    "l": pa.int64(),
    "i": pa.int32(),
    "h": pa.int16(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.binary(),
    "o": pa.bool_(),
    "d": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "m": pa.decimal128(9, 2),
    "w": pa.decimal128(30, 3),
    "n": pa.struct([("x", pa.int64()), ("y", pa.string())]),
    "a": pa.list_(pa.field("element", pa.string())),
    "e": pa.string(),
}
OPTIONS: dict[str, Any] = {
    "row_group_size": 40,
    "write_page_index": True,
    "store_schema": False,
    "store_decimal_as_integer": True,
    "write_batch_size": 10,
    "max_rows_per_page": 10,
    **bloom_filter("l"),
}


def rows(seed: int, count: int = 100) -> pa.Table:
    """Rows with nulls, a column of nulls, long texts, and NaN in some files."""
    chance = random.Random(seed)

    def column(make: Callable[[], Any]) -> list[Any]:
        return [None if chance.random() < 0.2 else make() for _ in range(count)]

    columns: dict[str, list[Any]] = {
        "l": column(lambda: chance.randint(-(2**63), 2**63 - 1)),
        "i": column(lambda: chance.randint(-(2**31), 2**31 - 1)),
        "h": column(lambda: chance.randint(-(2**15), 2**15 - 1)),
        "f": column(lambda: chance.choice([chance.random(), -0.0, float("nan") if seed else 1.0])),
        "s": column(lambda: "ä" * chance.randint(0, 70 if seed % 2 else 20) + str(chance.random())),
        "b": column(lambda: chance.randbytes(chance.randint(0, 9))),
        "o": column(lambda: chance.random() < 0.5),
        "d": column(lambda: date(2020, 1, 1) + timedelta(days=chance.randint(-9999, 9999))),
        "t": column(lambda: INSTANT + timedelta(microseconds=chance.randint(-(10**15), 10**15))),
        "m": column(lambda: Decimal(chance.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-2)),
        "w": column(lambda: Decimal(chance.randint(-(10**29), 10**29)).scaleb(-3)),
        "n": column(lambda: {"x": chance.choice([None, 7]), "y": str(chance.random())}),
        "a": column(lambda: chance.choice([[], [None], ["x", "y"]])),
        "e": [None] * count,
    }
    return pa.table({name: pa.array(columns[name], kind) for name, kind in TYPES.items()})


def spec_of(*fields: dict[str, object], copies: bool = True, **changes: Any) -> RewriteSpec:
    fields = fields or FIELDS
    protocol = Protocol(min_reader_version=1, min_writer_version=2)
    metadata = Metadata(
        id="t",
        schema_string=schema_string(*fields),
        partition_columns=changes.pop("partitioned_by", ()),
    )
    return RewriteSpec(
        files=DataFileSpec(
            layout=DataFileLayout.of(protocol, metadata),
            statistics=StatisticsColumns.of(protocol, metadata, {}),
        ),
        naming=FileNaming(partition_columns=()),
        target_bytes=changes.pop("target_bytes", 1 << 20),
        copied_group_bytes=1 if copies else None,
        **changes,
    )


def rewritten(
    store: MemoryStore, files: Mapping[str, bytes], spec: RewriteSpec, **changes: Any
) -> RewrittenBin:
    reasons = changes.pop("reasons", (("small",),) * len(files))
    sources = []
    for name, data in files.items():
        put(store, name, data)
        sources.append(source(name, data, **changes))
    numbers = itertools.count()
    return rewrite_bin(
        store,
        Bin(number=0, sources=tuple(sources), reasons=reasons),
        spec,
        new_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
    )


def stored(store: MemoryStore, done: RewrittenBin) -> pa.Table:
    return pa.concat_tables(
        [pq.read_table(io.BytesIO(store.read(output.name))) for output in done.outputs]
    )


def metadata_of(store: MemoryStore, done: RewrittenBin) -> pq.FileMetaData:
    return pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))


def groups_of(store: MemoryStore, done: RewrittenBin) -> list[int]:
    """The number of rows in each row group of the first new file."""
    found = metadata_of(store, done)
    return [found.row_group(at).num_rows for at in range(found.num_row_groups)]

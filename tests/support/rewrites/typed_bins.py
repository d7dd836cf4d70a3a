"""Bins with rows of any types, and their rewrites."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files import DataFileLayout, FileNaming
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import Bin, DataFileSpec, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.rewrite import rewrite_bin
from delta_maintenance.table.parallel import IdleWorkers
from tests.support.rewrites.data_files import (
    ROW_ID,
    ROW_TRACKING,
    ROW_VERSION,
    field,
    parquet,
    put,
    schema_string,
    source,
)

LEAVES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "boolean": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.floats(allow_nan=False) | st.just(math.nan) | st.just(-0.0)),
    "float": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(max_size=70)),
    "binary": (pa.binary(), st.binary(max_size=20)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 2)),
    ),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
    "decimal(9,2)": (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "decimal(38,10)": (
        pa.decimal128(38, 10),
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10")),
    ),
}


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[object, pa.DataType, st.SearchStrategy[Any]]:
    """A type of the schema, its Arrow type, and its values."""
    kind = draw(st.sampled_from(["leaf"] * 4 + ["struct", "array", "map"] * (depth > 0)))
    if kind == "leaf":
        name = draw(st.sampled_from(sorted(LEAVES)))
        return name, *LEAVES[name]
    inner, arrow, values = draw(columns(depth - 1))
    if kind == "array":
        delta = {"type": "array", "elementType": inner, "containsNull": True}
        return delta, pa.list_(arrow), st.lists(st.none() | values, max_size=3)
    if kind == "map":
        delta = {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}
        # Keys may be there twice, and their order counts.
        entries = st.lists(st.tuples(st.text(max_size=3), st.none() | values), max_size=3)
        return delta, pa.map_(pa.string(), arrow), entries
    delta = {"type": "struct", "fields": [field("x", inner), field("y", "long")]}
    struct = st.fixed_dictionaries({"x": st.none() | values, "y": st.none() | st.integers(0, 9)})
    return delta, pa.struct([("x", arrow), ("y", pa.int64())]), struct


@st.composite
def bins(draw: st.DrawFn) -> tuple[list[dict[str, object]], list[Any]]:
    """The fields of a table, and files of it: rows, positions of deleted ones, what is stored."""
    found = draw(st.lists(columns(), min_size=1, max_size=4))
    names = [f"c{at}" for at in range(len(found))]
    fields = [field(name, kind) for name, (kind, _, _) in zip(names, found, strict=True)]
    files = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 6))
        # A column that came later is not in older files.
        present = [
            (name, arrow, values)
            for at, (name, (_, arrow, values)) in enumerate(zip(names, found, strict=True))
            if at == 0 or draw(st.booleans())
        ]
        rows = {
            name: pa.array(
                draw(st.lists(st.none() | values, min_size=count, max_size=count)), arrow
            )
            for name, arrow, values in present
        }
        if draw(st.booleans()):
            rows["dropped"] = pa.array(range(count), pa.int64())
        table = pa.table(rows)
        if draw(st.booleans()):
            ids = st.none() | st.integers(1_000_000 * (number + 1), 1_000_000 * (number + 1) + 99)
            for name in (ROW_ID, ROW_VERSION):
                drawn = draw(st.lists(ids, min_size=count, max_size=count))
                table = table.append_column(name, pa.array(drawn, pa.int64()))
        deleted = sorted(draw(st.sets(st.integers(0, count - 1)))) if count else []
        files.append((table, deleted, draw(st.integers(1, 4))))
    return fields, files


def prepared(store: MemoryStore, case: Any) -> tuple[list[SourceFile], list[dict[str, Any]]]:
    """Stores the files of `bins()`. Returns the sources, and their live rows with row IDs."""
    fields, files = case
    sources, expected = [], []
    names = [str(item["name"]) for item in fields]
    for number, (table, deleted, groups) in enumerate(files):
        data = parquet(table, row_group_size=groups)
        put(store, f"f{number}", data)
        base = 100 * number
        sources.append(
            source(
                f"f{number}",
                data,
                rows=table.num_rows,
                deleted=deleted or None,
                base_row_id=base,
                default_row_commit_version=number,
            )
        )
        for position, row in enumerate(table.to_pylist()):
            if position not in deleted:
                given_id, given_version = row.get(ROW_ID), row.get(ROW_VERSION)
                expected.append(
                    {name: row.get(name) for name in names}
                    | {
                        ROW_ID: base + position if given_id is None else given_id,
                        ROW_VERSION: number if given_version is None else given_version,
                    }
                )
    return sources, expected


def ids() -> Iterator[str]:
    return (f"00000000-0000-4000-8000-{number:012d}" for number in itertools.count())


def spec_of(*fields: dict[str, object], tracked: bool = False, **changes: Any) -> RewriteSpec:
    features = ["rowTracking", "domainMetadata"] if tracked else []
    protocol = Protocol(
        min_reader_version=1,
        min_writer_version=7 if tracked else 2,
        writer_features=tuple(features) if tracked else None,
    )
    metadata = Metadata(
        id="t", schema_string=schema_string(*fields), configuration=ROW_TRACKING if tracked else {}
    )
    return RewriteSpec(
        files=DataFileSpec(
            layout=DataFileLayout.of(protocol, metadata),
            statistics=StatisticsColumns.of(protocol, metadata, {}),
            **changes,
        ),
        naming=FileNaming(partition_columns=()),
        target_bytes=1 << 20,
    )


def rewritten(
    store: MemoryStore,
    sources: list[SourceFile],
    spec: RewriteSpec,
    idle_workers: IdleWorkers | None = None,
) -> RewrittenBin:
    work = Bin(number=0, sources=tuple(sources), reasons=(("small",),) * len(sources))
    names = ids()
    return rewrite_bin(store, work, spec, new_id=lambda: next(names), idle_workers=idle_workers)


def stored(store: MemoryStore, done: RewrittenBin) -> pa.Table:
    """The rows of all outputs, as Arrow reads them by itself."""
    return pa.concat_tables(
        [pq.read_table(io.BytesIO(store.read(output.name))) for output in done.outputs]
    )

"""New files state no bounds of columns with NaN, in footers, page indexes and statistics.

Arrow, which writes the sources and encodes the new files, leaves NaN out of the bounds.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.parquet.footers import leaves_with_nan
from tests.support.rewrites.arrow_features import IS_24
from tests.support.rewrites.data_files import field, parquet
from tests.support.rewrites.typed_rows import rewritten, spec_of, stored

STRUCT = {"type": "struct", "fields": [field("g", "float"), field("t", "string")]}
ARRAY = {"type": "array", "elementType": "float", "containsNull": True}
MAP = {
    "type": "map",
    "keyType": "double",
    "valueType": {"type": "array", "elementType": STRUCT, "containsNull": True},
    "valueContainsNull": True,
}
FIELDS = (
    field("x", "double"),
    field("n", "long"),
    field("s", STRUCT),
    field("a", ARRAY),
    field("m", MAP),
    field("f", "float"),
)


def named(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


BOX = pa.struct([("g", pa.float32()), ("t", pa.string())])
TYPES: Mapping[str, pa.DataType] = {
    "x": pa.float64(),
    "n": pa.int64(),
    "s": BOX,
    "a": named(pa.float32()),
    "m": pa.map_(pa.float64(), named(BOX)),
    "f": pa.float32(),
}
FLOATS = ("x", "s.g", "a.list.element", "m.key_value.key", "m.key_value.value.list.element.g", "f")
NUMBERS = st.none() | st.sampled_from([-0.0, 0.0, 1.5, -2.0, math.inf])
SOMETIMES = st.booleans().flatmap(
    lambda has_nan: st.lists(NUMBERS | st.just(math.nan) if has_nan else NUMBERS, min_size=6)
)
"""Numbers that include NaN in about half of the examples."""


def rows(numbers: list[float | None], number: int) -> pa.Table:
    """Rows of which one column holds the numbers, and the others hold none that is NaN."""
    plain = [1.0, None, *([2.5] * (len(numbers) - 2))]
    held = [numbers if at == number else plain for at in range(len(FLOATS))]
    rows = [
        {
            "x": x,
            "n": 7,
            "s": None if g is None else {"g": g, "t": "a"},
            "a": None if a is None else [a, None],
            "m": None if k is None else [(k, None if v is None else [{"g": v, "t": "b"}, None])],
            "f": f,
        }
        for x, g, a, k, v, f in zip(*held, strict=True)
    ]
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in TYPES})


def leaf(rows: pa.Table, path: str) -> list[float]:
    """The values of a leaf, without nulls."""
    values = rows.column(path.split(".")[0]).combine_chunks()
    for part in path.split(".")[1:]:
        if part == "list" or part == "key_value":
            continue
        if part in ("key", "value"):
            values = values.keys if part == "key" else values.items
        else:
            values = values.flatten() if part == "element" else values.field(part)
    return [value for value in values.to_pylist() if value is not None]


GREATEST = {float(np.finfo(kind).max) for kind in ("f2", "f4", "f8")} | {math.inf}


@settings(max_examples=100, deadline=None)
@given(
    files=st.lists(st.tuples(SOMETIMES, st.integers(0, len(FLOATS) - 1)), min_size=1, max_size=3),
    copies=st.booleans(),
    group=st.sampled_from([4, 1000]),
    deleted=st.booleans(),
    options=st.sampled_from(
        [
            {"write_page_index": True, "max_rows_per_page": 2},
            {"write_page_index": False},
            {"write_statistics": False},
        ]
    ),
)
@pytest.mark.conformance("RW-22", "RW-23")
def test_bounds_of_footers_contain_all_values_or_are_absent(
    files: list[Any], copies: bool, group: int, deleted: bool, options: dict[str, Any]
) -> None:
    sources = {
        f"f{at}": parquet(rows(*file), row_group_size=group, store_schema=False, **options)
        for at, file in enumerate(files)
    }
    store = MemoryStore()
    changes: dict[str, Any] = {"deleted": [0]} if deleted else {}
    done = rewritten(store, sources, spec_of(*FIELDS, copies=copies), **changes)
    assert not done.refused
    for output in done.outputs:
        data = store.read(output.name)
        footer = pq.read_metadata(io.BytesIO(data))
        statistics = json.loads(output.stats)
        everything = pq.read_table(io.BytesIO(data))
        for path in FLOATS:
            has_nan = False
            for at in range(footer.num_row_groups):
                values = leaf(pq.ParquetFile(io.BytesIO(data)).read_row_group(at), path)
                [chunk] = [
                    found
                    for each in range(footer.num_columns)
                    if (found := footer.row_group(at).column(each)).path_in_schema == path
                ]
                bounds = chunk.statistics
                if any(map(math.isnan, values)):
                    has_nan = True
                    assert not (bounds and bounds.has_min_max), path
                    assert not chunk.has_column_index, path
                elif bounds is not None and bounds.has_min_max:
                    least = min(values)
                    if IS_24 and least == math.inf:
                        assert bounds.min in GREATEST
                        least = bounds.min
                    assert (bounds.min, bounds.max) == (least, max(values))
                else:
                    assert not values or "write_statistics" in options
                if bounds is not None:
                    assert bounds.has_null_count
            if path in ("x", "s.g", "f"):
                greatest = statistics.get("maxValues", {})
                for part in path.split("."):
                    greatest = greatest.get(part, {})
                assert not (has_nan and greatest), path
                finite = [value for value in leaf(everything, path) if not math.isnan(value)]
                stated = greatest if greatest == {} else float(greatest)
                assert stated in ({}, max(finite, default=None))
    assert (
        stored(store, done).num_rows
        == sum(len(numbers) for numbers, _ in files) - len(files) * deleted
    )


def test_only_row_groups_with_nan_lose_their_bounds() -> None:
    with_nan = pa.table({"x": [1.0, math.nan], "f": pa.array([1.0, 2.0], pa.float32())})
    without = pa.table({"x": [3.0, 4.0], "f": pa.array([5.0, math.nan], pa.float32())})
    files = {
        "f0": parquet(with_nan, store_schema=False),
        "f1": parquet(without, store_schema=False),
    }
    store = MemoryStore()
    done = rewritten(store, files, spec_of(field("x", "double"), field("f", "float")))
    assert done.copied
    footer = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    found = [
        [footer.row_group(at).column(leaf).statistics.has_min_max for leaf in range(2)]
        for at in range(2)
    ]
    assert found == [[False, True], [True, False]]


def test_nan_in_other_rows_of_a_list_does_not_count() -> None:
    kind = named(pa.float64())
    values = pa.array([[math.nan], [1.0], [2.0, math.nan]], kind)
    pairs = pa.array([[("a", [math.nan])], [("b", [1.0])], []], pa.map_(pa.string(), kind))
    both = pa.table({"l": values, "m": pairs})
    assert leaves_with_nan(both, both.schema) == {0, 2}
    assert leaves_with_nan(both.slice(1, 1), both.schema) == frozenset()
    assert leaves_with_nan(both.slice(2), both.schema) == {0}
    assert leaves_with_nan(both.select(["m"]), both.schema) == {2}
    assert leaves_with_nan(both.slice(1, 0), both.schema) == frozenset()

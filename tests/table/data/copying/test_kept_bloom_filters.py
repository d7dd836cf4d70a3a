"""Bloom filters of sources are kept by a rewrite, for the columns of all sources."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import rewrite
from delta_maintenance.table.data.clustering.keys import Clustering
from tests.support.rewrites.arrow_features import needs_bloom_filters
from tests.support.rewrites.data_files import field, put, source
from tests.support.rewrites.typed_bins import rewritten, spec_of

pytestmark = needs_bloom_filters
FIELDS = (
    field("n", "long"),
    field("s", "string"),
    field("flag", "boolean"),
    field("box", {"type": "struct", "fields": [field("x", "double")]}),
    field("list", {"type": "array", "elementType": "integer", "containsNull": True}),
)
ROWS = 20_000
FILTERED = ["n", "s", "box.x", "list.list.element"]


def file(number: int, filtered: list[str]) -> bytes:
    numbers = range(number * ROWS, (number + 1) * ROWS)
    table = pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "s": pa.array([f"text {each % 100}" for each in numbers]),
            "flag": pa.array([each % 2 == 0 for each in numbers]),
            "box": pa.array([{"x": each + 0.5} for each in numbers]),
            "list": pa.array([[each] for each in numbers], pa.list_(pa.int32())),
        }
    )
    out = io.BytesIO()
    options = {"ndv": ROWS, "fpp": 0.01}
    pq.write_table(table, out, bloom_filter_options=dict.fromkeys(filtered, options) or None)
    return out.getvalue()


def filtered_paths(data: bytes) -> dict[str, int]:
    """The sizes of the filters of all row groups, by path."""
    metadata = pq.read_metadata(io.BytesIO(data))
    found: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            if chunk.bloom_filter_offset is not None:
                size = chunk.bloom_filter_length
                found[chunk.path_in_schema] = found.get(chunk.path_in_schema, 0) + size
    return found


@pytest.mark.parametrize(
    ("files", "kept", "attempts"),
    [
        ([[], []], [], 1),
        ([FILTERED, FILTERED], FILTERED, 2),
        ([[], ["n"], ["box.x"], ["n", "s"]], ["n", "s", "box.x"], 2),
    ],
)
def test_filters_of_all_sources_are_kept(
    files: list[list[str]], kept: list[str], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    class Counted(rewrite._Attempt):
        def __init__(self, *given: Any) -> None:
            begun.append(given)
            super().__init__(*given)

    monkeypatch.setattr(rewrite, "_Attempt", Counted)
    store, sources = MemoryStore(), []
    for number, filtered in enumerate(files):
        data = file(number, filtered)
        put(store, f"f{number}", data)
        sources.append(source(f"f{number}", data, rows=ROWS))
    done = rewritten(store, sources, spec_of(*FIELDS))
    assert not done.refused and len(begun) == attempts
    (output,) = done.outputs
    assert output.rows == ROWS * len(files)
    found = filtered_paths(store.read(output.name))
    assert set(found) == set(kept)
    # A filter takes 10 bits for each value, and its size is a power of two.
    assert all(size < 3 * output.rows for size in found.values())


def test_rows_encoded_beside_copied_row_groups_get_their_filters() -> None:
    store, sources = MemoryStore(), []
    for number, (filtered, deleted) in enumerate(((["n", "s"], None), ([], [3]))):
        data = file(number, filtered)
        put(store, f"f{number}", data)
        sources.append(source(f"f{number}", data, rows=ROWS, deleted=deleted))
    done = rewritten(store, sources, replace(spec_of(*FIELDS), copied_group_bytes=1))
    assert done.copied
    (output,) = done.outputs
    metadata = pq.read_metadata(io.BytesIO(store.read(output.name)))
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        found = {c.path_in_schema for c in chunks if c.bloom_filter_offset is not None}
        assert found == {"n", "s"}
    assert metadata.num_row_groups == 2


def test_rows_in_another_order_keep_the_filters() -> None:
    store, data = MemoryStore(), file(0, ["n"])
    put(store, "f", data)
    order = Clustering(columns=(("n",), ("s",)), curve="hilbert")
    spec = replace(spec_of(*FIELDS), clustering=order)
    done = rewritten(store, [source("f", data, rows=ROWS)], spec)
    assert done.clustered is not None
    (output,) = done.outputs
    assert set(filtered_paths(store.read(output.name))) == {"n"}


def test_columns_that_cannot_have_filters_are_left_out() -> None:
    data = file(0, ["n"])
    store = MemoryStore()
    put(store, "f", data)
    spec = spec_of(*FIELDS, bloom_filters=frozenset({"flag", "n", "unknown"}))
    done = rewritten(store, [source("f", data, rows=ROWS)], spec)
    (output,) = done.outputs
    assert set(filtered_paths(store.read(output.name))) == {"n"}

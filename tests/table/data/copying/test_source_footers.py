"""Footers that contradict themselves or their file are not copied, and none ends the process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.protocol.actions import Metadata
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.copying import copied_bin
from delta_maintenance.table.data.data_file_writer import DataFileSpec
from delta_maintenance.table.data.parquet import footers as fields
from delta_maintenance.table.data.parquet.thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    ListValue,
    Struct,
    read_struct,
    struct_bytes,
)
from delta_maintenance.table.data.rewrite import rewrite_bin
from tests.support.rewrites.data_files import field, parquet, put, schema_string, source
from tests.support.rewrites.mixed_sources import BIG, PLAIN, SMALL, groups_of, spec_of, stored

Change = Callable[[Struct, list[Struct], list[Struct]], None]


def changed(data: bytes, change: Change, appended: bytes = b"") -> bytes:
    """The file with another footer; `change` gets it, its row groups and the chunks of one."""
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    groups = footer.structs(fields.ROW_GROUPS)
    change(footer, groups, groups[2].structs(fields.COLUMNS))
    tail = struct_bytes(footer)
    return data[: -8 - size] + appended + tail + len(tail).to_bytes(4, "little") + b"PAR1"


def of_chunk(chunk: Struct) -> Struct:
    found = chunk.get(fields.CHUNK_METADATA)
    assert isinstance(found, Struct)
    return found


def columns_of(group: Struct) -> list[Any]:
    found = group.get(fields.COLUMNS)
    assert isinstance(found, ListValue)
    return found.values


def merged(*files: bytes, spec: RewriteSpec | None = None) -> tuple[MemoryStore, RewrittenBin]:
    store = MemoryStore()
    for at, data in enumerate(files):
        put(store, f"f{at}", data)
    done = rewrite_bin(
        store,
        Bin(
            number=0,
            sources=tuple(source(f"f{at}", data) for at, data in enumerate(files)),
            reasons=(("small",),) * len(files),
        ),
        spec or spec_of(tracked=False),
        new_id=lambda: "00000000-0000-4000-8000-000000000000",
    )
    return store, done


def _rows(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    footer.put(fields.NUM_ROWS, I64, 399)


def _negative_rows(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    groups[0].put(fields.GROUP_ROWS, I64, -100)
    footer.put(fields.NUM_ROWS, I64, 200)


def _values(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    of_chunk(chunks[0]).put(fields.NUM_VALUES, I64, 0)


def _fewer_columns(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    columns_of(groups[2]).pop()


def _more_columns(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    columns_of(groups[2]).append(chunks[0])


@pytest.mark.conformance("RW-25", "RW-40")
@pytest.mark.parametrize("change", [_rows, _negative_rows, _values, _fewer_columns, _more_columns])
def test_a_file_whose_footer_contradicts_itself_is_refused(change: Change) -> None:
    store, done = merged(changed(stored(BIG), change), stored(SMALL), stored(replace(BIG, seed=4)))
    assert [refusal.source.path for refusal in done.refused] == ["f0"]
    assert groups_of(store, done) == [100] * 4 + [30]


def _group_rows(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    groups[2].put(fields.GROUP_ROWS, I64, 50)
    footer.put(fields.NUM_ROWS, I64, 350)


def _first_page(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    """Arrow reads from the lesser position."""
    metadata = of_chunk(chunks[2])
    metadata.put(fields.DATA_PAGE, I64, (metadata.number(fields.DICTIONARY_PAGE) or 0))
    metadata.put(fields.DICTIONARY_PAGE, I64, 1 + (metadata.number(fields.DATA_PAGE) or 0))


def _another_index(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    other = groups[1].structs(fields.COLUMNS)[0]
    for name, kind in ((fields.OFFSET_INDEX, I64), (fields.OFFSET_INDEX_SIZE, I32)):
        chunks[0].put(name, kind, other.number(name))


def _no_dictionary(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
    """The bytes then begin with the first data page, and end in the next column."""
    of_chunk(chunks[0]).put(fields.DICTIONARY_PAGE, I64, 0)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("pages", _group_rows),
        ("pages", _first_page),
        ("pages", _another_index),
        ("own", _no_dictionary),
    ],
)
def test_a_file_with_a_doubtful_footer_is_decoded(form: str, change: Change) -> None:
    data = changed(stored(replace(BIG, form=form)), change)
    _, done = merged(data, data)
    assert not done.copied


@pytest.mark.parametrize(
    "index",
    [Struct(), Struct({1: (LIST, ListValue(STRUCT, [Struct()]))})],
    ids=["without fields", "without positions"],
)
def test_an_incomplete_page_index_is_not_an_error(index: Struct) -> None:
    data, appended = stored(BIG), struct_bytes(index)
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")

    def change(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
        chunks[0].put(fields.OFFSET_INDEX, I64, end)
        chunks[0].put(fields.OFFSET_INDEX_SIZE, I32, len(appended))

    _, done = merged(changed(data, change, appended), stored(SMALL))
    assert [output.rows for output in done.outputs] == [430]


def test_a_footer_that_describes_more_than_the_file_holds_is_not_copied() -> None:
    def change(footer: Struct, groups: list[Struct], chunks: list[Struct]) -> None:
        found = footer.get(fields.ROW_GROUPS)
        assert isinstance(found, ListValue)
        found.values.extend([groups[2]] * 20)
        footer.put(fields.NUM_ROWS, I64, 2400)

    data = changed(stored(BIG), change)
    _, done = merged(data, data)
    assert not done.copied


@pytest.mark.parametrize("budget", [{"chunks": 40}, {"index_bytes": 2600}], ids=str)
def test_sources_beyond_the_budget_are_decoded(
    budget: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_bin, "_BUDGET", replace(copied_bin._BUDGET, **budget))
    files = [stored(replace(BIG, form="pages", seed=seed)) for seed in (1, 2, 4)]
    store, done = merged(*files)
    assert groups_of(store, done)[:8] == [100] * 8
    assert len(groups_of(store, done)) < 12


@pytest.mark.conformance("RW-26")
@pytest.mark.parametrize("kind", ["long", "double"])
def test_statistics_of_columns_with_dots_in_their_names_are_not_exchanged(kind: str) -> None:
    """`a.b` is the path of a column and of a field of another column, in the words of Arrow."""
    values = pa.array(range(400), {"long": pa.int64(), "double": pa.float64()}[kind])
    rows = pa.table(
        {
            "a": pa.StructArray.from_arrays([values], ["b"]),
            "a.b": pa.array(range(9000, 9400)),
            "c": pa.array([f"{at:03}{at * 7919 % 400:070}" for at in range(400)]),
        }
    )
    inner = {"type": "struct", "fields": [field("b", kind)]}
    fields = {"a": field("a", inner), "a.b": field("a.b", "long"), "c": field("c", "string")}
    for order in (["a", "a.b", "c"], ["a.b", "c", "a"], ["a", "c", "a.b"]):
        metadata = Metadata(
            id="t", schema_string=schema_string(*(fields[name] for name in order)), configuration={}
        )
        files = DataFileSpec(
            layout=DataFileLayout.of(PLAIN, metadata),
            statistics=StatisticsColumns.of(PLAIN, metadata, {}),
        )
        spec = replace(spec_of(tracked=False), files=files, copied_group_bytes=1)
        data = parquet(rows.select(order), row_group_size=100, store_schema=False)
        store, done = merged(data, data, spec=spec)
        assert done.copied
        found = json.loads(done.outputs[0].stats)
        assert (found["minValues"]["a"]["b"], found["maxValues"]["a"]["b"]) == (0, 399)
        assert (found["minValues"]["a.b"], found["maxValues"]["a.b"]) == (9000, 9399)
        assert (found["minValues"]["c"][:3], found["maxValues"]["c"][:3]) == ("000", "399")
        assert pq.read_table(io.BytesIO(store.read(done.outputs[0].name))).num_rows == 800

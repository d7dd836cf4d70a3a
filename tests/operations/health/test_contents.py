"""The columns and the rows of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.health import contents, measure
from delta_maintenance.operations.health.contents import Column, TableContents, read_contents
from tests.support.tables.actions import add, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 3,
}


def rows_of(number: int) -> str:
    return json.dumps({"numRecords": number})


def read(table: TableBuilder) -> TableContents:
    snapshot = table.open().snapshot()
    return read_contents(snapshot, measure(snapshot, now=clock.now()))


def table_with(folder: Path, *files: Any, **fields: Any) -> TableBuilder:
    table = TableBuilder(folder)
    table.commit([protocol(), metadata(**fields)])
    table.commit(files)
    return table


def test_columns_have_their_types_and_comments(tmp_path: Path) -> None:
    address = {"type": "struct", "fields": [field("city", "string")]}
    fields = [
        field("id", "long", nullable=False, metadata={"comment": "of the order"}),
        field("to", address, metadata={"comment": None}),
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    assert read(table_with(tmp_path, add("a", stats=rows_of(1)), schema=schema)).columns == (
        Column(name="id", type="long", is_nullable=False, comment="of the order"),
        Column(name="to", type="struct<city:string>", is_nullable=True, comment=None),
    )


def field(name: str, kind: object, **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


def test_rows_are_those_of_all_files(tmp_path: Path) -> None:
    files = [add(name, stats=rows_of(7)) for name in "abc"]
    assert read(table_with(tmp_path, *files)).rows == 21


def test_deleted_rows_do_not_count(tmp_path: Path) -> None:
    table = table_with(tmp_path, add("a", stats=rows_of(7)))
    table.commit([features("deletionVectors"), add("b", stats=rows_of(7), dv=VECTOR)])
    assert read(table).rows == 11


def test_rows_that_a_file_does_not_state_are_unknown(tmp_path: Path) -> None:
    assert read(table_with(tmp_path, add("a", stats=rows_of(7)), add("b"))).rows is None


def test_the_rows_of_very_many_files_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_MOST_FILES", 2)
    files = [add(name, stats=rows_of(7)) for name in "abc"]
    assert read(table_with(tmp_path, *files)).rows is None

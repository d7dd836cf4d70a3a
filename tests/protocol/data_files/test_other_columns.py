"""What the schema of a data file shows about dropped columns, names and types, at every level."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.data_files.other_columns import (
    holds_other_columns,
    holds_other_names,
    holds_other_types,
    needs_widening,
)
from delta_maintenance.protocol.schema import parse_schema
from delta_maintenance.protocol.schema.data_columns import StoredColumns
from tests.support.rewrites.data_files import field

STRUCT = {"type": "struct", "fields": [field("x", "decimal(12,2)")]}
ARRAY = {"type": "array", "elementType": STRUCT, "containsNull": True}
SCHEMA = parse_schema(json.dumps({"type": "struct", "fields": [field("a", ARRAY)]}))
LAYOUT = DataFileLayout(
    columns=SCHEMA, partition_columns=parse_schema('{"type":"struct","fields":[]}'), mode="none"
)
STORED = StoredColumns(mode="none")
WIDE = pa.decimal128(12, 2)
LISTS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
    "fixed size": lambda kind: pa.list_(kind, 2),
}


@pytest.mark.conformance("CM-03", "TW-02")
@pytest.mark.parametrize("layout", LISTS)
def test_lists_of_every_layout_are_looked_into(layout: str) -> None:
    def schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
        return pa.schema([("a", LISTS[layout](pa.struct(list(fields))))])

    assert not holds_other_names(schema(("x", WIDE)), LAYOUT, STORED)
    assert holds_other_columns(schema(("x", WIDE), ("gone", WIDE)), LAYOUT, STORED)
    assert holds_other_names(schema(("X", WIDE)), LAYOUT, STORED)
    for narrow in (pa.int8(), pa.int32(), pa.decimal128(10, 2), pa.decimal128(11, 1)):
        assert holds_other_types(schema(("x", narrow)), LAYOUT, STORED)
        assert needs_widening(schema(("x", narrow)), LAYOUT, STORED)
    assert not holds_other_types(schema(("x", WIDE)), LAYOUT, STORED)
    assert not needs_widening(schema(("x", WIDE)), LAYOUT, STORED)

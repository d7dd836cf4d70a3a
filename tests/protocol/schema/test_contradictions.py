"""Contradictions of a schema, whatever the metadata of its fields contain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.schema import parse_schema, type_changes
from delta_maintenance.protocol.schema.contradictions import contradictions

ID, NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
MAPPED = {"delta.columnMapping.mode": "name"}
SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(
    SIMPLE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner)
)


def found(*fields: dict[str, Any]) -> list[str]:
    columns = [
        {"name": f"c{at}", "type": "long", "nullable": True, "metadata": each}
        for at, each in enumerate(fields)
    ]
    schema = json.dumps({"type": "struct", "fields": columns})
    metadata = Metadata.from_json(
        {"id": "t", "format": {}, "schemaString": schema, "configuration": MAPPED}
        | {"partitionColumns": []}
    )
    protocol = Protocol.from_json({"minReaderVersion": 2, "minWriterVersion": 5})
    return [problem for _, problem in contradictions(protocol, metadata, {})]


@given(st.lists(st.fixed_dictionaries({ID: ANYTHING, NAME: ANYTHING}), min_size=1, max_size=3))
def test_any_metadata_of_a_field_are_compared(fields: list[dict[str, Any]]) -> None:
    problems = found(*fields)
    for key, what in ((ID, "no ID"), (NAME, "no physical name")):
        kind = int if key == ID else str
        missing = sum(not isinstance(field[key], kind) for field in fields)
        assert (f"{missing} columns have {what}" in problems) is (missing > 0)


def test_repeated_values_are_named() -> None:
    assert found({ID: 1, NAME: "a"}, {ID: 2, NAME: "b"}) == []
    assert found({ID: 1, NAME: "a"}, {ID: 1, NAME: "a"}) == [
        "2 columns have the ID 1",
        "2 columns have the physical name a",
    ]


@pytest.mark.parametrize("value", [None, 1, "x", {}, [1], [None]])
@pytest.mark.parametrize("key", ["delta.typeChanges", "delta.columnMapping.nested.ids"])
def test_metadata_of_another_form_make_the_schema_unreadable(key: str, value: Any) -> None:
    field = {"name": "c", "type": "long", "nullable": True, "metadata": {key: value}}
    text = json.dumps({"type": "struct", "fields": [field]})
    if (key, value) == ("delta.columnMapping.nested.ids", {}):
        assert list(type_changes(parse_schema(text))) == []
        return
    with pytest.raises(CorruptTableError, match="the column '?c'? is "):
        list(type_changes(parse_schema(text)))

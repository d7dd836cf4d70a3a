"""Type changes that readers support, and those that Iceberg readers support."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.protocol.schema import (
    StructType,
    TypeChange,
    parse_schema,
    require_known_changes,
    type_changes,
)


def change(before: str, after: str) -> TypeChange:
    return TypeChange(column="c", before=before, after=after)


def schema(*changes: tuple[str, str], **more: Any) -> StructType:
    told = [{"fromType": before, "toType": after, **more} for before, after in changes]
    inner = {"name": "x", "type": "long", "metadata": {"delta.typeChanges": told}}
    kind = {"type": "array", "elementType": {"type": "struct", "fields": [inner]}}
    return parse_schema(
        json.dumps({"type": "struct", "fields": [{"name": "c", "type": kind, "metadata": {}}]})
    )


@pytest.mark.conformance("TW-01")
@pytest.mark.parametrize(
    ("before", "known", "unknown"),
    [
        ("byte", ["short", "integer", "long", "double", "decimal(10,0)", "decimal(12,2)"], []),
        ("byte", [], ["float", "decimal(9,0)", "decimal(11,2)", "string", "timestamp_ntz"]),
        ("integer", ["long", "double", "decimal(10,0)"], ["short", "float", "decimal(10,1)"]),
        ("long", ["decimal(20,0)", "decimal(38,18)"], ["double", "decimal(19,0)", "integer"]),
        ("float", ["double"], ["decimal(38,0)"]),
        ("double", ["double"], ["float", "decimal(38,0)"]),
        ("date", ["timestamp_ntz"], ["timestamp", "string"]),
        ("decimal(6, 2)", ["decimal(10, 4)", "decimal(6,2)"], ["decimal(7,4)", "decimal(5,2)"]),
        ("string", ["string"], ["binary", "variant", "decimal(38,0)"]),
        ("void", ["string", "decimal(3,2)"], []),
        ("None", [], ["long"]),
    ],
)
def test_changes_that_the_protocol_defines(
    before: str, known: list[str], unknown: list[str]
) -> None:
    assert all(change(before, after).is_known for after in known)
    assert not any(change(before, after).is_known for after in unknown)


@given(st.sampled_from(["byte", "integer", "long", "float", "date", "decimal(5,2)"]), st.data())
def test_iceberg_has_no_change_that_delta_lacks(before: str, data: st.DataObject) -> None:
    digits = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, digits))
    kinds = ["short", "long", "double", "timestamp_ntz", f"decimal({digits},{scale})"]
    step = change(before, data.draw(st.sampled_from(kinds)))
    assert step.is_known or not step.is_promotion


@pytest.mark.conformance("TW-01")
def test_a_change_is_found_at_every_depth_and_named_by_its_column() -> None:
    known = schema(("short", "integer"), ("integer", "long"), fieldPath="element")
    assert [(found.before, found.after) for found in type_changes(known)] == [
        ("short", "integer"),
        ("integer", "long"),
    ]
    require_known_changes(known)
    with pytest.raises(UnsupportedFeatureError, match=r"column c.* from string to long"):
        require_known_changes(schema(("short", "integer"), ("string", "long")))

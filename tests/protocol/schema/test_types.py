"""The schema tree: type names, lenient parsing, column mapping, duplicate names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.schema import (
    ArrayType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    UnknownType,
    column_mapping_mode,
    duplicate_names,
    has_bounds,
    parse_schema,
    physical_name,
    physical_schema,
    to_arrow_type,
    walk,
)

PRIMITIVES = [
    ("string", pa.string(), True),
    ("long", pa.int64(), True),
    ("integer", pa.int32(), True),
    ("short", pa.int16(), True),
    ("byte", pa.int8(), True),
    ("float", pa.float32(), True),
    ("double", pa.float64(), True),
    ("boolean", pa.bool_(), True),
    ("binary", pa.binary(), False),
    ("date", pa.date32(), True),
    ("timestamp", pa.timestamp("us", tz="UTC"), True),
    ("timestamp_ntz", pa.timestamp("us"), True),
    ("variant", None, False),
    ("void", None, False),
]


def column(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}} | more


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def parsed(*fields: dict[str, Any]) -> StructType:
    return parse_schema(json.dumps(struct(*fields)))


def type_of(definition: Any) -> Any:
    return parsed(column("c", definition)).fields[0].type


@pytest.mark.conformance("SCHEMA-01")
@pytest.mark.parametrize(("name", "arrow", "bounds"), PRIMITIVES)
def test_primitive_type(name: str, arrow: pa.DataType | None, bounds: bool) -> None:
    assert type_of(name) == PrimitiveType(name=name)
    assert to_arrow_type(type_of(name)) == arrow
    assert has_bounds(type_of(name)) is bounds


@pytest.mark.conformance("SCHEMA-01")
@pytest.mark.parametrize(
    ("text", "precision", "scale"),
    [("decimal(10,2)", 10, 2), ("decimal(38, 38)", 38, 38), ("decimal( 1 , 0 )", 1, 0)],
)
def test_decimal_type(text: str, precision: int, scale: int) -> None:
    found = type_of(text)
    assert found == DecimalType(precision=precision, scale=scale)
    assert to_arrow_type(found) == pa.decimal128(precision, scale)
    assert has_bounds(found)


@pytest.mark.conformance("SCHEMA-02")
@pytest.mark.parametrize(
    "definition",
    [
        "geometry(OGC:CRS84)",
        "geography(OGC:CRS84, spherical)",
        "interval year to month",
        "timestamp_nanos",
        "timestampNTZ",
        "int",
        "bigint",
        "array[int]",
        "Long",
        "decimal",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(5,-1)",
        "decimal(0,0)",
        {"type": "udt", "class": "org.example.Point"},
        {"tensor": 3},
    ],
)
def test_unknown_types_are_kept(definition: Any) -> None:
    found = type_of(definition)
    assert isinstance(found, UnknownType)
    text = found.definition
    assert (text if isinstance(definition, str) else json.loads(text)) == definition
    assert to_arrow_type(found) is None
    assert not has_bounds(found)


@pytest.mark.conformance("SCHEMA-01", "SCHEMA-04")
def test_nested_schema_with_absent_flags_and_typed_metadata() -> None:
    metadata = {"delta.identity.start": 1, "f": 1.5, "on": True, "list": [1], "comment": "é"}
    schema = parsed(
        {"name": "id", "type": "long", "nullable": False, "metadata": metadata},
        {
            "name": "m",
            "type": {"type": "map", "keyType": "string", "valueType": struct(column("x", "date"))},
        },
        column("a", {"type": "array", "elementType": "short", "containsNull": False}),
    )
    identity, mapping, array = schema.fields
    assert identity.metadata == metadata
    assert [type(value) for value in identity.metadata.values()] == [int, float, bool, list, str]
    assert not identity.nullable
    assert mapping.nullable
    assert mapping.metadata == {}
    inner = StructField(name="x", type=PrimitiveType(name="date"), nullable=True)
    assert mapping.type == MapType(
        key=PrimitiveType(name="string"),
        value=StructType(fields=(inner,)),
        value_contains_null=True,
    )
    assert array.type == ArrayType(element=PrimitiveType(name="short"), contains_null=False)
    assert str(schema) == "struct<id:long,m:map<string,struct<x:date>>,a:array<short>>"
    assert schema.find("m") is mapping
    assert schema.find("M") is None
    assert [".".join(path) for path, _ in walk(schema)] == ["id", "m", "m.value.x", "a"]
    assert hash(schema) == hash(schema)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"long"',
        "7",
        '{"type":"struct"}',
        '{"type":"struct","fields":{}}',
        '{"type":"struct","fields":[7]}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","metadata":[]}]}',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array"}}]}',
    ],
    ids=lambda text: text[:50],
)
def test_damaged_schema_is_corruption(text: str) -> None:
    with pytest.raises(CorruptTableError):
        parse_schema(text)


LEVELS = {"struct": 98, "array": 49, "map": 49}
"""The most of each container around one value that Arrow reads from Parquet."""


def nested(kind: str, count: int) -> str:
    """A schema with a column of `count` nested containers."""
    before = {
        "struct": '{"type":"struct","fields":[{"name":"a","type":',
        "array": '{"type":"array","elementType":',
        "map": '{"type":"map","keyType":"long","valueType":',
    }[kind]
    after = "}]}" if kind == "struct" else "}"
    column = before * count + '"long"' + after * count
    return f'{{"type":"struct","fields":[{{"name":"c","type":{column}}}]}}'


@pytest.mark.parametrize("kind", LEVELS)
def test_a_schema_as_deep_as_arrow_reads_is_parsed(kind: str) -> None:
    levels = LEVELS[kind]

    parse_schema(nested(kind, levels))
    for count in (levels + 1, 200, 100_000):
        with pytest.raises(UnsupportedFeatureError, match="nested more than 98 levels"):
            parse_schema(nested(kind, count))


def protocol(reader: int, writer: int, *features: str) -> Protocol:
    return Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=features if reader == 3 else None,
        writer_features=features if writer == 7 else None,
    )


MAPPED = [protocol(2, 5), protocol(2, 7, "columnMapping"), protocol(3, 7, "columnMapping")]
UNMAPPED = [protocol(1, 2), protocol(1, 5), protocol(2, 4), protocol(2, 7), protocol(3, 7)]


@pytest.mark.conformance("CM-01")
def test_the_mapping_mode_requires_support_by_the_protocol() -> None:
    for mode in ("none", "id", "name"):
        configuration = {"delta.columnMapping.mode": mode}
        assert {column_mapping_mode(p, configuration) for p in MAPPED} == {mode}
        assert {column_mapping_mode(p, configuration) for p in UNMAPPED} == {"none"}
    assert column_mapping_mode(MAPPED[0], {}) == "none"


@pytest.mark.conformance("CM-01")
def test_unknown_mapping_mode_is_refused() -> None:
    for mode in ("x", "Name", ""):
        configuration = {"delta.columnMapping.mode": mode}
        for mapped in MAPPED:
            with pytest.raises(UnsupportedFeatureError, match="mode"):
                column_mapping_mode(mapped, configuration)
        assert column_mapping_mode(UNMAPPED[0], configuration) == "none"


def mapped(name: str, type_: Any, physical: str) -> dict[str, Any]:
    return column(name, type_, metadata={"delta.columnMapping.physicalName": physical})


@pytest.mark.conformance("CM-02", "CM-03")
def test_physical_names_at_every_level() -> None:
    leaf = struct(mapped("leaf", "long", "p3"))
    schema = parsed(
        mapped("top", struct(mapped("inner", "date", "p2")), "p1"),
        mapped("list", {"type": "array", "elementType": leaf}, "p4"),
        mapped("dict", {"type": "map", "keyType": leaf, "valueType": leaf}, "p5"),
    )
    assert physical_schema(schema, "none") == schema
    for mode in ("id", "name"):
        physical = physical_schema(schema, mode)
        assert [".".join(path) for path, _ in walk(physical)] == [
            "p1",
            "p1.p2",
            "p4",
            "p4.element.p3",
            "p5",
            "p5.key.p3",
            "p5.value.p3",
        ]
    assert physical_name(schema.fields[0], "none") == "top"
    assert physical_name(schema.fields[0], "id") == "p1"


@pytest.mark.conformance("CM-03")
def test_mapped_column_without_physical_name_is_corruption() -> None:
    for metadata in ({}, {"delta.columnMapping.physicalName": 7}):
        with pytest.raises(CorruptTableError, match="'c' has no physical name"):
            physical_schema(parsed(column("c", "long", metadata=metadata)), "name")


@pytest.mark.conformance("SCHEMA-03")
def test_duplicate_names_ignore_case() -> None:
    schema = parsed(
        column("a", struct(column("x", "long"), column("X", "long"))),
        column("b", {"type": "array", "elementType": struct(column("A", "date"))}),
        column("A", "long"),
        column("É", "long"),
        column("é", "long"),
    )
    assert duplicate_names(schema) == (("a", "X"), ("A",), ("é",))
    assert (
        duplicate_names(parsed(column("a", "long"), column("b", struct(column("a", "long"))))) == ()
    )


names = st.text(min_size=1, max_size=5)
type_json = st.recursive(
    st.sampled_from([name for name, _, _ in PRIMITIVES] + ["decimal(7,3)", "geometry(x)"]),
    lambda inner: st.one_of(
        st.builds(lambda t: {"type": "array", "elementType": t, "containsNull": True}, inner),
        st.builds(
            lambda k, v: {"type": "map", "keyType": k, "valueType": v, "valueContainsNull": True},
            inner,
            inner,
        ),
        st.lists(st.builds(column, names, inner), max_size=3).map(lambda f: struct(*f)),
    ),
    max_leaves=8,
)


def rendered(found: Any) -> Any:
    """The JSON of a parsed type, rendered only to prove that parsing loses nothing."""
    match found:
        case StructType(fields=fields):
            return struct(
                *(
                    {
                        "name": f.name,
                        "type": rendered(f.type),
                        "nullable": f.nullable,
                        "metadata": f.metadata,
                    }
                    for f in fields
                )
            )
        case ArrayType():
            return {
                "type": "array",
                "elementType": rendered(found.element),
                "containsNull": found.contains_null,
            }
        case MapType():
            return {
                "type": "map",
                "keyType": rendered(found.key),
                "valueType": rendered(found.value),
                "valueContainsNull": found.value_contains_null,
            }
    return str(found)


@pytest.mark.conformance("SCHEMA-01", "SCHEMA-04")
@given(st.lists(st.builds(column, names, type_json), max_size=4))
def test_parsing_loses_nothing(fields: list[dict[str, Any]]) -> None:
    assert rendered(parsed(*fields)) == struct(*fields)


@pytest.mark.conformance("SCHEMA-01")
def test_schemas_of_the_corpus(corpus: Path) -> None:
    unknown, seen = set(), set()
    for path in corpus.rglob("_delta_log/*.json"):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if '"schemaString"' not in line:
                continue
            try:
                text = json.loads(line)["metaData"]["schemaString"]
            except (ValueError, KeyError):
                continue
            schema = parse_schema(text)
            assert rendered(schema) == json.loads(text)
            assert duplicate_names(schema) == ()
            for _, item in walk(schema):
                seen.add(str(item.type))
                if isinstance(item.type, UnknownType):
                    unknown.add(item.type.definition)
    assert len(seen) > 60
    assert unknown == {"geometry(OGC:CRS84)", "geography(OGC:CRS84, spherical)"}

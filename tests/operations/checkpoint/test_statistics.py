"""Statistics and partition values in a checkpoint: in the forms the table asks for, none lost."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.checkpoint import CheckpointResult
from delta_maintenance.protocol.delta_log import commit_name
from tests.support.logs.checkpointing import SHAPES, SIDECARS, files_of, write
from tests.support.tables.actions import Action, add, commit_info, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

INSTANT = datetime(2024, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)


def column(name: str, kind: Any, **field_metadata: Any) -> Action:
    return {"name": name, "type": kind, "nullable": True, "metadata": field_metadata}


def schema_of(*columns: Action) -> str:
    return json.dumps({"type": "struct", "fields": list(columns)})


NESTED = {"type": "struct", "fields": [column("inner", "integer")]}
SCHEMA = schema_of(
    column("part", "string"),
    column("n", "long"),
    column("x", "double"),
    column("d", "decimal(38,2)"),
    column("s", "string"),
    column("day", "date"),
    column("at", "timestamp"),
    column("flag", "boolean"),
    column("raw", "binary"),
    column("deep", NESTED),
    column("list", {"type": "array", "elementType": "integer", "containsNull": True}),
)
BOUNDS = {
    "n": 2**63 - 1,
    "x": 0.1,
    "d": Decimal("123456789012345678901234567890123456.78"),
    "s": "ü\u2028",
    "day": date(2024, 1, 31),
    "at": INSTANT,
    "flag": True,
    "deep": {"inner": -1},
}
NULLS: dict[str, Any] = dict.fromkeys(("n", "x", "d", "s", "day", "at", "flag", "raw", "list"), 0)
PARSED: dict[str, Any] = {
    "numRecords": 3,
    "minValues": BOUNDS,
    "maxValues": BOUNDS,
    "nullCount": NULLS | {"deep": {"inner": 2}},
}
JSON_BOUNDS = (
    '{"n":9223372036854775807,"x":0.1,"d":123456789012345678901234567890123456.78,'
    '"s":"ü\u2028","day":"2024-01-31","at":"2024-01-31T12:00:00.123Z","flag":true,"deep":{"inner":-1}}'
)
NULL_COUNTS = ",".join(f'"{name}":0' for name in NULLS) + ',"deep":{"inner":2}'
# A blank that no renderer of ours would write shows what is carried and what is computed.
TEXT = (
    f'{{"numRecords": 3,"minValues":{JSON_BOUNDS},"maxValues":{JSON_BOUNDS},'
    f'"nullCount":{{{NULL_COUNTS}}}}}'
)

SOURCES: dict[str, Action] = {
    "none": {},
    "JSON": {"stats": TEXT},
    "struct": {"stats_parsed": PARSED},
    "both": {"stats": TEXT, "stats_parsed": PARSED},
}


def settings(*, as_json: bool, as_struct: bool) -> dict[str, str]:
    return {
        "delta.checkpoint.writeStatsAsJson": str(as_json).lower(),
        "delta.checkpoint.writeStatsAsStruct": str(as_struct).lower(),
    }


def table_of(
    *files: Action,
    configuration: dict[str, str],
    schema: str = SCHEMA,
    supported: Action | None = None,
    partitioned_by: tuple[str, ...] = ("part",),
) -> TableBuilder:
    """A table whose files stand in a checkpoint, for only there statistics can be structs."""
    table = TableBuilder()
    supported = supported or features("v2Checkpoint")
    described = metadata(schema=schema, configuration=configuration, partitioned_by=partitioned_by)
    table.commit([supported, described])
    table.checkpoint(0, actions=[supported, described, *files])
    # It would contradict the checkpoint.
    table.drop(commit_name(0))
    table.commit([commit_info()])
    return table


def adds(table: TableBuilder, result: CheckpointResult) -> tuple[pa.StructType, list[Action]]:
    """The type of the column `add` of a new checkpoint, and its rows, however it is dealt out."""
    assert result.status == "written"
    rows: list[Action] = []
    kind = None
    for path, data in files_of(table.store).items():
        if path != result.path and not path.startswith(SIDECARS):
            continue
        if path.endswith(".json"):
            lines = [json.loads(line) for line in data.splitlines()]
            rows += [line["add"] for line in lines if "add" in line]
        else:
            column = pq.read_table(io.BytesIO(data)).combine_chunks()["add"]
            kind = column.type
            rows += [row for row in column.to_pylist(maps_as_pydicts="strict") if row]
    assert kind is not None
    return kind, rows


def loaded(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@pytest.mark.conformance("CKPT-10", "CKPT-11", "STAT-04", "STAT-05", "STAT-07", "PQ-03")
@pytest.mark.parametrize("as_json", [True, False], ids=["JSON", "no JSON"])
@pytest.mark.parametrize("as_struct", [True, False], ids=["struct", "no struct"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_form_is_converted_to_every_form(source: str, as_json: bool, as_struct: bool) -> None:
    table = table_of(
        add("a", partitionValues={"part": "x"}, **SOURCES[source]),
        configuration=settings(as_json=as_json, as_struct=as_struct),
    )
    kind, [row] = adds(table, write(table.open()))
    names = {field.name for field in kind}
    assert ("stats" in names, "stats_parsed" in names) == (as_json, as_struct)
    assert ("partitionValues_parsed" in names) == as_struct
    known = source != "none"
    if as_json and "stats" in SOURCES[source]:
        assert row["stats"] == TEXT
    elif as_json:
        assert (row["stats"] is not None) == known
        assert not known or loaded(row["stats"]) == loaded(TEXT)
    if as_struct:
        assert row["stats_parsed"] == (PARSED if known else None)
        assert row["partitionValues_parsed"] == {"part": "x"}
    assert row["partitionValues"] == {"part": "x"}


@pytest.mark.conformance("STAT-04", "CKPT-14", "PQ-03")
def test_the_struct_mirrors_the_schema() -> None:
    configuration = settings(as_json=True, as_struct=True)
    table = table_of(
        add("a", partitionValues={"part": "x"}, stats=TEXT), configuration=configuration
    )
    kind, _ = adds(table, write(table.open()))
    parsed = kind.field("stats_parsed").type
    instant = pa.timestamp("us", "UTC")
    bounds = {
        "n": pa.int64(),
        "x": pa.float64(),
        "d": pa.decimal128(38, 2),
        "s": pa.string(),
        "day": pa.date32(),
        "at": instant,
        "flag": pa.bool_(),
        "deep": pa.struct([("inner", pa.int32())]),
    }
    assert [field.name for field in parsed] == ["numRecords", "minValues", "maxValues", "nullCount"]
    for name in ("minValues", "maxValues"):
        assert {field.name: field.type for field in parsed.field(name).type} == bounds
    nulls = parsed.field("nullCount").type
    assert {field.name for field in nulls} == set(PARSED["nullCount"])
    assert nulls.field("deep").type == pa.struct([("inner", pa.int64())])
    with_vectors = table_of(
        configuration=configuration, supported=features("v2Checkpoint", "deletionVectors")
    )
    with_vectors.commit([add("a", partitionValues={"part": None}, stats='{"tightBounds":false}')])
    kind, [row] = adds(with_vectors, write(with_vectors.open()))
    assert row["stats_parsed"]["tightBounds"] is False


@pytest.mark.conformance("STAT-05")
def test_wide_bounds_stay_wide_without_deletion_vectors() -> None:
    table = table_of(
        add("wide", partitionValues={"part": None}, stats='{"numRecords":1,"tightBounds":false}'),
        add("tight", partitionValues={"part": None}, stats='{"numRecords":1}'),
        configuration=settings(as_json=False, as_struct=True),
    )
    _, rows = adds(table, write(table.open()))
    found = {row["path"]: row["stats_parsed"]["tightBounds"] for row in rows}
    assert found == {"wide": False, "tight": None}


@pytest.mark.conformance("CKPT-10", "CKPT-22", "STAT-05")
@pytest.mark.parametrize(("kind", "per_sidecar"), [s for s in SHAPES if s[0] != "v2-json" or s[1]])
def test_every_kind_has_the_same_statistics(kind: str, per_sidecar: int) -> None:
    files = [add(name, partitionValues={"part": "x"}, **source) for name, source in SOURCES.items()]
    table = table_of(*files, configuration=settings(as_json=True, as_struct=True))
    _, rows = adds(table, write(table.open(), kind, per_sidecar))
    for row in rows:
        known = row["path"] != "none"
        assert row["stats_parsed"] == (PARSED if known else None)
        assert (loaded(row["stats"]) if row["stats"] else None) == (loaded(TEXT) if known else None)


@pytest.mark.conformance("CKPT-10", "CKPT-11")
@pytest.mark.parametrize("as_json", [True, False], ids=["JSON", "no JSON"])
@pytest.mark.parametrize("source", ["JSON", "struct"])
def test_a_json_checkpoint_always_has_statistics_as_text(source: str, as_json: bool) -> None:
    table = table_of(
        add("a", partitionValues={"part": "x"}, **SOURCES[source]),
        configuration=settings(as_json=as_json, as_struct=True),
    )
    result = write(table.open(), "v2-json", 0)
    assert result.path is not None
    lines = [json.loads(line) for line in table.store.read(result.path).splitlines()]
    [row] = (line["add"] for line in lines if "add" in line)
    assert loaded(row["stats"]) == loaded(TEXT)
    assert {"stats_parsed", "partitionValues_parsed"}.isdisjoint(row)


@pytest.mark.conformance("CKPT-14", "STAT-05")
def test_null_counts_under_their_wrong_name_are_read_and_written_right() -> None:
    wrong = {"numRecords": 1, "nullCounts": {"n": 1}}
    table = table_of(
        add("a", partitionValues={"part": "x"}, stats_parsed=wrong),
        configuration=settings(as_json=True, as_struct=True),
    )
    table.commit([add("b", partitionValues={"part": "x"}, stats=json.dumps(wrong))])
    _, rows = adds(table, write(table.open()))
    for row in rows:
        assert row["stats_parsed"]["nullCount"]["n"] == 1
    computed, carried = sorted(rows, key=lambda row: str(row["path"]))
    assert json.loads(computed["stats"]) == {"numRecords": 1, "nullCount": {"n": 1}}
    assert carried["stats"] == json.dumps(wrong)


@pytest.mark.conformance("STAT-05", "FILE-13")
@pytest.mark.parametrize("text", ["{", "", "null", "[]", '"x"', '{"numRecords":"three"}'])
def test_broken_statistics_are_carried_as_they_are(text: str) -> None:
    table = table_of(configuration=settings(as_json=True, as_struct=True))
    table.commit([add("a", partitionValues={"part": "x"}, stats=text)])
    _, [row] = adds(table, write(table.open()))
    assert row["stats"] == text


LOSSY = {
    "collations": '{"numRecords":1,"statsWithCollation":{"icu":{"min":{"s":"a"}}}}',
    "a bound of the wrong type": '{"numRecords":1,"minValues":{"n":"x"}}',
    "a bound of a binary column": '{"numRecords":1,"minValues":{"raw":"YQ=="}}',
}


@pytest.mark.conformance("STAT-06", "STAT-07", "CKPT-11")
@pytest.mark.parametrize("text", LOSSY.values(), ids=LOSSY)
def test_statistics_without_a_struct_form_refuse_structs_alone(text: str) -> None:
    table = table_of(configuration=settings(as_json=False, as_struct=True))
    table.commit([add("a", partitionValues={"part": "x"}, stats=text)])
    before = files_of(table.store)
    with pytest.raises(RefusedError, match="without loss") as refusal:
        write(table.open())
    assert "writeStatsAsJson" in str(refusal.value)
    assert files_of(table.store) == before


@pytest.mark.conformance("STAT-06")
def test_bounds_of_variants_are_not_converted() -> None:
    schema = schema_of(column("v", "variant"), column("n", "integer"))
    text = '{"numRecords":1,"minValues":{"v":"0S&u2","n":1},"nullCount":{"v":0,"n":0}}'
    for as_json in (True, False):
        table = table_of(
            schema=schema,
            configuration=settings(as_json=as_json, as_struct=True),
            supported=features("variantType"),
            partitioned_by=(),
        )
        table.commit([add("a", stats=text)])
        if not as_json:
            with pytest.raises(RefusedError, match="minValues.v"):
                write(table.open())
            continue
        _, [row] = adds(table, write(table.open()))
        assert row["stats"] == text
        assert row["stats_parsed"]["minValues"] == {"n": 1}


@pytest.mark.conformance("CM-03", "CKPT-13")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping_uses_physical_names_everywhere(mode: str) -> None:
    schema = schema_of(
        *(
            column(
                name,
                kind,
                **{"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
            )
            for number, (name, kind, physical) in enumerate(
                [("shown", "integer", "col-1"), ("day", "date", "col-2")], start=1
            )
        )
    )
    table = table_of(
        schema=schema,
        configuration=settings(as_json=True, as_struct=True) | {"delta.columnMapping.mode": mode},
        supported=protocol(2, 5),
        partitioned_by=("day",),
    )
    stats = '{"numRecords":1,"minValues":{"col-1":7}}'
    table.commit([add("a", partitionValues={"col-2": "2024-01-31"}, stats=stats)])
    _, [row] = adds(table, write(table.open()))
    assert row["stats_parsed"]["minValues"] == {"col-1": 7}
    assert row["partitionValues_parsed"] == {"col-2": date(2024, 1, 31)}
    assert row["partitionValues"] == {"col-2": "2024-01-31"}


# Partition values.


@pytest.mark.conformance("CKPT-12", "PART-03", "PART-02", "PART-04")
def test_partition_values_keep_their_text_beside_their_type() -> None:
    types = {
        "i": "integer",
        "b": "boolean",
        "dec": "decimal(5,2)",
        "dbl": "double",
        "day": "date",
        "ntz": "timestamp_ntz",
        "s": "string",
        "bin": "binary",
    }
    texts = {
        "i": "0012",
        "b": "true",
        "dec": "1.5",
        "dbl": "1e3",
        "day": "2024-1-31",
        "ntz": "2024-01-31 12:00:00.5",
        "s": " x ",
        "bin": "ü",
    }
    table = table_of(
        schema=schema_of(*(column(name, kind) for name, kind in types.items())),
        configuration=settings(as_json=True, as_struct=True),
        supported=features("timestampNtz"),
        partitioned_by=tuple(types),
    )
    nulls = dict.fromkeys(types)
    empties = dict.fromkeys(types, "")
    table.commit([add("a", partitionValues=texts), add("b", partitionValues=nulls)])
    table.commit([add("c", partitionValues=empties)])
    _, rows = adds(table, write(table.open()))
    a, b, c = sorted(rows, key=lambda row: str(row["path"]))
    assert (a["partitionValues"], b["partitionValues"]) == (texts, nulls)
    assert c["partitionValues"] == empties
    assert b["partitionValues_parsed"] == c["partitionValues_parsed"] == nulls
    typed = a["partitionValues_parsed"]
    assert typed["dec"] == Decimal("1.50") and typed["ntz"] == datetime(
        2024, 1, 31, 12, 0, 0, 500000
    )
    assert (typed["i"], typed["dbl"], typed["s"], typed["bin"]) == (12, 1000.0, " x ", "ü".encode())


@pytest.mark.conformance("PART-04")
def test_a_partition_value_that_is_not_of_its_type_is_never_typed() -> None:
    schema = schema_of(column("n", "integer"), column("x", "long"))
    for as_struct in (False, True):
        configuration = settings(as_json=True, as_struct=as_struct)
        table = table_of(schema=schema, configuration=configuration, partitioned_by=("n",))
        table.commit([add("a", partitionValues={"n": "1.0e"})])
        before = files_of(table.store)
        if not as_struct:
            _, [row] = adds(table, write(table.open()))
            assert row["partitionValues"] == {"n": "1.0e"}
            continue
        with pytest.raises(CorruptTableError, match=r"1\.0e"):
            write(table.open())
        assert files_of(table.store) == before


@pytest.mark.conformance("CKPT-12", "PART-05")
@pytest.mark.parametrize(
    ("zone", "typed"),
    [
        (None, None),
        ("UTC", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("Asia/Tokyo", datetime(2024, 1, 31, 3, tzinfo=UTC)),
    ],
)
def test_timestamps_without_a_zone_are_typed_only_if_one_is_given(
    zone: str | None, typed: datetime | None
) -> None:
    table = table_of(
        schema=schema_of(column("at", "timestamp"), column("n", "integer")),
        configuration=settings(as_json=True, as_struct=True),
        partitioned_by=("at",),
    )
    table.commit([add("a", partitionValues={"at": "2024-01-31 12:00:00"})])
    kind, [row] = adds(table, write(table.open(), time_zone=zone))
    assert row["partitionValues"] == {"at": "2024-01-31 12:00:00"}
    if typed is None:
        assert "partitionValues_parsed" not in {field.name for field in kind}
    else:
        assert row["partitionValues_parsed"]["at"] == typed

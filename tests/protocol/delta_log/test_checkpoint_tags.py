"""The tags of V2 checkpoints and of their sidecars: ours, and those of others."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.delta_log.sidecars import (
    SUMMARY_TAG,
    ByteRange,
    SidecarSummary,
    SummaryBuilder,
    _check,
    checkpoint_tags,
    merged_schemas,
    spark_schema,
    stated_actions,
    stated_schema,
    stated_sums,
)
from delta_maintenance.protocol.delta_log.version_checksum import Tally

TALLY = Tally(adds=5, tombstones=2, size=77, keys=2**64 - 1)
SUMMARY = SidecarSummary(
    tally=TALLY,
    first_location=b"\xff a%",
    last_location=b"z/\x00",
    deleted_first=-5,
    deleted_last=9,
    filter=ByteRange(offset=4, length=90),
)


def struct(**fields: object) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


@pytest.mark.conformance("CKPT-30")
def test_a_checkpoint_has_the_tags_of_the_protocol() -> None:
    schema = spark_schema(pa.schema([("a", pa.int32())]))
    tags = checkpoint_tags(TALLY, sidecar_actions=7, sidecar_bytes=1000, schema=schema)
    assert tags["sidecarNumActions"] == "7"
    assert tags["sidecarSizeInBytes"] == "1000"
    assert tags["numOfAddFiles"] == "5"
    assert json.loads(tags["sidecarFileSchema"]) == struct(a="integer")
    assert stated_sums(tags) == TALLY
    assert stated_actions(tags) == 7
    assert stated_schema(tags) == schema


def test_a_schema_that_is_too_long_is_left_out() -> None:
    wide = spark_schema(pa.schema([(f"column_{number}", pa.string()) for number in range(400)]))
    tags = checkpoint_tags(TALLY, sidecar_actions=7, sidecar_bytes=1000, schema=wide)
    assert "sidecarFileSchema" not in tags and stated_schema(tags) is None
    assert tags.keys() >= {"sidecarNumActions", "sidecarSizeInBytes", "numOfAddFiles"}


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize(
    "tags", [None, {}, {"sidecarNumActions": "x"}, {"sidecarNumActions": "-1"}]
)
def test_tags_of_other_writers_are_ignored(tags: dict[str, str] | None) -> None:
    assert stated_actions(tags) is None
    assert stated_schema(tags) is None
    assert stated_sums(tags) is None


def test_every_type_of_a_sidecar_has_a_name_in_spark() -> None:
    layout = FileActionLayout(stats_as_json=True, statistics_type=None)
    schema = spark_schema(pa.schema([("add", layout.add_type), ("remove", layout.remove_type)]))
    assert schema is not None
    add = schema["fields"][0]["type"]
    kinds = {field["name"]: field["type"] for field in add["fields"]}
    assert (kinds["path"], kinds["size"], kinds["dataChange"]) == ("string", "long", "boolean")
    assert kinds["tags"]["type"] == "map"
    assert kinds["deletionVector"]["fields"][2]["type"] == "integer"
    others = {
        "d": pa.decimal128(7, 2),
        "t": pa.timestamp("us", "UTC"),
        "n": pa.timestamp("us"),
        "l": pa.list_(pa.date32()),
    }
    found = spark_schema(pa.schema(list(others.items())))
    assert found == struct(
        d="decimal(7,2)",
        t="timestamp",
        n="timestamp_ntz",
        l={"type": "array", "elementType": "date", "containsNull": True},
    )
    assert spark_schema(pa.schema([("u", pa.uint64())])) is None


def test_schemas_are_merged_field_by_field() -> None:
    one = struct(add=struct(path="string", size="long"), remove="string")
    other = struct(add=struct(path="long", stats_parsed="x", new="date"), more="long")
    assert merged_schemas(one, other, without=["stats_parsed"]) == struct(
        add=struct(path="string", size="long", new="date"), remove="string", more="long"
    )


def test_a_summary_comes_back_from_its_tags() -> None:
    assert SidecarSummary.from_tags(SUMMARY.to_tags("x"), "x") == SUMMARY
    empty = SummaryBuilder().summary(None)
    assert SidecarSummary.from_tags(empty.to_tags("x"), "x") == empty
    assert SidecarSummary.from_tags(SUMMARY.to_tags("x"), "y") is None


@pytest.mark.conformance("CKPT-30")
@pytest.mark.parametrize(
    "changed",
    [
        {"adds": "5"}, {"adds": -1}, {"bytes": 2**63}, {"adds": True}, {"keys": "x"}, {"keys": 7},
        {"locations": ["a"]}, {"locations": 3}, {"filter": [-1, 4]}, {"filter": [1]},
        {"deleted": "x"}, {"adds": None}, {"deleted": [1.5, 2]}, {"locations": [1, 2]},
    ],
)  # fmt: skip
def test_a_summary_in_another_format_is_ignored(changed: dict[str, object]) -> None:
    said = json.loads(SUMMARY.to_tags("x")[SUMMARY_TAG])
    assert SidecarSummary.from_tags({SUMMARY_TAG: json.dumps({**said, **changed})}, "x") is None
    # A tag of another writer is not valid either.
    said = {name: value for name, value in said.items() if name != "check"} | changed
    said["check"] = _check("x", said)
    assert SidecarSummary.from_tags({SUMMARY_TAG: json.dumps(said)}, "x") is None


def test_a_damaged_summary_is_ignored() -> None:
    text = SUMMARY.to_tags("x")[SUMMARY_TAG]
    for at, character in enumerate(text):
        other = "7" if character != "7" else "8"
        changed = text[:at] + other + text[at + 1 :]
        assert SidecarSummary.from_tags({SUMMARY_TAG: changed}, "x") is None


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"adds":1}', "[" * 100_000])
def test_a_summary_that_is_not_an_object_is_ignored(text: str) -> None:
    assert SidecarSummary.from_tags({SUMMARY_TAG: text}, "x") is None


def test_a_summary_contains_the_ages_of_tombstones() -> None:
    builder = SummaryBuilder()
    none = pa.table({"path": pa.array([], pa.string())})
    builder.include(none, pa.table({"path": ["b", "a"], "deletionTimestamp": [7, 3]}))
    builder.include(none, pa.table({"path": ["c"], "deletionTimestamp": [5]}))
    found = builder.summary(None)
    assert (found.deleted_first, found.deleted_last) == (3, 7)
    assert (found.first_location, found.last_location) == (b"a", b"c")
    times = pa.array([None], pa.int64())
    builder.include(none, pa.table({"path": ["d"], "deletionTimestamp": times}))
    first = builder.summary(None).deleted_first
    assert first is not None and first < 0, "one without a time is older than all"

"""Actions of commits: reconciliation, required and optional fields, unknown fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.table.read import Snapshot
from tests.properties.model import state_of
from tests.support.logs.small_logs import COMMIT_1, START, everything, live, only, started
from tests.support.tables.actions import (
    OMIT,
    SCHEMA_STRING,
    Action,
    add,
    cdc,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, TableBuilder
from tests.table.failures import fails


@pytest.mark.conformance("LOG-04")
def test_an_add_wins_over_a_remove_of_the_same_commit() -> None:
    for lines in ([add("a"), remove("a")], [remove("a"), add("a")]):
        table = started(*lines)
        assert live(table) == ["a"]
        assert table.open().snapshot().tombstones().num_rows == 0


@pytest.mark.conformance("LOG-07")
@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_a_snapshot_without_protocol_or_metadata_is_corrupt(missing: str) -> None:
    table = TableBuilder()
    table.commit([action for action in START if missing not in action])
    with fails(
        CorruptTableError, f"the snapshot has no {missing}", table=table, version=0, file=LOG
    ):
        table.open().snapshot()


@pytest.mark.conformance("FEAT-01", "FEAT-04")
def test_a_contradictory_or_unsupported_protocol_is_named() -> None:
    table = started(protocol(3, 7, writer_features=["x"]))
    with fails(CorruptTableError, "lacks readerFeatures", table=table, version=1, file=LOG):
        table.open().snapshot()
    table = started(features("columnMapping", "teleportation"))
    with fails(UnsupportedFeatureError, "teleportation", table=table, version=1, file=LOG):
        table.open().snapshot()


@pytest.mark.conformance("FEAT-15")
def test_the_protocol_of_the_version_that_is_read_decides() -> None:
    table = started(features("teleportation"))
    table.commit([protocol()])
    assert table.open().snapshot(version=0).version == 0
    assert table.open().snapshot(version=2).version == 2
    with pytest.raises(UnsupportedFeatureError):
        table.open().snapshot(version=1)


@pytest.mark.conformance("META-01", "META-05")
def test_optional_metadata_may_be_missing() -> None:
    table = TableBuilder()
    lean = metadata(schemaString=OMIT, format=OMIT)
    del lean["metaData"]["configuration"]
    table.commit([protocol(), lean, add("a")])
    found = table.open().snapshot().metadata
    assert (found.configuration, found.schema_string) == ({}, None)
    assert live(table) == ["a"]


@pytest.mark.conformance("META-02", "META-05")
def test_new_metadata_replaces_the_old_whole_and_is_kept_as_written() -> None:
    odd = metadata(
        schema='{ "type" : "struct", "fields" : [] }',
        configuration={"only": "this"},
        format={"provider": "csv", "options": {"sep": ";"}},
        shiny={"nested": [1, None]},
    )
    table = TableBuilder()
    table.commit([protocol(), metadata(configuration={"a": "1", "b": "2"}, name="n")])
    table.commit([odd])

    assert table.open().snapshot().metadata.to_json() == odd["metaData"]


@pytest.mark.conformance("META-06")
def test_partition_columns_keep_their_order_and_need_no_match_in_the_schema_to_be_read() -> None:
    table = TableBuilder()
    table.commit(
        [protocol(), metadata(schema=SCHEMA_STRING, partitioned_by=["z", "PART", "a"]), add("x")]
    )
    snapshot = table.open().snapshot()
    assert snapshot.metadata.partition_columns == ("z", "PART", "a")
    assert dict(only(table)["partitionValues"]) == {"z": None, "PART": None, "a": None}


@pytest.mark.conformance("META-06")
def test_a_mapped_partition_column_that_the_schema_lacks_is_corrupt() -> None:
    table = TableBuilder()
    mapped = {"delta.columnMapping.mode": "name"}
    lacking = metadata(
        schema='{"type":"struct","fields":[]}', partitioned_by=["q"], configuration=mapped
    )
    table.commit([protocol(2, 5), lacking, add("x")])
    with fails(CorruptTableError, "partition column 'q'", table=table, version=0, file=LOG):
        table.open().snapshot().live_files()


@pytest.mark.conformance("FILE-01", "FILE-03")
def test_paths_are_kept_and_compared_exactly_as_written() -> None:
    paths = [
        "a b", "a%20b", "a%2520b", "100%25", "a%23", "a+b", "%C3%BC", "ü", "u\u0308",
        "/x", "file:/x", "file:///x", "s3://bucket/x", "part=%20/f", "A", "a",
    ]  # fmt: skip
    table = started(*(add(path) for path in paths))
    assert live(table) == sorted(paths)
    table.commit([remove("file:///x"), remove("a%20b")])
    assert live(table) == sorted(set(paths) - {"file:///x", "a%20b"})


@pytest.mark.conformance("FILE-10")
def test_unreliable_fields_of_a_remove_are_unknown() -> None:
    fields: Action = {"size": 9, "partitionValues": {"part": "x"}, "tags": {"k": "v"}}
    table = started(metadata(partitioned_by=["part"]))
    table.commit(
        [
            remove("with", extendedFileMetadata=True, **fields),
            remove("without", **fields),
            remove("no", extendedFileMetadata=False, **fields),
            remove("bare", deletionTimestamp=OMIT, dataChange=OMIT),
            remove("null", deletionTimestamp=None, extendedFileMetadata=True),
        ]
    )
    rows = {row["path"]: row for row in table.open().snapshot().tombstones().to_pylist()}
    known = {path: row["size"] for path, row in rows.items()}
    assert known == {"with": 9, "without": None, "no": None, "bare": None, "null": None}
    values = {path: row["partition_values"] for path, row in rows.items()}
    assert values.pop("with") == [("part", "x")]
    assert set(map(str, values.values())) == {"None"}
    times = {path: row["deletion_timestamp"] for path, row in rows.items()}
    assert times == {"with": 1, "without": 1, "no": 1, "bare": None, "null": None}


@pytest.mark.conformance("FILE-11")
def test_null_and_absent_are_the_same_for_every_optional_field() -> None:
    optional: list[str] = [
        "stats", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion",
        "clusteringProvider", "shiny",
    ]  # fmt: skip
    absent = started(add("a"))
    nulls: Action = dict.fromkeys(optional)
    null = started(add("a", **nulls))
    assert state_of(null.open().snapshot()) == state_of(absent.open().snapshot())
    assert null.open().snapshot().live_files().equals(absent.open().snapshot().live_files())


@pytest.mark.conformance("FILE-13")
def test_invalid_statistics_count_as_missing() -> None:
    stats: dict[str, Any] = {
        "open": "{",
        "empty": "",
        "list": "[1]",
        "negative": '{"numRecords":-1}',
        "text": '{"numRecords":"7"}',
        "object": {"numRecords": 4, "minValues": {"id": 1}},
        "sound": '{"numRecords":3}',
        "none": None,
    }
    table = started(*(add(path, stats=value) for path, value in stats.items()))
    files = table.open().snapshot().live_files()
    counts = dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))
    assert counts == dict.fromkeys(stats) | {"object": 4, "sound": 3}


@pytest.mark.conformance("FILE-13")
def test_parsed_statistics_in_json_are_ignored() -> None:
    parsed: Action = {"stats_parsed": {"numRecords": 9}, "partitionValues_parsed": {"part": "x"}}
    table = started(add("a", stats='{"numRecords":3}', **parsed), add("b", **parsed))
    table.commit([add("c", stats_parsed=None)])
    snapshot = table.open().snapshot()
    assert sorted(snapshot.live_files()["num_records"].to_pylist(), key=str) == [3, None, None]
    for row in everything(snapshot):
        assert not row.keys() & parsed.keys()


@pytest.mark.conformance("CDC-01")
def test_change_files_are_not_part_of_the_state() -> None:
    table = started(cdc("_change_data/x"), add("shared"), cdc("shared"), remove("old"))
    table.commit([cdc("only", shiny=1)])
    assert live(table) == ["shared"]
    assert table.open().snapshot().tombstones()["path"].to_pylist() == ["old"]


@pytest.mark.conformance("REC-05", "DV-01", "DV-02", "DV-03")
def test_vectors_count_on_any_table_and_two_of_one_path_are_both_live() -> None:
    vectors = [
        deletion_vector("x", offset=OMIT),
        deletion_vector("x", offset=0),
        deletion_vector("x", offset=1),
        deletion_vector("x", storage_type="p", offset=1),
        deletion_vector("x", storage_type="i"),
        deletion_vector("x", storage_type="r", offset=1),
    ]
    table = started(*(add("a", dv=vector) for vector in vectors), add("a"))
    files = table.open().snapshot().live_files()
    assert set(files["path"].to_pylist()) == {"a"}
    ids = {None, "ix", "px@1", "rx@1", "ux", "ux@0", "ux@1"}
    assert set(files["dv"].to_pylist()) == ids
    assert files.num_rows == len(ids)

    table.commit([remove("a", dv=deletion_vector("x", offset=None))])
    assert set(table.open().snapshot().live_files()["dv"].to_pylist()) == ids - {"ux"}


@pytest.mark.conformance("DV-03")
@pytest.mark.parametrize("lacking", ["storageType", "pathOrInlineDv"])
def test_an_incomplete_vector_is_corrupt(lacking: str) -> None:
    whole = deletion_vector()
    without = {name: value for name, value in whole.items() if name != lacking}
    for vector in (without, whole | {lacking: None}):
        table = started(add("b"), add("a", dv=vector))
        problem = "the deletion vector of a lacks its storageType or its pathOrInlineDv"
        with fails(CorruptTableError, problem, table=table, version=1, file=COMMIT_1):
            table.open().snapshot().live_files()


@pytest.mark.conformance("FILE-01")
@pytest.mark.parametrize("action", [add, remove])
def test_a_file_action_without_a_path_is_corrupt(action: Any) -> None:
    for path in (OMIT, None):
        table = started(add("b"), txn("t", 1), action(path))
        for read in (Snapshot.live_files, Snapshot.tombstones, everything):
            with fails(CorruptTableError, "lacks its path", table=table, version=1, file=COMMIT_1):
                read(table.open().snapshot())


@pytest.mark.conformance("FILE-01")
def test_a_nul_in_a_path_cannot_pass_for_a_vector() -> None:
    table = started(add("a"), add("ux@1\0a"))
    with fails(CorruptTableError, "NUL", table=table, version=1, file=LOG):
        table.open().snapshot().live_files()


@pytest.mark.conformance("PART-01", "PART-03", "PART-07")
def test_partition_values_are_the_texts_of_the_log() -> None:
    values: list[str | None] = [
        None, "", "x", "2024-01-01", "2024-01-01 10:00:00", "2024-01-01T10:00:00.000Z", "1.0",
        "0012", "1e3", "NaN",
        "true", "\u0001\u00ff", "ü", " x ", "%20", "__HIVE_DEFAULT_PARTITION__",
    ]  # fmt: skip
    columns = ["part", ".dot", "a.b", "[0]", "with blank", ""]
    table = TableBuilder()
    table.commit([protocol(), metadata(partitioned_by=columns)])
    rows = [dict.fromkeys(columns, value) for value in values]
    table.commit([add(str(at), partitionValues=row) for at, row in enumerate(rows)])
    table.commit([add("partial", partitionValues={"part": "x"}), add("none", partitionValues={})])
    table.checkpoint(1)

    for version in (1, 2):
        snapshot = table.open().snapshot(version=version)
        files = snapshot.live_files()
        found = {row["path"]: dict(row["partition_values"]) for row in files.to_pylist()}
        assert [found[str(at)] for at in range(len(rows))] == rows
        assert {row["path"]: dict(row["partitionValues"]) for row in everything(snapshot)} == found
    assert found["partial"] == dict.fromkeys(columns) | {"part": "x"}
    assert found["none"] == dict.fromkeys(columns)


UNKNOWN: dict[str, list[Any]] = {
    "text": ["x", "", None, "ü\u2028"],
    "dates": ["2024-01-01", "2024-01-01"],
    "timestamps": ["2024-01-01 00:00:00", "2024-01-01T00:00:00Z"],
    "dates beside text": ["2024-01-01", "tomorrow"],
    "integers": [1, -(2**63), 2**63 - 1, 0],
    "numbers": [1.5, -0.25, 1e300],
    "booleans": [True, False, None],
    "lists": [[1, 2], [], None],
    "lists of dates": [["2024-01-01"], []],
    "structs": [{"a": 1, "b": {"c": "2024-01-01"}}, {"a": None, "b": None}],
    "lists of structs": [[{"when": "2024-01-01T00:00:00", "n": [1]}], [{"when": "x", "n": []}]],
}


@pytest.mark.conformance("LOG-05", "LOG-06")
@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_fields_keep_their_values(kind: str) -> None:
    values = UNKNOWN[kind]
    table = started(add("without"))
    table.commit([add(str(at), shiny=value) for at, value in enumerate(values)])
    table.commit(
        [add(f"dv{at}", dv=deletion_vector(shiny=value)) for at, value in enumerate(values)]
    )

    rows = {row["path"]: row for row in everything(table.open().snapshot())}

    assert [rows[str(at)]["shiny"] for at in range(len(values))] == values
    found = [rows[f"dv{at}"]["deletionVector"]["shiny"] for at in range(len(values))]
    assert found == values
    assert rows["without"].get("shiny") is None
    assert len(live(table)) == 1 + 2 * len(values)


@pytest.mark.conformance("LOG-05", "LOG-06")
def test_an_unknown_field_of_several_types_refuses_a_rewrite_and_no_read() -> None:
    table = started(add("a", shiny=1), add("b", shiny="x"), add("c", shiny={"n": 1}))
    assert live(table) == ["a", "b", "c"]
    with fails(RefusedError, "several types", table=table, version=1, file=COMMIT_1):
        everything(table.open().snapshot())


@pytest.mark.conformance("LOG-05")
def test_unknown_actions_are_reported_and_change_nothing() -> None:
    table = started(add("a"), {"shiny": {"x": 1}}, {"also": [1]}, {"txn": None, "void": None})
    snapshot = table.open().snapshot()
    assert snapshot.log.state.unknown_actions == {"shiny", "also"}
    assert (live(table), snapshot.txns) == (["a"], {})


@pytest.mark.conformance("REC-02", "REC-03", "DOM-01")
def test_the_newest_transaction_and_domain_win() -> None:
    table = started(txn("app", 5), domain("d", " odd { spacing"), domain("gone", "x"))
    table.commit([txn("app", 3), domain("gone", "x", removed=True), domain("user", "")])
    snapshot = table.open().snapshot()
    assert snapshot.txns == {"app": 3}
    assert snapshot.domain_metadata == {"d": " odd { spacing", "user": ""}


@pytest.mark.conformance("SCHEMA-05")
@pytest.mark.parametrize("kind", ["void", "geometry(OGC:CRS84)", "interval", "variant"])
def test_types_of_columns_do_not_concern_the_state(kind: str) -> None:
    schema = {"type": "struct", "fields": [{"name": "v", "type": kind, "nullable": True}]}
    table = TableBuilder()
    table.commit([protocol(), metadata(schema=json.dumps(schema)), add("a")])
    assert live(table) == ["a"]


@pytest.mark.conformance("CRC-02", "CRC-03")
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"numFiles":99,"metadata":{"id":"lie"}}']
)
def test_a_checksum_file_neither_stops_nor_changes_a_read(content: bytes) -> None:
    table = started(add("a"))
    plain = state_of(table.open().snapshot())
    table.checksum(1, content)
    assert state_of(table.open().snapshot()) == plain

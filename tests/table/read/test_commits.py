"""Commits as they are met in the wild: every form that must be read, and every damage named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.model import replay, state_of
from tests.table.failures import fails

from delta_maintenance.errors import (
    CorruptTableError,
    NotADeltaTableError,
    RefusedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.table.read import log_reader
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.testing.actions import (
    OMIT,
    Action,
    add,
    cdc,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
    txn,
)
from delta_maintenance.testing.table_builder import LOG, TableBuilder, log_text

START = [protocol(), metadata()]
COMMIT_1 = f"{LOG}/{1:020d}.json"


def started(*lines: Any) -> TableBuilder:
    """A table whose version 0 has protocol and metaData, and whose version 1 has these lines."""
    table = TableBuilder()
    table.commit(START)
    if lines:
        table.commit(lines)
    return table


def live(table: TableBuilder) -> list[str]:
    paths: list[str] = table.open().snapshot().live_files()["path"].to_pylist()
    return sorted(paths)


def everything(snapshot: Snapshot) -> list[Action]:
    """Every field of every live file, as Arrow gives it."""
    rows: list[Action] = []
    for batch in snapshot.scan():
        rows += batch.adds.to_pylist()
    return rows


def only(table: TableBuilder) -> Action:
    [row] = everything(table.open().snapshot())
    return row


@pytest.mark.conformance("LOG-01")
def test_reads_ignore_names_that_they_do_not_know_and_lose_none_of_them() -> None:
    table = started(add("a"))
    strangers = [
        "00000000000000000002.json.tmp",
        ".00000000000000000001.json.crc",
        ".s3-optimization-0",
        "00000000000000000001.0.stats.json",
        "0000000000000000002.json",
        "000000000000000000002.json",
        "2.json",
        "_commit_00000000-0000-4000-8000-000000000000.json.tmp",
        "00000000000000000000.00000000000000000001.compact.json",
        "00000000000000000001.00000000000000000001.compacted.json",
        "00000000000000000009.checkpoint.parquet.tmp",
        "00000000000000000009.checkpoint.not-a-uuid.json",
        "_last_vacuum_info",
        "readme.txt",
        "_staged_commits/00000000000000000002.00000000-0000-4000-8000-000000000000.json",
        "_commits/00000000000000000002.json",
    ]
    for name in strangers:
        table.write(name, log_text([add("stranger")]))
    before = table.names()

    snapshot = table.open().snapshot()

    assert (snapshot.version, snapshot.warnings) == (1, ())
    assert live(table) == ["a"]
    assert table.names() == before


@pytest.mark.conformance("CAT-04", "CAT-07", "LOG-02")
def test_what_a_catalog_has_not_published_is_no_version_and_a_gap_where_more_was() -> None:
    table = TableBuilder()
    managed = features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"])
    table.commit([managed, metadata()])
    table.commit([add("published")])
    staged = f"_staged_commits/{2:020d}.00000000-0000-4000-8000-000000000000.json"
    table.write(staged, log_text([add("staged")]))
    assert (table.open().snapshot().version, live(table)) == (1, ["published"])
    table.commit([add("later")], version=3)
    with pytest.raises(CorruptTableError, match="commit 2 is missing"):
        table.open().snapshot()
    assert table.open().snapshot(version=1).version == 1


@pytest.mark.conformance("LOG-02")
@pytest.mark.parametrize("gap", range(1, 9))
def test_a_gap_is_named_by_the_first_missing_version_and_older_versions_open(gap: int) -> None:
    table = started()
    for version in range(1, 10):
        table.commit([add(f"f{version}")])
    table.drop(f"{gap:020d}.json")

    with fails(
        CorruptTableError,
        f"commit {gap} is missing",
        table=table,
        version=9,
        file=f"{LOG}/{gap:020d}.json",
    ):
        table.open().snapshot()
    assert table.open().snapshot(version=gap - 1).version == gap - 1


@pytest.mark.conformance("LOG-02")
def test_a_log_whose_first_commits_are_gone_names_version_0() -> None:
    table = started(add("a"))
    table.drop(f"{0:020d}.json")
    with fails(
        CorruptTableError,
        "commit 0 is missing",
        table=table,
        version=1,
        file=f"{LOG}/{0:020d}.json",
    ):
        table.open().snapshot()


@pytest.mark.conformance("LOG-02")
def test_versions_that_were_cleaned_away_are_told_from_a_gap() -> None:
    table = started(add("a"))
    table.commit([add("b")])
    table.checkpoint(1)
    table.drop(f"{0:020d}.json")

    assert live(table) == ["a", "b"]
    with fails(VersionNotFoundError, "no longer retained", table=table, version=0, file=None):
        table.open().snapshot(version=0)


@pytest.mark.parametrize("version", [-1, 2, 2**63])
def test_a_version_that_never_was_is_not_found(version: int) -> None:
    table = started(add("a"))
    with fails(
        VersionNotFoundError, f"there is no version {version}", table=table, version=None, file=None
    ):
        table.open().snapshot(version=version)


def test_a_directory_without_a_log_is_no_table(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    with fails(NotADeltaTableError, "no _delta_log folder", table=table, version=None, file=None):
        table.open().snapshot()


def test_a_log_folder_without_a_commit_is_no_table() -> None:
    table = TableBuilder()
    table.write("readme.txt", b"nothing here")
    with fails(NotADeltaTableError, "no commit", table=table, version=None, file=None):
        table.open().snapshot()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "as written": lambda data: data,
    "carriage returns": lambda data: data.replace(b"\n", b"\r\n"),
    "no last newline": lambda data: data.rstrip(b"\n"),
    "blank lines": lambda data: b"\n \n" + data.replace(b"\n", b"\n\n\t\n"),
    "blanks around": lambda data: b"".join(b"  %b \t\n" % line for line in data.splitlines()),
    "blanks within": lambda data: b"".join(
        json.dumps(json.loads(line)).encode() + b"\n" for line in data.splitlines()
    ),
    "other key order": lambda data: b"".join(
        json.dumps(_backwards(json.loads(line))).encode() + b"\n" for line in data.splitlines()
    ),
}


def _backwards(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _backwards(value[key]) for key in reversed(list(value))}


@pytest.mark.conformance("LOG-03", "FILE-11")
@pytest.mark.parametrize("form", FORMS)
def test_lines_may_stand_in_any_form(form: str) -> None:
    commit = [
        commit_info(),
        add("a", stats='{"numRecords":1}', tags={"k": "line\u2028separator\u2029\u0085"}),
        remove("b", dv=deletion_vector()),
        txn("app", 3),
        add("ü/\u2028", partitionValues={"part": "x"}, tags=None, baseRowId=None, odd={"n": 1}),
        add('q"\\\u0001', size=2**53 + 1),
    ]
    table = started()
    table.commit_bytes(FORMS[form](log_text(commit)), commit)

    assert state_of(table.open().snapshot()) == replay([START, commit])


@pytest.mark.conformance("LOG-03", "LOG-05")
@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("first", ["add", "txn"])
def test_several_actions_on_one_line_are_all_taken(first: str, blank: str) -> None:
    both = add("a") | txn("app", 7) | domain("d", "c") | commit_info("BOTH") | {"odd": {"x": [1]}}
    line = json.dumps(
        {key: both[key] for key in sorted(both, key=lambda key: key != first)},
        separators=(f"{blank},{blank}", f"{blank}:{blank}"),
    )
    table = started(add("before"), line, add("after"))

    snapshot = table.open().snapshot()

    assert live(table) == ["a", "after", "before"]
    assert (snapshot.txns, snapshot.domain_metadata) == ({"app": 7}, {"d": "c"})
    assert snapshot.state.commit_info is not None
    assert snapshot.state.commit_info.operation == "BOTH"
    assert sorted(row["path"] for row in everything(snapshot)) == ["a", "after", "before"]


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("behind", [',"txn":{%s}}', ', "txn" :\t{%s} }', ',"odd":1,"txn": {%s}}'])
def test_an_action_behind_an_add_is_taken_whatever_blanks_stand_around_it(behind: str) -> None:
    line = '{"add":{"path":"a"}' + behind % '"appId":"app","version":7'
    table = started(add("before"), line, add("after"))
    snapshot = table.open().snapshot()
    assert (snapshot.txns, live(table)) == ({"app": 7}, ["a", "after", "before"])


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("form", ["fast", "tidy"])
def test_an_add_and_a_remove_may_share_a_line(form: str) -> None:
    line = add("a", size=5.0 if form == "tidy" else 5) | remove("b")
    table = started(add("b"))
    table.commit([line])

    assert live(table) == ["a"]
    assert table.open().snapshot().tombstones()["path"].to_pylist() == ["b"]
    assert only(table)["size"] == 5


@pytest.mark.conformance("LOG-05")
def test_an_unknown_action_beside_an_add_changes_nothing() -> None:
    table = started(add("a", odd=1) | {"shiny": {"v": 1}, "also": 3}, add("b"), {"lone": {}})
    assert sorted(row["path"] for row in everything(table.open().snapshot())) == ["a", "b"]
    assert table.open().snapshot().state.unknown_actions == {"lone"}


@pytest.mark.conformance("LOG-03")
def test_names_of_actions_as_values_do_not_split_a_line() -> None:
    odd = {"protocol": "tcp", "txn": "commitInfo", '"txn":{': "x"}
    table = started(
        add("a", partitionValues={"part": "protocol"}, tags=odd, stats='{"txn":{"protocol":{}}}')
    )
    assert dict(only(table)["tags"]) == odd
    assert table.open().snapshot().txns == {}


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("size", [5 << 20, 9 << 20])
def test_a_line_longer_than_any_block_of_the_parser(size: int) -> None:
    stats = json.dumps({"numRecords": 1, "filler": "x" * size})
    table = started(add("a"), add("long", stats=stats), add("z"))

    assert live(table) == ["a", "long", "z"]
    assert {row["path"]: row["stats"] for row in everything(table.open().snapshot())} == {
        "a": None,
        "long": stats,
        "z": None,
    }


DAMAGED_LINES = {
    "cut in an add": ('{"add":{"path":"x","si', "not a line of JSON"),
    "cut before the last brace": ('{"add":{"path":"x"}', "not a line of JSON"),
    "cut in another action": ('{"txn":{"appId":"x', "not a line of JSON"),
    "two objects": ('{"add":{"path":"x"}}{"add":{"path":"y"}}', "not a line of JSON"),
    "no object": ("[1]", "no JSON object"),
    "text": ("hello", "not a line of JSON"),
    "action is no object": ('{"txn":[1]}', "txn is no JSON object"),
    "add is no object": ('{"add":{"path":"x"},"remove":7}', "remove is no JSON object"),
    "repeated path": ('{"add":{"path":"x","path":"y"}}', "a key stands twice"),
    "repeated action": ('{"add":{"path":"x"},"add":{"path":"y"}}', "a key stands twice"),
    "repeated version": ('{"txn":{"appId":"x","version":1,"version":2}}', "a key stands twice"),
    "NaN in an add": ('{"add":{"path":"x","size":NaN}}', "NaN is no JSON number"),
    "NaN elsewhere": ('{"txn":{"appId":"x","version":NaN}}', "NaN is no JSON number"),
    "size is text": ('{"add":{"path":"x","size":"5"}}', "add.size is no int64"),
    "size is a fraction": ('{"add":{"path":"x","size":5.5}}', "add.size is no int64"),
    "size beyond 64 bits": ('{"add":{"path":"x","size":9223372036854775808}}', "is no int64"),
    "path is a number": ('{"remove":{"path":5}}', "remove.path is no string"),
    "partition value": ('{"add":{"path":"x","partitionValues":{"part":5}}}', "no map of text"),
    "tags are text": ('{"add":{"path":"x","tags":"t"}}', "add.tags is no map of text"),
    "vector is text": ('{"add":{"path":"x","deletionVector":"u"}}', "is no JSON object"),
    "flag is text": ('{"add":{"path":"x","dataChange":"true"}}', "add.dataChange is no bool"),
    "txn without version": ('{"txn":{"appId":"x"}}', "txn.version is missing"),
    "domain without name": ('{"domainMetadata":{"configuration":""}}', "domain is missing"),
    "protocol of the text's example": (
        '{"protocol":{"readerVersion":1,"writerVersion":2}}',
        "protocol.minReaderVersion is missing",
    ),
}


@pytest.mark.conformance("LOG-03", "LAST-07", "FEAT-13")
@pytest.mark.parametrize("damage", DAMAGED_LINES)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_line_is_named_with_its_file_and_number(damage: str, place: str) -> None:
    line, problem = DAMAGED_LINES[damage]
    others = [add("a"), "", add("b")]
    at = {"first": 0, "middle": 2, "last": 3}[place]
    table = started(*others[:at], line, *others[at:])

    with fails(CorruptTableError, problem, table=table, version=1, file=COMMIT_1):
        everything(table.open().snapshot())


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("damage", ["cut in an add", "two objects", "size is text", "text"])
def test_the_number_of_a_damaged_line_counts_every_line_of_the_file(damage: str) -> None:
    line, _ = DAMAGED_LINES[damage]
    table = started(commit_info(), "", txn("a", 1), add("a"), add("b"), line, add("c"))
    with fails(CorruptTableError, "line 6: ", table=table, version=1, file=COMMIT_1):
        everything(table.open().snapshot())


@pytest.mark.conformance("LOG-03")
def test_damage_is_found_whatever_fields_are_read() -> None:
    table = started(add("a"), '{"add":{"path":"x","si')
    for read in ("live_files", "tombstones"):
        with fails(CorruptTableError, "line 2: ", table=table, version=1, file=COMMIT_1):
            getattr(table.open().snapshot(), read)()
    with fails(CorruptTableError, "line 2: ", table=table, version=1, file=COMMIT_1):
        _ = table.open().snapshot().counts


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("broken", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_a_commit_that_is_no_utf_8_is_named_with_its_line(broken: bytes) -> None:
    table = started(add("a"), b'{"txn":{"appId":"' + broken + b'","version":1}}')
    with fails(CorruptTableError, "line 2 is not UTF-8", table=table, version=1, file=COMMIT_1):
        table.open().snapshot()


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("half", ["\\ud800", "\\uDC00", "\\udc00\\ud800", "\\ud83dx"])
def test_half_a_surrogate_pair_is_no_text(half: str) -> None:
    for line in (f'{{"add":{{"path":"{half}"}}}}', f'{{"txn":{{"appId":"{half}","version":1}}}}'):
        table = started(add("a"), line)
        with fails(CorruptTableError, "line 2: not a line", table=table, version=1, file=COMMIT_1):
            table.open().snapshot().live_files()


@pytest.mark.conformance("LOG-03")
def test_a_whole_surrogate_pair_is_one_character() -> None:
    lines = '{"add":{"path":"\\ud83d\\ude00"}}', '{"txn":{"appId":"\\ud83d\\ude00","version":1}}'
    table = started(*lines)
    assert live(table) == ["😀"]
    assert table.open().snapshot().txns == {"😀": 1}


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("empty", [b"", b"\n", b" \r\n\n"])
def test_an_empty_commit_file_is_corrupt(empty: bytes) -> None:
    table = started()
    table.commit_bytes(empty)
    with fails(CorruptTableError, "the file is empty", table=table, version=1, file=COMMIT_1):
        table.open().snapshot()


@pytest.mark.conformance("LOG-03")
@given(cut=st.integers(0, 600))
def test_a_commit_cut_between_two_lines_is_read_and_cut_anywhere_else_named(cut: int) -> None:
    commit = [commit_info(), add("a", stats="{}"), txn("t", 1), remove("b"), add("c"), domain("d")]
    data = log_text(commit)
    kept = data[: cut % len(data)]
    table = started()
    table.commit_bytes(kept)
    wholes = [count for count in range(1, 7) if kept.rstrip() == log_text(commit[:count]).rstrip()]
    if wholes:
        expected = replay([START, commit[: wholes[0]]])
        assert state_of(table.open().snapshot()) == expected
    else:
        problem = "not a line of JSON" if kept else "the file is empty"
        with fails(CorruptTableError, problem, table=table, version=1, file=COMMIT_1):
            state_of(table.open().snapshot())


@pytest.mark.conformance("LOG-04")
def test_of_an_add_and_a_remove_of_one_file_in_one_commit_the_add_stands() -> None:
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
def test_a_protocol_that_contradicts_itself_or_asks_too_much_is_named() -> None:
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
def test_metadata_may_lack_all_that_it_can_be_read_without() -> None:
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
    table.commit([protocol(), metadata(partitioned_by=["z", "PART", "a"]), add("x")])
    snapshot = table.open().snapshot()
    assert snapshot.metadata.partition_columns == ("z", "PART", "a")
    assert dict(only(table)["partitionValues"]) == {"z": None, "PART": None, "a": None}


@pytest.mark.conformance("META-06")
def test_a_mapped_partition_column_that_the_schema_lacks_is_corrupt() -> None:
    table = TableBuilder()
    mapped = {"delta.columnMapping.mode": "name"}
    table.commit([protocol(2, 5), metadata(partitioned_by=["q"], configuration=mapped), add("x")])
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
def test_what_a_remove_does_not_vouch_for_is_unknown() -> None:
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
def test_broken_statistics_are_no_statistics() -> None:
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
def test_change_files_are_no_state_even_where_they_name_a_data_file() -> None:
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
def test_half_a_vector_is_corrupt_rather_than_none(lacking: str) -> None:
    whole = deletion_vector()
    without = {name: value for name, value in whole.items() if name != lacking}
    for vector in (without, whole | {lacking: None}):
        table = started(add("b"), add("a", dv=vector))
        with fails(
            CorruptTableError, "lacks its path, or its deletion vector's", table=table, version=1,
            file=COMMIT_1,
        ):  # fmt: skip
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
def test_fields_that_nobody_knows_come_along_with_their_values(kind: str) -> None:
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
    assert snapshot.state.unknown_actions == {"shiny", "also"}
    assert (live(table), snapshot.txns) == (["a"], {})


@pytest.mark.conformance("REC-02", "REC-03", "DOM-01")
def test_the_newest_transaction_and_domain_win_whatever_they_say() -> None:
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


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize(
    "beside", [txn("app", 7), protocol(), commit_info()], ids=lambda a: [*a][0]
)
def test_a_large_log_refuses_what_only_a_small_one_is_searched_for(
    beside: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_THOROUGH_BYTES", 0)
    table = started(add("a"), add("b") | beside)
    snapshot = table.open().snapshot()
    for read in (Snapshot.live_files, everything):
        with fails(CorruptTableError, "line 2: ", table=table, version=1, file=COMMIT_1):
            read(snapshot)


@pytest.mark.conformance("LOG-03")
def test_opening_takes_no_more_of_a_long_commit_than_a_piece_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adds = [add(f"{number}") for number in range(50)]
    table = started(*adds[:25], txn("app", 7), *adds[25:], add("last") | protocol())
    whole = table.open().snapshot()
    expected = (whole.state, whole.live_files().sort_by("path"))
    asked: list[tuple[str, int]] = []
    store, of_store = table.store, table.store.open

    def opened(path: str) -> BinaryIO:
        file = of_store(path)
        read = file.read
        file.read = lambda size=-1: asked.append((path, size)) or read(size)  # type: ignore[func-returns-value, method-assign]
        return file

    monkeypatch.setattr(store, "open", opened)
    monkeypatch.setattr(log_reader, "_PIECE_BYTES", 500)
    snapshot = table.open().snapshot()
    assert set(asked) == {(COMMIT_1, 500)} and len(asked) > 5
    assert (snapshot.state, snapshot.live_files().sort_by("path")) == expected

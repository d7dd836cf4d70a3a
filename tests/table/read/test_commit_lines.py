"""Lines of commits: every valid form, and damage with its file and line number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.table.read import Snapshot, log_reader
from tests.properties.model import replay, state_of
from tests.support.logs.small_logs import COMMIT_1, START, everything, live, only, started
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import log_text
from tests.table.failures import fails

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
def test_lines_may_have_any_valid_form(form: str) -> None:
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
def test_all_actions_on_one_line_are_read(first: str, blank: str) -> None:
    both = add("a") | txn("app", 7) | domain("d", "c") | commit_info("BOTH") | {"odd": {"x": [1]}}
    line = json.dumps(
        {key: both[key] for key in sorted(both, key=lambda key: key != first)},
        separators=(f"{blank},{blank}", f"{blank}:{blank}"),
    )
    table = started(add("before"), line, add("after"))

    snapshot = table.open().snapshot()

    assert live(table) == ["a", "after", "before"]
    assert (snapshot.txns, snapshot.domain_metadata) == ({"app": 7}, {"d": "c"})
    assert snapshot.log.state.commit_info is not None
    assert snapshot.log.state.commit_info.operation == "BOTH"
    assert sorted(row["path"] for row in everything(snapshot)) == ["a", "after", "before"]


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("behind", [',"txn":{%s}}', ', "txn" :\t{%s} }', ',"odd":1,"txn": {%s}}'])
def test_an_action_after_an_add_is_read_with_any_blanks(behind: str) -> None:
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


@pytest.mark.conformance("LOG-03")
@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize("between", ["tags", "odd"])
@pytest.mark.parametrize("value", [1, None, "x", [], {"x": 1}])
def test_a_key_that_is_no_action_does_not_hide_the_next_action(between: str, value: Any) -> None:
    line = remove("old") | {between: value} | add("new")
    table = started(add("old"))
    table.commit([json.dumps(line, separators=(",", ":"))])
    assert live(table) == ["new"]
    assert table.open().snapshot().tombstones()["path"].to_pylist() == ["old"]


def test_a_null_for_another_action_changes_nothing() -> None:
    table = started(add("a", odd=1) | {"remove": None, "txn": None}, add("b"))
    assert sorted(row["path"] for row in everything(table.open().snapshot())) == ["a", "b"]


@pytest.mark.conformance("LOG-05")
def test_an_unknown_action_beside_an_add_changes_nothing() -> None:
    table = started(add("a", odd=1) | {"shiny": {"v": 1}, "also": 3}, add("b"), {"lone": {}})
    assert sorted(row["path"] for row in everything(table.open().snapshot())) == ["a", "b"]
    assert table.open().snapshot().log.state.unknown_actions == {"lone"}


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
    "cut in an add": ('{"add":{"path":"x","si', "not valid JSON"),
    "cut before the last brace": ('{"add":{"path":"x"}', "not valid JSON"),
    "cut in another action": ('{"txn":{"appId":"x', "not valid JSON"),
    "two objects": ('{"add":{"path":"x"}}{"add":{"path":"y"}}', "not valid JSON"),
    "no object": ("[1]", "not a JSON object"),
    "text": ("hello", "not valid JSON"),
    "action is no object": ('{"txn":[1]}', "txn is not a JSON object"),
    "add is no object": ('{"add":{"path":"x"},"remove":7}', "remove is not a JSON object"),
    "repeated path": ('{"add":{"path":"x","path":"y"}}', "contains a key twice"),
    "repeated action": ('{"add":{"path":"x"},"add":{"path":"y"}}', "contains a key twice"),
    "repeated version": ('{"txn":{"appId":"x","version":1,"version":2}}', "contains a key twice"),
    "NaN in an add": ('{"add":{"path":"x","size":NaN}}', "NaN is not a JSON number"),
    "NaN elsewhere": ('{"txn":{"appId":"x","version":NaN}}', "NaN is not a JSON number"),
    "size is text": ('{"add":{"path":"x","size":"5"}}', "add.size is not of type int64"),
    "size is a fraction": ('{"add":{"path":"x","size":5.5}}', "add.size is not of type int64"),
    "size beyond 64 bits": (
        '{"add":{"path":"x","size":9223372036854775808}}',
        "is not of type int64",
    ),
    "path is a number": ('{"remove":{"path":5}}', "remove.path is not of type string"),
    "partition value": (
        '{"add":{"path":"x","partitionValues":{"part":5}}}',
        "not a map of strings",
    ),
    "tags are text": ('{"add":{"path":"x","tags":"t"}}', "add.tags is not a map of strings"),
    "vector is text": ('{"add":{"path":"x","deletionVector":"u"}}', "is not a JSON object"),
    "flag is text": (
        '{"add":{"path":"x","dataChange":"true"}}',
        "add.dataChange is not of type bool",
    ),
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
def test_damage_is_found_with_any_fields() -> None:
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
def test_an_unpaired_surrogate_is_rejected(half: str) -> None:
    for line in (f'{{"add":{{"path":"{half}"}}}}', f'{{"txn":{{"appId":"{half}","version":1}}}}'):
        table = started(add("a"), line)
        with fails(
            CorruptTableError, "line 2: not valid JSON", table=table, version=1, file=COMMIT_1
        ):
            table.open().snapshot().live_files()


@pytest.mark.conformance("LOG-03")
def test_a_surrogate_pair_is_one_character() -> None:
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
def test_a_truncated_commit_is_read_at_line_ends_and_named_elsewhere(cut: int) -> None:
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
        problem = "not valid JSON" if kept else "the file is empty"
        with fails(CorruptTableError, problem, table=table, version=1, file=COMMIT_1):
            state_of(table.open().snapshot())


@pytest.mark.conformance("LOG-03")
@pytest.mark.parametrize(
    "beside", [txn("app", 7), protocol(), commit_info()], ids=lambda a: [*a][0]
)
def test_a_large_log_refuses_lines_that_only_a_small_one_searches(
    beside: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_THOROUGH_BYTES", 0)
    table = started(add("a"), add("b") | beside)
    snapshot = table.open().snapshot()
    for read in (Snapshot.live_files, everything):
        with fails(CorruptTableError, "line 2: ", table=table, version=1, file=COMMIT_1):
            read(snapshot)


@pytest.mark.conformance("LOG-03")
def test_opening_reads_a_long_commit_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    adds = [add(f"{number}") for number in range(50)]
    table = started(*adds[:25], txn("app", 7), *adds[25:], add("last") | protocol())
    whole = table.open().snapshot()
    expected = (whole.log.state, whole.live_files().sort_by("path"))
    asked: list[tuple[str, int]] = []
    store, of_store = table.store, table.store.open

    def opened(path: str) -> BinaryIO:
        file = of_store(path)
        read = file.read
        file.read = lambda size=-1: asked.append((path, size)) or read(size)
        return file

    monkeypatch.setattr(store, "open", opened)
    monkeypatch.setattr(log_reader, "_PIECE_BYTES", 500)
    snapshot = table.open().snapshot()
    assert set(asked) == {(COMMIT_1, 500)} and len(asked) > 5
    assert (snapshot.log.state, snapshot.live_files().sort_by("path")) == expected

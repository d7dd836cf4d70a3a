"""Summaries of commits from their first bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.ndjson.raw_lines import CommitDigest, digest_commit
from tests.support.tables.actions import add, metadata, protocol, remove, txn
from tests.support.tables.table_builder import log_text


def digest(*lines: Any, head: int | None = None) -> CommitDigest:
    data = log_text(lines)
    whole = head is None or head >= len(data)
    return digest_commit(data[:head], version=7, name="7.json", whole=whole)


def info(operation: str | None, **fields: Any) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, **fields}}


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        ([info("WRITE"), add("a")], True),
        ([info("DELETE"), remove("a")], True),
        ([add("a")], True),
        ([info("MERGE"), add("a", dataChange=False), add("b")], True),
        ([info("OPTIMIZE"), remove("a", dataChange=False), add("b", dataChange=False)], False),
        ([info("OPTIMIZE"), remove("a"), add("b")], True),
        ([info("anything"), remove("a", dataChange=False), add("b", dataChange=False)], False),
        ([info("VACUUM START")], False),
        ([info("SET TBLPROPERTIES"), metadata()], False),
        ([info("UPGRADE PROTOCOL"), protocol()], False),
        ([info("WRITE"), txn("stream", 5)], False),
        ([info("DELETE", engineInfo="delta-maintenance/0.1.0"), remove("expired")], True),
    ],
)
def test_data_change_decides_and_no_name(lines: list[Any], changes: bool) -> None:
    assert digest(*lines).changes_data is changes


def test_text_that_looks_like_a_data_change() -> None:
    stats = json.dumps({"minValues": {"dataChange": True}}, separators=(",", ":"))
    result = digest(info("COMPACT"), add('"dataChange":true', dataChange=False, stats=stats))
    assert result.changes_data is False


@pytest.mark.parametrize("text", ['"dataChange":true', '"dataChange" : true'])
def test_white_space_is_ignored(text: str) -> None:
    line = f'{{"add":{{"path":"a","partitionValues":{{}},"size":1,"modificationTime":1,{text}}}}}\n'
    assert digest_commit(line.encode(), version=0, name="n", whole=True).changes_data


def test_a_prefix_proves_a_data_change_but_not_its_absence() -> None:
    moved = [add(f"{number}", dataChange=False) for number in range(100)]
    start = len(log_text([info("SOMETHING"), *moved[:10]])) + 5
    assert digest(info("OPTIMIZE"), *moved, head=start).changes_data is None
    assert digest(info("OPTIMIZE"), *moved, add("new")).changes_data is True
    assert digest(info("OPTIMIZE"), add("new"), *moved, head=start).changes_data is True


def test_a_prefix_without_a_complete_line_is_unknown() -> None:
    result = digest(metadata(description="long" * 100), head=50)
    assert (result.changes_data, result.configuration, result.whole) == (None, None, False)


def test_protocol_and_properties_are_reported() -> None:
    result = digest(info("X"), protocol(), metadata(configuration={"delta.appendOnly": "true"}))
    assert result.changes_protocol
    assert result.configuration == {"delta.appendOnly": "true"}
    assert digest(add("a")).configuration is None
    assert not digest(add("a")).changes_protocol


@pytest.mark.parametrize("data", [b"", b"  \n", b"not json\n", b'{"add":'])
def test_text_that_is_not_a_commit_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=r"7\.json"):
        digest_commit(data, version=7, name="7.json", whole=True)


@given(
    st.lists(
        st.sampled_from(
            [add("a"), add("a", dataChange=False), remove("b", dataChange=False), txn("t", 1)]
        ),
        min_size=1,
    ),
    st.integers(0, 2000),
)
def test_a_prefix_never_contradicts_the_commit(lines: list[Any], head: int) -> None:
    whole = digest(info("X"), *lines)
    part = digest(info("X"), *lines, head=head)
    assert part.changes_data in (None, whole.changes_data)
    assert whole.changes_data == any(
        value.get("dataChange") for line in lines for value in line.values()
    )

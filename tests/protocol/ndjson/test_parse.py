"""File action lines as columns, compared with parsing them one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.data_files.tags import READ_TAGS
from delta_maintenance.protocol.ndjson import parse
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import MOST_KEYS, CommitText, parse_other_lines, split

KINDS = st.sampled_from(["add", "remove", "cdc"])
Line = dict[str, dict[str, Any]]


def action(kind: str, number: int) -> Line:
    fields: dict[str, Any] = {"path": f"f{number}", "partitionValues": {"p": str(number % 3)}}
    fields |= {"size": number, "dataChange": True}
    if kind == "add":
        fields["modificationTime"] = number
    if number % 5 == 4:
        fields["tags"] = {"written by": "us"}
    if number % 5 == 3:
        fields["tags"] = {"OPTIMIZE_TARGET_SIZE": str(number), "compactedInto": "[]"}
    if number % 7 == 6:
        fields["of the future"] = number
    return {kind: fields}


runs = st.lists(st.tuples(KINDS, st.integers(1, 4)), max_size=12)


@st.composite
def files(draw: st.DrawFn) -> list[list[Line]]:
    """Commits with runs of lines of one kind, and sometimes two kinds on one line."""
    number, commits = 0, []
    for commit in draw(st.lists(runs, min_size=1, max_size=4)):
        lines: list[Line] = []
        for kind, count in commit:
            for _ in range(count):
                lines.append(action(kind, number))
                number += 1
        if lines and draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(lines) - 1))
            other = draw(st.sampled_from(sorted({"add", "remove", "cdc"} - set(lines[at]))))
            lines[at] |= action(other, number)
            number += 1
        commits.append(lines)
    return commits


def text_of(name: str, lines: list[Line]) -> CommitText:
    head = json.dumps({"commitInfo": {"operation": "WRITE"}})
    compact = [json.dumps(line, separators=(",", ":")) for line in lines]
    return split(name, "\n".join([head, *compact, ""]).encode())


@pytest.mark.conformance("LOG-03", "FILE-11")
@given(commits=files(), narrow=st.booleans())
def test_actions_are_found_in_any_order_of_lines(commits: list[list[Line]], narrow: bool) -> None:
    texts = [text_of(f"{n:020}.json", lines) for n, lines in enumerate(commits)]
    sources = [FileLines.of(text, parse_other_lines(text)[1]) for text in texts]
    wanted = ("path", "size", "tags")
    fields = {"add": wanted, "remove": wanted} if narrow else None
    parsed = parse_file_actions(
        sources, keys=MapKeys(partition_columns=frozenset(["p"])), fields=fields
    )
    found = {
        "add": (parsed.adds, parsed.add_source, parsed.add_line),
        "remove": (parsed.removes, parsed.remove_source, parsed.remove_line),
    }
    # Lines with two actions come last, divided.
    divided = [
        [line for line in lines if len(line) == 1]
        + [{kind: line[kind]} for line in lines if len(line) > 1 for kind in line]
        for lines in commits
    ]
    line_numbers = [(n, line) for n, lines in enumerate(divided) for line in lines]
    for kind, (table, source, position) in found.items():
        told = [
            (int(n), int(at), known(row))
            for n, at, row in zip(source, position, table.to_pylist(), strict=True)
        ]
        assert sorted(told, key=lambda one: one[1]) == [
            (n, at, expected(line[kind], fields))
            for at, (n, line) in enumerate(line_numbers)
            if kind in line
        ]
    if narrow:
        changed = [line["cdc"]["path"] for _, line in line_numbers if "cdc" in line]
        assert sorted(parsed.cdc_paths.to_pylist()) == sorted(changed)


@given(commits=files(), kind=KINDS)
def test_a_damaged_line_is_named(commits: list[list[Line]], kind: str) -> None:
    texts = [text_of(f"{n:020}.json", lines) for n, lines in enumerate(commits)]
    broken = text_of("broken.json", [action(kind, 0), {kind: {"path": ["not a string"]}}])
    sources = [FileLines.of(text, ()) for text in (*texts, broken)]
    with pytest.raises(CorruptTableError, match=r"line 3: .*path is not of type string") as raised:
        parse_file_actions(sources, keys=MapKeys(partition_columns=frozenset()))
    assert raised.value.file == "broken.json"


def expected(fields: Mapping[str, Any], wanted: object) -> dict[str, Any]:
    if not wanted:
        return dict(fields)
    found = {name: fields[name] for name in ("path", "size", "tags") if name in fields}
    if "tags" in found:
        found["tags"] = {key: text for key, text in found["tags"].items() if key in READ_TAGS}
    return found


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    maps = ("partitionValues", "tags")
    return {
        name: dict(value) if name in maps else value
        for name, value in row.items()
        if value is not None
    }


def test_keys_that_are_too_many_for_columns_are_never_inferred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: Any = parse._read
    inferred: list[int] = []

    def counted(data: bytes, schema: Any, unexpected: str) -> Any:
        table = read(data, schema, unexpected)
        inferred.append(str(table.schema).count(": "))
        return table

    monkeypatch.setattr(parse, "_read", counted)
    tags = [{f"k{file}-{key}": str(key) for key in range(MOST_KEYS)} for file in range(3)]
    lines = [{"add": {"path": f"f{n}", "tags": each}} for n, each in enumerate(tags)]
    text = split("0.json", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    _, beside = parse_other_lines(text)
    source = FileLines.of(text, beside)
    found = parse_file_actions([source], keys=MapKeys(partition_columns=frozenset()))
    assert [dict(each) for each in found.adds["tags"].to_pylist()] == tags
    assert inferred and max(inferred) <= MOST_KEYS

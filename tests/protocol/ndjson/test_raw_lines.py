"""Raw lines get the same keys as from the parser and are copied unchanged."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.columns import hash_texts
from delta_maintenance.protocol.ndjson import line_buffers
from delta_maintenance.protocol.ndjson import raw_lines as file_action_lines
from delta_maintenance.protocol.ndjson.line_buffers import (
    BufferedFiles,
    LogBuffer,
    split_lines,
    split_plain_lines,
)
from delta_maintenance.protocol.ndjson.raw_lines import FileActionLines, read_lines
from delta_maintenance.protocol.ndjson.split import SingleActions
from tests.properties.test_routes import PATHS, VECTORS, files
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    cdc,
    commit_info,
    deletion_vector,
    domain,
    dv_id,
    metadata,
    protocol,
    remove,
    txn,
)

PLAIN = json.dumps(
    add("p=1/a%20b", stats='{"numRecords":3,"minValues":{"x":"\\\\"}}', tags={"k": "ü"}),
    separators=(",", ":"),
)
STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {},
    {"separators": (",", ":"), "sort_keys": True},
]
BLANKS = ("", " ", "\t", "  ")
other_lines = st.one_of(
    st.sampled_from(BLANKS),
    st.builds(
        lambda blank, action, style: blank + json.dumps(action, **style) + blank,
        st.sampled_from(BLANKS),
        st.sampled_from(
            [
                cdc("c"),
                commit_info(add="{", note='"add":{'),
                txn("app", 3),
                metadata(),
                protocol(),
                domain("d", "{}"),
                {"add": None},
                {},
            ]
        ),
        st.sampled_from(STYLES),
    ),
)
"""Lines without an add or a remove, in any form."""


def read_files(*named: tuple[str, bytes]) -> tuple[FileActionLines, list[SingleActions]]:
    return read_lines(split_lines(BufferedFiles.of(*named)))


def read(*texts: str) -> dict[tuple[str, str], Any]:
    """The actions on the lines, by kind and key; each text is one file."""
    lines, _ = read_files(*((f"f{n}", text.encode()) for n, text in enumerate(texts)))
    found = {}
    *rows, end = b"".join(lines.texts()).decode().split("\n")
    assert end == ""
    keys = lines.keys.array()
    assert lines.keys.hashes().tolist() == hash_texts(keys).tolist()
    for key, is_remove, row in zip(keys.to_pylist(), lines.is_remove, rows, strict=True):
        (name, value), *others = json.loads(row).items()
        assert not others
        assert name == ("remove" if is_remove else "add")
        found[name, key] = value
    assert len(found) == len(rows)
    return found


def key_of(value: Action) -> str:
    vector = dv_id(value)
    return value["path"] if vector is None else f"{vector}\0{value['path']}"


@st.composite
def lines(draw: st.DrawFn) -> list[tuple[Action, str]]:
    """Actions of distinct files, each with its line."""
    keys = draw(
        st.lists(
            st.tuples(st.sampled_from(PATHS), st.sampled_from(VECTORS)),
            unique_by=lambda pair: key_of({"path": pair[0], "deletionVector": pair[1]}),
        )
    )
    made = []
    for path, vector in keys:
        action = draw(files(draw(st.sampled_from([add, remove])), path, vector))
        made.append((action, json.dumps(action, **draw(st.sampled_from(STYLES)))))
    return made


@pytest.mark.conformance("COMP-02", "FILE-11")
@settings(max_examples=examples(200))
@given(lines(), st.integers(0, 3), st.lists(st.tuples(st.integers(0, 9), other_lines), max_size=3))
def test_every_action_keeps_its_fields_and_gets_its_key(
    made: list[tuple[Action, str]], cut: int, others: list[tuple[int, str]]
) -> None:
    texts = [line for _, line in made]
    for at, line in others:
        texts.insert(at, line)
    files = ["\n".join(part) for part in (texts[:cut], texts[cut:])]
    found = read(*(text if text.strip() else "{}" for text in files))
    expected = {}
    for action, _ in made:
        ((name, value),) = action.items()
        expected[name, key_of(value)] = value | {"dataChange": False}
    assert found == expected


@settings(max_examples=examples(400))
@given(st.data())
def test_plain_lines_have_one_action_and_a_simple_path(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(PLAIN)))
    cut = data.draw(st.integers(0, 12))
    piece = data.draw(
        st.sampled_from(
            ["", '"', "\\", "{", "}", ",", "1", "true", ' "remove":{"path":"x"}', '"path":"x",']
            + ['"dataChange":true', "\n", "\\u00e9", "\\x", "\t", "null", ":"]
        )
    )
    line = PLAIN[:at] + piece + PLAIN[at + cut :] + "\n"
    if re.fullmatch(line_buffers.PLAIN, line, re.ASCII):
        value = json.loads(line, object_pairs_hook=list)
        ((name, fields),) = value
        assert name == "add" and [key for key, _ in fields].count("path") == 1
        (key,) = read_files(("f", line.encode()))[0].keys.array().to_pylist()
        assert key == dict(fields)["path"]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=40), st.integers(1, 4000))
def test_selected_lines_are_written_in_order(parts: list[tuple[bool, int]], size: int) -> None:
    texts = [
        json.dumps(add(f"{n:03}" * length, dataChange=bool(n % 3)), separators=(",", ":")) + "\n"
        for n, (_, length) in enumerate(parts)
    ]
    lines, _ = read_files(("f", "".join(["{}\n", *texts]).encode()))
    chosen = lines.filter(np.array([take for take, _ in parts], bool))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_action_lines, "_BLOCK_BYTES", size)
        pieces = list(chosen.texts())
    assert all(len(piece) <= size + max(map(len, texts)) + 60 for piece in pieces)
    expected = [text for text, (take, _) in zip(texts, parts, strict=True) if take]
    assert b"".join(pieces).decode() == "".join(expected).replace(
        '"dataChange":true', '"dataChange":false'
    )
    assert chosen.keys.array().to_pylist() == [json.loads(text)["add"]["path"] for text in expected]


@given(lines(), st.integers(0, 900))
def test_a_reused_buffer_gives_the_same_lines(made: list[tuple[Action, str]], size: int) -> None:
    named = [
        (f"f{n}", f"{line}\n{line}"[-len(line) - n % 2 :].encode())
        for n, (_, line) in enumerate(made)
    ]
    buffer = LogBuffer(size)
    buffer.add("before", b"\n" * size)
    buffer.clear()
    put = [buffer.add(name, text) for name, text in named]
    inside = buffer.files()
    alone = BufferedFiles.of(*(file for file, there in zip(named, put, strict=True) if there))
    assert bytes(inside.data) == bytes(alone.data)
    assert (inside.names, inside.sizes) == (alone.names, alone.sizes)
    # Only files that do not fit beside others are rejected.
    assert put[:1] == [True] * len(put[:1])
    for there, (_, text) in zip(put, named, strict=True):
        assert there or sum(alone.sizes) + len(text) + 1 > size
    found, expected = (read_lines(split_lines(texts))[0] for texts in (inside, alone))
    assert list(found.texts()) == list(expected.texts())
    assert found.keys.array() == expected.keys.array()


def test_plain_lines_need_no_recognition() -> None:
    others = [commit_info(), txn("app", 1), cdc("c"), metadata()]
    actions = [add("a" * 100), remove("b"), *others, add("c%20d", dv=None)]
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    files = BufferedFiles.of(("f", text.encode()))
    (found, singles), (expected, others_too) = (
        read_lines(look(files)) for look in (split_plain_lines, split_lines)
    )
    assert expected.plain and found.plain
    assert list(found.texts()) == list(expected.texts())
    assert found.keys.array() == expected.keys.array()
    assert found.is_remove.tolist() == expected.is_remove.tolist() == [False, True, False]
    assert [single.texts for single in singles] == [single.texts for single in others_too]


def test_the_usual_forms_of_writers_are_plain() -> None:
    actions = [
        add("a", stats='{"numRecords":1}', tags={}, baseRowId=3, defaultRowCommitVersion=0),
        remove("b", extendedFileMetadata=True, partitionValues={"p": None}, size=-1, stats=None),
    ]
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    assert read_files(("f", text.encode()))[0].plain


@pytest.mark.conformance("COMP-06")
def test_a_line_with_several_actions_is_split() -> None:
    both = add("a", odd=1.25) | remove("b") | cdc("c")
    found = read(json.dumps(both, separators=(",", ":")))
    assert found["add", "a"]["odd"] == 1.25
    assert found.keys() == {("add", "a"), ("remove", "b")}
    beside = read(json.dumps(commit_info() | txn("app", 1) | add("a")))
    assert beside.keys() == {("add", "a")}


def test_data_change_inside_an_unknown_field_is_kept() -> None:
    nested = {"dataChange": True, "path": "no"}
    for action in (add("a", nested=nested), add("a", aNested=nested, dataChange=False)):
        for style in STYLES:
            assert read(json.dumps(action, **style))["add", "a"] | {"dataChange": 0} == (
                action["add"] | {"dataChange": 0}
            )


def test_large_numbers_keep_their_digits() -> None:
    line = json.dumps(add("a", exact=0)).replace('"exact": 0', '"exact": 0.10000000000000000000001')
    lines, _ = read_files(("f", line.encode()))
    assert b"0.10000000000000000000001" in b"".join(lines.texts())


@pytest.mark.conformance("COMP-06")
def test_non_file_actions_are_copied() -> None:
    text = '{"metaData": {"id":"x", "big": 1e400}}\n' + json.dumps(commit_info() | txn("app", 1))
    _, (singles,) = read_files(("f", text.encode()))
    assert dict(singles.texts) == {
        ("metaData", ""): b'{"metaData": {"id":"x", "big": 1e400}}\n',
        ("txn", "app"): b'{"txn":{"appId":"app","version":1}}\n',
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLAIN + "\n" + PLAIN[:-1] + "\n", 2),
        (json.dumps(metadata()) + "\n" + PLAIN + '\n{"txn":{}}', 3),
        (PLAIN + "\n\n" + '{"commitInfo":', 3),
        (PLAIN.replace("p=1", "p=\xff"), 1),
        # An unpaired surrogate, which the regular expression takes for a character.
        (PLAIN.replace("p=1", "p=\xed\xa0\x80"), 1),
        (PLAIN + "\n" + PLAIN.replace("numRecords", "\xed\xbf\xbf"), 2),
    ],
)
def test_damage_is_named_with_file_and_line(text: str, line: int) -> None:
    good = ("good", PLAIN.encode())
    with pytest.raises(CorruptTableError) as failure:
        read_files(good, ("bad", text.encode("latin-1")))
    assert failure.value.file == "bad" and f"line {line}" in failure.value.problem


def test_an_empty_file_is_damage() -> None:
    for data in (b"", b" \n\n"):
        with pytest.raises(CorruptTableError, match="empty"):
            read_files(("f", data))


def test_deletion_vectors_distinguish_files_of_one_path() -> None:
    both = [json.dumps(add("a")), json.dumps(add("a", dv=deletion_vector()))]
    assert len(read("\n".join(both))) == 2

"""A commit split piece by piece has the same non-file actions as a whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, OversizedFileError
from delta_maintenance.protocol.ndjson.split import FileBlock, split, split_pieces

ADD = b'{"add":{"path":"a"}}'
LINES = st.sampled_from(
    [
        ADD,
        b'{"remove":{"path":"b"}}',
        b'{"add":{"path":"a"},"txn":{"appId":"x","version":1}}',
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
        '{"commitInfo":{"who":"\u00e4\u20ac\U0001f600"}}'.encode(),
        b"  ",
        b"",
    ]
)
TEXT = st.builds(
    lambda lines, end: b"\n".join(lines) + end,
    st.lists(LINES, max_size=12),
    st.sampled_from([b"", b"\n"]),
)


@given(TEXT, st.lists(st.integers(1, 60), min_size=1))
@example(b"\n".join([ADD, b"{}", ADD, b""]), [len(ADD) + 1])
@example(b"\n".join([ADD, b"", ADD, b""]), [len(ADD) + 1])
def test_splitting_does_not_depend_on_the_pieces(data: bytes, sizes: list[int]) -> None:
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    try:
        expected = split("n", data)
    except CorruptTableError as error:
        with pytest.raises(CorruptTableError, match=error.problem):
            split_pieces("n", pieces, longest=1 << 20)
        return
    found = split_pieces("n", pieces, longest=1 << 20)
    assert (found.name, found.other_lines) == (expected.name, expected.other_lines)
    assert (found.file_lines, len(found.file_line_numbers)) == ((), 0)
    assert place(found.block) == place(expected.block)
    if found.block is not None:
        # A run has the kind of its lines; the boundary of a piece may divide a run.
        for run in found.block.of(data if data.endswith(b"\n") else data + b"\n"):
            lines = bytes(run.text).splitlines()
            assert len(lines) == run.count
            assert run.action is None or all(
                line.startswith(b'{"%b":{' % run.action.encode()) for line in lines
            )


def place(block: FileBlock | None) -> tuple[int, int, int] | None:
    if block is None:
        return None
    return (block.start, block.end, block.count) if block.count else (0, 0, 0)


def test_line_numbers_count_from_the_first_piece() -> None:
    with pytest.raises(CorruptTableError, match="line 3 is not UTF-8"):
        split_pieces("n", [ADD + b"\n" + ADD, b"\n", b'{"txn":"\xff"}\n'], longest=1 << 20)


@pytest.mark.parametrize("pieces", [[], [b""], [b"\n", b" \n"]], ids=str)
def test_a_blank_file_is_empty(pieces: list[bytes]) -> None:
    with pytest.raises(CorruptTableError, match="the file is empty"):
        split_pieces("n", pieces, longest=1 << 20)


@pytest.mark.parametrize("end", [b"", b"\n", b"\n" + ADD], ids=["end", "newline", "next line"])
@pytest.mark.parametrize("cut", [1, len(ADD) // 2, len(ADD)])
def test_the_line_limit_does_not_depend_on_the_pieces(end: bytes, cut: int) -> None:
    pieces = [ADD + b"\n" + ADD[:cut], ADD[cut:] + end]
    assert split_pieces("n", pieces, longest=len(ADD)).other_lines == ()
    with pytest.raises(OversizedFileError, match=f"more than {len(ADD) - 1} bytes"):
        split_pieces("n", [ADD[:cut], ADD[cut:] + end], longest=len(ADD) - 1)

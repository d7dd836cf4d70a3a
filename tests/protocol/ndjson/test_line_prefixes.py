"""Line prefixes compared with an equivalent regular expression."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.protocol.ndjson.line_buffers import PADDING, read_prefixes

HEAD = re.compile(rb'\{"(add|remove|cdc)":\{"path":"([^"]*)"')

ACTIONS = st.sampled_from(["add", "remove", "cdc", "metaData", "removed", "ad", ""])
# Lengths around eight bytes, and characters of one to four bytes before the end of a path.
PATHS = st.text(st.sampled_from('ab"\\/\x1f \x7f\x80\xff€𐍈!#[]'), max_size=40)
BEGINNINGS = st.builds('{{"{}":{{"path":"{}'.format, ACTIONS, PATHS)
ENDS = st.sampled_from(['","size":1}}', "", '"', '" ', "x" * 30, '"}}'])
WHOLE = st.builds("{}{}".format, BEGINNINGS, ENDS)


def with_another(line: str, at: int, character: str) -> str:
    return line[:at] + character + line[at + 1 :]


NEARLY = st.builds(with_another, WHOLE, st.integers(0, 20), st.sampled_from("x{"))
LINES = (
    WHOLE
    | NEARLY
    | st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=30)
)


@given(lines=st.lists(LINES, max_size=20))
@example(lines=['{"add":{"path":"'])
@example(lines=['{"remove":{"path":"x"', "{"])
@example(lines=[f'{{"add":{{"path":"{"x" * length}"' for length in range(60, 310)])
@example(lines=[f'{{"cdc":{{"path":"{"x" * length}' for length in range(60, 310)])
@example(lines=[with_another('{"remove":{"path":"x"', at, "x") for at in range(20)])
@example(lines=[with_another('{"add":{"path":"x"', at, "x") for at in range(17)])
@example(lines=[with_another('{"cdc":{"path":"x"', at, "x") for at in range(17)])
def test_prefixes_equal_those_of_a_regular_expression(lines: list[str]) -> None:
    whole = [line.encode() + b"\n" for line in lines]
    data = b"".join([*whole, PADDING])
    ends = np.cumsum([len(line) for line in whole], dtype=np.int64)
    starts = np.append(np.int64(0), ends)[:-1]
    found = read_prefixes(data, starts)
    heads = [match for start in starts.tolist() if (match := HEAD.match(data, start))]
    assert starts[found.rows].tolist() == [match.start() for match in heads]
    assert found.path_starts.tolist() == [match.start(2) for match in heads]
    assert found.path_ends.tolist() == [match.end(2) for match in heads]
    assert found.is_remove.tolist() == [match[1] == b"remove" for match in heads]
    assert found.is_cdc.tolist() == [match[1] == b"cdc" for match in heads]

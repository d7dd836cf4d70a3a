"""Lines with a file action and another action are found in short and in long texts alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.ndjson.split import KNOWN_ACTIONS, split

_USUAL = (
    b'{"add":{"path":"a","tags":{"x":"y"},"stats":"{\\"numRecords\\":1,\\"add\\":2}"}}\n' * 1000
)
"""Long enough for the search by Arrow."""
BLANKS = st.text(" \t\r", max_size=2)
NAMES = st.sampled_from([*sorted(KNOWN_ACTIONS), "odd", "adder", "r\\u0065move", "\\u0061dd", "ü"])
VALUES = st.sampled_from(["{}", '{"path":"b"}', "null", "1", '"add"', '"\\\\u"', "[]"])


@given(st.lists(st.tuples(BLANKS, BLANKS, NAMES, BLANKS, BLANKS, VALUES), max_size=3))
def test_a_long_text_is_divided_like_a_short_one(behind: list[tuple[str, ...]]) -> None:
    others = "".join(f'{a},{b}"{name}"{c}:{d}{value}' for a, b, name, c, d, value in behind)
    line = ('{"remove":{"path":"a"}' + others + "}\n").encode()
    alone = split("c", line)
    among = split("c", _USUAL + line + _USUAL)
    assert len(_USUAL) > 1 << 16
    assert len(among.file_line_numbers) == 2000 + len(alone.file_line_numbers)
    assert [text for _, text in among.other_lines] == [text for _, text in alone.other_lines]

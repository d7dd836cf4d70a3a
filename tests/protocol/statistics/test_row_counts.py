"""Row counts that are taken from the bytes of statistics, held against those of the parser."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.statistics import stats
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.protocol.statistics.stats import stated_row_counts

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.dictionaries(
        st.sampled_from(["numRecords", "a", "{", "}", '"']), inner, max_size=3
    ),
    max_leaves=4,
)
_STATISTICS = st.dictionaries(
    st.sampled_from(["numRecords", "minValues", "}"]), _VALUES, max_size=3
)


def counts(*texts: str | None, offset: int = 0) -> list[int | None]:
    column = pa.array([*[None] * offset, *texts], pa.string())[offset:]
    return stated_row_counts(pa.chunked_array([column])).to_pylist()


@given(
    st.lists(
        st.tuples(st.none() | _STATISTICS, st.sampled_from([(",", ":"), (", ", ": ")])), max_size=6
    ),
    st.integers(0, 3),
)
def test_counts_equal_those_of_the_parser(
    rows: list[tuple[object, tuple[str, str]]], offset: int
) -> None:
    texts = [
        None if value is None else json.dumps(value, separators=separators)
        for value, separators in rows
    ]
    assert counts(*texts, offset=offset) == num_records(pa.array(texts, pa.string())).to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        '{"numRecords":',
        '{"numRecords":}',
        '{"numRecords":-1}',
        '{"numRecords":007}',
        '{"numRecords":1.5}',
        '{"numRecords":1e3}',
        '{"numRecords":"1"}',
        '{"numRecords":9223372036854775808}',
        '{"numRecords":1,}',
        '{"numRecords":1}}',
        '{"numRecords":1,"minValues":{"a":1',
        '{"numRecords":1,"numRecords":2',
        '["numRecords",1]',
        "",
    ],
)
def test_a_text_that_is_not_plain_is_parsed(text: str) -> None:
    plain = '{"numRecords":5,"minValues":{"a":1}}'
    expected = num_records(pa.array([plain, text, None])).to_pylist()
    assert counts(plain, text, None) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"numRecords":1,"minValues":{"a":1}',
        '{"numRecords":1,"a":{"numRecords":2},"numRecords":3}',
        '{"numRecords":1,"numRecords":2}',
    ],
)
def test_what_follows_the_count_is_not_looked_at(text: str) -> None:
    assert counts(text, '{"numRecords":5,"minValues":{"a":1}}', None) == [1, 5, None]


def test_the_last_texts_may_be_short() -> None:
    texts = [f'{{"numRecords":{number}}}' for number in range(40)]
    assert counts(*texts, offset=3) == list(range(40))


def test_usual_texts_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(texts: pa.Array) -> pa.Array:
        raise AssertionError("statistics were parsed")

    monkeypatch.setattr(stats, "num_records", refuse)
    largest = 10**9 - 1
    assert counts(
        '{"numRecords":0}',
        None,
        '{"numRecords":17,"minValues":{"a":"x"},"nullCount":{"a":0}}',
        f'{{"numRecords":{largest},"tightBounds":true,"nullCount":{{}}}}',
    ) == [0, None, 17, largest]

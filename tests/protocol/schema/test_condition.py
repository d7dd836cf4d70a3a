"""Conditions of which only parts are understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.schema.condition import (
    Both,
    Comparison,
    Literal,
    Opaque,
    columns_of,
    opaque_parts,
    parse_condition,
)

CASE = "CASE WHEN a = 1 AND b = 2 THEN c END = 1"


@pytest.mark.parametrize(
    ("condition", "columns", "opaque"),
    [
        ("a = 1 AND f(b, c) > 2", ["a"], ["f(b, c) > 2"]),
        ("(a + 1) * 2 > 5", [], ["(a + 1) * 2 > 5"]),
        ("a = 1 OR (b = 2 AND c + d = 3)", ["a", "b"], ["c + d = 3"]),
        ("CASE WHEN a = 1 AND b = 2 THEN c END = 1 AND d = 2", ["d"], [CASE]),
        ("a BETWEEN 1 AND b", [], ["a BETWEEN 1", "b"]),
        ("s.`x.y`.z >= DATE '2024-01-01'", ["s|x.y|z"], []),
        ("3 < a AND CAST('5' AS INT) = b", ["a", "b"], []),
        ("a LIKE '%x' AND a LIKE 'x%'", ["a"], ["a LIKE '%x'"]),
        ("", [], [""]),
        ("a = 1 ) AND b", [], ["a = 1 ) AND b"]),
    ],
)  # fmt: skip
def test_the_understood_parts_are_kept(
    condition: str, columns: list[str], opaque: list[str]
) -> None:
    found = parse_condition(condition, lenient=True)
    assert ["|".join(path) for path in columns_of(found)] == columns
    assert list(opaque_parts(found)) == opaque


def test_a_value_before_a_column_is_turned_round() -> None:
    found = parse_condition("5 >= a and a == 6", lenient=True)
    assert found == Both(
        Comparison(("a",), "<=", Literal("5", quoted=False)),
        Comparison(("a",), "=", Literal("6", quoted=False)),
    )


@pytest.mark.parametrize("word", ["AND", "OR"])
def test_a_condition_can_have_many_parts(word: str) -> None:
    text = f" {word} ".join(f"a = {number}" for number in range(10_000))
    assert list(columns_of(parse_condition(text))) == [("a",)] * 10_000


def test_a_condition_of_limitless_length_is_not_parsed() -> None:
    text = "a = 1 OR " * (1 << 17)
    assert isinstance(parse_condition(text, lenient=True), Opaque)
    with pytest.raises(InvalidRequestError, match="more than 1,048,576 characters"):
        parse_condition(text)


@given(st.text("a1'`()<>=, .ANDORNT-%", max_size=30))
def test_every_text_is_a_condition(text: str) -> None:
    found = parse_condition(text, lenient=True)
    named = len(list(columns_of(found))) + len(list(opaque_parts(found)))
    assert isinstance(found, Opaque) or named

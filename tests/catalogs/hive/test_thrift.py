"""Thrift's binary protocol: what is encoded is decoded, and damaged answers are refused."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.catalogs.hive.client import MalformedAnswer, ServerException, answer
from tests.support.emulators.fake_metastore import reply

TEXTS = st.text(max_size=255)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**31), 2**31 - 1) | TEXTS,
    lambda values: (
        st.dictionaries(st.integers(0, 2**15 - 1), values, max_size=4)
        | st.lists(TEXTS, max_size=4)
        | st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=4)
    ),
    max_leaves=12,
)


def read(data: bytes) -> Any:
    source = io.BytesIO(data)

    def exactly(size: int) -> bytes:
        found = source.read(size)
        if len(found) != size:
            raise EOFError
        return found

    return answer(exactly, "m", 7)


@given(st.dictionaries(st.integers(0, 2**15 - 1), VALUES, max_size=5))
def test_an_answer_is_read_as_it_was_encoded(fields: dict[int, Any]) -> None:
    assert read(reply("m", fields, 7)) == fields


@given(st.dictionaries(st.integers(0, 99), VALUES, max_size=4), st.integers(0, 10**6), st.binary())
def test_a_damaged_answer_is_read_or_refused(fields: Any, at: int, junk: bytes) -> None:
    data = reply("m", fields, 7)
    at %= len(data)
    with suppress(MalformedAnswer, ServerException, EOFError):
        read(data[:at] + junk + data[at + len(junk) :])


def test_a_value_of_absurd_size_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedAnswer, match="a value of 2147483647 bytes"):
        read(reply("m", {}, 7)[:-1] + b"\x0b\x00\x00\x7f\xff\xff\xff")


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_maintenance.catalogs.hive.client._MOST_BYTES", 1000)
    assert read(reply("m", {0: ["x"] * 150}, 7))
    with pytest.raises(MalformedAnswer, match="more than 1,000 bytes"):
        read(reply("m", {0: ["x"] * 300}, 7))


def test_an_answer_to_another_call_is_refused() -> None:
    with pytest.raises(MalformedAnswer, match="another call"):
        read(reply("m", {}, 8))


def test_an_exception_of_the_server_is_raised() -> None:
    data = b"\x80\x01\x00\x03" + reply("m", {1: "Invalid method name: 'm'"}, 7)[4:]
    with pytest.raises(ServerException, match="Invalid method name: 'm'"):
        read(data)

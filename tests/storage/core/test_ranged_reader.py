"""Files that are read by range requests."""

from __future__ import annotations

import io

import pytest

from delta_maintenance.storage.core.streams import open_ranges

DATA = (bytes(range(251)) * 12_000)[:3_000_000]


@pytest.fixture
def asked() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def file(asked: list[tuple[int, int]]) -> io.BufferedReader:
    def fetch(first: int, count: int) -> bytes:
        asked.append((first, count))
        return DATA[first : first + count]

    opened = open_ranges(fetch, len(DATA))
    assert isinstance(opened, io.BufferedReader)
    return opened


def test_the_rest_of_a_file_is_one_request(
    file: io.BufferedReader, asked: list[tuple[int, int]]
) -> None:
    file.seek(5)
    assert file.read() == DATA[5:]
    assert asked == [(5, len(DATA) - 5)]
    assert (file.read(), file.tell()) == (b"", len(DATA))
    file.seek(len(DATA) + 5)
    assert file.read() == b""
    assert len(asked) == 1


def test_buffered_bytes_are_not_requested_again(
    file: io.BufferedReader, asked: list[tuple[int, int]]
) -> None:
    assert file.read(10) == DATA[:10]
    assert file.read() == DATA[10:]
    assert asked == [(0, 1 << 20), (1 << 20, len(DATA) - (1 << 20))]


def test_a_large_read_is_one_request(file: io.BufferedReader, asked: list[tuple[int, int]]) -> None:
    file.seek(1_000_000)
    assert file.read(1_500_000) == DATA[1_000_000:2_500_000]
    assert asked[0] == (1_000_000, 1_500_000 // (1 << 20) * (1 << 20))

"""Parquet files that are small on disk and huge in memory: refused before anything is decoded."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError, OversizedFileError
from delta_maintenance.limits import LOG_MEMORY_VARIABLE, ReadLimits
from delta_maintenance.protocol.delta_log import classic_checkpoint_name
from delta_maintenance.table.data.parquet import guarded_reading
from delta_maintenance.table.data.parquet.guarded_reading import guarded_batches, open_footer
from delta_maintenance.table.data.parquet.pages import MalformedPageError, read_pages
from delta_maintenance.table.read import UnusableCheckpointError
from tests.support.hostile.bombs import BOMBS, shared_text
from tests.support.suite.usage import measured
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

SMALL = ReadLimits(64 << 20)
NAME = classic_checkpoint_name(1)


def table() -> TableBuilder:
    builder = TableBuilder()
    builder.store.read_limits = SMALL
    builder.commit([protocol(), metadata(), add("a"), add("b")])
    builder.commit([remove("a"), add("c")])
    return builder


@cache
def bytes_of(bomb: str) -> bytes:
    """A bomb in place of the checkpoint of `table`."""
    return BOMBS[bomb](table().state(), 1 << 28)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_costs_little_and_the_commits_are_used(bomb: str) -> None:
    builder = table()
    data = bytes_of(bomb)
    assert len(data) < 4 << 20
    builder.write(NAME, data)
    with measured() as taken:
        snapshot = builder.open().snapshot()
        assert sorted(snapshot.live_files()["path"].to_pylist()) == ["b", "c"]
    assert taken.memory < 2 * SMALL.log_memory, f"{taken.memory >> 20} MiB"
    assert taken.seconds < 5


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_without_a_fallback_is_one_line_with_the_remedy(bomb: str) -> None:
    builder = table()
    builder.write(NAME, bytes_of(bomb))
    builder.drop(f"{0:020d}.json")
    with measured() as taken, pytest.raises(UnusableCheckpointError) as failure:
        builder.open().snapshot().live_files()
    assert taken.memory < 2 * SMALL.log_memory, f"{taken.memory >> 20} MiB"
    line = str(failure.value)
    assert len(line) < 1000
    for part in (builder.store.root, NAME, LOG_MEMORY_VARIABLE):
        assert part in line


def test_gigabytes_of_one_text_are_refused_by_default() -> None:
    builder = table()
    builder.store.read_limits = None
    data = shared_text(builder.state(), 9 << 30, rows=130)
    assert len(data) < 100_000
    builder.write(NAME, data)
    with measured() as taken:
        assert builder.open().snapshot().live_files().num_rows == 2
    assert taken.memory < 300 << 20, f"{taken.memory >> 20} MiB"


def test_a_higher_limit_reads_what_a_lower_one_refuses() -> None:
    builder = table()
    builder.write(NAME, shared_text(builder.state(), 40 << 20, rows=20))
    builder.drop(f"{0:020d}.json")
    with pytest.raises(UnusableCheckpointError):
        builder.open().snapshot().live_files()
    builder.store.read_limits = None
    assert builder.open().snapshot().live_files().num_rows == 20


def test_a_commit_that_is_too_large_is_not_read() -> None:
    builder = table()
    builder.commit([add("d", stats="x" * SMALL.text_bytes)])
    with measured() as taken, pytest.raises(OversizedFileError) as failure:
        builder.open().snapshot().live_files()
    assert taken.memory < 2 * SMALL.text_bytes
    assert failure.value.file == f"_delta_log/{2:020d}.json"
    assert LOG_MEMORY_VARIABLE in str(failure.value)


def test_a_hint_that_is_too_large_is_ignored() -> None:
    builder = table()
    builder.checkpoint()
    builder.hint(b'{"version":1,"size":4}' + b" " * SMALL.hint_bytes)
    with measured() as taken:
        assert builder.open().snapshot().live_files().num_rows == 2
    assert taken.memory < 4 * SMALL.hint_bytes


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=50)),
            st.one_of(st.none(), st.lists(st.text(max_size=20), max_size=4)),
            st.integers(-5, 5),
        ),
        min_size=1,
        max_size=60,
    ),
    options=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.booleans(),
            "row_group_size": st.integers(1, 60),
            "data_page_size": st.sampled_from([100, 1 << 20]),
            "dictionary_pagesize_limit": st.sampled_from([1, 50, 1 << 20]),
        }
    ),
)
def test_files_within_the_limits_are_read_unchanged(
    rows: list[tuple[Any, ...]], options: dict[str, Any]
) -> None:
    text, items, number = zip(*rows, strict=True)
    written = pa.table(
        {
            "text": pa.array(text, pa.string()),
            "items": pa.array(items, pa.list_(pa.string())),
            "number": pa.array(number, pa.int64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(written, sink, **options)
    found, schema = open_footer(sink, SMALL)
    batches = list(
        guarded_batches(
            sink,
            found,
            row_groups=range(found.num_row_groups),
            columns=["text", "items", "number"],
            limits=SMALL,
        )
    )
    assert pa.Table.from_batches(batches, schema).equals(pq.read_table(sink))


def test_a_page_that_claims_gigabytes_is_refused_before_it_is_decompressed() -> None:
    header = b"\x15\x00\x15" + _zigzag(2**31 - 1) + b"\x15" + _zigzag(4)
    header += b"\x2c\x15" + _zigzag(1) + b"\x15\x00\x15\x06\x15\x06\x00\x00"
    pages = read_pages(memoryview(header + b"\0\0\0\0"), values=1, codec="ZSTD", texts=True)
    assert pages.largest == 2**31 - 1 > ReadLimits().page_bytes


@given(st.binary(max_size=200), st.integers(0, 2**62))
def test_arbitrary_bytes_do_not_break_the_page_header_reader(data: bytes, values: int) -> None:
    try:
        pages = read_pages(memoryview(data), values=values, codec="SNAPPY", texts=True)
    except MalformedPageError:
        return
    assert pages.values >= values


@pytest.mark.parametrize("text", ["63MiB", "0", "-1", "many", "1XB", "9" * 30])
def test_an_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=LOG_MEMORY_VARIABLE):
        ReadLimits.from_environment({LOG_MEMORY_VARIABLE: text})


@pytest.mark.parametrize(
    ("text", "size"), [("6GiB", 6 << 30), ("64 MiB", 64 << 20), ("70000000", 70_000_000)]
)
def test_a_limit_is_a_number_of_bytes_with_or_without_a_unit(text: str, size: int) -> None:
    assert ReadLimits.from_environment({LOG_MEMORY_VARIABLE: text}).log_memory == size


def _zigzag(value: int) -> bytes:
    value, digits = value << 1, b""
    while value > 127:
        digits, value = digits + bytes([value & 127 | 128]), value >> 7
    return digits + bytes([value])


def test_wide_rows_come_in_batches_of_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_reading, "_BATCH_BYTES", 1 << 20)
    texts = pa.array([f"{number:08}" * 50 for number in range(20_000)])
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink)
    found, _ = open_footer(sink, ReadLimits())
    batches = list(
        guarded_batches(sink, found, row_groups=[0], columns=["text"], limits=ReadLimits())
    )
    assert pa.chunked_array([batch.column(0) for batch in batches]).combine_chunks() == texts
    assert max(batch.nbytes for batch in batches) <= 2 << 20

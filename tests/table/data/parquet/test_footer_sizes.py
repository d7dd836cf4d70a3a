"""The memory of a footer is bounded without decoding it."""

from __future__ import annotations

import io
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, OversizedFileError, RefusedError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter, footer_memory
from delta_maintenance.table.data.parquet.footers import NUM_ROWS
from delta_maintenance.table.data.parquet.guarded_reading import open_footer
from delta_maintenance.table.data.parquet.thrift import I64, read_struct, struct_bytes
from delta_maintenance.table.data.parquet_input import ParquetInput
from tests.support.hostile.large_contents import content

EXACT, ROUGH = 0, 1 << 62


@cache
def wide(columns: int, groups: int) -> bytes:
    rows = pa.table({f"column_{number}": [number, number + 1] for number in range(columns)})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema) as writer:
        for _ in range(groups):
            writer.write_table(rows)
    return sink.getvalue()


def footer(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def test_a_wide_file_of_today_is_far_below_the_limit() -> None:
    data = wide(1000, 10)
    exact = footer_memory(footer(data), exact_above=EXACT)
    assert 768 * 10_000 < exact < 20 << 20
    assert exact < footer_memory(footer(data), exact_above=ROUGH)
    with ParquetInput(data) as parquet:
        assert sum(batch.num_rows for batch in parquet.batches(["column_7"])) == 20


def test_column_chunks_of_three_bytes_are_refused_before_they_are_decoded() -> None:
    data = content("a crowded footer").data
    assert len(data) < 4 << 20
    assert footer_memory(footer(data), exact_above=EXACT) > 350 << 20
    with pytest.raises(RefusedError, match="the footer of the data file may take"):
        ParquetInput(data)


def test_a_file_of_absurdly_many_rows_is_damaged() -> None:
    data = wide(1, 1)
    text, _ = read_struct(footer(data))
    text.put(NUM_ROWS, I64, 1 << 62)
    absurd = struct_bytes(text)
    end = len(absurd).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(CorruptTableError, match="claims to have 4611686018427387904 rows"):
        ParquetInput(data[: -8 - len(footer(data))] + absurd + end)


def test_a_log_file_with_such_a_footer_is_refused_likewise() -> None:
    data = content("a crowded footer").data
    with pytest.raises(OversizedFileError, match="its footer may take .* bytes of memory"):
        open_footer(io.BytesIO(data), ReadLimits(1 << 30))
    found, _ = open_footer(io.BytesIO(wide(1000, 10)), ReadLimits(1 << 30))
    assert found.num_columns == 1000


def test_a_large_footer_is_not_read_before_it_is_decoded() -> None:
    data = content("a crowded footer").data
    source = io.BytesIO(data)
    found = StoredFooter(source)
    assert found.is_large and source.tell() == len(data)
    assert not StoredFooter(io.BytesIO(wide(10, 1))).is_large


@given(st.binary(max_size=200), st.sampled_from([EXACT, ROUGH]))
def test_arbitrary_bytes_have_a_size(data: bytes, exact_above: int) -> None:
    assert footer_memory(data, exact_above=exact_above) >= 4 * len(data)


@pytest.mark.parametrize("element", [1, 3, 5, 8, 12])
def test_a_list_of_endless_length_takes_no_time(element: int) -> None:
    absurd = b"\x29" + bytes([0xF0 | element]) + b"\xff" * 8 + b"\x7f"
    assert footer_memory(absurd + bytes(10), exact_above=EXACT) < 1 << 20

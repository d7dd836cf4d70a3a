"""Encrypted columns are found in a footer, and nothing else is taken for them."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile.encrypted_files import encrypted
from hypothesis import given
from hypothesis import strategies as st
from rewrites.data_files import parquet

from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.parquet_footer import require_plain_columns, require_plain_file

ROWS = pa.table({"id": [1, 2, 3], "s": [{"a": "x", "m": [1.5, None]}] * 3})


@pytest.mark.parametrize("rows", [1, 200])
def test_plain_files_pass(rows: int) -> None:
    wide = pa.table({f"column {number}": [number, None] for number in range(300)})
    for table in (ROWS, wide):
        data = parquet(pa.concat_tables([table] * rows), row_group_size=7)
        require_plain_file(io.BytesIO(data))
        require_plain_columns(data)


def test_a_file_with_an_encrypted_column_is_refused_before_it_ends_the_process() -> None:
    data = encrypted(pa.table({"id": [1, 2, 3]}), "id", footer=False)
    # pyarrow reads this footer; asked for the column, it would abort.
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match="encrypted"):
        require_plain_columns(data)
    with pytest.raises(pa.ArrowInvalid, match="encrypted"):
        ParquetInput(data)


@given(st.binary(max_size=300))
def test_no_bytes_end_in_another_error(data: bytes) -> None:
    length = len(data).to_bytes(4, "little")
    with suppress(pa.ArrowInvalid):
        require_plain_columns(data + length + b"PAR1")


@pytest.mark.cases
def test_footers_of_every_engine_pass(corpus: Path) -> None:
    files = sorted(corpus.rglob("*.parquet"))[::7]
    assert files
    for file in files:
        if file.stat().st_size > 12:
            with file.open("rb") as source:
                try:
                    pq.read_metadata(source)
                except pa.ArrowException:
                    continue
                require_plain_file(source)

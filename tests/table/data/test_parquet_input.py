"""Data files as streams of batches: the requests that are made, and the threads that make them."""

from __future__ import annotations

import io
from threading import get_ident
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.table.data import parquet_input
from delta_maintenance.table.data.parquet.files import ReadAhead
from delta_maintenance.table.data.parquet.footers import GROUP_BYTES, ROW_GROUPS
from delta_maintenance.table.data.parquet.thrift import I64, read_struct, struct_bytes
from delta_maintenance.table.data.parquet_input import ParquetInput

ROWS, GROUPS = 3000, 3


class Requests(io.BytesIO):
    """A file that records the positions of all requests, and the threads that make them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.threads: set[int] = set()
        self.made: list[tuple[int, int]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.threads.add(get_ident())
        start = self.tell()
        data = super().read(size)
        end = start + len(data) if size is None or size < 0 else start + size
        self.made.append((start, end))
        return data


def data_file() -> bytes:
    """Three row groups with three columns; the middle one is large."""
    numbers = range(ROWS * GROUPS)
    rows = pa.table(
        {
            "a": pa.array(numbers, pa.int64()),
            "b": [f"a text that is longer than the gap between two requests {n}" for n in numbers],
            "c": pa.array([n * 7 for n in numbers], pa.int64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        row_group_size=ROWS,
        use_dictionary=False,
        compression="none",
        data_page_size=1 << 13,
        write_batch_size=1 << 7,
    )
    return sink.getvalue()


def test_arrow_reads_no_file_in_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread may hold the file when the interpreter ends, and then aborts the process."""
    file = Requests(data_file())
    read = ReadAhead.read

    def watched(self: Any, size: int = -1) -> bytes | memoryview:
        file.threads.add(get_ident())
        return read(self, size)

    monkeypatch.setattr(ReadAhead, "read", watched)
    with ParquetInput(file) as parquet:
        assert sum(batch.num_rows for batch in parquet.batches(["a", "b", "c"])) == ROWS * GROUPS
    assert file.threads == {get_ident()}


@pytest.mark.parametrize(
    ("columns", "requests"), [(["a", "b", "c"], 1), (["a", "b"], 1), (["a", "c"], 2), (["b"], 1)]
)
def test_adjacent_columns_of_a_row_group_are_read_in_one_request(
    columns: list[str], requests: int
) -> None:
    file = Requests(data_file())
    rows = pq.read_table(io.BytesIO(file.getvalue()), columns=columns)
    with ParquetInput(file) as parquet:
        chunks = [
            parquet.metadata.row_group(group).column("abc".index(name))
            for group in range(GROUPS)
            for name in columns
        ]
        file.made.clear()
        found = pa.Table.from_batches(parquet.batches(columns))
    assert found.equals(rows)
    assert len(file.made) == requests * GROUPS
    assert sum(end - start for start, end in file.made) == sum(
        chunk.total_compressed_size for chunk in chunks
    )


def test_a_column_outside_the_file_is_damage() -> None:
    data = data_file()
    length = int.from_bytes(data[-8:-4], "little")
    # The file ends before the positions in its footer.
    cut = data[:4] + data[-8 - length :]
    file = Requests(cut)
    with ParquetInput(file) as parquet:
        file.made.clear()
        with pytest.raises((pa.ArrowException, OSError)):
            list(parquet.batches(["a", "b", "c"]))
    # Python would allocate memory for everything that is asked for.
    assert all(end <= len(cut) for _, end in file.made)


def test_a_row_group_that_its_footer_understates_is_read_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = data_file()
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    for group in footer.structs(ROW_GROUPS):
        group.put(GROUP_BYTES, I64, 1)
    tail = struct_bytes(footer)
    file = Requests(data[: -8 - size] + tail + len(tail).to_bytes(4, "little") + b"PAR1")
    monkeypatch.setattr(parquet_input, "GROUP_BYTES", 1 << 17)
    with ParquetInput(file) as parquet:
        file.made.clear()
        rows = sum(batch.num_rows for batch in parquet.batches(["a", "b", "c"]))
        assert rows == ROWS * GROUPS
        assert max(end - start for start, end in file.made) <= 1 << 16

"""Columns that end the process are found in a footer, and nothing else is taken for them."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.table.data.parquet.footer_reader import StoredFooter
from delta_maintenance.table.data.parquet.footers import require_readable_columns
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    ListValue,
    Struct,
    Value,
    struct_bytes,
)
from delta_maintenance.table.data.parquet_input import ParquetInput
from tests.support.hostile.encrypted_files import encrypted
from tests.support.rewrites.data_files import parquet

ROWS = pa.table({"id": [1, 2, 3], "s": [{"a": "x", "m": [1.5, None]}] * 3})
SCHEMA = pq.ParquetFile(io.BytesIO(parquet(ROWS))).schema


@pytest.mark.parametrize("rows", [1, 200])
def test_plain_files_pass(rows: int) -> None:
    wide = pa.table({f"column {number}": [number, None] for number in range(300)})
    for table in (ROWS, wide):
        data = parquet(pa.concat_tables([table] * rows), row_group_size=7)
        footer = StoredFooter(io.BytesIO(data))
        assert footer.decode(max_bytes=1 << 30)[0].equals(pq.read_metadata(io.BytesIO(data)))
        footer.require_readable_columns(_schema(data))
        StoredFooter(io.BytesIO(data)).require_readable_columns(_schema(data))


def test_a_file_with_an_encrypted_column_is_refused() -> None:
    data = encrypted(pa.table({"id": [1, 2, 3]}), "id", footer=False)
    # pyarrow reads this footer; asked for the column, it would abort.
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match="encrypted"):
        StoredFooter(io.BytesIO(data)).require_readable_columns(_schema(data))
    with pytest.raises(pa.ArrowInvalid, match="encrypted"):
        ParquetInput(data)


@pytest.mark.parametrize(
    ("leaf", "field", "value"),
    [
        (0, 1, (I64, 5)),
        (0, 3, (LIST, ListValue(I64, [1, 2, 3]))),
        (1, 2, (LIST, ListValue(I64, [1, 2]))),
        (2, 2, (LIST, ListValue(I64, [1]))),
    ],
    ids=["bytes of a number", "definition levels", "repetition levels", "levels of a list"],
)
def test_a_file_with_the_size_statistics_of_another_type_is_refused(
    leaf: int, field: int, value: tuple[int, Value]
) -> None:
    data = _with_size_statistics(leaf, {field: value})
    # pyarrow reads this footer; asked for the column, it would abort.
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match="statistics of"):
        ParquetInput(data)


@pytest.mark.parametrize(
    ("field", "bound"), [(1, b"123"), (2, b"123"), (5, b"123"), (6, b"123"), (5, b""), (6, b"")]
)
def test_a_file_with_a_truncated_bound_is_refused(field: int, bound: bytes) -> None:
    def cut(column: Struct) -> None:
        statistics = column.get(12)
        assert isinstance(statistics, Struct)
        statistics.put(field, BINARY, bound)

    data = _changed(0, cut)
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match="truncated"):
        ParquetInput(data)


@pytest.mark.parametrize("number", [-1, 1, 6, 8])
def test_a_file_with_columns_of_another_type_than_its_schema_is_refused(number: int) -> None:
    data = _changed(0, lambda column: column.put(1, I32, number))
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match="another type"):
        ParquetInput(data)


@pytest.mark.parametrize("number", [-2, -1, 8, 2**31 - 1])
def test_a_file_with_an_unknown_codec_is_refused(number: int) -> None:
    data = _changed(0, lambda column: column.put(4, I32, number))
    # pyarrow reads this footer; asked for the codec, it would abort.
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 3
    with pytest.raises(pa.ArrowInvalid, match=f"unknown codec {number}"):
        ParquetInput(data)


def test_a_file_with_a_name_that_is_not_utf_8_is_refused() -> None:
    def rename(metadata: Struct) -> None:
        metadata.structs(2)[1].put(4, BINARY, b"\xe5d")

    with pytest.raises(pa.ArrowInvalid, match="not UTF-8"):
        ParquetInput(_with_footer(rename))


def test_a_file_without_histograms_passes() -> None:
    empty: tuple[int, Value] = (LIST, ListValue(I64, []))
    data = _with_size_statistics(0, {2: empty, 3: empty})
    with ParquetInput(data) as file:
        assert file.metadata.row_group(0).column(0).num_values == 3


def _schema(data: bytes) -> pq.ParquetSchema:
    return pq.ParquetFile(io.BytesIO(data)).schema


def _with_size_statistics(leaf: int, fields: dict[int, tuple[int, Value]]) -> bytes:
    """A file, some of whose size statistics of one column are replaced."""

    def replace(column: Struct) -> None:
        statistics = column.get(16)
        assert isinstance(statistics, Struct)
        statistics.fields.update(fields)

    return _changed(leaf, replace)


def _changed(leaf: int, change: Callable[[Struct], None]) -> bytes:
    """A file, the metadata of one of whose columns is changed."""

    def in_footer(metadata: Struct) -> None:
        column = metadata.structs(4)[0].structs(1)[leaf].get(3)
        assert isinstance(column, Struct)
        change(column)

    return _with_footer(in_footer)


def _with_footer(change: Callable[[Struct], None]) -> bytes:
    """A file with a changed footer."""
    data = parquet(ROWS)
    footer = StoredFooter(io.BytesIO(data))
    metadata = footer.tree
    change(metadata)
    changed = struct_bytes(metadata)
    return data[: footer.start] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_no_other_error(data: bytes) -> None:
    with suppress(pa.ArrowInvalid):
        require_readable_columns(data, SCHEMA)
    with suppress(pa.ArrowInvalid):
        StoredFooter(io.BytesIO(data)).require_readable_columns(SCHEMA)


@pytest.mark.cases
def test_footers_of_every_engine_pass(corpus: Path) -> None:
    files = sorted(corpus.rglob("*.parquet"))[::7]
    assert files
    for file in files:
        if file.stat().st_size > 12:
            with file.open("rb") as source:
                footer = StoredFooter(source)
                try:
                    metadata, memory = footer.decode(max_bytes=1 << 30, exact_above=0)
                except pa.ArrowException:
                    continue
                footer.require_readable_columns(metadata.schema)
                assert memory < 16 << 20

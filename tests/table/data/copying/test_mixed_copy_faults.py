"""Faults while row groups are copied, encoded and completed: each of them is found."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import VerificationError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.copying import copied_bin, row_groups
from tests.support.rewrites.data_files import ROW_ID
from tests.support.rewrites.mixed_sources import (
    BIG,
    SMALL,
    rewritten,
    rewritten_files,
    spec_of,
    stored,
)


class Flipped(MemoryStore):
    """Changes a byte in the middle of one column chunk of each new file while it is stored."""

    def __init__(self, group: int, column: int) -> None:
        super().__init__()
        self.at = group, column

    def open(self, path: str) -> Any:
        if not path.startswith("part-"):
            return super().open(path)
        data = bytearray(self.read(path))
        chunk = pq.read_metadata(io.BytesIO(data)).row_group(self.at[0]).column(self.at[1])
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start + chunk.total_compressed_size - 1] ^= 1
        return io.BytesIO(bytes(data))


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("group", [0, 3, 4])
@pytest.mark.parametrize("column", [0, 4, 5])
def test_a_changed_byte_is_found_in_copied_encoded_and_added_chunks(
    group: int, column: int
) -> None:
    with pytest.raises(VerificationError):
        rewritten(Flipped(group, column), [BIG, SMALL], spec_of(tracked=True))


def _lost(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def _twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch.slice(0, 1), batch.slice(0, batch.num_rows - 1)])


def _changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    column = batch.schema.get_field_index("f")
    values = pa.array(np.full(batch.num_rows, 0.125))
    return batch.set_column(column, batch.schema.field(column), values)


def _other_ids(batch: pa.RecordBatch) -> pa.RecordBatch:
    column = batch.schema.get_field_index(ROW_ID)
    values = pa.array(batch.column(column).to_numpy()[::-1].copy())
    return batch.set_column(column, batch.schema.field(column), values)


@pytest.mark.conformance("RW-40", "RW-41")
@pytest.mark.parametrize("fault", [_lost, _twice, _changed, _other_ids])
def test_a_fault_of_the_encoder_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write = row_groups.GroupEncoder.write
    monkeypatch.setattr(
        row_groups.GroupEncoder, "write", lambda self, batch: write(self, fault(batch))
    )
    with pytest.raises(VerificationError, match=r"rows"):
        rewritten(MemoryStore(), [BIG, SMALL], spec_of(tracked=True))


@pytest.mark.conformance("RW-40")
def test_a_lost_row_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = copied_bin._divide_groups

    def losing(*given: Any) -> Any:
        found = divide(*given)
        return replace(found, copied=found.copied[:-1]) if found.copied else found

    monkeypatch.setattr(copied_bin, "_divide_groups", losing)
    with pytest.raises(VerificationError, match="330 rows were written where the log has 430"):
        rewritten(MemoryStore(), [BIG, SMALL], spec_of(tracked=False))


@pytest.mark.conformance("RW-40", "RT-15")
def test_row_ids_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = pq.write_table

    def reversed_ids(rows: pa.Table, sink: Any, **options: Any) -> None:
        encode(rows.take(list(range(rows.num_rows))[::-1]), sink, **options)

    monkeypatch.setattr(pq, "write_table", reversed_ids)
    files = [stored(BIG), stored(replace(BIG, seed=3))]
    with pytest.raises(VerificationError, match="other row IDs"):
        rewritten_files(MemoryStore(), files, spec_of(tracked=True))

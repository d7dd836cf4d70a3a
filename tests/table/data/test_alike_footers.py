"""Footers that are read together state what each of them states alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.defects import required_statistics
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.footers import FooterReader, FooterStatistics
from delta_maintenance.table.data.parquet.footers import END_BYTES, footer_size
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field, parquet, put, source

SCHEMA = {
    "i": "integer",
    "n": "long",
    "x": "double",
    "t": "string",
    "d": "decimal(20,2)",
    "m": "decimal(9,2)",
    "day": "date",
    "at": "timestamp",
    "yes": "boolean",
}
FILES = 60
FORMS = ((), ("t", "d"), ("n",))
"""The columns without values in files of one kind."""
WRITERS = (
    b"parquet-cpp-arrow version 26",
    b"parquet-mr version 1.15.2   ",
    b"parquet-rs version 58.1.0   ",
)


def rows(chance: random.Random, *, empty: Collection[str]) -> pa.Table:
    """Rows with nulls, with columns of nulls alone, and with texts of any length."""
    count = chance.randrange(3, 200)
    draw = np.random.default_rng(chance.randrange(1 << 30))
    wide = 1 << chance.choice((3, 20, 30))
    numbers = draw.integers(-wide, wide, count)
    values = {
        "i": pa.array(numbers, pa.int32()),
        "n": pa.array(numbers * wide),
        "x": pa.array(numbers / 7),
        "t": pa.array([str(n) * chance.choice((1, 1, 1, 30)) for n in numbers]),
        "d": pa.array([Decimal(int(n)) / 100 for n in numbers], pa.decimal128(20, 2)),
        "m": pa.array([Decimal(int(n % 10**6)) / 100 for n in numbers], pa.decimal128(9, 2)),
        "day": pa.array(numbers % 30_000, pa.int32()).cast(pa.date32()),
        "at": pa.array(numbers * 1000).cast(pa.timestamp("us", "UTC")),
        "yes": pa.array(numbers > 0),
    }
    nulls = {name: draw.random(count) < chance.choice((0, 0.2)) for name in values}
    for name, hidden in nulls.items():
        hidden[:] = hidden[:] | (name in empty)
        hidden[:2] = name in empty
    return pa.table(
        {
            name: pa.array(column.to_pylist(), column.type, mask=nulls[name])
            for name, column in values.items()
        }
    )


def written_by(data: bytes, writer: bytes) -> bytes:
    """The file with the name of another writer, of the same length."""
    start = data.rindex(WRITERS[0][:26])
    return data[:start] + writer + data[start + len(writer) :]


def found_by(reader: FooterReader, file: SourceFile) -> FooterStatistics | str:
    try:
        return reader.read(file)
    except DeltaMaintenanceError as error:
        return str(error)


def together(reader: FooterReader, files: Sequence[SourceFile]) -> list[FooterStatistics | str]:
    with ThreadPoolExecutor(2) as pool:
        found = list(reader.read_all(files, pool))
    return [str(each) if isinstance(each, DeltaMaintenanceError) else each for each in found]


@pytest.fixture
def readers() -> Callable[[Store], FooterReader]:
    """Makes readers of files in a store, for a table with all columns."""
    table = Table(DataTable(*(field(name, kind) for name, kind in SCHEMA.items())).store)
    snapshot = table.snapshot()
    layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
    leaves = required_statistics(snapshot, RecomputeStatsOptions()).leaves
    return lambda store: FooterReader(store, layout, leaves)


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize("writer", WRITERS)
def test_footers_state_the_same_together_and_alone(
    readers: Callable[[Store], FooterReader], writer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, store, files = random.Random(0), MemoryStore(), []
    for number in range(FILES):
        empty = chance.choice(FORMS)
        data = parquet(rows(chance, empty=empty), row_group_size=1000 if empty else 150)
        put(store, f"{number}", data := written_by(data, writer))
        files.append(source(f"{number}", data))
    alone = [found_by(readers(store), file) for file in files]
    reader, read = readers(store), list[str]()
    by_itself = reader.read
    monkeypatch.setattr(reader, "read", lambda file: read.append(file.path) or by_itself(file))
    assert together(reader, files) == alone
    # The second time, the forms are known.
    assert together(reader, files) == alone
    assert len(read) < FILES
    assert not any(isinstance(each, str) for each in alone)


def test_a_damaged_footer_states_the_same_together_and_alone(
    readers: Callable[[Store], FooterReader],
) -> None:
    chance, store, files = random.Random(0), MemoryStore(), []
    data = parquet(rows(chance, empty=()).select(["i", "t", "x"]))
    last = len(data) - END_BYTES
    for at in range(last - footer_size(data[-END_BYTES:]) + END_BYTES, last):
        for change in (1, 128):
            path = f"{at} {change}"
            put(store, path, data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
            files.append(source(path, data))
    reader = readers(store)
    alone = [found_by(reader, file) for file in files]
    whole = "whole", data
    put(store, *whole)
    # The form is that of the undamaged file.
    assert len(together(reader, [source(*whole)])) == 1
    assert together(reader, files) == alone
    assert sum(isinstance(each, str) for each in alone) > len(files) // 10

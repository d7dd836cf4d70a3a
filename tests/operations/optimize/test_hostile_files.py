"""Data files as no writer of today makes them, and tables that changed over the years."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizeResult
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.table.data import data_file_reader
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import ROW_TRACKING, DataTable, field
from tests.support.rewrites.rewritten_tables import NOW, ids
from tests.support.rewrites.table_rows import live_rows


def optimized(made: DataTable, **options: Any) -> OptimizeResult:
    made.store.now_ms = lambda: epoch_millis(NOW)
    table, settings = Table(made.store), OptimizeOptions(workers=1, **options)
    planned = optimize.plan(table.snapshot(), settings, context=RunContext.at(NOW))
    return optimize.apply(
        table, planned, context=RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
    )


@pytest.mark.conformance("RW-08")
def test_a_text_that_repeats_may_be_missing_in_older_files() -> None:
    made = DataTable(field("a", "long"), field("b", "string"))
    # Enough rows for the writer to decide that `b` repeats its values.
    numbers = range(20_000)
    made.append(pa.table({"a": list(numbers), "b": [f"x{n % 3}" for n in numbers]}))
    made.append(pa.table({"a": [-1, -2]}))
    before = live_rows(made.store)
    assert optimized(made).status == "rewritten"
    assert live_rows(made.store) == before


def of_two_files(**fields: Any) -> DataTable:
    made = DataTable(field("a", "long"))
    made.append(pa.table({"a": [1]}), pa.table({"a": [2]}), **fields)
    return made


@pytest.mark.parametrize("option", ["quiet_for", "max_duration"])
def test_durations_longer_than_any_calendar_are_no_error(option: str) -> None:
    result = optimized(of_two_files(), **{option: timedelta(days=4_000_000)})
    # Whatever was written counts as written lately.
    assert result.status == ("nothing-to-do" if option == "quiet_for" else "rewritten")


@pytest.mark.conformance("RT-15")
@pytest.mark.parametrize("base", [-1, 2**63 - 1])
def test_a_base_row_id_without_room_for_the_rows_refuses_the_file(base: int) -> None:
    made = DataTable(
        field("a", "long"), features=["rowTracking", "domainMetadata"], configuration=ROW_TRACKING
    )
    made.append(pa.table({"a": [1, 2]}), baseRowId=base, defaultRowCommitVersion=1)
    made.append(pa.table({"a": [3]}), pa.table({"a": [4]}))
    result = optimized(made)
    assert result.status == "failed" and result.files_before == 2
    assert f"base row ID {base}" in result.refused[0].problem and result.refused[0].damaged


@pytest.mark.parametrize("size", [-(2**62), 2**63 - 1])
def test_sizes_that_no_file_has_give_plans_without_nonsense(size: int) -> None:
    made = of_two_files(size=size)
    settings = OptimizeOptions(workers=1)
    planned = optimize.plan(Table(made.store).snapshot(), settings, context=RunContext.at(NOW))
    assert planned.bytes >= 0 and planned.bytes_after >= 0
    before = live_rows(made.store)
    optimized(made)
    assert live_rows(made.store) == before


@pytest.mark.conformance("RW-43")
def test_a_file_larger_than_the_log_states_is_not_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = of_two_files(size=1)
    snapshot = Table(made.store).snapshot()
    monkeypatch.setattr(data_file_reader, "WHOLE_FILE", 100)
    reader = DataFileReader(made.store, DataFileLayout.of(snapshot.protocol, snapshot.metadata))
    file = SourceFile(path=min(made.live), partition_values=(), size=1)
    assert reader.fetch(file) is None
    with pytest.raises(CorruptTableError, match="bytes where the log says 1"):
        next(reader.read(file))


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("least", [1, 8 << 20])
def test_a_changed_value_in_a_page_with_a_checksum_is_found(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether row groups are copied or decoded."""
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", least)
    made = DataTable(field("a", "long"))
    plain = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    files = [pa.table({"a": [n, n]}) for n in (7, 8, 9)]
    _, damaged, _ = made.append(*files, writing=plain)
    data = made.store.read(damaged)
    assert data.index((8).to_bytes(8, "little") * 2) > 0
    made.store.put(damaged, data.replace((8).to_bytes(8, "little") * 2, b"\1" * 16))
    result = optimized(made)
    assert result.status == "failed" and result.rows == 4
    assert [file.path for file in result.refused] == [damaged] and result.refused[0].damaged

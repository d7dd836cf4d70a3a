"""The table of the ledger: created once, appended to exactly once, and read by others."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.rows import COLUMNS
from delta_maintenance.ledger.summary import sums
from delta_maintenance.operations import fsck
from delta_maintenance.storage import open_store
from delta_maintenance.table.read import open_table
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def delivery(run: str, *, since: int = -1, months: tuple[str, ...] = ("2026-11",)) -> Delivery:
    rows = pa.table(
        {
            "month": list(months),
            "row_id": [f"{run}-{number}" for number in range(len(months))],
            "run_id": [run] * len(months),
            "started_at": pa.array([NOW] * len(months), pa.timestamp("us", "UTC")),
            "seconds": [1.5] * len(months),
            "metrics": pa.array([[("files", 3)]] * len(months), pa.map_(pa.string(), pa.int64())),
        }
    )
    return Delivery(run_id=run, rows=rows, since_version=since)


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerTable:
    return LedgerTable(open_store(str(tmp_path / "ledger")))


def test_rows_are_appended_and_read_by_another_reader(ledger: LedgerTable, tmp_path: Path) -> None:
    assert ledger.version() == -1
    ledger.append(delivery("a", months=("2026-10", "2026-11")))
    ledger.append(delivery("b", since=ledger.version()))
    deltalake = pytest.importorskip("deltalake", reason="NO DELTALAKE: the second reader")
    rows = deltalake.DeltaTable(str(tmp_path / "ledger")).to_pyarrow_table()
    assert sorted(rows["row_id"].to_pylist()) == ["a-0", "a-1", "b-0"]
    assert rows["metrics"][0].as_py() == [("files", 3)]
    assert set(rows.column_names) == {column.name for column in COLUMNS}
    newer = ledger.read(["run_id"], since_month="2026-11")
    assert sorted(newer["run_id"].to_pylist()) == ["a", "b"]
    assert fsck.plan(open_table(str(tmp_path / "ledger")), fsck.FsckOptions(deep=True)).is_noop


def test_no_ledger_is_created_beside_files_that_its_vacuum_would_delete(
    ledger: LedgerTable, tmp_path: Path
) -> None:
    data = tmp_path / "ledger" / "day=1" / "part-00000-1.snappy.parquet"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"not of the ledger")
    with pytest.raises(InvalidRequestError, match=r"day=1: the folder .* is not empty"):
        ledger.append(delivery("a"))
    assert [*(tmp_path / "ledger").iterdir()] == [data.parent]
    (tmp_path / "ledger" / "day=1").rename(tmp_path / "ledger" / "_hidden")
    assert ledger.append(delivery("a"))


def test_a_second_delivery_appends_nothing(ledger: LedgerTable, tmp_path: Path) -> None:
    ledger.append(delivery("a"))
    ledger.append(delivery("b", since=1))
    version = ledger.version()
    for again in (delivery("a"), delivery("b", since=1), delivery("b")):
        ledger.append(again)
    assert ledger.version() == version
    # The log no longer tells, so the rows are read.
    checkpointed(tmp_path / "ledger")
    (tmp_path / "ledger/_delta_log/00000000000000000001.json").unlink()
    ledger.append(delivery("a"))
    assert sorted(ledger.read(["run_id"])["run_id"].to_pylist()) == ["a", "b"]


def checkpointed(path: Path) -> None:
    from delta_maintenance.operations import checkpoint

    table = open_table(str(path))
    checkpoint.apply(table, checkpoint.plan(table.snapshot()))


def test_many_writers_create_one_table_and_lose_nothing(tmp_path: Path) -> None:
    def work(number: int) -> None:
        ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
        for turn in range(5):
            ledger.append(delivery(f"{number}-{turn}"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    assert len(set(ledger.read(["row_id"])["row_id"].to_pylist())) == 30
    assert ledger.read(["row_id"]).num_rows == 30


def test_the_columns_of_this_release_are_added_to_an_older_ledger(tmp_path: Path) -> None:
    fields = [column.to_json() for column in COLUMNS[:10]]
    fields.append({"name": "mine", "type": "string", "nullable": True, "metadata": {}})
    schema = json.dumps({"type": "struct", "fields": fields})
    builder = TableBuilder(tmp_path / "ledger")
    builder.commit([protocol(), metadata(schemaString=schema, partitionColumns=["month"])])
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    ledger.append(delivery("a"))
    names = [
        field["name"]
        for field in json.loads(
            open_table(str(tmp_path / "ledger")).snapshot().metadata.schema_string or ""
        )["fields"]
    ]
    assert names == [
        *(column.name for column in COLUMNS[:10]),
        "mine",
        *(column.name for column in COLUMNS[10:]),
    ]
    assert ledger.read(["seconds"])["seconds"].to_pylist() == [1.5]


@pytest.mark.parametrize("case", ["other", "altered"])
def test_another_table_at_the_address_is_left_alone(tmp_path: Path, case: str) -> None:
    builder = TableBuilder(tmp_path / "ledger")
    if case == "other":
        builder.commit([protocol(), metadata()])
    else:
        fields = [column.to_json() for column in COLUMNS]
        fields[1]["type"] = "long"
        schema = json.dumps({"type": "struct", "fields": fields})
        builder.commit([protocol(), metadata(schemaString=schema, partitionColumns=["month"])])
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    with pytest.raises(InvalidRequestError, match="ledger") as told:
        ledger.append(delivery("a"))
    assert "another address" in str(told.value)
    assert ledger.version() == 0
    assert len([*(tmp_path / "ledger").iterdir()]) == 1


def test_columns_that_an_earlier_release_lacked_are_null_and_numbers_are_possible(
    ledger: LedgerTable, tmp_path: Path
) -> None:
    ledger.append(delivery("a"))
    log = tmp_path / "ledger/_delta_log/00000000000000000000.json"
    lines = log.read_text().splitlines()
    action = json.loads(lines[2])
    schema = json.loads(action["metaData"]["schemaString"])
    schema["fields"] = [each for each in schema["fields"] if each["name"] != "bytes_freed"]
    action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join((*lines[:2], json.dumps(action))) + "\n")
    (found,) = sums(ledger, since=None, by="table", now=NOW)
    assert (found.operations, found.bytes_freed, found.seconds) == (1, 0, 1.5)
    for value in (math.nan, math.inf, -1.0):
        odd = delivery(f"run{value}")
        number = odd.rows.schema.get_field_index("seconds")
        assert ledger.append(replace(odd, rows=odd.rows.set_column(number, "seconds", [[value]])))
    assert pc.sum(ledger.read(["seconds"])["seconds"]).as_py() == 1.5

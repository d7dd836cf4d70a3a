"""Erasure reports of tables that real engines wrote, repeated by DuckDB."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import (
    erasure_report,
    expire,
    keep_version,
    purge,
    set_properties,
    upgrade_protocol,
    vacuum,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.holds import Holders, Reader
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolOptions
from delta_maintenance.operations.vacuum import VacuumOptions

NOW = {"allow_short_retention": True, "no_other_writers": True, "retention": timedelta()}
VERIFY = Path(__file__).parents[3] / "examples" / "verify_erasure_report.py"


def rows(first: int, last: int) -> pa.Table:
    """Rows with the IDs from the first to the last, and a country by parity."""
    ids = list(range(first, last + 1))
    country = ["DE" if each % 2 else "FR" for each in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "country": country})


@pytest.fixture(params=[None, ["country"]], ids=["flat", "partitioned"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A table of three commits with the IDs 0 to 29."""
    root = str(tmp_path / "table")
    for first in (0, 10, 20):
        deltalake.write_deltalake(
            root, rows(first, first + 9), mode="append", partition_by=request.param
        )
    return root


def report(
    root: str, where: str, *, holders: Holders | None = None, **context: Any
) -> ErasureReportResult:
    """Makes a report of the table as it is now."""
    table = open_table(root)
    run = RunContext(**context)
    options = ErasureReportOptions(where=where, holders=holders or Holders())
    planned = erasure_report.plan(table.snapshot(), options, run)
    return erasure_report.apply(table, planned, run)


def places(result: ErasureReportResult) -> dict[str, int]:
    """The rows of each place among the data files."""
    return {each.place: each.rows for each in result.places if each.place != "log"}


def vacuumed(root: str) -> None:
    """Deletes every file that is not needed now."""
    table = open_table(root)
    context = RunContext(started=clock.now() + timedelta(minutes=1))
    # Files of the same minute are older than the run.
    planned = vacuum.plan(table.snapshot(), VacuumOptions(**NOW), context)
    vacuum.apply(table, planned, context)


def test_rows_are_followed_until_no_file_has_them(table: str, tmp_path: Path) -> None:
    assert places(report(table, "id IN (7, 12)")) == {"live": 2}
    deltalake.DeltaTable(table).delete("id IN (7, 12)")
    removed = report(table, "id IN (7, 12)")
    assert removed.status == "remains" and places(removed) == {"removed": 2}
    (total,) = removed.places
    week = removed.examined_at + timedelta(days=7)
    assert total.last_end is not None and abs(total.last_end - week) < timedelta(minutes=5)
    context = RunContext()
    keep = KeepVersionOptions(name="audit", keep=2)
    planned = keep_version.plan(open_table(table).snapshot(), keep, context)
    keep_version.apply(open_table(table), planned, context)
    held = report(table, "id IN (7, 12)")
    assert places(held) == {"held": 2} and held.places[0].last_end is None
    assert "kept version audit" in held.found[0].ends_by
    vacuumed(table)
    assert places(report(table, "id IN (7, 12)")) == {"held": 2}
    release = KeepVersionOptions(name="audit", release=True)
    planned = keep_version.plan(open_table(table).snapshot(), release, context)
    keep_version.apply(open_table(table), planned, context)
    vacuumed(table)
    erased = report(table, "id IN (7, 12)")
    assert (erased.status, erased.places, erased.not_examined) == ("erased", (), ())
    assert places(report(table, "id = 8")) == {"live": 1}


def test_files_that_no_version_knows_are_read(table: str) -> None:
    live = open_table(table).snapshot().live_files()["path"].to_pylist()
    for path in live:
        copy = Path(table, path)
        shutil.copy(copy, copy.with_name(f"left-{copy.name}"))
    hidden = Path(table, "_temporary")
    hidden.mkdir()
    shutil.copy(Path(table, live[0]), hidden / "part-0.parquet")
    result = report(table, "id >= 0")
    found = places(result)
    assert found["live"] == 30 and found["unreferenced"] >= 30
    if "country" not in live[0]:
        assert found["unreferenced"] == 30 + pq.read_metadata(Path(table, live[0])).num_rows


def test_files_are_read_whatever_their_names(table: str) -> None:
    deltalake.DeltaTable(table).delete("id = 7")
    (gone,) = report(table, "id = 7").found
    Path(table, gone.path).rename(Path(table, "copy.of-a-file"))
    Path(table, "readme.txt").write_text("7")
    Path(table, "deletion_vector_00000000-0000-0000-0000-000000000000.bin").write_bytes(b"7")
    result = report(table, "id = 7")
    assert [(each.place, each.path) for each in result.found] == [
        ("unreferenced", "copy.of-a-file")
    ]
    assert "not searched: 1 file in other formats" in result.notes
    live = next(iter(open_table(table).snapshot().live_files()["path"].to_pylist()))
    Path(table, live).write_bytes(b"damaged: its name and its first bytes say nothing")
    assert any(live in each for each in report(table, "id = 4711").not_examined)


def test_a_link_is_not_followed_and_leaves_the_erasure_uncertain(
    table: str, tmp_path: Path
) -> None:
    pq.write_table(rows(4711, 4711), tmp_path / "elsewhere.parquet")
    Path(table, "link.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    result = report(table, "id = 4711")
    assert result.status == "uncertain" and "1 link" in result.not_examined[0]


def test_partition_columns_and_deletion_vectors_decide(table: str) -> None:
    total = sum(places(report(table, "country = 'DE'")).values())
    assert total == 15 and report(table, "country = 'XX'").status == "erased"


def test_a_hold_ends_no_earlier_than_the_retention(table: str) -> None:
    now = RunContext().started
    keep = KeepVersionOptions(name="audit", keep=2, until=now + timedelta(hours=1))
    planned = keep_version.plan(open_table(table).snapshot(), keep, RunContext())
    keep_version.apply(open_table(table), planned)
    deltalake.DeltaTable(table).delete("id = 7")
    (held,) = report(table, "id = 7").places
    assert held.place == "held" and held.last_end is not None
    assert held.last_end > now + timedelta(days=6)


def test_a_reader_holds_what_was_added_and_removed_since_its_version(table: str) -> None:
    deltalake.DeltaTable(table).delete("id = 12")
    feed = Reader(kind="change-feed", name="reports", max_lag=timedelta(days=30))
    (found,) = report(table, "id = 12", holders=Holders(readers=(feed,))).found
    assert (found.place, found.ends) == ("held", None) and "change-feed reports" in found.ends_by


def test_rows_that_a_deletion_vector_marks_are_still_there(tmp_path: Path) -> None:
    root, later = str(tmp_path / "table"), 4_000_000_000
    deltalake.write_deltalake(root, pa.table({"id": pa.array([1, later], pa.int64())}))
    table = open_table(root)
    enable = UpgradeProtocolOptions(features=("deletionVectors",))
    upgrade_protocol.apply(table, upgrade_protocol.plan(table.snapshot(), enable))
    enabled = SetPropertiesOptions(properties={"delta.enableDeletionVectors": "true"})
    set_properties.apply(table, set_properties.plan(table.snapshot(), enabled))
    old = ExpireOptions(
        column="id", unit="s", older_than=timedelta(days=1), mixed="deletion-vectors"
    )
    expire.apply(table, expire.plan(table.snapshot(), old))
    assert places(report(root, "id = 1")) == {"deletion-vector": 1}
    assert places(report(root, f"id = {later}")) == {"live": 1}
    purge.apply(table, purge.plan(table.snapshot(), PurgeOptions()))
    assert places(report(root, "id = 1")) == {"removed": 1}


def test_what_cannot_be_read_is_never_called_erased(table: str) -> None:
    Path(table, "broken.parquet").write_bytes(b"PAR1 and no more")
    result = report(table, "id = 4711")
    assert result.status == "uncertain" and "broken.parquet" in result.not_examined[0]
    if (Path(table) / "country=DE").exists():
        # The value of the partition column is in no log and in no path.
        shutil.copy(next(Path(table, "country=DE").glob("*.parquet")), Path(table, "x.parquet"))
        unknown = report(table, "country = 'XX'")
        assert any("partition column country is unknown" in each for each in unknown.not_examined)


def test_a_condition_that_cannot_be_used_is_refused(table: str) -> None:
    for where, problem in (
        ("nothing = 1", "there is no column nothing"),
        ("id = 'x'", "no value of the column id"),
        ("upper(id) = 1", "cannot be used"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            report(table, where)


@pytest.mark.process
def test_duckdb_alone_comes_to_the_same(table: str, tmp_path: Path) -> None:
    deltalake.DeltaTable(table).delete("id > 24")
    path = str(tmp_path / "report.parquet")
    result = report(table, "id > 20", report=path)
    said = subprocess.run(
        [sys.executable, VERIFY, path, table, "id > 20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    total = sum(places(result).values())
    assert said.stdout.splitlines()[-1] == f"{total} rows in {result.files_read} files, as reported"
    again = report(table, "id > 20")
    assert (again.digest, again.places) == (result.digest, result.places)
    some = next(Path(table).rglob("*.parquet"))
    pq.write_table(pq.read_table(some, partitioning=None).slice(0, 1), some)
    said = subprocess.run(
        [sys.executable, VERIFY, path, table, "id > 20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 1 and some.name in said.stdout

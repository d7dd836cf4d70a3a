"""Row IDs read by executors: the same findings as those of this process."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from delta_maintenance.operations import fsck
from delta_maintenance.operations.fsck import FsckOptions, examination
from delta_maintenance.operations.fsck.checks import row_ids as check_row_ids
from delta_maintenance.operations.fsck.checks.row_ids import PARTS, PartReading, row_tracking_layout
from delta_maintenance.spark import JobSession
from delta_maintenance.spark.fsck import RowIdReading, SparkContents
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.rewrites.repeated_row_ids import DEFECTS, defective, scattered, stored
from tests.support.rewrites.rewritten_tables import NOW, Rewritten

pytestmark = pytest.mark.spark


def surveyed(made: Rewritten, **options: Any) -> fsck.FsckSurvey:
    return fsck.survey(
        Table(made.store), FsckOptions(deep=True), now=NOW + timedelta(days=1), **options
    )


def repeated(survey: fsck.FsckSurvey) -> list[dict[str, Any]]:
    rows = survey.findings.to_pylist()
    return [row for row in rows if row["kind"] == "repeated-row-id"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Rewritten:
    """A table with every defect, and a file that cannot be read."""
    made = Rewritten(store=LocalStore(tmp_path_factory.mktemp("defects")))
    defective(made)
    [damaged] = made.table.append(stored([7000]), partitionValues={"p": "x"})
    made.store.put(damaged, b"x" * made.table.live[damaged]["size"])
    return made


@pytest.mark.conformance("RT-19")
@pytest.mark.parametrize(
    "limits",
    [{}, {"files_per_round": 7, "files_per_task": 2, "ranges_per_round": 8, "ranges_per_part": 2}],
)
def test_executors_find_the_row_ids_that_two_rows_have(
    spark: SparkSession, made: Rewritten, limits: dict[str, int]
) -> None:
    told: list[tuple[int, int | None]] = []
    root = str(made.store.root)
    by_spark = surveyed(
        made,
        engine=SparkContents(JobSession(spark=spark, table_uri=root), **limits),
        progress=lambda what, done, total: told.append((done, total)) if "IDs" in what else None,
    )
    local = surveyed(made)

    assert repeated(by_spark) == repeated(local)
    assert {row["problem"].rsplit(" ", 1)[1] for row in repeated(local)} == DEFECTS
    assert by_spark.plan.notes == local.plan.notes
    assert [note for note in local.plan.notes if "the row IDs in 1 data files" in note]
    count = by_spark.found.presence.present.num_rows if by_spark.found.presence else None
    assert told[-1] == (count, count)
    assert len(told) == 1 or limits


@pytest.mark.conformance("RT-19")
def test_both_engines_stop_at_the_same_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Rewritten(store=LocalStore(tmp_path / "table"))
    scattered(made, files=5, rows=9)
    for name, value in {"MOST_RANGES": 20, "_RANGES_PER_BLOCK": 6, "_PARTS_PER_BLOCK": 3}.items():
        monkeypatch.setattr(check_row_ids, name, value)
    monkeypatch.setattr(
        examination, "LocalRowIds", partial(check_row_ids.LocalRowIds, ranges_per_part=2)
    )
    root = str(made.store.root)
    limits = {"ranges_per_round": 12, "ranges_per_part": 2, "files_per_task": 2}
    by_spark = surveyed(
        made, engine=SparkContents(JobSession(spark=spark, table_uri=root), **limits)
    ).plan
    local = surveyed(made).plan
    assert by_spark.notes == local.notes
    [note] = [note for note in local.notes if "row IDs" in note]
    assert 0 < int(note.split()[4]) < 17
    assert by_spark.findings == local.findings


def test_a_task_stops_at_its_number_of_ranges_and_reads_its_input_to_the_end(
    made: Rewritten,
) -> None:
    snapshot = Table(made.store).snapshot()
    layout = row_tracking_layout(snapshot)
    assert layout is not None
    reading = PartReading(layout=layout, most_ranges=2, per_part=2)
    address = TableAddress(uri=str(made.store.root), storage_options={})
    task = RowIdReading(address=address, reading=reading)
    secret = replace(address, storage_options={"secret": "hush"})
    assert "hush" not in repr(replace(task, address=secret))
    columns = {
        "at": range(4),
        "location": made.paths["x"],
        "size": [made.store.stat(path).size for path in made.paths["x"]],
        "deletionVector": [None] * 4,
        "baseRowId": range(0, 16, 4),
        "defaultRowCommitVersion": [1] * 4,
    }
    unread = iter(pa.table(columns, schema=check_row_ids.FILES).to_batches(max_chunksize=1))
    parts = pa.Table.from_batches(task.read(unread), PARTS)
    assert parts.select(["at", "firsts", "lasts", "complete"]).to_pylist() == [
        {"at": 0, "firsts": [0], "lasts": [3], "complete": True},
        {"at": 1, "firsts": [4], "lasts": [7], "complete": True},
    ]
    assert next(unread, None) is None

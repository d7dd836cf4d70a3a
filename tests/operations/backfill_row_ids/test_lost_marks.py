"""A high-water mark that a checkpoint or a writer lost, and files without row IDs, in a table whose
row tracking is enabled (delta-kernel-rs#1716).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.protocol.row_tracking.backfill import _MOST_ROWS
from tests.support.operations.backfills import backfill, built, of, plan_of, stats
from tests.support.operations.row_ids import Action
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder, parquet_bytes

TRACKED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
ENABLED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def file(path: str, first: int | None, rows: int | None = 10) -> Action:
    given = {} if first is None else {"baseRowId": first, "defaultRowCommitVersion": 0}
    return log.add(path, stats=None if rows is None else stats(rows), **given)


def tombstone(path: str, first: int, rows: int | None = None) -> Action:
    given = {} if rows is None else {"stats": stats(rows)}
    return log.remove(path, baseRowId=first, defaultRowCommitVersion=0, **given)


def table(*files: Action, mark: int | None = None) -> TableBuilder:
    domain = json.dumps({"rowIdHighWaterMark": mark})
    stated = [] if mark is None else [log.domain("delta.rowTracking", domain)]
    return built(*files, *stated, protocol=TRACKED, configuration=ENABLED)


def with_rows(made: TableBuilder, path: str, rows: int) -> TableBuilder:
    made.store.put(path, parquet_bytes(pa.table({"id": range(rows)})))
    return made


def is_low(made: TableBuilder) -> bool:
    return "row-id-mark-too-low" in examine(made.open(), now=NOW).findings.counts


def last_mark(made: TableBuilder) -> int:
    (_, domain) = of(made, "domainMetadata")[-1]
    return int(json.loads(domain["configuration"])["rowIdHighWaterMark"])


@pytest.mark.conformance("RT-04", "RT-11")
@pytest.mark.parametrize("stated", [None, -1, 12])
@pytest.mark.parametrize(
    ("removed", "mark"),
    [
        (None, 19),
        (tombstone("x", 100, rows=10), 109),
        # The footer states the number of rows of `x`, and nothing that of `y`.
        (tombstone("x", 100), 106),
        (tombstone("y", 100), 100 + _MOST_ROWS),
        (tombstone("y", 5), 19),
    ],
)
def test_the_remedy_of_a_low_mark_raises_it_above_live_files_and_tombstones(
    stated: int | None, removed: Action | None, mark: int
) -> None:
    made = table(file("a", 0), file("b", 10), *filter(None, [removed]), mark=stated)
    with_rows(made, "x", 7)
    assert is_low(made)
    planned = plan_of(made)
    assert (
        f"the high-water mark {-1 if stated is None else stated} becomes {mark}" in planned.reason
    )
    assert backfill(made).high_water_mark == mark == last_mark(made)
    assert not is_low(made)
    assert plan_of(made).is_noop
    backfill_again = backfill(made)
    assert (backfill_again.status, backfill_again.num_commits) == ("nothing-to-do", 0)


@pytest.mark.conformance("RT-04")
def test_a_mark_above_live_files_but_not_above_tombstones_is_too_low() -> None:
    made = table(file("a", 0), tombstone("x", 100, rows=10), mark=108)
    assert is_low(made)
    assert not is_low(table(file("a", 0), tombstone("x", 100, rows=10), mark=109))
    # The number of rows is not known, and says nothing against the mark.
    assert not is_low(table(file("a", 0), tombstone("gone", 100), mark=100))


@pytest.mark.conformance("RT-11", "RT-12")
def test_files_without_row_ids_get_some_above_every_other() -> None:
    made = table(file("a", 0), file("new", None), tombstone("x", 100, rows=10))
    assert backfill(made).files_backfilled == 1
    ids = {add["path"]: add.get("baseRowId") for _, add in of(made, "add")}
    assert ids == {"a": 0, "new": 110}
    assert last_mark(made) == 119 and not is_low(made)


@pytest.mark.conformance("RT-11")
def test_a_mark_that_is_lost_meanwhile_is_raised_by_the_last_commit() -> None:
    made = table(file("a", 0), file("b", 10), mark=19)
    assert plan_of(made).is_noop
    made.commit([file("c", 20)])
    assert backfill(made).high_water_mark == 29
    assert [info["operation"] for _, info in of(made, "commitInfo")] == ["ROW TRACKING BACKFILL"]

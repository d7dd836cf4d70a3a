"""Delta Spark deletes rows while row groups are copied beside encoded ones.

The new file has the rows of small files at its end. Deletions must be found there nevertheless, and
all other rows keep their row IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.core import Put
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark import DeltaSpark, decode
from tests.support.rewrites.other_writers import NESTED, groups_of
from tests.support.rewrites.table_rows import live_adds

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

FILES = ((0, 30), (1000, 2000), (100, 130), (2000, 3000), (200, 230))
"""The numbers of the first and the last row of each file."""
MARKED = (1003, 1999, 105, 2500)
"""Rows of copied files and of a decoded one that are deleted by deletion vectors."""
COPIED = (7, 222)
"""Rows of decoded files that are deleted by copying the files."""


class RacedStore(LocalStore):
    """Lets others act directly before a commit of ours, each of them once."""

    races: list[Callable[[], None]]

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if path.startswith("_delta_log/") and self.races:
            self.races.pop(0)()
        return super().put_if_absent(path, data)


@pytest.mark.conformance("RW-25", "RW-29", "RW-30", "RT-15", "RT-16")
@pytest.mark.parametrize("vectors", [True, False])
def test_rows_that_delta_spark_deletes_are_deleted_from_the_new_file(
    delta_spark: DeltaSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 12_000)
    path = tmp_path / "table"
    properties = {
        "delta.enableDeletionVectors": str(vectors).lower(),
        "delta.enableRowTracking": "true",
    }
    for first, last in FILES:
        delta_spark.write(path, NESTED.format(first=first, last=last), **properties)
    ids = "_metadata.row_id, _metadata.row_commit_version"
    query = f"SELECT *, {ids} FROM delta.`{path}`"
    before = delta_spark.rows(query)
    copying = delta_spark.jvm_session().newSession()
    copying.conf().set("spark.databricks.delta.delete.deletionVectors.persistent", "false")

    def delete(session: Any, *rows: int) -> None:
        numbers = ", ".join(map(str, rows))
        session.sql(f"DELETE FROM delta.`{path}` WHERE id IN ({numbers})")

    store = RacedStore(path)
    # The second one meets the new file of which the first one's rows are already gone.
    store.races = [
        lambda: delete(delta_spark.jvm_session() if vectors else copying, *MARKED),
        lambda: delete(copying, *COPIED),
    ]
    table = Table(store)
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(clock.now())
    )
    [report] = optimize.apply(table, planned).bins
    delta_spark.forget()
    gone = {*MARKED, *COPIED}
    assert not store.races
    assert delta_spark.rows(query) == [row for row in before if decode(row)["id"] not in gone]
    if not vectors:
        # Others copied all of the files.
        assert report.fate in ("written-again", "dropped"), report
        return
    assert (report.fate, report.copied) == ("remapped", True)
    assert [1000, 1000, 90] in groups_of(path)
    [add] = [add for add in live_adds(store).values() if "deletionVector" in add]
    assert add["deletionVector"]["cardinality"] == len(MARKED) + 30 + 30

"""Deletion vectors and row counts that do not fit their files."""

from __future__ import annotations

import pytest

from tests.support.operations.fsck_findings import VECTOR_FILE, add_again, look, problems
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import SoundTable, parquet


@pytest.mark.conformance("RT-04", "STAT-01")
@pytest.mark.parametrize("deep", [False, True])
def test_files_without_statistics_have_the_rows_that_their_footers_state(deep: bool) -> None:
    """A file without rows has no row IDs, although its base row ID is that of another row."""
    table = SoundTable(extras=False)
    for path, base, rows in (("above", 40, 0), ("within", 20, 0), ("same", 30, 0)):
        data = parquet(rows)
        table.store.put(path, data)
        table.step(table.data(path, baseRowId=base, size=len(data), stats=None), table.mark(39))
        table.store.put(path, data)
    assert not look(table, deep=deep).findings.counts

    table.step(table.data("full", baseRowId=25, stats=None), table.mark(39))
    found = look(table, deep=False).findings
    assert found.counts == {"overlapping-row-ids": 2}
    assert all("--deep" in finding.remedy for finding in found.first(20))


@pytest.mark.conformance("DV-10")
def test_a_vector_that_marks_other_rows_than_there_are_is_found() -> None:
    table = SoundTable(extras=False)
    vector = {**table.vector, "cardinality": 3}
    table.step(log.remove("b", dv=table.vector), add_again(table, "b", deletionVector=vector))
    assert problems(table)["damaged-deletion-vector"] == [
        "a deletion vector marks 2 rows where the log says 3"
    ]

    table = SoundTable(extras=False)
    table.step(add_again(table, "b", stats='{"numRecords":7}'))
    assert set(problems(table)) == {"damaged-deletion-vector", "row-count-differs"}


@pytest.mark.conformance("DV-08")
def test_a_vector_with_an_invalid_path_is_a_finding() -> None:
    table = SoundTable(extras=False)
    vector = log.deletion_vector("short")
    table.step(log.remove("b", dv=table.vector), add_again(table, "b", deletionVector=vector))

    assert set(problems(table)) == {"damaged-deletion-vector"}


@pytest.mark.conformance("VAC-16")
def test_tombstones_of_deletion_vectors_are_not_violations() -> None:
    """Dropping deletion vectors commits them, here as in Delta Spark."""
    table = SoundTable()
    table.step(log.remove(VECTOR_FILE, dataChange=False), log.remove("absent"))
    found = problems(table)
    assert found.keys() == {"remove-of-absent-file"}
    (problem,) = found["remove-of-absent-file"]
    assert "others" not in problem and "absent" in problem

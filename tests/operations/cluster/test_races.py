"""Other writers commit between the reading of files and the commit of the sorted ones."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.support.rewrites.clustered_tables import DOMAIN, ClusteredTable, statistics
from tests.support.rewrites.data_files import ROW_TRACKING
from tests.support.rewrites.table_rows import live_adds, live_rows
from tests.support.tables import actions as log


def prepared() -> tuple[ClusteredTable, list[str]]:
    made = ClusteredTable(tracked=False)
    return made, made.append(4)


@pytest.mark.conformance("RW-31")
def test_appends_change_nothing() -> None:
    made, _ = prepared()
    made.store.races = [lambda: made.append(1)]
    result = made.cluster()
    assert (result.status, result.fates) == ("rewritten", {"committed": 1})
    assert len(made.rows()) == 1500
    assert made.cluster().files_before >= 1


@pytest.mark.conformance("RW-24", "RW-29", "DV-12", "DV-15", "STAT-02")
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_rows_that_others_delete_are_deleted_from_the_new_files(
    vectors: bool, tracked: bool
) -> None:
    made = ClusteredTable(tracked=tracked)
    paths = made.append(4)
    made.table.delete(paths[2], [1])
    before = made.rows()
    gone = [1, *range(2, 300, 7)]

    def delete() -> None:
        made.table.delete(paths[2], gone)
        if not vectors:
            kept = ROW_TRACKING if tracked else {}
            made.table.builder.commit([log.metadata(**made.metadata, configuration=kept)])

    made.store.races = [delete]
    result = made.cluster(target_bytes=4000)
    fate = "remapped" if vectors else "written-again"
    assert (result.status, result.fates) == ("rewritten", {fate: 1})
    after = made.rows()
    assert len(after) == len(before) - len(gone) + 1 and set(after) < set(before)
    lost = {dict(row[0])["id"] for row in set(before) - set(after)}
    assert lost == {3_000_000 + at for at in gone[1:]}
    adds = live_adds(made.store).values()
    marked = [add["deletionVector"]["cardinality"] for add in adds if add.get("deletionVector")]
    assert sum(marked) == (len(gone) - 1 if vectors else 0)
    assert all(add["clusteringProvider"] == "liquid" for add in adds)


@pytest.mark.conformance("RW-29")
def test_each_of_equal_rows_is_deleted_once() -> None:
    made = ClusteredTable(tracked=False)
    rows = pa.table({"id": [7] * 6, "x": [1] * 6, "t": ["a"] * 6})
    paths = made.table.append(rows, rows, stats=statistics(rows))
    made.store.races = [lambda: made.table.delete(paths[0], [0, 3]), None]
    assert made.cluster().fates == {"remapped": 1}
    assert len(live_rows(made.store)) == 10


@pytest.mark.conformance("RW-29")
@pytest.mark.parametrize(
    ("data_change", "fate", "status"),
    [(True, "remapped", "rewritten"), (False, "superseded", "nothing-to-do")],
)
def test_others_may_remove_a_source(data_change: bool, fate: str, status: str) -> None:
    made, paths = prepared()
    made.store.races = [lambda: made.table.remove(paths[0], data_change=data_change)]
    result = made.cluster()
    assert (result.status, result.fates) == (status, {fate: 1})
    assert len(live_rows(made.store)) == 900


@pytest.mark.conformance("RW-29")
def test_a_bin_is_given_up_if_others_restore_rows() -> None:
    made, paths = prepared()
    made.table.delete(paths[1], [4])
    made.store.races = [lambda: made.table.delete(paths[1], [])]
    result = made.cluster()
    assert (result.status, result.fates) == ("conflict", {"dropped": 1})
    assert len(live_rows(made.store)) == 1200


@pytest.mark.conformance("RW-28", "CLU-03")
@pytest.mark.parametrize("columns", [[["t"]], [["x"], ["t"], ["id"]], []])
def test_files_of_former_clustering_columns_are_not_committed(columns: Any) -> None:
    made, _ = prepared()
    before = made.rows()
    text = json.dumps({"clusteringColumns": columns, "domainName": DOMAIN})
    line = log.domain(DOMAIN, text)
    made.store.races = [lambda: made.table.builder.commit([log.commit_info("CLUSTER BY"), line])]
    result = made.cluster()
    assert (result.status, result.fates) == ("conflict", {"table-changed": 1})
    assert result.problem == "the clustering columns of the table changed"
    assert made.rows() == before
    assert all("f0" in path for path in live_adds(made.store))

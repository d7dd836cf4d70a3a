"""`cluster`: the same rows in another order, tags that Delta Spark understands, and levels."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import cluster, optimize
from delta_maintenance.operations.cluster import ClusterOptions, ClusterPlan
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.statistics.clustering import (
    CUBE,
    CUBE_COLUMNS,
    GROUP,
    GROUP_COLUMNS,
)
from delta_maintenance.table.read import Table
from tests.support.rewrites.clustered_tables import ClusteredTable, random_rows, statistics
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.rewrites.table_rows import actions_of, latest, live_adds

SMALL = 4000
"""A size of new files with which a few hundred rows become several files."""


def plan(made: ClusteredTable, **options: Any) -> ClusterPlan:
    settings = ClusterOptions(workers=1, **options)
    return cluster.plan(Table(made.store).snapshot(), settings, context=RunContext.at(NOW))


@pytest.mark.conformance("RW-06", "RW-20", "RW-21", "RW-47", "CLU-03", "CLU-04", "RT-15", "RT-17")
def test_rows_keep_their_values_and_ids_and_files_overlap_less() -> None:
    made = ClusteredTable()
    paths = made.append(6)
    made.table.delete(paths[1], [0, 7, 299])
    before = made.rows()
    planned = plan(made, target_bytes=SMALL)
    assert (planned.columns, planned.files, planned.is_noop) == (("x", "t"), 6, False)
    result = made.cluster(target_bytes=SMALL)
    assert (result.status, result.files_before, result.rows) == ("rewritten", 6, 1797)
    assert result.files_after > 3
    assert made.rows() == before
    (report,) = result.bins
    assert report.is_clustered and report.depth_before and report.depth_after
    assert report.depth_before > 5
    assert report.depth_after < 0.6 * report.depth_before
    for add in live_adds(made.store).values():
        assert add["clusteringProvider"] == "liquid"
        stats = json.loads(add["stats"])
        for name in ("minValues", "maxValues", "nullCount"):
            assert stats[name].keys() >= {"x", "t"}
    assert len(set(made.tags(CUBE).values())) == len(set(made.tags(GROUP).values())) == 1
    assert set(made.tags(CUBE_COLUMNS).values()) == {'["x","t"]'}
    again = plan(made, target_bytes=SMALL)
    assert (again.is_noop, again.reason) == (True, "all files are clustered")
    assert made.cluster(target_bytes=SMALL).status == "nothing-to-do"


@pytest.mark.conformance("RW-31", "RW-32", "RW-33", "TXN-10")
def test_the_commit_is_that_of_a_clustering_optimize() -> None:
    made = ClusteredTable()
    made.append(2)
    made.cluster()
    actions = actions_of(made.store, latest(made.store))
    info = actions[0]["commitInfo"]
    assert info["operation"] == "OPTIMIZE"
    assert info["operationParameters"] == {
        "predicate": "[]",
        "zOrderBy": "[]",
        "clusterBy": '["x","t"]',
        "auto": "false",
        "isFull": "false",
    }
    assert info["tags"]["delta.rowTracking.preserved"] == "true"
    assert not any(a[k]["dataChange"] for a in actions for k in a if k in ("add", "remove"))
    assert {k for a in actions for k in a} == {"commitInfo", "add", "remove", "domainMetadata"}


@pytest.mark.conformance("RW-06", "RW-46")
def test_new_files_join_groups_of_at_most_eight_times_their_size() -> None:
    made = ClusteredTable()
    made.append(20, rows=1000)
    made.cluster()
    cube = set(made.tags(CUBE).values())
    first = dict(made.tags(GROUP))
    made.append(1)
    result = made.cluster()
    assert (result.files_before, result.files_after) == (1, 1)
    groups = made.tags(GROUP)
    assert first.items() < groups.items() and len(set(groups.values())) == 2
    # The new group is small enough to be sorted again; the first one is not.
    made.append(1)
    assert made.cluster().files_before == 2
    assert len(set(made.tags(GROUP).values())) == 2
    before = made.rows()
    made.append(1, rows=9000)
    assert made.cluster().files_before == 3
    assert set(made.tags(CUBE).values()) == cube
    assert len(made.rows()) == len(before) + 9000


def test_a_group_is_not_sorted_again_for_a_file_that_cannot_be_read() -> None:
    made = ClusteredTable()
    made.append(2)
    made.cluster()
    [path] = made.append()
    made.store.put(path, b"x" * live_adds(made.store)[path]["size"])
    before = live_adds(made.store)
    assert {each.reason for each in plan(made).reasons} == {"not-clustered", "group-grew"}
    result = made.cluster()
    assert (result.status, result.num_refused, result.num_commits) == ("failed", 1, 0)
    assert live_adds(made.store) == before


@pytest.mark.conformance("RW-06", "RW-46")
def test_files_that_new_rows_do_not_overlap_stay() -> None:
    made = ClusteredTable(columns=(["x"],))

    def arrive(first: int, *, rows: int = 3000) -> pa.Table:
        drawn = random_rows(rows, first)
        drawn = drawn.set_column(1, "x", pc.add(drawn["x"], first))
        made.table.append(drawn, stats=statistics(drawn))
        return drawn

    arrive(0)
    made.cluster(target_bytes=SMALL)
    before = live_adds(made.store)
    assert len(before) > 8
    # The values of the new file begin within the last tenth of those of the group.
    arrive(9_000)
    rows = made.rows()
    planned = plan(made, target_bytes=SMALL)
    reasons = {each.reason: each.files for each in planned.reasons}
    assert reasons["not-clustered"] == 1 and 1 <= reasons["group-grew"] <= 3
    (left,) = planned.left_alone
    assert (left.reason, left.files) == ("no-overlap", len(before) - reasons["group-grew"])
    made.cluster(target_bytes=SMALL)
    after = live_adds(made.store)
    for path in before.keys() - after.keys():
        assert json.loads(before[path]["stats"])["maxValues"]["x"] >= 9_000
    assert len(before.keys() & after.keys()) == left.files
    assert made.rows() == rows
    # A group of small files is sorted again as a whole, so that they are merged.
    assert plan(made, target_bytes=1 << 30).is_noop
    arrive(19_000)
    assert not plan(made, target_bytes=1 << 30).left_alone


def test_a_file_without_bounds_overlaps_every_file() -> None:
    made = ClusteredTable(columns=(["x"],))
    made.append(rows=3000)
    made.cluster(target_bytes=SMALL)
    late = random_rows(3000, 9)
    made.table.append(late.set_column(1, "x", pc.add(late["x"], 1_000_000)), stats=None)
    assert not plan(made, target_bytes=SMALL).left_alone


def test_each_row_is_written_a_limited_number_of_times() -> None:
    made = ClusteredTable(tracked=False)
    made.append(50)
    written = made.cluster().bytes_after
    first = written
    for _ in range(40):
        made.append(1)
        written += made.cluster().bytes_after
    # Delta Spark would write the whole table 40 times, that is more than 50 times `first`.
    assert written < 12 * first
    assert len(set(made.tags(GROUP).values())) <= 3


@pytest.mark.conformance("CLU-04", "RW-07")
def test_files_of_other_providers_and_columns_are_left_alone_unless_full() -> None:
    made = ClusteredTable()
    made.append(1, clusteringProvider="other")
    made.append(1, clusteringProvider="liquid", tags={CUBE: "c", CUBE_COLUMNS: '["id"]'})
    made.append(1)
    planned = plan(made)
    assert planned.files == 1
    assert {each.reason: each.files for each in planned.left_alone} == {
        "clustered": 1,
        "other-columns": 1,
    }
    before = made.rows()
    result = made.cluster(full=True)
    assert (result.files_before, made.rows()) == (3, before)
    info = actions_of(made.store, latest(made.store))[0]["commitInfo"]
    assert info["operationParameters"]["isFull"] == "true"


def test_files_of_delta_spark_are_a_group_and_its_cube_is_continued() -> None:
    made = ClusteredTable()
    tags = {CUBE: "cube of Spark", CUBE_COLUMNS: '["x","t"]'}
    made.append(20, clusteringProvider="liquid", tags=tags)
    assert plan(made).is_noop
    made.append(1)
    assert made.cluster().files_before == 1
    assert set(made.tags(CUBE).values()) == {"cube of Spark"}


def test_a_renamed_column_keeps_its_groups() -> None:
    made = ClusteredTable()
    made.append(2)
    made.cluster()
    tags = set(made.tags(GROUP_COLUMNS).values())
    assert tags == {'["x","t"]'}


@pytest.mark.conformance("CLU-04")
def test_a_table_without_clustering_columns_is_ordered_by_named_ones() -> None:
    made = ClusteredTable(columns=None)
    made.append(4)
    before = made.rows()
    with pytest.raises(InvalidRequestError, match="none are named"):
        plan(made)
    assert made.cluster(by=("X", "t"), curve="z-order", target_bytes=SMALL).status == "rewritten"
    assert made.rows() == before
    for add in live_adds(made.store).values():
        assert "clusteringProvider" not in add
        assert CUBE not in add["tags"]
    info = actions_of(made.store, latest(made.store))[0]["commitInfo"]
    assert info["operationParameters"]["zOrderBy"] == '["x","t"]'
    assert plan(made, by=("x", "t"), target_bytes=SMALL).is_noop
    # Other columns are another request.
    assert plan(made, by=("t",), target_bytes=SMALL).files == len(live_adds(made.store))


@pytest.mark.conformance("CLU-02")
def test_refusals() -> None:
    made = ClusteredTable()
    made.append(1)
    with pytest.raises(InvalidRequestError, match="clustered by x, t"):
        plan(made, by=("id",))
    unknown = ClusteredTable(columns=(["gone"],))
    with pytest.raises(RefusedError, match="cannot be determined"):
        plan(unknown)
    plain = ClusteredTable(columns=None)
    with pytest.raises(InvalidRequestError, match="no column y"):
        plan(plain, by=("y",))


@pytest.mark.conformance("CLU-02", "CLU-04")
def test_columns_without_an_order_are_kept_and_named() -> None:
    made = DataTable(
        field("x", "long"),
        field("raw", "binary"),
        features=["domainMetadata", "clustering"],
        domains={"delta.clustering": '{"clusteringColumns":["raw","x"]}'},
    )
    rows = [pa.table({"x": [3, 1], "raw": [b"a", b"b"]}), pa.table({"x": [2], "raw": [b"c"]})]
    made.append(*rows)
    table = Table(made.store)
    planned = cluster.plan(table.snapshot(), ClusterOptions(workers=1), RunContext.at(NOW))
    assert planned.columns == ("x",)
    assert any("raw" in note for note in planned.notes)
    assert cluster.apply(table, planned).status == "rewritten"
    (add,) = live_adds(made.store).values()
    assert "clusteringProvider" not in add
    assert cluster.plan(Table(made.store).snapshot()).is_noop


@pytest.mark.parametrize("kind", ["variant", "void", "binary"])
def test_a_column_without_an_order_is_refused_by_name(kind: str) -> None:
    table = Table(DataTable(field("x", "long"), field("v", kind)).store)
    options = ClusterOptions(by=("x", "v"), workers=1)
    with pytest.raises(RefusedError, match="cannot be ordered by v: the type has no order"):
        cluster.plan(table.snapshot(), options, RunContext.at(NOW))


@pytest.mark.conformance("CLU-02")
@pytest.mark.parametrize("columns", [["x", "x"], ["s", "x"]], ids=["repeated", "struct"])
def test_domains_that_delta_spark_would_not_write_are_kept(columns: list[str]) -> None:
    made = DataTable(
        field("x", "long"),
        field("s", {"type": "struct", "fields": [field("y", "long")]}),
        features=["domainMetadata", "clustering"],
        domains={"delta.clustering": json.dumps({"clusteringColumns": columns})},
    )
    made.append(*(pa.table({"x": [n, 9 - n], "s": [{"y": n}, None]}) for n in range(3)))
    table = Table(made.store)
    planned = cluster.plan(table.snapshot(), ClusterOptions(workers=1), RunContext.at(NOW))
    assert planned.columns == ("x",)
    assert cluster.apply(table, planned).status == "rewritten"
    assert cluster.plan(Table(made.store).snapshot()).is_noop


@pytest.mark.conformance("CLU-03")
def test_clustering_columns_without_possible_statistics_are_refused_before_any_work() -> None:
    made = DataTable(
        field("x", "long"),
        field("y", "long"),
        features=["domainMetadata", "clustering"],
        domains={"delta.clustering": '{"clusteringColumns":[["x","lost"]]}'},
    )
    made.append(pa.table({"x": [1], "y": [1]}), pa.table({"x": [2], "y": [2]}))
    with pytest.raises(RefusedError, match="clustered by x.lost.*set-clustering"):
        optimize.plan(Table(made.store).snapshot())


@pytest.mark.conformance("CLU-03")
def test_files_without_possible_bounds_are_not_called_clustered() -> None:
    made = ClusteredTable(tracked=False)
    rows = random_rows(10, 1).set_column(2, "t", pa.array(["\U0010ffff" * 40] * 10))
    made.table.append(rows, stats=statistics(rows))
    made.append(1)
    result = made.cluster()
    assert result.notes == ("files without bounds of t are not called clustered",)
    assert all("clusteringProvider" not in add for add in live_adds(made.store).values())
    assert plan(made).is_noop


def test_files_are_clustered_although_another_column_hides_their_maxima() -> None:
    made = ClusteredTable(columns=(["x"],))
    for seed in range(3):
        rows = random_rows(3000, seed)
        texts = [
            text if at % 50 else "\U0010ffff" * 40 for at, text in enumerate(rows["t"].to_pylist())
        ]
        made.table.append(rows.set_column(2, "t", pa.array(texts)), stats=statistics(rows))
    result = made.cluster(target_bytes=SMALL)
    assert not result.notes and len(live_adds(made.store)) > 4
    for add in live_adds(made.store).values():
        assert add["clusteringProvider"] == "liquid" and "maxValues" not in json.loads(add["stats"])
    assert plan(made, target_bytes=SMALL).is_noop


def test_a_limited_number_of_files_is_sorted_in_each_run() -> None:
    made = ClusteredTable()
    made.append(5)
    before = made.rows()
    assert [made.cluster(max_files=2).files_before for _ in range(4)] == [2, 2, 2, 0]
    made.append(1)
    # One of the two groups, of a file each, is sorted again with the new file.
    assert made.cluster(max_files=2).files_before == 2
    assert len(made.rows()) == len(before) + 300
    made.append(4)
    planned = plan(made, max_files=2)
    assert (planned.files, planned.notes) == (2, ("beyond the limits of this run: 2 files",))
    result = made.cluster(max_bytes=1)
    assert result.status == "nothing-to-do"
    assert result.notes[-1] == "beyond the limits of this run: 4 files"


def test_the_limits_of_a_run_are_kept() -> None:
    made = ClusteredTable()
    made.append(6)
    size = max(add["size"] for add in live_adds(made.store).values())
    planned = plan(made, max_bytes=size * 5 // 2)
    assert 0 < planned.bytes <= size * 5 // 2
    before = made.rows()
    for _ in range(6):
        made.cluster(max_bytes=size * 5 // 2)
    assert made.rows() == before
    assert plan(made, max_bytes=size * 5 // 2).is_noop

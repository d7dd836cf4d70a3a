"""What an audit finds, what a run replaces, and what it leaves alone."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import optimize, set_properties
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.operations.recompute_stats.defects import DefectListing
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.policies.assess import assess
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import run as fsck_run
from tests.support.operations.statistics_repair import NOW as PLANNED_AT
from tests.support.operations.statistics_repair import planned, recompute, statistics
from tests.support.rewrites.data_files import ROW_TRACKING, DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.rewrites.table_rows import actions_of, latest, live_adds, live_rows
from tests.support.tables.policy_tables import asked, only

ROWS = pa.table({"a": pa.array([1, 5, None], pa.int64()), "s": ["x", "y" * 40, None]})
FIELDS = (field("a", "long"), field("s", "string"))
MAXIMA = {"a": 5, "s": "y" * 32 + "\x7f"}
COMPLETE: dict[str, Any] = {
    "numRecords": 3,
    "minValues": {"a": 1, "s": "x"},
    "maxValues": MAXIMA,
    "nullCount": {"a": 1, "s": 1},
}


def without(part: str, *names: str) -> dict[str, Any]:
    kept = {name: value for name, value in COMPLETE[part].items() if name not in names}
    return {**COMPLETE, part: kept}


@pytest.mark.parametrize(
    ("stats", "defects"),
    [
        (json.dumps(COMPLETE), []),
        (None, ["no-statistics"]),
        ("", ["unreadable"]),
        ('{"numRecords":3,', ["unreadable"]),
        ("[]", ["unreadable"]),
        (json.dumps({**COMPLETE, "numRecords": None}), ["no-row-count", "null-counts"]),
        (json.dumps(without("nullCount", "a")), ["null-counts"]),
        (json.dumps({**COMPLETE, "nullCount": {"a": 4, "s": 1}}), ["null-counts"]),
        (json.dumps(without("minValues", "s")), ["bounds"]),
        (json.dumps({**COMPLETE, "maxValues": {**MAXIMA, "a": "five"}}), ["bounds"]),
        (json.dumps({**COMPLETE, "maxValues": {**MAXIMA, "a": 0}}), ["bounds"]),
        (json.dumps({**COMPLETE, "tightBounds": False}), ["wide-bounds"]),
    ],
)
def test_a_defect_is_found_in_the_log_and_repaired(stats: str | None, defects: list[str]) -> None:
    table = DataTable(*FIELDS)
    [path] = table.append(ROWS, stats=stats)
    plan = planned(table.store)
    assert [each.reason for each in plan.defects] == defects
    assert plan.is_noop == (not defects)
    before = latest(table.store)
    result = recompute(table.store)
    assert result.status == ("recomputed" if defects else "nothing-to-do")
    assert latest(table.store) == before + bool(defects)
    if defects:
        expected = {name: value for name, value in COMPLETE.items() if name != "tightBounds"}
        assert statistics(table.store)[path] == json.loads(json.dumps(expected))
    assert planned(table.store).is_noop


def test_the_audit_states_the_bytes_that_a_filter_reads_for_nothing() -> None:
    table = DataTable(*FIELDS)
    table.append(ROWS, stats=json.dumps(COMPLETE))
    table.append(ROWS, stats=json.dumps(without("minValues", "a")), size=1000)
    table.append(ROWS, stats=json.dumps(without("maxValues", "a", "s")), size=500)
    plan = planned(table.store)
    assert (plan.num_files, plan.files, plan.files_without_bounds) == (3, 2, 2)
    assert plan.bytes_without_bounds == 1500
    columns = [(c.column, c.files_without_bounds, c.bytes_without_bounds) for c in plan.columns]
    assert columns == [("a", 2, 1500), ("s", 1, 500)]


def test_a_policy_repairs_the_statistics_of_more_than_a_share_of_the_bytes() -> None:
    table = DataTable(*FIELDS)
    table.append(ROWS, stats=json.dumps(COMPLETE), size=7500)
    table.append(ROWS, stats=json.dumps(without("minValues", "a")), size=2500)
    snapshot = Table(table.store).snapshot()
    for share, status in ((0.24, "due"), (0.25, "not-due")):
        found = only(assess(snapshot, asked(statistics={"above_share": share}), now=NOW))
        assert (found.operation, found.status) == ("recompute-stats", status)
    assert "25.0% of the bytes" in found.reason


@pytest.mark.conformance("STAT-08", "CLU-03")
def test_only_the_columns_that_the_table_indexes_get_statistics() -> None:
    inner = {"type": "struct", "fields": [field("x", "long"), field("y", "string")]}
    fields = (field("a", "long"), field("b.c", "long"), field("n", inner), field("z", "long"))
    rows = pa.table({"a": [1], "b.c": [2], "n": [{"x": 3, "y": "w"}], "z": [4]})
    domain = json.dumps({"clusteringColumns": [["z"]]})
    for configuration, expected in [
        ({}, {"a", "b.c", "n", "z"}),
        ({"delta.dataSkippingNumIndexedCols": "1"}, {"a", "z"}),
        ({"delta.dataSkippingStatsColumns": "N.x,`b.c`"}, {"b.c", "n", "z"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, {"z"}),
    ]:
        table = DataTable(
            *fields,
            configuration=configuration,
            features=["clustering", "domainMetadata"],
            domains={"delta.clustering": domain},
        )
        [path] = table.append(rows)
        recompute(table.store)
        stats = statistics(table.store)[path]
        assert stats["nullCount"].keys() == expected == stats["minValues"].keys()
        wanted = {"x", "y"} if not configuration else {"x"}
        assert set(stats["nullCount"].get("n", wanted)) == wanted


def test_columns_that_the_table_names_and_lacks_are_said_until_they_are_corrected() -> None:
    table = DataTable(*FIELDS, configuration={"delta.dataSkippingStatsColumns": "a,dropped"})
    table.append(ROWS)
    table.append(ROWS)

    def told() -> list[bool]:
        opened = Table(table.store)
        notes = [
            planned(table.store).notes,
            optimize.plan(opened.snapshot(), context=RunContext.at(NOW)).notes,
            [each.problem for each in fsck_run(opened).findings],
        ]
        return [any("names dropped, which no data col" in note for note in each) for each in notes]

    assert told() == [True] * 3
    options = SetPropertiesOptions(properties={"delta.dataSkippingStatsColumns": "a,s"})
    context = RunContext.at(NOW)
    change = set_properties.plan(Table(table.store).snapshot(), options, context)
    set_properties.apply(Table(table.store), change, context)
    assert told() == [False] * 3


@pytest.mark.conformance("RT-07", "FILE-06")
def test_every_other_field_is_repeated() -> None:
    table = DataTable(
        *FIELDS,
        field("p", "string"),
        features=["deletionVectors", "rowTracking", "domainMetadata"],
        configuration=ROW_TRACKING,
        partitioned_by=["p"],
    )
    fields: dict[str, Any] = {
        "partitionValues": {"p": "ä%20"},
        "tags": {"ZCUBE_ID": "1", "other": "2"},
        "clusteringProvider": "liquid",
        "unknown": {"kept": [1]},
    }
    [path] = table.append(ROWS, path="p=%C3%A4/one%2520file.parquet", **fields)
    table.store.put(unquote(path), table.store.read(path))
    table.delete(path, [0])
    before, rows = live_adds(table.store)[path], live_rows(table.store)
    assert recompute(table.store).status == "recomputed"
    after = live_adds(table.store)[path]
    assert before.pop("stats") != after.pop("stats")
    assert after == {**before, "dataChange": False}
    assert live_rows(table.store) == rows
    [info, *adds] = actions_of(table.store, latest(table.store))
    assert info["commitInfo"]["operation"] == "COMPUTE STATS"
    assert info["commitInfo"]["operationParameters"] == {"predicate": "[]"}
    assert [set(action) for action in adds] == [{"add"}]


def test_bounds_that_a_writer_took_from_a_nan_blind_footer_are_replaced_if_asked_for() -> None:
    table = DataTable(field("d", "double"))
    rows = pa.table({"d": [1.0, math.nan, 7.0]})
    stats = {"numRecords": 3, "minValues": {"d": 1.0}, "maxValues": {"d": 7.0}}
    [path] = table.append(rows, stats=json.dumps({**stats, "nullCount": {"d": 0}}))
    assert planned(table.store).is_noop
    plan = planned(table.store, check_writers=True)
    assert [each.reason for each in plan.defects] == ["writer"]
    result = recompute(table.store, check_writers=True)
    assert (result.files_recomputed, result.files_decoded, result.files_confirmed) == (1, 1, 0)
    assert "d" not in statistics(table.store)[path].get("maxValues", {})
    assert planned(table.store, check_writers=True).is_noop


@pytest.mark.parametrize("first", [{}, {"check_writers": True}], ids=str)
def test_a_file_is_not_committed_again_for_its_tag(first: dict[str, Any]) -> None:
    table = DataTable(field("d", "double"), field("a", "long"))
    table.append(pa.table({"d": [1.0, 7.0], "a": [1, 2]}))
    assert recompute(table.store, **first).files_recomputed == 1
    assert planned(table.store, check_writers=True).is_noop
    assert recompute(table.store, check_writers=True).num_commits == 0


def test_rounded_decimals_are_visible_in_the_log() -> None:
    table = DataTable(field("d", "decimal(38,2)"))
    values = [Decimal("1234567890123456789.12"), Decimal("1.5")]
    rows = pa.table({"d": pa.array(values, pa.decimal128(38, 2))})
    text = '{"numRecords":2,"minValues":{"d":1.5},"maxValues":{"d":1.2345678901234568e18},'
    [path] = table.append(rows, stats=text + '"nullCount":{"d":0}}')
    assert [each.reason for each in planned(table.store).defects] == ["rounded-decimals"]
    recompute(table.store)
    assert statistics(table.store)[path]["maxValues"]["d"] == values[0]
    assert planned(table.store).is_noop


def test_a_file_that_cannot_be_read_is_named_and_keeps_its_statistics() -> None:
    table = DataTable(*FIELDS)
    [damaged, gone, shorter, sound] = table.append(ROWS, ROWS, ROWS, ROWS)
    data = table.store.read(damaged)
    table.store.delete(damaged)
    table.store.put(damaged, data[:-9] + b"nonsense!")
    table.store.delete(gone)
    table.live[shorter]["size"] += 1
    table.builder.commit([{"add": table.live[shorter]}])
    result = recompute(table.store)
    assert (result.status, result.num_skipped, result.files_recomputed) == ("failed", 3, 1)
    assert {file.path for file in result.skipped} == {damaged, gone, shorter}
    assert all(file.path in file.problem for file in result.skipped)
    found = statistics(table.store)
    assert "minValues" in found[sound]
    assert all(found[path] == {"numRecords": 3} for path in (damaged, gone, shorter))


def test_a_row_count_that_contradicts_the_file_is_not_replaced() -> None:
    """The row IDs of the next file may begin after it."""
    table = DataTable(*FIELDS)
    [path] = table.append(ROWS, stats='{"numRecords":2}')
    result = recompute(table.store)
    assert (result.status, result.num_commits) == ("failed", 0)
    assert "3 rows where the log says 2" in result.skipped[0].problem
    assert statistics(table.store)[path] == {"numRecords": 2}


def test_a_column_that_a_file_lacks_is_null() -> None:
    table = DataTable(*FIELDS, field("later", "double"))
    [path] = table.append(ROWS)
    recompute(table.store)
    stats = statistics(table.store)[path]
    assert stats["nullCount"]["later"] == 3 and "later" not in stats["minValues"]


def test_all_replaces_bounds_that_are_wider_than_necessary() -> None:
    table = DataTable(*FIELDS)
    wide = {**COMPLETE, "minValues": {"a": -9, "s": ""}, "maxValues": {"a": 9, "s": "zz"}}
    [path] = table.append(ROWS, stats=json.dumps(wide))
    assert recompute(table.store).num_commits == 0
    assert recompute(table.store, all_files=True).files_recomputed == 1
    assert statistics(table.store)[path] == COMPLETE


def test_unknown_clustering_columns_are_refused() -> None:
    table = DataTable(
        *FIELDS,
        features=["clustering", "domainMetadata"],
        domains={"delta.clustering": '{"clusteringColumns": 7}'},
    )
    table.append(ROWS)
    with pytest.raises(RefusedError, match="clustering columns"):
        planned(table.store)


def test_every_file_with_a_defect_is_listed(tmp_path: Path) -> None:
    table = DataTable(*FIELDS)
    table.append(ROWS, stats=json.dumps(COMPLETE))
    [bare] = table.append(ROWS, stats=None)
    [half] = table.append(ROWS, stats=json.dumps(without("minValues", "s")))
    size = table.live[half]["size"]
    # The newest files come first.
    expected = [
        {"path": half, "size": size, "defects": ["bounds"], "columns": ["s"]},
        {"path": bare, "size": size, "defects": ["no-statistics"], "columns": ["a", "s"]},
    ]
    report = tmp_path / "files.parquet"
    context = RunContext.at(NOW, report=str(report))
    prepared = find("recompute-stats").prepare(Table(table.store), RecomputeStatsOptions(), context)
    assert prepared is not None and prepared.listing is not None
    assert pq.read_table(report).to_pylist() == expected
    [(name, files)] = prepared.listing.json_lists()
    assert (name, list(files)) == ("file_list", expected)
    lines = list(prepared.listing.lines(reported=False))
    assert lines == [f"{size}\tbounds\t{half}", f"{size}\tno-statistics\t{bare}"]
    assert prepared.apply().status == "recomputed"


def test_people_see_the_first_files_of_a_long_list() -> None:
    table = DataTable(*FIELDS)
    table.append(*[ROWS] * 23, stats=None)
    prepared = find("recompute-stats").prepare(
        Table(table.store), RecomputeStatsOptions(), RunContext.at(NOW)
    )
    assert prepared is not None and prepared.listing is not None
    *shown, last = prepared.listing.lines(reported=False)
    assert len(shown) == 20 and last == "3 more files are in a --report, and in --json"


def test_archived_files_are_not_read_and_counted() -> None:
    table = DataTable(*FIELDS, configuration={"delta.timeUntilArchived": "interval 30 days"})
    old = table.append(ROWS, stats=None, modificationTime=aged(40))
    new = table.append(ROWS, stats=None, modificationTime=aged(1))
    table.store.delete(old[0])
    plan = planned(table.store)
    assert (plan.num_files, plan.files) == (2, 1)
    assert [each.files for each in plan.defects] == [1]
    assert any("1 file archived according to delta.timeUntilArchived" in n for n in plan.notes)
    listed = DefectListing(
        snapshot=Table(table.store).snapshot(), options=plan.options, now=plan.planned_at, files=1
    )
    assert [path for each in listed.batches() for path in each["path"].to_pylist()] == new
    result = recompute(table.store)
    assert (result.status, result.files_recomputed, result.num_skipped) == ("recomputed", 1, 0)
    live = live_adds(table.store)
    assert json.loads(live[new[0]]["stats"])["numRecords"] == 3
    assert live[old[0]].get("stats") is None
    assert planned(table.store).is_noop


def aged(days: float) -> int:
    return epoch_millis(PLANNED_AT - timedelta(days=days))

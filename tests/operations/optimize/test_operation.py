"""`optimize`: fewer files, the same rows with the same row IDs, and nothing left to do then."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError, UnsupportedFeatureError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizePlan, OptimizeResult
from delta_maintenance.operations.rewriting import run
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.data.data_file_reader import FileRows
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import ROW_ID, ROW_VERSION, DataTable, field, schema_string
from tests.support.rewrites.rewritten_tables import NOW, Rewritten, ids, numbers
from tests.support.rewrites.table_rows import actions_of, latest, live_adds, live_rows
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


def plan(made: Rewritten, **options: Any) -> OptimizePlan:
    settings = OptimizeOptions(workers=1, **options)
    return optimize.plan(Table(made.store).snapshot(), settings, context=RunContext.at(NOW))


def names(store: Store) -> set[str]:
    """All files of a store."""
    return {path for batch in store.list_tree() for path in batch["path"].to_pylist()}


@pytest.mark.conformance(
    "RW-01",
    "RW-06",
    "RW-20",
    "RW-21",
    "RW-26",
    "RW-37",
    "RT-15",
    "RT-16",
    "RT-17",
    "DV-12",
    "FILE-15",
)
def test_rows_keep_their_values_ids_versions_and_order() -> None:
    made = Rewritten()
    made.table.delete(made.paths["y"][1], [1, 3])
    before, files = made.rows(), set(names(made.store))
    result = made.optimize()
    assert (result.status, result.files_before, result.files_after) == ("rewritten", 12, 3)
    assert (made.rows(), result.rows) == (before, 46)
    assert files <= set(names(made.store))
    for path, add in live_adds(made.store).items():
        rows = pq.read_table(io.BytesIO(made.store.read(path)))
        assert rows["a"].to_pylist() == sorted(rows["a"].to_pylist())
        assert rows[ROW_ID].null_count == rows[ROW_VERSION].null_count == 0
        assert add["partitionValues"]["p"] in "xyz"
    again = plan(made)
    assert (again.is_noop, again.reason) == (True, "no file is worth rewriting")
    assert made.optimize(seed=1).status == "nothing-to-do"


@pytest.mark.conformance("RW-06", "RW-32", "RW-33", "RW-34", "RW-31", "TXN-10")
def test_the_commit_contains_what_other_engines_expect() -> None:
    made = Rewritten()
    made.table.delete(made.paths["y"][1], [1, 3])
    made.optimize(where="p = 'y'")
    actions = actions_of(made.store, latest(made.store))
    info = actions[0]["commitInfo"]
    assert info["operation"] == "OPTIMIZE"
    assert info["operationParameters"] == {
        "predicate": json.dumps(["p = 'y'"]),
        "zOrderBy": "[]",
        "clusterBy": "[]",
        "auto": "false",
    }
    assert (info["isolationLevel"], info["isBlindAppend"]) == ("SnapshotIsolation", False)
    assert info["tags"]["delta.rowTracking.preserved"] == "true"
    assert info["readVersion"] == latest(made.store) - 1
    assert UUID(info["txnId"])
    metrics = info["operationMetrics"]
    assert (metrics["numAddedFiles"], metrics["numRemovedFiles"]) == ("1", "4")
    assert metrics["numDeletionVectorsRemoved"] == "1"
    assert all(isinstance(value, str) for value in metrics.values())
    kinds = {kind for action in actions for kind in action}
    assert kinds == {"commitInfo", "domainMetadata", "add", "remove"}
    changes = [
        action[kind]["dataChange"]
        for action in actions
        for kind in action
        if kind in ("add", "remove")
    ]
    assert not any(changes)


@pytest.mark.conformance("RW-33", "ICT-02", "RT-18")
def test_an_instant_comes_first_and_row_ids_are_kept_only_if_there_are_any() -> None:
    table = DataTable(
        field("a", "long"),
        field("b", "string"),
        store=MemoryStore(),
        features=["rowTracking", "domainMetadata", "inCommitTimestamp"],
        configuration={"delta.enableInCommitTimestamps": "true"},
    )
    table.append(numbers(0), numbers(4))
    last = epoch_millis(NOW) + 60_000
    table.builder.commit([log.commit_info("WRITE", inCommitTimestamp=last)])
    opened = Table(table.store)
    options = OptimizeOptions(workers=1)
    result = optimize.apply(
        opened, optimize.plan(opened.snapshot(), options, context=RunContext.at(NOW))
    )
    assert result.fates == {"committed": 1}
    info = actions_of(table.store, latest(table.store))[0]["commitInfo"]
    assert list(info)[0] == "inCommitTimestamp"
    assert info["inCommitTimestamp"] > last
    # The table has the feature, but it is not enabled: the new file holds no row IDs.
    assert info["tags"]["delta.rowTracking.preserved"] == "false"


@pytest.mark.conformance("RW-27", "DV-15", "FILE-09", "RW-34")
def test_removes_repeat_the_adds_and_tell_where_the_rows_went() -> None:
    made = Rewritten()
    path = made.paths["y"][1]
    made.table.delete(path, [1, 3])
    live = live_adds(made.store)
    made.optimize()
    actions = actions_of(made.store, latest(made.store))
    removes = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
    adds = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
    assert set(removes) == set(live)
    for name, remove in removes.items():
        assert remove["extendedFileMetadata"] is True
        for key in ("partitionValues", "size", "baseRowId", "defaultRowCommitVersion", "stats"):
            assert remove[key] == live[name][key]
        assert remove.get("deletionVector") == live[name].get("deletionVector")
        [target] = json.loads(remove["tags"]["compactedInto"])
        [run] = json.loads(remove["tags"]["compactionInfo"])
        rows = pq.read_table(io.BytesIO(made.store.read(target)))["a"].to_pylist()
        own = pq.read_table(io.BytesIO(made.store.read(name)))["a"].to_pylist()
        assert run["sourceNumPhysicalRecords"] == len(own)
        gone = {1, 3} if name == path else set()
        kept = [value for at, value in enumerate(own) if at not in gone]
        start = run["rowOffsetInTarget"]
        assert rows[start : start + len(kept)] == kept
    assert not any(add.get("deletionVector") for add in adds.values())


@pytest.mark.conformance("RW-05", "RW-18")
def test_a_single_file_with_deleted_rows_is_rewritten_and_an_empty_one_removed() -> None:
    made = Rewritten()
    made.optimize()
    live = live_adds(made.store)
    x, y, _ = sorted(live, key=lambda path: live[path]["partitionValues"]["p"])
    made.table.delete(x, [0])
    made.table.delete(y, range(16))
    rows = made.rows()
    planned = plan(made)
    assert (planned.files, planned.files_after, planned.deleted_rows) == (2, 1, 17)
    result = made.optimize(seed=1)
    assert (result.files_before, result.files_after) == (2, 1)
    assert made.rows() == rows
    assert plan(made, deleted_percent=50).is_noop


@pytest.mark.conformance("RW-05")
def test_few_deleted_rows_are_left_alone() -> None:
    made = Rewritten()
    made.optimize()
    made.table.delete(next(iter(made.table.live)), [0])
    assert plan(made, deleted_percent=7).is_noop
    assert plan(made, deleted_percent=6).files == 1


def test_a_condition_chooses_partitions() -> None:
    made = Rewritten()
    assert made.optimize(where="p IN ('x', 'z') AND NOT p = 'z'").files_before == 4
    assert [path for path in made.paths["x"] if path in live_adds(made.store)] == []
    assert plan(made).files == 8
    for wrong in ("a = 1", "p =", "p = 'x' OR"):
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            plan(made, where=wrong)


@pytest.mark.conformance("RW-35")
def test_partitions_with_writers_at_work_are_left_alone() -> None:
    made = Rewritten()
    stamp = int((NOW - timedelta(minutes=30)).timestamp() * 1000)
    made.table.append(numbers(900), partitionValues={"p": "y"}, modificationTime=stamp)
    planned = plan(made, quiet_for=timedelta(hours=1))
    assert {part.values["p"] for part in planned.partitions} == {"x", "z"}
    [left] = planned.left_alone
    assert (left.reason, left.files) == ("written-lately", 5)
    assert plan(made, quiet_for=timedelta(minutes=20)).files == 13


def test_budgets_bound_a_run() -> None:
    made = Rewritten()
    assert made.optimize(max_files=9).files_before == 8
    assert plan(made, max_files=3).is_noop
    assert plan(made, max_bytes=10).is_noop
    result = made.optimize(seed=1, max_duration=timedelta(0))
    assert (result.status, result.fates) == ("nothing-to-do", {"not-started": 1})


@pytest.mark.conformance("RW-04")
@pytest.mark.conformance("RW-35")
@pytest.mark.parametrize(
    ("limits", "commits"),
    [
        ({"_ACTIONS": 10}, 2),
        ({"_ACTIONS": 5}, 4),
        ({"_ACTIONS": 21}, 1),
        ({"COMMIT_BYTES": 1, "MOST_COMMITS": 1 << 40}, 4),
    ],
)
def test_bins_are_committed_together_up_to_a_limit(
    limits: dict[str, int], commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bin has four sources and one new file, and the table four bins."""
    for name, value in limits.items():
        monkeypatch.setattr(run, name, value)
    made = Rewritten(partitions="wxyz")
    result = made.optimize()
    assert (result.fates, result.num_commits) == ({"committed": 4}, commits)


def test_the_size_of_new_files_comes_from_the_option_the_property_or_the_table() -> None:
    made = Rewritten()
    assert plan(made).target_bytes == 128 << 20
    assert plan(made, target_bytes=1000).target_bytes == 1000
    assert plan(made, target_bytes=100).is_noop
    configuration = {"delta.targetFileSize": "64mb"}
    schema = schema_string(field("a", "long"), field("b", "string"), field("p", "string"))
    made.table.builder.commit(
        [log.metadata(schema=schema, partitioned_by=["p"], configuration=configuration)]
    )
    assert plan(made).target_bytes == 64 << 20


@pytest.mark.conformance("RW-03", "TXN-11", "CAT-01")
@pytest.mark.parametrize(
    "feature", ["geospatial", "collations", "icebergCompatV3", "catalogManaged"]
)
def test_tables_with_other_features_are_refused_by_name(feature: str) -> None:
    table = TableBuilder()
    needs = {
        "collations": ["domainMetadata"],
        "icebergCompatV3": ["columnMapping", "rowTracking", "domainMetadata"],
        "catalogManaged": ["inCommitTimestamp", "vacuumProtocolCheck"],
    }
    listed = [feature, *needs.get(feature, [])]
    table.commit([log.features(*listed), log.metadata(), log.add("f")])
    before = set(names(table.store))
    named = "catalog-managed" if feature == "catalogManaged" else feature
    with pytest.raises(UnsupportedFeatureError, match=named):
        optimize.plan(table.open().snapshot(), context=RunContext.at(NOW))
    assert set(names(table.store)) == before


@pytest.mark.conformance("RW-15", "RW-46")
def test_a_missing_file_is_named_and_everything_else_is_done() -> None:
    made = Rewritten()
    gone = made.paths["y"][1]
    rows = [row for row in made.rows() if dict(row[0])["a"] // 10 != 11]
    made.store.delete(gone)
    result = made.optimize()
    assert (result.status, result.fates) == ("failed", {"committed": 3})
    [refused] = result.refused
    assert (refused.path, refused.damaged) == (gone, True)
    assert "gone" in (result.problem or "") and gone in (result.problem or "")
    assert gone in live_adds(made.store)
    made.table.live = live_adds(made.store)
    made.table.remove(gone)
    assert made.rows() == rows


@pytest.mark.conformance("RW-40", "RW-46")
def test_a_bin_that_is_not_proved_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rewritten()
    before = made.rows()
    copy = FileRows.live
    calls = iter(range(100))

    def loses_a_row(self: Any) -> pa.RecordBatch:
        batch = copy(self)
        return batch.slice(1) if next(calls) == 5 else batch

    monkeypatch.setattr(FileRows, "live", loses_a_row)
    result = made.optimize()
    assert (result.status, result.fates) == ("failed", {"committed": 2, "not-proved": 1})
    assert (made.rows(), result.files_before) == (before, 8)
    assert result.bins[0].fate == "not-proved" and result.problem


@pytest.mark.conformance("RW-46", "RW-48")
def test_plans_and_results_are_documents() -> None:
    made = Rewritten()
    planned = plan(made, where="p <> 'x'", quiet_for=timedelta(seconds=1))
    assert OptimizePlan.from_json(json.loads(json.dumps(planned.to_json()))) == planned
    assert planned.bytes > 0 and planned.bytes_after > 0 and planned.memory_bytes < 1 << 30
    result = made.optimize()
    assert OptimizeResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    for report in result.bins:
        assert (report.num_sources, len(report.sources), len(report.outputs)) == (4, 4, 1)
        assert report.row_sums and report.row_sums.startswith("v2:16:")


@pytest.mark.conformance("RW-07", "RW-47", "CLU-04")
def test_clustered_files_are_skipped_unless_requested() -> None:
    table = DataTable(
        field("a", "long"),
        field("b", "string"),
        features=["clustering", "domainMetadata"],
        domains={"delta.clustering": json.dumps({"clusteringColumns": [["a"]]})},
    )
    table.append(numbers(0), numbers(10), clusteringProvider="liquid")
    table.append(numbers(20), numbers(30))
    opened = Table(table.store)
    planned = optimize.plan(opened.snapshot(), context=RunContext.at(NOW))
    assert planned.files == 2
    assert [(left.reason, left.files) for left in planned.left_alone] == [("clustered", 2)]
    full = optimize.plan(
        opened.snapshot(), OptimizeOptions(full=True, workers=1), context=RunContext.at(NOW)
    )
    rows = live_rows(table.store)
    result = optimize.apply(opened, full, context=RunContext.at(NOW, new_id=ids()))
    assert (result.files_before, result.files_after, live_rows(table.store)) == (4, 1, rows)
    [add] = live_adds(table.store).values()
    # A merge in the order of time does not cluster, and does not claim to.
    assert "clusteringProvider" not in add
    assert json.loads(add["stats"])["minValues"]["a"] == 0


@pytest.mark.conformance("ICE-05", "RW-17", "RW-11")
def test_old_timestamps_and_codecs_are_reasons_if_requested() -> None:
    table = DataTable(field("t", "timestamp"))
    rows = pa.table({"t": pa.array([0, 1], pa.timestamp("us", "UTC"))})
    options = {"use_deprecated_int96_timestamps": True, "compression": "snappy"}
    table.append(rows, writing=options)
    opened = Table(table.store)
    assert optimize.plan(opened.snapshot(), context=RunContext.at(NOW)).is_noop
    before = live_rows(table.store)
    for wanted in ({"int96": True}, {"other_codecs": True}):
        planned = optimize.plan(
            opened.snapshot(), OptimizeOptions(**wanted, workers=1), context=RunContext.at(NOW)
        )
        assert planned.files == 1
    optimize.apply(opened, planned, context=RunContext.at(NOW, new_id=ids()))
    [path] = live_adds(table.store)
    footer = pq.read_metadata(io.BytesIO(table.store.read(path)))
    assert footer.row_group(0).column(0).physical_type == "INT64"
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert live_rows(table.store) == before
    assert optimize.plan(
        opened.snapshot(), OptimizeOptions(**wanted), context=RunContext.at(NOW)
    ).is_noop


def test_an_unpartitioned_table_takes_no_condition() -> None:
    table = TableBuilder(MemoryStore())
    table.commit([log.protocol(), log.metadata(), log.add("f")])
    with pytest.raises(InvalidRequestError, match="no partitions"):
        optimize.plan(
            table.open().snapshot(), OptimizeOptions(where="id = 1"), context=RunContext.at(NOW)
        )


def test_progress_states_the_bins_and_the_bytes() -> None:
    made, calls = Rewritten(), []
    planned = plan(made)
    optimize.apply(
        Table(made.store),
        planned,
        context=RunContext.at(
            NOW, progress=lambda *report, unit="count": calls.append((*report, unit))
        ),
    )
    bins = [report for report in calls if report[0] == "bins rewritten"]
    assert bins == [
        ("bins rewritten", number, planned.bins, "count") for number in range(1, planned.bins + 1)
    ]
    assert calls[-1] == ("bytes rewritten", planned.bytes, planned.bytes, "bytes")

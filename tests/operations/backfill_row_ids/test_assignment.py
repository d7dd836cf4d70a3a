"""The commits of a backfill, and the row IDs that files get."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError
from tests.support.operations.backfills import (
    TRACKED,
    apply,
    backfill,
    built,
    of,
    operations,
    plan_of,
    stats,
)
from tests.support.operations.row_ids import RacedStore, check, state, without_row_ids
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


@pytest.mark.conformance("RT-02", "RT-03", "RT-04", "RT-06", "RT-09", "RT-10", "RT-11", "RT-12")
def test_all_phases_of_a_backfill() -> None:
    table = built()
    before = without_row_ids(state(table.store))
    plan = plan_of(table)
    assert (plan.num_files, plan.files_to_backfill, plan.rows_to_backfill) == (10, 10, 45)
    assert (plan.num_commits, plan.files_to_count, plan.engine) == (5, 0, "local")
    assert (plan.state, plan.changes_support, plan.high_water_mark) == ("unsupported", True, -1)

    result = apply(table, plan)

    assert (result.status, result.version, result.num_commits) == ("enabled", 5, 5)
    assert (result.files_backfilled, result.high_water_mark) == (10, 44)
    batch = "ROW TRACKING BACKFILL"
    assert operations(table) == ["UPGRADE PROTOCOL", batch, batch, batch, "SET TBLPROPERTIES"]
    assert without_row_ids(state(table.store)) == before
    adds = [add for version, add in of(table, "add") if version > 0]
    assert not any(add["dataChange"] for add in adds) and not of(table, "remove")
    assert [v for v, _ in of(table, "domainMetadata")] == [2, 3, 4]
    (protocol,) = [value for version, value in of(table, "protocol") if version]
    assert set(protocol["writerFeatures"]) == {
        *("appendOnly", "invariants", "domainMetadata", "rowTracking")
    }
    info = of(table, "commitInfo")[-1][1]
    assert info["tags"]["rowTrackingEnablementOnly"] == "true"
    assert [i["operationParameters"]["batchId"] for _, i in of(table, "commitInfo")[1:4]] == [
        *("0", "1", "2")
    ]
    check(table.store)


@pytest.mark.conformance("RT-13")
def test_a_second_run_has_nothing_to_do() -> None:
    table = built()
    backfill(table)
    names = table.names()
    plan = plan_of(table)
    assert plan.is_noop and plan.reason == "row tracking is already enabled"
    result = apply(table, plan)
    assert (result.status, result.num_commits, result.high_water_mark) == ("nothing-to-do", 0, 44)
    assert table.names() == names


@pytest.mark.conformance("RT-12", "DV-13", "DV-14", "PART-03")
def test_every_field_of_a_file_survives() -> None:
    vector = log.deletion_vector(cardinality=2)
    files = [
        log.add(
            "p=a%2520b/one",
            stats=stats(9, minValues={"id": 1.10}, tightBounds=False),
            dv=vector,
            tags={"k": "v", "empty": ""},
            clusteringProvider="liquid",
            partitionValues={"part": None},
            size=77,
            modificationTime=123,
            unheardOf={"deep": [1, 2], "at": "2020-01-01 00:00:00"},
        ),
        log.add("two", stats=stats(3), partitionValues={"part": 'x"y'}),
    ]
    table = TableBuilder(RacedStore())
    features = log.features("deletionVectors", writer_only=["clustering", "domainMetadata"])
    table.commit([features, log.metadata(partitioned_by=["part"]), *files])
    before = without_row_ids(state(table.store))
    assert backfill(table).status == "enabled"
    assert without_row_ids(state(table.store)) == before
    assert {a["add"]["path"]: a["add"]["baseRowId"] for a in state(table.store)} == {
        "p=a%2520b/one": 0,
        "two": 9,
    }
    check(table.store)


@pytest.mark.conformance("RT-12")
def test_statistics_that_exist_only_as_a_struct_of_a_checkpoint_are_kept() -> None:
    table = built(log.add("a", stats=stats(4)), log.add("b", stats=stats(6)))
    kind = pa.struct([("numRecords", pa.int64()), ("minValues", pa.struct([("id", pa.int64())]))])
    parsed = [{"numRecords": 4, "minValues": {"id": 7}}, {"numRecords": 6, "minValues": None}]

    def structs_only(rows: pa.Table) -> pa.Table:
        add = rows["add"].combine_chunks()
        values = iter(parsed)
        told = [next(values) if valid else None for valid in add.is_valid().to_pylist()]
        names = [field.name for field in add.type if field.name != "stats"]
        columns = [*(add.field(name) for name in names), pa.array(told, kind)]
        types = [*(add.type.field(name) for name in names), pa.field("stats_parsed", kind)]
        new = pa.StructArray.from_arrays(columns, fields=types, mask=add.is_null())
        return rows.set_column(rows.column_names.index("add"), "add", new)

    table.checkpoint(reshape=structs_only)
    plan = plan_of(table)
    assert (plan.files_to_count, plan.rows_to_backfill) == (0, 10)
    assert apply(table, plan).status == "enabled"
    again = {add["path"]: json.loads(add["stats"]) for v, add in of(table, "add") if v}
    assert again["a"] == parsed[0]
    assert again["b"]["numRecords"] == 6
    check(table.store)


@pytest.mark.parametrize("writer", range(1, 8))
@pytest.mark.parametrize("reader", [1, 2])
@pytest.mark.conformance("RT-09")
def test_no_implied_feature_is_lost(reader: int, writer: int) -> None:
    implied = {
        *(["appendOnly", "invariants"] if 2 <= writer < 7 else []),
        *(["checkConstraints"] if 3 <= writer < 7 else []),
        *(["changeDataFeed", "generatedColumns"] if 4 <= writer < 7 else []),
        *(["columnMapping"] if 5 <= writer < 7 and reader == 2 else []),
        *(["identityColumns"] if 6 <= writer < 7 else []),
    }
    listed = ["checkConstraints"] if writer == 7 else None
    table = built(protocol=log.protocol(reader, writer, writer_features=listed))
    backfill(table)
    (protocol,) = [value for version, value in of(table, "protocol") if version]
    wanted = {*implied, *(listed or []), "domainMetadata", "rowTracking"}
    assert set(protocol["writerFeatures"]) == wanted
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (reader, 7)
    assert "readerFeatures" not in protocol
    check(table.store)


def test_an_empty_table_is_enabled_without_a_batch() -> None:
    table = TableBuilder(RacedStore())
    table.commit([log.protocol(), log.metadata()])
    result = backfill(table)
    assert (result.status, result.num_commits, result.checkpoint) == ("enabled", 2, None)
    check(table.store)


def test_files_that_have_row_ids_keep_them_and_the_others_follow_behind() -> None:
    mark = log.domain("delta.rowTracking", '{"rowIdHighWaterMark":49}')
    old = log.add("old", stats=stats(10), baseRowId=40, defaultRowCommitVersion=0)
    table = built(old, log.add("new", stats=stats(5)), mark, protocol=TRACKED)
    result = backfill(table)
    assert (result.num_commits, result.files_backfilled, result.high_water_mark) == (2, 1, 54)
    assert {a["add"]["path"]: a["add"]["baseRowId"] for a in state(table.store)} == {
        "old": 40,
        "new": 50,
    }
    check(table.store)


@pytest.mark.conformance("RT-04", "RT-05")
@pytest.mark.parametrize("where", ["live", "tombstone", "nothing to backfill"])
def test_a_mark_that_is_too_low_is_not_used(where: str) -> None:
    mark = log.domain("delta.rowTracking", '{"rowIdHighWaterMark":3}')
    assigned = {"baseRowId": 40, "defaultRowCommitVersion": 0}
    kept = log.add("kept", stats=stats(10), **assigned)
    new = [] if where == "nothing to backfill" else [log.add("new", stats=stats(5))]
    table = built(kept, *new, mark, protocol=TRACKED)
    if where == "tombstone":
        table.commit([log.remove("kept", **assigned, stats=stats(10))])
    result = backfill(table)
    assert result.high_water_mark == (54 if new else 49)
    assert json.loads(of(table, "domainMetadata")[-1][1]["configuration"]) == {
        "rowIdHighWaterMark": result.high_water_mark
    }
    if new:
        (added,) = [a for v, a in of(table, "add") if v and a["path"] == "new"]
        assert added["baseRowId"] == 50


def test_a_file_with_a_row_id_but_no_commit_version_keeps_the_one_and_gets_the_other() -> None:
    mark = log.domain("delta.rowTracking", '{"rowIdHighWaterMark":9}')
    half = log.add("half", stats=stats(10), baseRowId=0)
    table = built(half, mark, protocol=TRACKED)
    assert backfill(table).status == "enabled"
    ((_, _), (version, add)) = of(table, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"], version) == (0, 1, 1)


@pytest.mark.conformance("RT-02")
def test_row_ids_that_belong_to_two_files_are_refused() -> None:
    given = {"defaultRowCommitVersion": 0, "stats": stats(10)}
    twice = [log.add("a", baseRowId=0, **given), log.add("b", baseRowId=9, **given)]
    table = built(*twice, protocol=TRACKED)
    with pytest.raises(CorruptTableError, match="row ID 9 belongs to two live files"):
        plan_of(table)
    assert table.version == 0

"""Row IDs for tables that have none: what is committed, what is left alone, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from row_ids import (
    Action,
    RacedStore,
    append,
    check,
    commits,
    compact,
    delete,
    delete_rows,
    state,
    without_row_ids,
)

from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import backfill_row_ids, checkpoint
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.data.footers import RowCounts
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.fault_store import FaultStore
from delta_maintenance.testing.table_builder import TableBuilder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACKED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
SUSPENDED = {"delta.rowTrackingSuspended": "true"}
ENABLED = {"delta.enableRowTracking": "true"}


def stats(rows: int, **more: Any) -> str:
    return json.dumps({"numRecords": rows, **more})


SUPPORTED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])


def built(
    *files: Action,
    protocol: Action | None = None,
    configuration: dict[str, str] | None = None,
    store: Store | None = None,
) -> TableBuilder:
    """A table of these files, by default f0 to f9 with as many rows as their number says."""
    builder = TableBuilder(store or RacedStore())
    some = files or tuple(log.add(f"f{number}", stats=stats(number)) for number in range(10))
    metadata = log.metadata(configuration=configuration)
    builder.commit([protocol or log.protocol(), metadata, *some])
    return builder


def options(**given: Any) -> BackfillRowIdsOptions:
    return BackfillRowIdsOptions(**{"files_per_commit": 4, **given})


def plan_of(table: TableBuilder, **given: Any) -> BackfillRowIdsPlan:
    return backfill_row_ids.plan(table.open().snapshot(), options(**given), now=NOW)


def backfill(table: TableBuilder, **given: Any) -> BackfillRowIdsResult:
    return apply(table, plan_of(table, **given))


def apply(table: TableBuilder, plan: BackfillRowIdsPlan, **given: Any) -> BackfillRowIdsResult:
    return backfill_row_ids.apply(table.open(), plan, sleep=lambda _: None, **given)


def races(table: TableBuilder, *others: Callable[[], object] | None) -> None:
    assert isinstance(table.store, RacedStore)
    table.store.races = list(others)


def of(table: TableBuilder, name: str) -> list[tuple[int, Action]]:
    return [
        (v, action[name]) for v, lines in commits(table.store) for action in lines if name in action
    ]


def operations(table: TableBuilder) -> list[str]:
    return [info["operation"] for _, info in of(table, "commitInfo")]


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
    assert plan.is_noop and plan.reason == "row tracking is enabled already"
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
def test_statistics_that_only_a_checkpoint_holds_as_a_struct_are_kept() -> None:
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
def test_a_mark_that_is_too_low_is_not_believed(where: str) -> None:
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
    with pytest.raises(RefusedError, match="row ID 9 belongs to two live files"):
        plan_of(table)
    assert table.version == 0


# States a table may be in


@pytest.mark.conformance("RT-01", "RT-08")
def test_a_suspended_table_is_refused_unless_the_suspension_is_lifted() -> None:
    table = built(protocol=TRACKED, configuration={**SUSPENDED, "mine": "1"})
    with pytest.raises(RefusedError, match="suspended"):
        plan_of(table)
    plan = plan_of(table, lift_suspension=True)
    assert plan.state == "suspended" and plan.notes == (
        "the property delta.rowTrackingSuspended is unset",
    )
    assert apply(table, plan).status == "enabled"
    assert operations(table)[0] == "UNSET TBLPROPERTIES"
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert "delta.rowTrackingSuspended" not in configuration and configuration["mine"] == "1"
    check(table.store)


@pytest.mark.conformance("RT-01")
def test_a_table_that_is_enabled_and_suspended_is_refused() -> None:
    table = built(protocol=TRACKED, configuration={**SUSPENDED, **ENABLED})
    with pytest.raises(RefusedError, match="at the same time"):
        plan_of(table, lift_suspension=True)


def test_a_property_that_meant_nothing_so_far_does_not_enable_too_early() -> None:
    table = built(configuration={**ENABLED, "mine": "1"})
    assert backfill(table).status == "enabled"
    configurations = [value["configuration"] for _, value in of(table, "metaData")]
    assert configurations[1] == {"mine": "1"}
    assert [version for version, _ in of(table, "metaData")] == [0, 1, 5]


@pytest.mark.conformance("DRAFT-03", "DRAFT-04")
@pytest.mark.parametrize(
    ("protocol", "draft"),
    [
        (TRACKED, {"rowIdHighWaterMark": {"highWaterMark": 99}}),
        (TRACKED, {"rowIdHighWaterMark": {"highWaterMark": 99, "preservedRowIds": True}}),
        (TRACKED, log.domain("delta.rowTracking", {"rowIdHighWaterMark": "99"})),
        (
            log.protocol(1, 7, writer_features=["rowIds", "appendOnly"]),
            {"rowIdHighWaterMark": {"highWaterMark": 99, "preservedRowIds": False}},
        ),
        (
            log.protocol(1, 7, writer_features=["appendOnly", "delta.rowIds"]),
            {"rowIdHighWaterMark": {"highWaterMark": 99}},
        ),
    ],
)
def test_a_draft_is_converted_only_when_asked_for(protocol: Action, draft: Action) -> None:
    old = log.add("old", stats=stats(10), baseRowId=90)
    table = built(old, log.add("new", stats=stats(5)), draft, protocol=protocol)
    with pytest.raises(RefusedError, match="draft"):
        plan_of(table)
    result = backfill(table, convert_draft=True)
    assert (result.status, result.high_water_mark) == ("enabled", 104)
    assert {a["add"]["path"]: a["add"]["baseRowId"] for a in state(table.store)} == {
        "old": 90,
        "new": 100,
    }
    final = [value for _, value in of(table, "protocol")][-1]["writerFeatures"]
    assert {"domainMetadata", "rowTracking"} <= set(final)
    assert not {"rowIds", "delta.rowIds"} & set(final)
    first = of(table, "domainMetadata")[-2][1]
    assert json.loads(first["configuration"]) == {"rowIdHighWaterMark": 99}
    assert result.checkpoint is not None
    snapshot = table.open().snapshot()
    assert snapshot.live_files()["default_row_commit_version"].null_count == 0
    assert checkpoint.plan(snapshot, now=NOW).kind == "classic"


def test_a_table_with_unsupported_features_is_refused() -> None:
    table = built(protocol=log.protocol(1, 7, writer_features=["unheardOf"]))
    with pytest.raises(UnsupportedFeatureError, match="unheardOf"):
        plan_of(table)
    table = built(protocol=log.features("catalogManaged", "vacuumProtocolCheck"))
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        plan_of(table)


def test_names_of_hidden_columns_differ_from_every_column_of_the_table() -> None:
    taken = ["_Row-ID-col-1", "_row-commit-version-col-3"]
    fields = [
        {"name": taken[0], "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "logical",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": taken[1]},
        },
    ]
    table = TableBuilder(RacedStore())
    schema = json.dumps({"type": "struct", "fields": fields})
    table.commit([log.protocol(), log.metadata(schema=schema)])
    numbers = iter("1234")
    ids: list[str] = []

    def new_id() -> str:
        # Transaction ids are drawn from the same well.
        ids.append("used" if len(ids) < 2 else next(numbers))
        return ids[-1]

    apply(table, plan_of(table), new_id=new_id)
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert configuration["delta.rowTracking.materializedRowIdColumnName"] == "_row-id-col-2"
    name = configuration["delta.rowTracking.materializedRowCommitVersionColumnName"]
    assert name == "_row-commit-version-col-4"


# Rows that the statistics do not tell


def counting(rows: dict[str, int]) -> Callable[[pa.StringArray], RowCounts]:
    def count(paths: pa.StringArray) -> RowCounts:
        asked = paths.to_pylist()
        counts = pa.array([rows.get(path) for path in asked], pa.int64())
        return RowCounts(
            counts=counts, problems=tuple(f"{path}: gone" for path in asked if path not in rows)
        )

    return count


@pytest.mark.conformance("RT-12", "DV-14")
def test_rows_come_from_footers_where_statistics_do_not_tell() -> None:
    table = built(
        log.add("none"),
        log.add("told", stats=stats(3)),
        log.add("partly", stats='{"minValues":{"id":1.50}}'),
        log.add("broken", stats="{"),
        log.add("vector", dv=log.deletion_vector(cardinality=2)),
        protocol=log.features("deletionVectors"),
    )
    plan = plan_of(table)
    assert (plan.files_to_count, plan.rows_to_backfill) == (4, 3)
    rows = {"none": 5, "partly": 7, "broken": 11, "vector": 13}
    result = apply(table, plan, engine=counting(rows))
    assert (result.status, result.high_water_mark) == ("enabled", 5 + 3 + 7 + 11 + 13 - 1)
    again = {add["path"]: add["stats"] for version, add in of(table, "add") if version}
    assert again == {
        "none": '{"numRecords":5}',
        "told": stats(3),
        "partly": '{"numRecords":7,"minValues":{"id":1.50}}',
        "broken": '{"numRecords":11}',
        "vector": '{"numRecords":13}',
    }
    check(table.store)


def test_the_protocol_stays_where_a_file_cannot_be_counted() -> None:
    table = built(*(log.add(f"f{n}", **({} if n == 2 else {"stats": stats(1)})) for n in range(6)))
    with pytest.raises(RefusedError, match="the rows of 1 files cannot be counted.*f2: gone"):
        apply(table, plan_of(table), engine=counting({}))
    assert table.open().latest_version() == 0
    delete(table.store, "f2")
    assert backfill(table).status == "enabled"


def test_files_that_cannot_be_counted_leave_row_tracking_supported_and_the_rest_done() -> None:
    table = built(
        *(log.add(f"f{n}", **({} if n == 2 else {"stats": stats(1)})) for n in range(6)),
        protocol=SUPPORTED,
    )
    result = apply(table, plan_of(table), engine=counting({}))
    assert (result.status, result.files_backfilled) == ("incomplete", 5)
    assert result.problem == "the rows of 1 files cannot be counted"
    assert result.uncounted == ("f2: gone",)
    assert "SET TBLPROPERTIES" not in operations(table)
    check(table.store, enabled=False)
    delete(table.store, "f2")
    assert backfill(table).status == "enabled"
    check(table.store)


def test_a_plan_for_spark_is_not_carried_out_by_threads() -> None:
    table = built(log.add("none"))
    plan = plan_of(table, auto_spark_files=1)
    assert plan.engine == "spark" and "too many for one process" in plan.reason
    assert plan_of(table, engine="local").engine == "local"
    assert plan_of(built(), engine="spark").engine == "local"
    with pytest.raises(InvalidRequestError, match="Spark"):
        apply(table, plan)


# Others who write meanwhile


@pytest.mark.conformance("RT-14", "RT-06")
def test_an_append_between_batches_moves_the_row_ids_of_the_next() -> None:
    table = built()
    store = table.store
    races(table, None, lambda: append(store, "n1"), None, lambda: append(store, "n2", 7))
    result = backfill(table)
    assert (result.status, result.files_backfilled) == ("enabled", 10)
    assert len(state(store)) == 12
    check(store)


@pytest.mark.conformance("RT-04", "RT-14")
def test_row_ids_that_others_give_out_above_their_mark_are_not_given_out_again() -> None:
    table = built(*(log.add(f"f{n}") for n in range(10)))
    high = log.add("high", stats=stats(10), baseRowId=190, defaultRowCommitVersion=3)
    asked = []

    def count(paths: pa.StringArray) -> RowCounts:
        asked.append(paths)
        # Each batch is counted once before the first commit, and once for its own.
        if len(asked) == 3 + 2:
            table.commit([high], version=latest(table) + 1)
        return RowCounts(counts=pa.array([30] * len(paths), pa.int64()))

    result = apply(table, plan_of(table), engine=count)
    assert (result.status, result.high_water_mark) == ("enabled", 200 + 6 * 30 - 1)
    assert table.open().snapshot().counts.num_files == 11


@pytest.mark.conformance("RT-14", "RT-07")
def test_a_file_that_others_remove_does_not_come_back() -> None:
    table = built()
    store = table.store
    races(
        table,
        lambda: delete(store, "f9"),
        lambda: delete(store, "f0"),
        lambda: delete(store, "f8"),
        lambda: compact(store, "f1", "f2", into="c", rows=3),
    )
    result = backfill(table)
    assert result.status == "enabled"
    assert {a["add"]["path"] for a in state(store)} == {"f3", "f4", "f5", "f6", "f7", "c"}
    check(store)


@pytest.mark.conformance("RT-14", "DV-13")
def test_rows_that_others_delete_do_not_come_back() -> None:
    first, second = (log.deletion_vector(text * 20) for text in "ab")
    table = built(
        *(log.add(f"f{n}", stats=stats(5)) for n in range(8)),
        protocol=log.features("deletionVectors"),
    )
    store = table.store
    races(
        table,
        lambda: delete_rows(store, "f7", first),
        lambda: delete_rows(store, "f1", first),
        lambda: delete_rows(store, "f1", second),
        lambda: delete_rows(store, "f6", second),
    )
    assert backfill(table).status == "enabled"
    vectors = {a["add"]["path"]: a["add"].get("deletionVector") for a in state(store)}
    assert len(state(store)) == 8
    assert vectors == {f"f{n}": None for n in range(8)} | {"f7": first, "f1": second, "f6": second}
    check(store)


def test_a_batch_of_which_nothing_is_left_is_not_committed() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(1)) for n in range(4)))
    store = table.store
    races(table, None, lambda: [delete(store, f"f{n}") for n in range(4)])
    assert backfill(table).num_commits == 2
    assert "ROW TRACKING BACKFILL" not in operations(table)


def test_a_second_backfill_at_the_same_time_does_no_harm() -> None:
    table = built()
    first, second = plan_of(table, operation_id="task"), plan_of(table, files_per_commit=3)
    races(table, None, None, lambda: apply(table, second))
    result = apply(table, first)
    assert (result.status, result.files_backfilled) == ("enabled", 4)
    assert operations(table).count("SET TBLPROPERTIES") == 1
    check(table.store)


@pytest.mark.conformance("RT-13")
def test_a_zombie_with_the_same_task_does_no_harm() -> None:
    table = built()
    plan = plan_of(table, operation_id="task")
    races(table, lambda: apply(table, plan))
    result = apply(table, plan)
    assert result.status == "enabled" and result.num_commits == 0
    assert operations(table) == [
        "UPGRADE PROTOCOL",
        *["ROW TRACKING BACKFILL"] * 3,
        "SET TBLPROPERTIES",
    ]
    ids = [info["operationId"] for _, info in of(table, "commitInfo")]
    assert len(set(ids)) == 5 and all(each.startswith("task/") for each in ids)
    assert apply(table, plan).status == "enabled"
    check(table.store)


@pytest.mark.conformance("RT-11")
def test_a_writer_that_gives_no_row_ids_is_waited_for_and_then_named() -> None:
    table = built()
    races(table, None, None, None, None, lambda: rogue(table, 0))
    assert backfill(table, checkpoint=False).status == "enabled"
    check(table.store)

    table = built(*(log.add(f"f{n}", stats=stats(2)) for n in range(2)))
    rogues: list[Callable[[], object] | None] = [None, None]
    for number in range(5):
        rogues += [partial(rogue, table, number), None]
    races(table, *rogues)
    result = backfill(table, checkpoint=False)
    assert result.status == "incomplete"
    assert "others keep adding files without row IDs" in str(result.problem)
    check(table.store, enabled=False)


def rogue(table: TableBuilder, number: int) -> None:
    """A writer that ignores row tracking."""
    table.commit([log.add(f"rogue{number}", stats=stats(2))], version=latest(table) + 1)


def latest(table: TableBuilder) -> int:
    return Table(table.store).latest_version()


def suspend(table: TableBuilder) -> None:
    table.commit([log.metadata(configuration=SUSPENDED)], version=latest(table) + 1)


def test_a_suspension_by_somebody_else_ends_the_backfill() -> None:
    table = built()
    races(table, None, None, lambda: suspend(table))
    result = backfill(table)
    assert (result.status, result.num_commits, result.files_backfilled) == ("incomplete", 2, 4)
    assert "row tracking is suspended" in str(result.problem)
    assert not any(a.get("baseRowId") is not None for v, a in of(table, "add") if v > 3)


def test_a_suspension_just_before_the_end_keeps_row_tracking_from_being_enabled() -> None:
    table = built()
    races(table, None, None, None, None, lambda: suspend(table))
    result = backfill(table, checkpoint=False)
    assert result.status == "incomplete" and "suspended" in str(result.problem)
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert "delta.enableRowTracking" not in configuration


def test_a_property_that_somebody_sets_meanwhile_is_kept() -> None:
    table = built()

    def configure(**configuration: str) -> None:
        both = [log.metadata(configuration=configuration)]
        table.commit(both, version=latest(table) + 1)

    races(
        table,
        partial(configure, first="1"),
        None,
        partial(configure, first="1", second="2"),
        None,
        None,
        partial(append, table.store, "late"),
        partial(configure, first="1", third="3"),
    )
    assert backfill(table, checkpoint=False).status == "enabled"
    configuration = of(table, "metaData")[-1][1]["configuration"]
    assert (configuration["first"], configuration["third"]) == ("1", "3")
    assert "second" not in configuration
    check(table.store)


@pytest.mark.conformance("ICT-03")
def test_in_commit_timestamps_rise_with_every_commit() -> None:
    in_commit = log.protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = TableBuilder(RacedStore())
    far = 4_000_000_000_000
    table.commit(
        [
            log.commit_info(inCommitTimestamp=far),
            in_commit,
            log.metadata(configuration={"delta.enableInCommitTimestamps": "true"}),
            *(log.add(f"f{n}", stats=stats(n)) for n in range(10)),
        ]
    )
    store = table.store
    races(table, None, None, lambda: append(store, "n"))
    assert backfill(table).status == "enabled"
    times = [info["inCommitTimestamp"] for _, info in of(table, "commitInfo")]
    assert times == list(range(far, far + 7))
    check(store)


# How it ends


def test_errors_before_the_first_commit_are_raised() -> None:
    table = built()
    plan = plan_of(table)
    table.commit([log.protocol(1, 7, writer_features=["unheardOf"])], version=1)
    with pytest.raises(UnsupportedFeatureError):
        apply(table, plan)


def test_an_error_after_a_commit_is_told_by_the_result() -> None:
    table = built()
    plan = plan_of(table)

    def fail() -> None:
        raise StorageError("the store is down")

    races(table, None, None, fail)
    result = apply(table, plan)
    assert (result.status, result.num_commits, result.files_backfilled) == ("incomplete", 2, 4)
    assert "the store is down" in str(result.problem)
    check(table.store, enabled=False)
    assert backfill(table).status == "enabled"
    check(table.store)


def test_a_plan_for_a_table_that_somebody_finished_commits_nothing() -> None:
    table = built()
    plan = plan_of(table)
    backfill(table)
    result = apply(table, plan)
    assert (result.status, result.num_commits) == ("enabled", 0)


def test_the_table_opens_from_a_checkpoint_behind_the_batches() -> None:
    table = built()
    result = backfill(table)
    assert result.checkpoint == f"_delta_log/{4:020}.checkpoint.parquet"
    snapshot = table.open().snapshot()
    assert snapshot.segment.base_version == 4 and len(snapshot.segment.commits) == 1
    assert backfill(built(), checkpoint=False).checkpoint is None


def test_a_checkpoint_that_cannot_be_written_is_a_note() -> None:
    none = {
        "delta.checkpoint.writeStatsAsJson": "false",
        "delta.checkpoint.writeStatsAsStruct": "false",
    }
    result = backfill(built(configuration=none))
    assert result.status == "enabled" and result.checkpoint is None
    assert "no checkpoint was written" in result.notes[-1]


def test_a_damaged_checkpoint_is_passed_over() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(n)) for n in range(10)))
    table.checkpoint(rows_per_group=3)
    name = f"{0:020}.checkpoint.parquet"
    data = bytearray(table.read(name))
    at = data.index(b"f5")
    data[at - 40 : at + 40] = bytes(80)
    table.write(name, bytes(data))
    try:
        result = backfill(table)
    except CorruptTableError:
        pytest.skip("the damage shows before the checkpoint is chosen")
    assert result.status == "enabled"
    check(table.store)


def test_a_log_that_is_cleaned_up_meanwhile_is_opened_anew() -> None:
    table = built(*(log.add(f"f{n}") for n in range(10)))
    store, asked = table.store, []

    def count(paths: pa.StringArray) -> RowCounts:
        asked.append(paths.to_pylist())
        # Each batch is counted once before the first commit, and once for its own.
        if len(asked) == 3 + 2:
            after = latest(table)
            append(store, "n1")
            append(store, "n2")
            snapshot = table.open().snapshot()
            checkpoint.apply(table.open(), checkpoint.plan(snapshot, now=NOW))
            for version in range(after + 2):
                store.delete(f"_delta_log/{version:020}.json")
        return RowCounts(counts=pa.array([2] * len(paths), pa.int64()))

    result = apply(table, plan_of(table, checkpoint=False), engine=count)
    assert (result.status, result.files_backfilled, len(asked)) == ("enabled", 10, 7)
    live = table.open().snapshot().live_files()
    ids = sorted(live["base_row_id"].to_pylist())
    assert len(set(ids)) == 12 and live["base_row_id"].null_count == 0


def test_records_survive_their_json() -> None:
    table = built(log.add("none"), protocol=SUPPORTED)
    plan = plan_of(table, operation_id="x", other_writers="none")
    assert BackfillRowIdsPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    result = apply(table, plan, engine=counting({}))
    assert BackfillRowIdsResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    with pytest.raises(InvalidRequestError, match="files_per_commit"):
        plan_of(table, files_per_commit=0)


def test_progress_is_told_in_files() -> None:
    table = built()
    told: list[tuple[str, int, int | None]] = []
    apply(table, plan_of(table), progress=lambda *step: told.append(step))
    assert told == [("files", 4, 10), ("files", 8, 10), ("files", 10, 10)]


def test_a_batch_costs_a_put_and_two_listings_however_long_the_log() -> None:
    table = built(*(log.add(f"f{n}", stats=stats(n)) for n in range(40)))
    plan = plan_of(table, checkpoint=False)
    store = FaultStore(table.store)
    backfill_row_ids.apply(Table(store), plan)
    kinds = [step.kind for step in store.trace]
    puts = [at for at, kind in enumerate(kinds) if kind == "put_if_absent"]
    assert len(puts) == 12
    # From one batch to the next: was the commit alone, is there a checksum to go on from, and did
    # others commit since?
    between = [kinds[one + 1 : other] for one, other in zip(puts[1:10], puts[2:11], strict=True)]
    assert between == [["list_from", "read", "list_from"]] * 9
    assert not [step for step in store.trace[puts[1] :] if step.kind == "open"]


@pytest.mark.conformance("CRC-05")
def test_checksums_go_on_from_batch_to_batch(tmp_path: Path) -> None:
    table = built(store=LocalStore(str(tmp_path)))
    rest = {"tableSizeBytes": 10, "numFiles": 10, "numMetadata": 1, "numProtocol": 1}
    info = log.commit_info(txnId="t")
    table.commit([info])
    snapshot = table.open().snapshot()
    state_after = {
        "txnId": "t",
        "protocol": snapshot.protocol.to_json(),
        "metadata": snapshot.metadata.to_json(),
    }
    table.checksum(1, {**rest, **state_after})
    assert backfill(table, checkpoint=False).version == 6
    for version in range(2, 7):
        told = json.loads(table.read(f"{version:020}.crc"))
        assert (told["numFiles"], told["tableSizeBytes"]) == (10, 10)
    (domain,) = told["domainMetadata"]
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": 44}
    assert told["metadata"]["configuration"]["delta.enableRowTracking"] == "true"

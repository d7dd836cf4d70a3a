"""`set-clustering`: one commit with the domain and its features, or a refusal as in Delta Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import (
    CommitConflictError,
    DeltaMaintenanceError,
    IncompleteError,
    InvalidRequestError,
    RefusedError,
)
from delta_maintenance.operations import set_clustering
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_clustering import (
    RECORD,
    SetClusteringOptions,
    SetClusteringResult,
)
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.protocol.schema.clustering import DOMAIN
from delta_maintenance.table.read import Table
from tests.support.faults.fault_store import Fault, FaultStore
from tests.support.operations.statistics_repair import recompute, statistics
from tests.support.operations.table_changes import NOW, RacedStore, built, lines, race
from tests.support.rewrites.data_files import DataTable, field, schema_string
from tests.support.rewrites.table_rows import latest
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

INNER = {"type": "struct", "fields": [field("x", "long"), field("a.b", "date")]}
FIELDS = [
    field("id", "long"),
    field("text", "string"),
    field("flag", "boolean"),
    field("raw", "binary"),
    field("tags", {"type": "array", "elementType": "long", "containsNull": True}),
    field("inner", INNER),
    *(field(f"n{number}", "long") for number in range(3)),
]


def stats(**columns: Any) -> str:
    """Statistics with the same value as both bounds of each column; None for only nulls."""
    bounds = {name: value for name, value in columns.items() if value is not None}
    nulls = {
        name: dict.fromkeys(value, 0) if isinstance(value, dict) else 5 * (value is None)
        for name, value in columns.items()
    }
    return json.dumps(
        {"numRecords": 5, "minValues": bounds, "maxValues": bounds, "nullCount": nulls}
    )


def table_of(
    *adds: log.Action, partitioned_by: tuple[str, ...] = (), **options: Any
) -> TableBuilder:
    table = built()
    table.commit(
        [
            log.metadata(schema=schema_string(*FIELDS), partitioned_by=partitioned_by, **options),
            *adds,
        ]
    )
    return table


CONTEXT = RunContext.at(NOW)


def change(table: TableBuilder | DataTable, *by: str, none: bool = False) -> SetClusteringResult:
    opened = Table(table.store)
    options = SetClusteringOptions(by=by, none=none)
    return set_clustering.apply(
        opened, set_clustering.plan(opened.snapshot(), options, CONTEXT), CONTEXT
    )


def domain(table: TableBuilder) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(Table(table.store).snapshot().domain_metadata[DOMAIN])
    return found


@pytest.mark.conformance("CLU-02", "CLU-03", "TXN-10", "RW-39")
def test_columns_are_set_changed_and_removed_in_one_commit_each() -> None:
    table = table_of(log.add("a", stats=stats(id=1, text=None, inner={"x": 3})))
    result = change(table, "ID", "inner.x")
    assert (result.status, result.columns) == ("committed", ("id", "inner.x"))
    assert set(result.added_features) >= {"clustering", "domainMetadata"}
    assert supported_features(Table(table.store).snapshot().protocol) >= {
        "clustering",
        "domainMetadata",
    }
    assert domain(table) == {"clusteringColumns": [["id"], ["inner", "x"]], "domainName": DOMAIN}
    commit = lines(table, 2)
    assert [key for line in commit for key in line] == ["commitInfo", "protocol", "domainMetadata"]
    info = commit[0]["commitInfo"]
    assert (info["operation"], info["operationParameters"]) == (
        "CLUSTER BY",
        {"oldClusteringColumns": "", "newClusteringColumns": "id,inner.x"},
    )
    assert change(table, "id", "inner.x").status == "nothing-to-do"
    assert change(table, "text").columns == ("text",)
    assert RECORD.result_facts(change(table, none=True))["clustered by"] == "no columns"
    assert domain(table)["clusteringColumns"] == []
    info = lines(table, 4)[0]["commitInfo"]
    assert info["operationParameters"]["oldClusteringColumns"] == "text"
    assert change(table, none=True).status == "nothing-to-do"


@pytest.mark.conformance("TXN-04")
@pytest.mark.parametrize("planned", [(), ("n1",)], ids=["removal", "replacement"])
def test_columns_that_another_writer_set_after_the_plan_stay(planned: tuple[str, ...]) -> None:
    table = table_of(log.add("a", stats=stats(id=1, n0=2, n1=3)))
    change(table, "id")
    opened = Table(table.store)
    options = SetClusteringOptions(by=planned, none=not planned)
    plan = set_clustering.plan(opened.snapshot(), options, CONTEXT)
    assert change(table, "n0").status == "committed"
    result = set_clustering.apply(opened, plan, CONTEXT)
    assert result.status == "conflict" and "plan again" in (result.problem or "")
    assert domain(table)["clusteringColumns"] == [["n0"]]


def test_removing_columns_that_a_table_does_not_have_adds_no_feature() -> None:
    table = table_of()
    assert change(table, none=True).status == "nothing-to-do"
    assert "clustering" not in supported_features(Table(table.store).snapshot().protocol)


@pytest.mark.conformance("CLU-02", "CM-03")
def test_the_domain_has_physical_names() -> None:
    mapped = [
        field(
            "id", "long", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}
        )
    ]
    table = built(protocol=log.features("columnMapping"))
    table.commit(
        [
            log.metadata(
                schema=schema_string(*mapped),
                configuration={
                    "delta.columnMapping.mode": "name",
                    "delta.columnMapping.maxColumnId": "1",
                },
            ),
            log.add("a", stats=stats(c1=1)),
        ]
    )
    assert change(table, "id").columns == ("id",)
    assert domain(table)["clusteringColumns"] == [["c1"]]


@pytest.mark.conformance("CLU-01")
@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (("missing",), InvalidRequestError, "no column missing"),
        (("id.x",), InvalidRequestError, "no column id.x"),
        (("id", "ID"), InvalidRequestError, "named twice"),
        (("inner",), InvalidRequestError, "is a struct"),
        (("flag",), InvalidRequestError, "no bounds"),
        (("raw",), InvalidRequestError, "no bounds"),
        (("tags",), InvalidRequestError, "no bounds"),
        (("id", "text", "n0", "n1", "n2"), InvalidRequestError, "at most 4"),
        (("a,b",), InvalidRequestError, "not the name of a column"),
        ((), InvalidRequestError, "either"),
    ],
)
def test_refusals_write_nothing(
    names: tuple[str, ...], error: type[DeltaMaintenanceError], words: str
) -> None:
    table = table_of()
    with pytest.raises(error, match=words):
        change(table, *names)
    assert table.open().snapshot().version == 1


@pytest.mark.conformance("CLU-01", "CLU-03")
def test_partitioned_tables_and_columns_without_statistics_are_refused() -> None:
    with pytest.raises(RefusedError, match="partitioned"):
        change(table_of(partitioned_by=("text",)), "id")
    few = table_of(configuration={"delta.dataSkippingNumIndexedCols": "1"})
    assert change(few, "id").status == "committed"
    with pytest.raises(RefusedError, match="no statistics of this column are collected"):
        change(few, "text")
    named = table_of(configuration={"delta.dataSkippingStatsColumns": "text,inner.`a.b`"})
    assert change(named, "TEXT", "inner.`a.b`").columns == ("text", "inner.a.b")
    assert domain(named)["clusteringColumns"] == [["text"], ["inner", "a.b"]]


ROWS = pa.table({"id": [1, 5], "text": ["a", "b"], "real": [1.5, math.nan]})
COMPLETE = json.dumps(
    {"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 5}, "nullCount": {"id": 0}}
)
COLUMNS = (field("id", "long"), field("text", "string"), field("real", "double"))


@pytest.mark.conformance("CLU-03", "RW-39")
@pytest.mark.parametrize(
    "text",
    [
        None,
        '{"numRecords":2}',
        '{"numRecords":2,"nullCount":{"id":0},"minValues":{"id":1},"maxValues":{"text":"b"}}',
        '{"numRecords":2,"nullCount":{"id":1},"minValues":{},"maxValues":{}}',
        '{"numRecords":2,"minValues":{"id":1},"maxValues":{"id":1}}',
        "nonsense",
    ],
)
def test_missing_statistics_of_a_joining_column_are_computed_first(text: str | None) -> None:
    table = DataTable(*COLUMNS)
    [path] = table.append(ROWS, stats=text)
    opened = Table(table.store)
    plan = set_clustering.plan(opened.snapshot(), SetClusteringOptions(by=("id",)), CONTEXT)
    assert (plan.files_to_recompute, plan.statistics_commits) == (1, 1)
    assert "the statistics of 1 file are computed first" in plan.reason
    result = set_clustering.apply(opened, plan, CONTEXT)
    assert (result.status, result.files_recomputed) == ("committed", 1)
    assert latest(table.store) == plan.version + 2
    found = statistics(table.store)[path]
    assert [found[part]["id"] for part in ("minValues", "nullCount")] == [1, 0]
    # Of the column `real`, there is NaN.
    assert "maxValues" not in found


@pytest.mark.conformance("CLU-03", "STAT-04")
def test_columns_join_whose_maxima_are_omitted_because_of_nan() -> None:
    table = DataTable(*COLUMNS)
    [path] = table.append(ROWS)
    assert recompute(table.store).status == "recomputed"
    assert "maxValues" not in statistics(table.store)[path]
    assert change(table, "real").files_recomputed == 0
    assert change(table, "id").files_recomputed == 0


@pytest.mark.conformance("CLU-03")
def test_a_column_whose_bounds_cannot_be_stated_is_refused_by_name() -> None:
    table = DataTable(*COLUMNS)
    greatest = "\U0010ffff" * 40
    table.append(pa.table({"id": [1], "text": [greatest], "real": [1.0]}))
    for _ in range(2):
        with pytest.raises(RefusedError, match="1 file with values of the column text .* another"):
            change(table, "text")
    assert change(table, "id").status == "committed"


def test_a_file_that_cannot_be_read_is_named() -> None:
    table = DataTable(*COLUMNS)
    [path] = table.append(ROWS, stats=None)
    table.store.delete_many([path])
    with pytest.raises(RefusedError, match=f"{path}.* the data file is gone"):
        change(table, "id")


def test_a_store_that_fails_is_not_called_a_damaged_file() -> None:
    def attempt(at: int | None) -> tuple[FaultStore, DeltaMaintenanceError | None]:
        # The lists must be decoded, which is a commit of its own.
        rows = pa.table({"id": [1, 2], "tags": [[1], None]})
        table = DataTable(FIELDS[0], FIELDS[4])
        table.append(rows.select(["id"]), rows, stats=None)
        # Each store fails at one call, and the next one at the call after that.
        for _ in range(8):
            table.store = FaultStore(table.store, at=at, fault=Fault.FAILURE)
        try:
            change(table, "id")
        except DeltaMaintenanceError as error:
            return table.store, error
        return table.store, None

    trial, _ = attempt(None)
    errors = [attempt(at)[1] for at in range(len(trial.trace))]
    assert not any(isinstance(error, RefusedError) for error in errors)
    incomplete = [str(error) for error in errors if isinstance(error, IncompleteError)]
    assert incomplete and all(text.endswith("run again to continue") for text in incomplete)


@pytest.mark.conformance("CLU-03", "TXN-03")
@pytest.mark.parametrize("at", ["statistics", "commit"])
def test_a_file_that_is_added_meanwhile_is_a_conflict(at: str) -> None:
    table = DataTable(*COLUMNS, store=RacedStore())
    table.append(ROWS, stats=None if at == "statistics" else COMPLETE)
    before = latest(table.store)
    race(table.builder, log.commit_info("WRITE"), log.add("late", stats=None))
    if at == "commit":
        assert change(table, "id").status == "conflict"
    else:
        # The race is that of the first commit, which has the statistics.
        with pytest.raises(CommitConflictError, match="without statistics .* run again"):
            change(table, "id")
    assert latest(table.store) == before + (2 if at == "statistics" else 1)
    assert not Table(table.store).snapshot().domain_metadata


@pytest.mark.conformance("CLU-01")
def test_columns_in_the_domain_of_a_table_without_the_feature_are_set_again() -> None:
    table = table_of(log.add("a", stats=stats(id=1)))
    change(table, "id")
    table.commit([log.protocol(1, 7, writer_features=["domainMetadata"])])
    result = change(table, "id")
    assert (result.status, result.added_features) == ("committed", ("clustering",))

"""Files without values of NOT NULL columns: named by fsck, and left out of every rewrite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import cluster, expire, optimize, purge
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import run
from tests.support.rewrites.data_files import DataTable, field, schema_string
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.tables import actions as log

OLD, NEW = (NOW - timedelta(days=age) for age in (100, 1))
VERBS: dict[str, Any] = {
    "optimize": (optimize, OptimizeOptions(workers=1)),
    "purge": (purge, PurgeOptions(workers=1)),
    "cluster": (cluster, ClusterOptions(workers=1, by=("id",))),
    "expire": (
        expire,
        ExpireOptions(column="t", older_than=timedelta(days=9), mixed="rewrite", workers=1),
    ),
}
STRUCT = pa.struct([("v", pa.string()), ("w", pa.int64())])


def required(name: str, kind: object) -> dict[str, object]:
    return {**field(name, kind), "nullable": False}


def nested(**nullable: bool) -> dict[str, object]:
    """`s`, with a field `v` that is NOT NULL."""
    fields = [required("v", "string"), field("w", "long")]
    return {**field("s", {"type": "struct", "fields": fields}), **nullable}


def rows(first: int, count: int = 3, **columns: Any) -> pa.Table:
    times = pa.array([OLD, *[NEW] * (count - 1)], pa.timestamp("us", "UTC"))
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "t": times, **columns})


def table(*columns: dict[str, object], **options: Any) -> DataTable:
    return DataTable(
        field("id", "long"),
        field("t", "timestamp"),
        *columns,
        features=["deletionVectors", "domainMetadata", "clustering"],
        configuration={"delta.enableDeletionVectors": "true"},
        **options,
    )


def live(made: DataTable) -> set[str]:
    return set(Table(made.store).snapshot().live_files()["path"].to_pylist())


def rewrite(made: DataTable, verb: str = "optimize") -> Any:
    operation, options = VERBS[verb]
    made.store.now_ms = lambda: epoch_millis(NOW)
    context = RunContext.at(NOW)
    plan = operation.plan(Table(made.store).snapshot(), options, context=context)
    return operation.apply(Table(made.store), plan, context=context)


def named(result: Any) -> dict[str, str]:
    files = result.skipped if hasattr(result, "skipped") else result.refused
    assert not any(file.damaged for file in files)
    return {file.path: file.problem for file in files}


def kinds(made: DataTable) -> Mapping[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for finding in run(Table(made.store), FsckOptions(deep=True), now=NOW).findings:
        found.setdefault(finding.kind, set()).add(finding.path)
    # Only `cluster` needs the columns, which it is given.
    found.pop("lost-clustering", None)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_lacks_a_not_null_column_is_left_out_and_named(verb: str) -> None:
    made = table(required("m", "string"))
    [bad] = made.append(rows(0))
    for first in (10, 20, 30):
        made.append(rows(first, m=["x", "y", "z"]))
    if verb in ("purge", "cluster"):
        for path in list(made.live):
            made.delete(path, [1])

    result = rewrite(made, verb)

    assert set(named(result)) == {bad}
    assert "the column m is NOT NULL" in named(result)[bad]
    assert result.num_commits == 1 and bad in live(made)
    assert kinds(made) == {"missing-not-null-column": {bad}}


@pytest.mark.parametrize(
    ("column", "values", "is_refused"),
    [
        (required("m", "string"), pa.array(["x", None, "y"]), True),
        (required("m", "string"), pa.array(["x", "", "y"]), False),
        (nested(), pa.array([{"v": "x"}, {"v": None}, {"v": "y"}], STRUCT), True),
        # A field of a null struct has no value to state.
        (nested(), pa.array([{"v": "x"}, None, {"v": "y"}], STRUCT), False),
        (nested(nullable=False), pa.array([{"v": "x"}, None, {"v": "y"}], STRUCT), True),
        (nested(), pa.array([{"w": 1}] * 3, pa.struct([("w", pa.int64())])), True),
        (
            required("m", {"type": "array", "elementType": "long", "containsNull": False}),
            pa.array([[None], [], [1]], pa.list_(pa.int64())),
            False,
        ),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_nulls_are_refused_where_delta_spark_enforces_the_declaration(
    column: dict[str, object],
    values: pa.Array,
    is_refused: bool,
    copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1 if copied else 1 << 40)
    made = table(column)
    name = str(column["name"])
    [path] = made.append(rows(0, **{name: values}))
    sound = values.take(pa.array([0, 2, 0])) if len(values.drop_null()) else values
    if pa.types.is_struct(values.type) and "v" not in [each.name for each in values.type]:
        sound = pa.array([{"v": "x", "w": 1}] * 3, STRUCT)
    for first in (10, 20):
        made.append(rows(first, **{name: sound}))

    result = rewrite(made)

    assert set(named(result)) == ({path} if is_refused else set())
    assert (path in live(made)) == is_refused
    assert result.status == "rewritten"


def test_rows_without_a_value_may_be_deleted_first() -> None:
    made = table(required("m", "string"))
    [path] = made.append(rows(0, m=["x", None, "y"]))
    made.append(rows(10, m=["x", "y", "z"]))
    made.delete(path, [1])

    result = rewrite(made)

    assert not named(result) and path not in live(made)


def test_a_file_is_accepted_once_nulls_are_allowed() -> None:
    made = table(required("m", "string"))
    [path] = made.append(rows(0))
    made.append(rows(10, m=["x", "y", "z"]))
    schema = schema_string(field("id", "long"), field("t", "timestamp"), field("m", "string"))
    configuration = {"delta.enableDeletionVectors": "true"}
    made.builder.commit([log.metadata(schema=schema, configuration=configuration)])

    assert not kinds(made)
    assert not named(rewrite(made)) and path not in live(made)


def test_the_log_shows_nulls_by_statistics_and_partition_values() -> None:
    made = table(required("m", "string"), required("p", "string"), partitioned_by=["p"])
    count = {"numRecords": 3, "nullCount": {"m": 1}}
    values = ["x", None, "y"]
    [nulls] = made.append(rows(0, m=values), stats=json.dumps(count), partitionValues={"p": "a"})
    [deleted] = made.append(rows(5, m=values), stats=json.dumps(count), partitionValues={"p": "b"})
    made.delete(deleted, [1])
    [nowhere, other] = made.append(
        *(rows(first, m=["x"] * 3) for first in (10, 20)), partitionValues={"p": None}
    )

    assert kinds(made) == {"null-in-not-null-column": {nulls, nowhere, other}}
    result = rewrite(made)
    # Without the first, the second is not worth a rewrite.
    assert set(named(result)) == {nowhere} and {nowhere, other} <= live(made)

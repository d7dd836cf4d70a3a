"""A constraint added by a job: which rows count, what is an expression, and beside whom."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from delta_maintenance import clock, open_table
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.add_constraint import (
    AddConstraintOptions,
    AddConstraintResult,
    CheckedRows,
    ViolatingFile,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.actions import encode_bitmap, z85_encode
from delta_maintenance.spark import JobSession, job
from delta_maintenance.spark.constraint_check import SparkConstraintCheck, needed_columns
from delta_maintenance.submission import JobSpec
from delta_maintenance.table.progress import Progress, ignore_progress
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.spark

MAPPED = "delta.columnMapping."


def field(name: str, kind: object, **metadata: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def schema(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "struct", "fields": fields})


class Table(TableBuilder):
    """A log written by hand over data files written by Arrow."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root

    def file(self, name: str, columns: pa.Table, **add: Any) -> log.Action:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(columns, path, row_group_size=2)
        return log.add(name, size=path.stat().st_size, **add)

    def ids(self, name: str, *ids: int | None, **add: Any) -> log.Action:
        return self.file(name, pa.table({"id": pa.array(ids, pa.int64())}), **add)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """The ids 1 to 5 in two files."""
    table = Table(tmp_path)
    files = table.ids("a", 1, 2, 3), table.ids("b", 4, 5)
    table.commit([log.protocol(), log.metadata(), *files])
    return table


def run(spark: SparkSession, table: Table, expression: str, name: str = "c") -> AddConstraintResult:
    options = {"name": name, "expression": expression}
    spec = JobSpec(operation="add-constraint", table=str(table.root), options=options)
    return AddConstraintResult.from_json(json.loads(json.dumps(job.run(spec, spark))))


def looked(
    spark: SparkSession,
    table: Table,
    expression: str,
    progress: Progress = ignore_progress,
    **limits: int,
) -> CheckedRows:
    session = JobSession(spark=spark, table_uri=str(table.root), progress=progress)
    check = SparkConstraintCheck(session, **limits)
    return check(table.open().snapshot(), expression, added_after=None)


def violations(spark: SparkSession, table: Table, *expressions: str) -> list[int]:
    return [looked(spark, table, expression).violations for expression in expressions]


@pytest.mark.conformance("FEAT-09")
def test_a_satisfied_constraint_is_committed_with_its_feature(
    spark: SparkSession, table: Table
) -> None:
    result = run(spark, table, "id > 0 -- always", "Positive")
    assert (result.status, result.version, result.checks) == ("committed", 1, 1)
    assert result.checked == CheckedRows(files=2, rows=5)
    snapshot = table.open().snapshot()
    assert snapshot.metadata.configuration == {"delta.constraints.positive": "id > 0 -- always"}
    assert (snapshot.protocol.min_writer_version, result.added_features) == (
        3,
        ("checkConstraints",),
    )
    again = run(spark, table, "id > 0 -- always", "positive")
    assert (again.status, table.version) == ("nothing-to-do", 0)


def test_rows_with_false_or_null_violate_it_and_nothing_is_committed(
    spark: SparkSession, table: Table
) -> None:
    table.commit([table.ids("c%20d", 1, None, 9, None), log.remove("b")])
    (table.root / "c%20d").rename(table.root / "c d")
    before = table.names()
    result = run(spark, table, "id < 3")
    assert result.status == "violated" and table.names() == before
    assert result.checked == CheckedRows(
        files=2,
        rows=7,
        violations=4,
        violating_files=2,
        worst_files=(
            ViolatingFile(path="c%20d", rows=4, violations=3),
            ViolatingFile(path="a", rows=3, violations=1),
        ),
    )
    assert result.problem is not None and result.problem.startswith("4 of 7 rows, in 2 of 2 files")
    assert violations(spark, table, "id < 10 OR id IS NULL", "id IS NOT NULL") == [0, 2]


@pytest.mark.conformance("DV-01", "DV-02")
def test_deleted_rows_violate_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    vector = encode_bitmap(BitMap64([0, 3, 4]))
    dv = log.deletion_vector(
        z85_encode(vector), storage_type="i", sizeInBytes=len(vector), cardinality=3
    )
    file = table.ids("a", -1, 1, 2, -2, -3, 5, dv=dv)
    table.commit([log.features("deletionVectors"), log.metadata(), file])
    assert looked(spark, table, "id > 0") == CheckedRows(files=1, rows=3)
    assert violations(spark, table, "id > 1", "id < 0") == [1, 3]


def test_partition_values_are_typed_by_the_schema_and_the_zone_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(tmp_path)
    kinds = {"day": "date", "n": "integer", "at": "timestamp", "d": "decimal(5,2)"}
    fields = [field("id", "long"), *(field(name, kind) for name, kind in kinds.items())]
    values = {"day": "2024-02-29", "n": "10", "at": "2024-01-01 00:00:00", "d": "1.50"}
    metadata = log.metadata(schema=schema(*fields), partitioned_by=list(kinds))
    nothing = dict.fromkeys(kinds)
    table.commit(
        [
            log.protocol(),
            metadata,
            table.ids("n=10/a", 1, partitionValues=values),
            table.ids("n=20/b", 2, partitionValues=nothing | {"d": ""}),
        ]
    )
    texts = "day > '2024-02-28' OR day IS NULL", "n > 9 OR n IS NULL", "d * 2 = 3 OR d IS NULL"
    assert violations(spark, table, *texts, "n > 9") == [0, 0, 0, 1]
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        for name in ("Asia/Tokyo", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", name)
            midnight = "at IS NULL OR hour(at) = 0"
            assert violations(spark, table, midnight) == [0]
        spark.conf.set("spark.sql.session.timeZone", "+09:30")
        with pytest.raises(RefusedError, match="time zone"):
            looked(spark, table, midnight)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def mapped(mode: str) -> tuple[str, Mapping[str, str]]:
    def column(name: str, kind: object, number: int) -> dict[str, object]:
        ids = {f"{MAPPED}id": number, f"{MAPPED}physicalName": f"col-{number}"}
        return field(name, kind, **ids)

    inner = {"type": "struct", "fields": [column("x y", "long", 3)]}
    entries = {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}
    fields = column("id", "long", 1), column("m", entries, 2), column("part", "string", 4)
    return schema(*fields), {f"{MAPPED}mode": mode, f"{MAPPED}maxColumnId": "4"}


def identified(kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(f"col-{number}", kind, metadata={"PARQUET:field_id": str(number)})


@pytest.mark.conformance("CM-01", "CM-02")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found_according_to_the_mode(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    table = Table(tmp_path)
    text, configuration = mapped(mode)
    inner = pa.struct([identified(pa.int64(), 3)])
    # In mode id the names in the file mean nothing, in mode name its ids do not.
    swapped = {"name": (1, 2), "id": (2, 1)}[mode]
    fields = [
        pa.field(f"col-{swapped[0]}", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field(
            f"col-{swapped[1]}", pa.map_(pa.string(), inner), metadata={"PARQUET:field_id": "2"}
        ),
    ]
    rows = [pa.array([1, 2]), pa.array([[("k", {"col-3": 7})], []], fields[1].type)]
    file = table.file(
        "a", pa.table(rows, schema=pa.schema(fields)), partitionValues={"col-4": "west"}
    )
    metadata = log.metadata(schema=text, partitioned_by=["part"], configuration=configuration)
    table.commit([log.protocol(2, 5), metadata, file])
    expressions = (
        "id > 0 AND part = 'west' AND coalesce(m['k'].`x y`, 7) = 7",
        "m['k'].`x y` = 7",
        "part = 'east'",
    )
    assert violations(spark, table, *expressions) == [0, 1, 2]


def test_columns_added_later_are_null_in_older_files(spark: SparkSession, table: Table) -> None:
    later = schema(field("id", "long"), field("part", "string"), field("New", "double"))
    new = table.file("n", pa.table({"id": pa.array([6]), "new": pa.array([1.5], pa.float32())}))
    table.commit([log.metadata(schema=later), new])
    assert violations(spark, table, "new IS NULL OR new > 1", "NEW > 1", "`New` IS NULL") == [
        0,
        5,
        1,
    ]


def test_a_promise_that_the_data_break_is_not_believed(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    inner = {"type": "array", "elementType": "long", "containsNull": False}
    fields = [{**field("id", "long"), "nullable": False}, field("l", inner)]
    rows = pa.table({"id": pa.array([1, None]), "l": [[1, None], [2]]})
    table.commit([log.protocol(), log.metadata(schema=schema(*fields)), table.file("a", rows)])
    expressions = "id IS NOT NULL", "NOT exists(l, x -> x IS NULL)"
    assert violations(spark, table, *expressions) == [1, 1]


BAD: Sequence[tuple[str, str]] = [
    ("id", "not a boolean"),
    ("nosuch > 1", "nosuch"),
    ("id >", "syntax"),
    ("id > 0; DELETE FROM t", "syntax"),
    ("count(*) > 0", "count"),
    ("sum(id) OVER () > 0", "window"),
    ("explode(array(id > 0))", "generator"),
    ("id IN (SELECT 1)", "ubquery"),
    ("EXISTS (VALUES 1)", "ubquery"),
    ("rand() < 2", "deterministic"),
    ("struct(*) IS NOT NULL", r"'\*'"),
    ("id > 0 AS x", "syntax"),
    ("id > :least", "parameter"),
    ("__delta_maintenance_file >= 0", "__delta"),
]


@pytest.mark.parametrize(("expression", "said"), BAD, ids=[text for text, _ in BAD])
def test_an_expression_over_several_rows_is_a_one_line_error(
    spark: SparkSession, table: Table, expression: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?i){said}") as raised:
        looked(spark, table, expression)
    assert "SQLSTATE" not in str(raised.value)
    assert table.version == 0


def test_only_columns_that_are_named_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    names = ["a", "ab", "a b", "ti`ck", "current_date", "Straße"]
    text = schema(*(field(name, "boolean") for name in names), field("v", "variant"))
    table.commit([log.protocol(), log.metadata(schema=text)])
    snapshot = table.open().snapshot()

    def needed(expression: str) -> list[str]:
        return [item.name for item in needed_columns(spark, snapshot, expression)]

    assert needed("ab") == ["ab"]
    assert needed("A OR `a b`") == ["a", "a b"]
    assert needed("`STRAßE`") == ["Straße"]
    assert needed("`ti``ck`") == ["ti`ck"]
    assert needed("current_date") == ["current_date"]
    assert needed("true") == []
    assert needed("IDENTIFIER('a' || 'b')") == names
    with pytest.raises(UnsupportedFeatureError, match="variant"):
        needed("v IS NOT NULL")


def test_an_expression_of_no_column_counts_rows_all_the_same(
    spark: SparkSession, table: Table
) -> None:
    assert looked(spark, table, "1 = 1") == CheckedRows(files=2, rows=5)
    assert looked(spark, table, "1 = 2").violations == 5


def test_files_are_divided_into_jobs_and_tasks(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit([log.protocol(), log.metadata()])
    table.commit([table.ids(f"f{n}", *range(n)) for n in range(8)])
    told: list[tuple[str, int, int | None]] = []
    found = looked(
        spark,
        table,
        "id < 5",
        files_per_job=3,
        bytes_per_task=5 << 20,
        progress=lambda *step: told.append(step),
    )
    assert (found.files, found.rows, found.violations) == (8, 28, 3)
    assert [file.path for file in found.worst_files] == ["f7", "f6"]
    assert told == [("files", 3, 8), ("files", 6, 8), ("files", 8, 8)]


@pytest.mark.parametrize("damage", ["gone", "no Parquet", "elsewhere"])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_committed(
    spark: SparkSession, table: Table, damage: str
) -> None:
    if damage == "gone":
        (table.root / "b").unlink()
    elif damage == "no Parquet":
        (table.root / "b").write_bytes(b"PAR1 and no more")
    else:
        table.commit([log.remove("b"), log.add("file:/elsewhere/b")])
    before = table.names()
    kind = RefusedError if damage == "elsewhere" else CorruptTableError
    with pytest.raises(kind) as raised:
        run(spark, table, "1 / coalesce(id, 0) > 0")
    assert str(raised.value.file).endswith("b") and table.names() == before


def test_an_expression_that_fails_on_a_row_fails_the_job(
    spark: SparkSession, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"name": "c", "expression": "1 / (id - 5) < 9"}
    spec = JobSpec(operation="add-constraint", table=str(table.root), options=options)
    # Without ANSI mode, which is Spark 3.5's default, the expression is null for the row.
    ansi = "spark.sql.ansi.enabled"
    before = str(spark.conf.get(ansi))
    spark.conf.set(ansi, "true")
    try:
        assert job.main(["--spec", json.dumps(spec.to_json())]) == 1
    finally:
        spark.conf.set(ansi, before)
    assert "DIVIDE_BY_ZERO" in capsys.readouterr().out
    assert table.open().snapshot().version == 0


@pytest.mark.parametrize(
    ("ids", "status", "checked"),
    [((6, 7), "committed", 7), ((6, -7), "violated", 7)],
    ids=["that satisfy", "that violate"],
)
def test_rows_appended_after_the_check_are_checked_too(
    spark: SparkSession, table: Table, ids: tuple[int, ...], status: str, checked: int
) -> None:
    versions: list[int | None] = []
    inner = SparkConstraintCheck(JobSession(spark=spark, table_uri=str(table.root)))

    def check(snapshot: Any, expression: str, *, added_after: int | None) -> CheckedRows:
        versions.append(added_after)
        found = inner(snapshot, expression, added_after=added_after)
        if len(versions) == 1:
            table.commit([table.ids("late", *ids)])
        return found

    opened = open_table(str(table.root))
    options = AddConstraintOptions(name="positive", expression="id > 0")
    plan = add_constraint.plan(opened.snapshot(), options, context=RunContext.at(datetime.now(UTC)))
    result = add_constraint.apply(
        opened, plan, context=RunContext(new_id=clock.new_id, engine=check)
    )
    assert (result.status, result.checked.rows, result.checks) == (status, checked, 2)
    assert versions == [None, 0]
    present = opened.snapshot().metadata.configuration
    assert bool(present) == (status == "committed")


def test_a_table_in_memory_is_out_of_reach(spark: SparkSession) -> None:
    with pytest.raises(DeltaMaintenanceError, match="memory"):
        SparkConstraintCheck(JobSession(spark=spark, table_uri="memory://x"))

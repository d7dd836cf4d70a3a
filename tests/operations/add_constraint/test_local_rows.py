"""`add-constraint` without Spark: the expressions, the rows, and commits of others meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_maintenance.errors import CorruptTableError, InvalidRequestError
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.add_constraint import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
    CheckedRows,
    ViolatingFile,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.actions import encode_bitmap, z85_encode
from delta_maintenance.protocol.schema import (
    DecimalType,
    DeltaType,
    PrimitiveType,
    StructField,
    StructType,
)
from delta_maintenance.protocol.schema.spark_agreement import obstacle_without_spark
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder, parquet_bytes

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
KINDS: dict[str, DeltaType] = {
    "i": PrimitiveType(name="integer"),
    "l": PrimitiveType(name="long"),
    "m": DecimalType(precision=5, scale=2),
    "w": DecimalType(precision=38, scale=30),
    "f": PrimitiveType(name="double"),
    "s": PrimitiveType(name="string"),
    "b": PrimitiveType(name="boolean"),
    "d": PrimitiveType(name="date"),
    "at": PrimitiveType(name="timestamp"),
    "current_date": PrimitiveType(name="date"),
    "größe": PrimitiveType(name="integer"),
    "n": StructType(
        fields=(StructField(name="x", type=PrimitiveType(name="long"), nullable=True),)
    ),
}
METADATA = {"__COLLATIONS": {"c": "icu.UNICODE_CI"}}, {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
SCHEMA = StructType(
    fields=(
        *(StructField(name=name, type=kind, nullable=True) for name, kind in KINDS.items()),
        *(
            StructField(name=name, type=KINDS["s"], nullable=True, metadata=metadata)
            for name, metadata in zip(("collated", "char"), METADATA, strict=True)
        ),
    )
)


@pytest.mark.parametrize(
    "text",
    [
        "i > 0 AND `L`<>-5 OR NOT I BETWEEN -1 AND 007",
        "m >= .5 AND m IN (1, 2.50) AND m<5.",
        "w > 1.5",
        "f >= 0",
        "s = '' OR s <> 'ä'",
        "b = TRUE AND b <=> false",
        "d >= '2024-02-29' AND d < DATE '9999-12-31'",
        "at IS NOT NULL AND f IS NULL AND collated IS NULL",
    ],
)
def test_values_in_the_form_of_their_type_need_no_spark(text: str) -> None:
    assert obstacle_without_spark(text, SCHEMA) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "other parts than") for text in (
            "i > l", "b", "length(s) > 0", "i + 1 > 2", "0 < i", "i>1or i<0", "s LIKE 'a%'",
            "i > 0 -- a comment", "i = DATE 5", "d = DATE DATE '2024-02-29'", "(i) > 0", "i > 1L",
            "i >", "i IN (1, NULL)", "i IS TRUE", "s = 'a' 'b'", 's = "a"', "größe > 0",
        )),
        *((text, "by rules of its own") for text in (
            "i > '1'", "i > 1.0", "i > +1", "i > 1e3", "i > 2147483648", "s = 1", "s = true",
            "m > 1.555", "m > 1000", "w > 1", "f > 0.5", "f > 12345678", "b = 1", "b = 'true'",
            "d > '2024-2-29'", "d > '2024-02-30'", "s > DATE '2024-02-29'", "s = 'it''s'",
            "d > TIMESTAMP '2024-02-29'", "at > '2024-02-29'", "collated = 'a'", "char = 'a'",
        )),
        *((text, "is not the name of a column") for text in (
            "n.x > 1", "n IS NULL", "nosuch > 1", "current_date IS NULL", "`größe` > 0",
        )),
        ("s = '${x}'", "a dollar sign or a backslash"),
        (r"s = '\n'", "a dollar sign or a backslash"),
        ("i\u00a0> 0", "invisible characters"),
        ("s = '\udcff'", "invisible characters"),
        ("i > 0" + " AND i > 0" * 1_000, "too long"),
    ],
)  # fmt: skip
def test_everything_else_is_left_to_spark(text: str, reason: str) -> None:
    assert reason in str(obstacle_without_spark(text, SCHEMA))


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def file(table: TableBuilder, name: str, *ids: int | None, **add: Any) -> log.Action:
    data = parquet_bytes(rows(*ids), rows_per_group=2)
    table.store.put_if_absent(name, data)
    return log.add(name, size=len(data), **add)


@pytest.fixture
def table() -> TableBuilder:
    """Rows in two files, of one of which a deletion vector deletes the only negative one."""
    table, vector = TableBuilder(), encode_deleted(2)
    files = file(table, "a", 1, 2, -3, dv=vector), file(table, "b", 4, 5)
    table.commit([log.features("deletionVectors"), log.metadata(), *files])
    return table


def encode_deleted(row: int) -> dict[str, Any]:
    data = encode_bitmap(BitMap64([row]))
    return log.deletion_vector(
        z85_encode(data), storage_type="i", sizeInBytes=len(data), cardinality=1
    )


def planned(
    table: TableBuilder, expression: str = "id > 0", name: str = "positive", **more: Any
) -> AddConstraintPlan:
    options = AddConstraintOptions(name=name, expression=expression, **more)
    return add_constraint.plan(table.open().snapshot(), options, context=RunContext.at(NOW))


def apply(
    table: TableBuilder, plan: AddConstraintPlan, meanwhile: Callable[[], object] = lambda: None
) -> AddConstraintResult:
    """Applies a plan; `meanwhile` is called once, after the first check of rows."""
    steps = [meanwhile]

    def progress(*_: object, **__: object) -> None:
        if steps:
            steps.pop()()

    context = RunContext.at(NOW, progress=progress, sleep=lambda _: None)
    return add_constraint.apply(table.open(), plan, context=context)


@pytest.mark.conformance("DV-01", "FEAT-12")
def test_live_rows_are_checked_in_process_and_the_worst_files_are_named(
    table: TableBuilder,
) -> None:
    plan = planned(table)
    assert plan.engine == "local" and "few enough bytes for one process" in plan.reason
    result = apply(table, plan)
    assert (result.status, result.checked) == ("committed", CheckedRows(files=2, rows=4))
    table.commit([file(table, "c", None, 0, 1)], version=2)
    violated = apply(table, planned(table, "id > 1", name="more"))
    assert violated.status == "violated" and violated.checked == CheckedRows(
        files=3,
        rows=7,
        violations=4,
        violating_files=2,
        worst_files=(
            ViolatingFile(path="c", rows=3, violations=3),
            ViolatingFile(path="a", rows=2, violations=1),
        ),
    )
    assert "4 of 7 rows, in 2 of 3 files, do not satisfy id > 1" in str(violated.problem)


@pytest.mark.parametrize(("late", "status"), [((6, 7), "committed"), ((6, None), "violated")])
def test_rows_that_others_commit_after_the_check_are_checked_too(
    table: TableBuilder, late: tuple[int | None, ...], status: str
) -> None:
    result = apply(table, planned(table), lambda: table.commit([file(table, "late", *late)]))
    assert (result.status, result.checks) == (status, 2)
    assert result.checked.rows == 4 + len(late), "the first rows are not read again"
    assert bool(table.open().snapshot().metadata.configuration) == (status == "committed")


def test_a_column_that_gets_another_type_after_the_plan_is_not_compared(
    table: TableBuilder,
) -> None:
    plan = planned(table)
    text = (
        '{"type":"struct","fields":[{"name":"id","type":"string","nullable":true,"metadata":{}}]}'
    )
    table.commit([log.metadata(schema=text)])
    with pytest.raises(InvalidRequestError, match="only Spark can evaluate id > 0, because id is"):
        apply(table, plan)


@pytest.mark.parametrize(
    ("options", "engine", "reason"),
    [
        ({}, "local", "few enough bytes for one process"),
        ({"auto_spark_bytes": 1}, "spark", "more bytes than one process should read"),
        ({"engine": "spark"}, "spark", "Spark was asked for"),
        ({"engine": "local", "auto_spark_bytes": 1}, "local", "the local engine was asked for"),
        ({"expression": "id % 2 = 0"}, "spark", "only Spark can evaluate id % 2 = 0, because"),
    ],
)
def test_the_plan_states_the_engine_and_why(
    table: TableBuilder, options: dict[str, Any], engine: str, reason: str
) -> None:
    plan = planned(table, **options)
    assert plan.engine == engine and reason in plan.reason
    if engine == "spark":
        with pytest.raises(InvalidRequestError, match="Spark"):
            apply(table, plan)


def test_the_local_engine_refuses_what_only_spark_evaluates(table: TableBuilder) -> None:
    with pytest.raises(InvalidRequestError, match=r"has other parts than .*install .*\[spark\]"):
        planned(table, "id % 2 = 0", engine="local")


def test_a_missing_file_is_named_and_nothing_is_committed(table: TableBuilder) -> None:
    plan = planned(table)
    table.store.delete("b")
    with pytest.raises(CorruptTableError) as raised:
        apply(table, plan)
    assert raised.value.file == "b" and table.open().snapshot().version == 0


@given(
    st.lists(st.lists(st.none() | st.integers(-2, 2), max_size=5), max_size=4), st.integers(0, 2)
)
def test_rows_are_counted_by_file(files: list[list[int | None]], least: int) -> None:
    table = TableBuilder()
    adds = [file(table, f"f{at}", *ids) for at, ids in enumerate(files)]
    table.commit([log.protocol(), log.metadata(), *adds])
    checked = apply(table, planned(table, f"id >= {least}")).checked
    bad = [sum(value is None or value < least for value in ids) for ids in files]
    assert (checked.files, checked.rows) == (len(files), sum(map(len, files)))
    assert (checked.violations, checked.violating_files) == (sum(bad), sum(map(bool, bad)))

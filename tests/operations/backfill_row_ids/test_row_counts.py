"""Row counts from footers, where the statistics lack them."""

from __future__ import annotations

import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError
from tests.support.operations.backfills import (
    SUPPORTED,
    apply,
    backfill,
    built,
    counting,
    of,
    operations,
    plan_of,
    stats,
)
from tests.support.operations.row_ids import check, delete
from tests.support.tables import actions as log


@pytest.mark.conformance("RT-12", "DV-14")
def test_row_counts_come_from_footers_if_statistics_lack_them() -> None:
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


def test_an_uncountable_file_keeps_the_protocol_unchanged() -> None:
    table = built(*(log.add(f"f{n}", **({} if n == 2 else {"stats": stats(1)})) for n in range(6)))
    with pytest.raises(RefusedError, match="the rows of 1 file cannot be counted.*f2: gone"):
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
    assert result.problem == "the rows of 1 file cannot be counted"
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


@pytest.mark.conformance("RT-12", "DV-14")
def test_a_count_of_visible_rows_gives_no_row_id_twice() -> None:
    """As another engine's ANALYZE states it for a file with a deletion vector (trino#30343)."""
    vector = log.deletion_vector(cardinality=3)
    visible = '{"numRecords":7,"minValues":{"id":3}}'
    table = built(
        log.add("a", dv=vector, stats=visible),
        log.add("right", dv=vector, stats='{"numRecords":9,"minValues":{"id":3}}'),
        log.add("wide", dv=vector, stats='{"numRecords":5,"tightBounds":false}'),
        log.add("b", stats=stats(2)),
        protocol=log.features("deletionVectors"),
    )
    plan = plan_of(table)
    assert plan.files_to_count == 2
    result = apply(table, plan, engine=counting({"a": 10, "right": 9}))
    assert (result.status, result.high_water_mark) == ("enabled", 25)
    adds = {add["path"]: add for version, add in of(table, "add") if version}
    starts = sorted((adds[path]["baseRowId"], path) for path in adds)
    rows = {"a": 10, "right": 9, "wide": 5, "b": 2}
    ends = [start + rows[path] for start, path in starts]
    assert [start for start, _ in starts] == [0, *ends[:-1]]
    assert adds["a"]["stats"] == '{"numRecords":10}'
    assert adds["right"]["stats"] == '{"numRecords":9,"minValues":{"id":3}}'
    check(table.store)

"""Statistics that the files contradict: `fsck --deep` finds them, and its remedy mends them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan
from delta_maintenance.policies import RunEnvironment
from delta_maintenance.policies.run import run
from delta_maintenance.table.read import Table
from tests.operations.recompute_stats.test_values import SINGLES
from tests.support.operations.statistics_repair import NOW, planned, recompute, statistics
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.table_rows import latest, live_adds
from tests.support.suite.play import examples
from tests.support.tables import actions as log
from tests.support.tables.policy_tables import asked

BOUNDED = [name for name in SINGLES if name != "binary"]
ENGINE = "Apache-Spark/3.5.0 Delta-Lake/3.2.0"
EXACT = Context(prec=60)
MILLISECOND = timedelta(milliseconds=1)


def deep(table: DataTable, **options: Any) -> FsckPlan:
    context = RunContext.at(options.pop("now", NOW))
    return fsck.plan(Table(table.store), FsckOptions(deep=True, **options), context)


def kinds(plan: FsckPlan) -> dict[str, int]:
    return {count.kind: count.count for count in plan.counts}


def table_of(*fields: dict[str, object]) -> DataTable:
    return DataTable(*fields, features=["deletionVectors", "timestampNtz"])


def state(table: DataTable, path: str, stats: Mapping[str, Any], **fields: Any) -> None:
    """Commits other statistics of a file, as another writer would."""
    table.builder.commits[latest(table.store)] = []
    add = live_adds(table.store)[path] | {"stats": dumped(stats), "dataChange": False} | fields
    table.builder.commit([log.commit_info("ANALYZE", engineInfo=ENGINE), {"add": add}])


def delete(table: DataTable, path: str, positions: list[int]) -> None:
    table.builder.commits[latest(table.store)] = []
    table.live = live_adds(table.store)
    table.delete(path, positions)


def dumped(stats: Mapping[str, Any]) -> str:
    """JSON with all digits of its decimals."""
    text = json.dumps(stats, default=lambda number: f"<decimal {number:f}>")
    return re.sub(r'"<decimal ([^"]*)>"', r"\1", text)


def above(value: Any, kind: pa.DataType) -> Any:
    """The next statement of a bound that is greater than a value; None if there is none."""
    return _moved(value, kind, 1)


def below(value: Any, kind: pa.DataType) -> Any:
    return _moved(value, kind, -1)


def _moved(value: Any, kind: pa.DataType, sign: int) -> Any:
    if isinstance(value, bool):
        return sign > 0 if value is (sign < 0) else None
    if isinstance(value, int):
        most = 2 ** (kind.bit_width - 1)
        return value + sign if -most <= value + sign < most else None
    if isinstance(value, float):
        number = np.float32 if kind == pa.float32() else np.float64
        moved = float(np.nextafter(number(value), number(sign * math.inf)))
        # Of two zeros, neither is less.
        return None if math.isinf(moved) or moved == value else moved
    if isinstance(value, Decimal):
        moved = EXACT.add(value, sign * Decimal(1).scaleb(-kind.scale))
        return moved if len(moved.as_tuple().digits) <= kind.precision else None
    if isinstance(value, str):
        return value + "\0" if sign > 0 else value[:-1] if value else None
    try:
        if isinstance(value, datetime):
            local = value.replace(tzinfo=None)
            cut = local.replace(microsecond=local.microsecond // 1000 * 1000) + sign * MILLISECOND
            return cut.isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
        assert isinstance(value, date)
        return (value + timedelta(days=sign)).isoformat()
    except OverflowError:
        return None


def order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.conformance("STAT-01", "STAT-03")
@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=examples(5))
@given(data=st.data())
def test_a_statistic_that_is_false_by_one_unit_is_found_and_mended(
    name: str, data: st.DataObject
) -> None:
    kind, arrow, values = SINGLES[name]
    numbers = values.filter(lambda value: not isinstance(value, float) or not math.isnan(value))
    short = numbers.filter(lambda value: not isinstance(value, str) or len(value.encode()) < 64)
    rows = data.draw(st.lists(short | st.none(), min_size=1, max_size=5))
    deleted = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=len(rows) - 1))
    live = [value for at, value in enumerate(rows) if at not in deleted and value is not None]
    assume(live)
    table = table_of(field("c", kind))
    writing = data.draw(st.sampled_from([{}, {"row_group_size": 2}]))
    [path] = table.append(pa.table({"c": pa.array(rows, arrow)}), writing=writing)
    if deleted:
        table.delete(path, sorted(deleted))
    assert recompute(table.store).status == "recomputed"
    right = statistics(table.store)[path]
    assert kinds(deep(table)) == {}
    # Bounds that are not tight may be those of deleted rows.
    counted = live if right["tightBounds"] else [value for value in rows if value is not None]

    part = data.draw(st.sampled_from(["minValues", "maxValues", "nullCount", "numRecords"]))
    wrong = {**right, "tightBounds": data.draw(st.just(True) if not deleted else st.booleans())}
    if part == "minValues":
        moved = above(min(live, key=order), arrow)
        wrong[part] = {"c": moved}
    elif part == "maxValues":
        moved = below(max(live, key=order), arrow)
        wrong[part] = {"c": moved}
    elif part == "nullCount":
        moved = right[part]["c"] + data.draw(st.sampled_from([1, -1]))
        assume(moved >= 0 and right["tightBounds"])
        wrong |= {part: {"c": moved}, "tightBounds": True}
    else:
        moved = wrong[part] = right[part] + data.draw(st.sampled_from([1, -1]))
        assume(moved >= len(deleted))
    assume(moved is not None and counted)
    state(table, path, wrong)

    plan = deep(table)
    expected = "row-count-differs" if part == "numRecords" else "wrong-statistics"
    assert expected in kinds(plan), (rows, wrong)
    assert plan.status == "corrupt"
    [finding] = [each for each in plan.findings if each.kind == expected]
    assert finding.path == path and ENGINE in finding.problem
    assert "recompute-stats --check-files" in finding.remedy

    assert recompute(table.store, check_files=True).files_recomputed == 1
    assert kinds(deep(table)) == {}
    mended = recompute(table.store, check_files=True)
    assert (mended.status, mended.files_confirmed) == ("nothing-to-do", 1)


@pytest.mark.conformance("STAT-01")
@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=examples(5))
@given(data=st.data())
def test_right_statistics_of_any_writer_are_not_called_wrong(
    name: str, data: st.DataObject
) -> None:
    """Truncated texts, times cut to milliseconds, no NaN, missing parts, wide bounds of vectors."""
    kind, arrow, values = SINGLES[name]
    rows = data.draw(st.lists(values | st.none(), min_size=1, max_size=5))
    table = table_of(field("c", kind))
    [path] = table.append(pa.table({"c": pa.array(rows, arrow)}))
    recompute(table.store)
    physical = statistics(table.store)[path]
    if not data.draw(st.booleans()):
        physical = {part: value for part, value in physical.items() if part != "nullCount"}
    deleted = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=len(rows)))
    if deleted:
        delete(table, path, sorted(deleted))
        state(table, path, physical | {"tightBounds": False}, **_vector(table, path))
    else:
        state(table, path, physical)
    assert kinds(deep(table)) == {}
    before = live_adds(table.store)
    result = recompute(table.store, check_files=True)
    assert result.num_skipped == 0 and (result.files_recomputed == 0 or "nullCount" not in physical)
    assert recompute(table.store, check_files=True).num_commits == 0
    assert before.keys() == live_adds(table.store).keys()


def _vector(table: DataTable, path: str) -> dict[str, Any]:
    return {"deletionVector": table.live[path]["deletionVector"]}


LMT = datetime(1850, 1, 1, tzinfo=UTC) - timedelta(minutes=53, seconds=28)
CUT = "1850-01-01T00:00:00.000+00:53"


@pytest.mark.conformance("STAT-03")
@pytest.mark.parametrize("writing", [{}, {"use_deprecated_int96_timestamps": True}], ids=str)
def test_an_offset_that_was_cut_to_minutes_is_found_and_mended(writing: dict[str, Any]) -> None:
    """As Delta Spark does with a session in Berlin; it stores timestamps as INT96 by default."""
    table = table_of(field("ts", "timestamp"), field("id", "long"))
    rows = pa.table({"ts": pa.array([LMT], pa.timestamp("us", "UTC")), "id": [1]})
    stats = {"minValues": {"ts": CUT, "id": 1}, "maxValues": {"ts": CUT, "id": 1}}
    text = json.dumps({"numRecords": 1, **stats, "nullCount": {"ts": 0, "id": 0}})
    table.append(rows, stats=text, writing=writing)
    assert planned(table.store).is_noop and "--check-files" in planned(table.store).reason
    plan = deep(table)
    assert kinds(plan) == {"wrong-statistics": 1}
    assert "the statistics of ts; added" in plan.findings[0].problem
    assert recompute(table.store, check_files=True).files_recomputed == 1
    [found] = statistics(table.store).values()
    assert found["minValues"]["ts"] == "1849-12-31T23:06:32.000Z"
    assert found["minValues"]["id"] == 1
    assert kinds(deep(table)) == {}


@pytest.mark.conformance("DV-14", "STAT-02")
def test_a_count_of_visible_rows_is_found_and_mended() -> None:
    """As another engine's ANALYZE states it (trinodb/trino#30343)."""
    table = table_of(field("id", "long"))
    [path, _] = table.append(*(pa.table({"id": list(ids)}) for ids in (range(10), (20, 21))))
    recompute(table.store)
    delete(table, path, [0, 1, 2])
    seen = {"numRecords": 7, "minValues": {"id": 3}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    state(table, path, seen)
    assert kinds(deep(table)) == {"row-count-differs": 1}
    result = recompute(table.store, check_files=True)
    assert (result.files_recomputed, result.files_confirmed) == (1, 1)
    assert statistics(table.store)[path] == {**seen, "numRecords": 10, "tightBounds": True}
    assert kinds(deep(table)) == {}


def test_a_column_that_needs_no_statistics_is_compared_and_mended_too() -> None:
    table = DataTable(
        field("a", "long"),
        field("b", "long"),
        configuration={"delta.dataSkippingNumIndexedCols": "1"},
    )
    stats = {"numRecords": 2, "nullCount": {"a": 0, "b": 1}}
    stats |= {"minValues": {"a": 1, "b": 4}, "maxValues": {"a": 2, "b": 5}}
    [path] = table.append(pa.table({"a": [1, 2], "b": [3, 5]}), stats=json.dumps(stats))
    assert planned(table.store).is_noop
    assert kinds(deep(table)) == {"wrong-statistics": 1}
    recompute(table.store, check_files=True)
    right = {**stats, "nullCount": {"a": 0, "b": 0}, "minValues": {"a": 1, "b": 3}}
    assert statistics(table.store)[path] == right
    assert kinds(deep(table)) == {}


def test_a_policy_mends_wrong_statistics_by_itself_unless_its_fsck_finds_them_first() -> None:
    table = table_of(field("a", "long"))
    stats = {"numRecords": 1, "nullCount": {"a": 0}, "minValues": {"a": 2}, "maxValues": {"a": 2}}
    table.append(pa.table({"a": [1]}), stats=json.dumps(stats))

    def maintain(**rules: Any) -> list[tuple[str, str]]:
        result = run(Table(table.store), asked(**rules), environment=RunEnvironment())
        return [(outcome.operation, outcome.status) for outcome in result.outcomes]

    checks = {"statistics": {"check_files": True}}
    assert maintain(fsck={"deep": True}, **checks) == [("fsck", "failed")]
    # The remedy of a person, or the policy without the finding that holds the table back.
    assert maintain(fsck=True, **checks) == [("fsck", "done"), ("recompute-stats", "done")]
    assert kinds(deep(table)) == {}
    assert maintain(fsck={"deep": True}) == [("fsck", "done")]


def test_exact_bounds_that_are_too_wide_are_a_warning() -> None:
    table = table_of(field("a", "long"))
    stats = {"numRecords": 1, "minValues": {"a": 0}, "maxValues": {"a": 1}, "nullCount": {"a": 0}}
    [path] = table.append(pa.table({"a": [1]}), stats=json.dumps(stats))
    plan = deep(table)
    assert (kinds(plan), plan.status) == ({"loose-bounds": 1}, "warnings")
    recompute(table.store, check_files=True)
    assert statistics(table.store)[path]["minValues"] == {"a": 1}
    assert kinds(deep(table)) == {}


def test_samples_open_all_files_after_some_days() -> None:
    table = table_of(field("a", "long"))
    wrong = {"numRecords": 1, "minValues": {"a": 2}, "maxValues": {"a": 2}, "nullCount": {"a": 0}}
    paths = table.append(*(pa.table({"a": [1]}) for _ in range(5)), stats=json.dumps(wrong))
    found: list[str | None] = []
    for day in range(3):
        plan = deep(table, sample=2, now=NOW + timedelta(days=day))
        assert kinds(plan) == {"wrong-statistics": 2}
        assert "2 of them opened" in plan.checked[1]
        found += [each.path for each in plan.findings]
    assert set(found) == set(paths)

"""The report of `layout` on tables whose layout is known."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.layout import (
    LayoutOptions,
    LayoutPlan,
    LayoutResult,
    apply,
    conclusion_of_plan,
    facts,
    plan,
)
from delta_maintenance.operations.layout.measuring import Measured
from delta_maintenance.operations.layout.reading import Column
from delta_maintenance.policies import LastRun
from delta_maintenance.policies.assess import assess
from tests.protocol.statistics.test_probes import FILES, KIND, ROWS, files_of
from tests.support.rewrites.data_files import field, schema_string
from tests.support.tables.actions import Action, add, domain, features, metadata
from tests.support.tables.policy_tables import asked, only
from tests.support.tables.vacuum_tables import NOW, Folder

GIB = 1 << 30
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("Id", "long"), ("other", "long"), ("part", "string"))
    ],
}


def file(
    name: str, first: int, last: int, *, size: int = GIB, part: str = "a", **stats: Any
) -> Action:
    """A file with ids from `first` to `last`, and all values of `other`."""
    stated = {
        "numRecords": 1000,
        "minValues": {"Id": first, "other": 0},
        "maxValues": {"Id": last, "other": 9999},
        "nullCount": {"Id": 0, "other": 0},
        **stats,
    }
    text = json.dumps(stated) if stats.get("numRecords", 1) else None
    return add(name, size=size, partitionValues={"part": part}, stats=text)


def table(*files: Action, more: tuple[Action, ...] = ()) -> Folder:
    made = Folder(
        first=[
            features("clustering", "domainMetadata"),
            metadata(partitioned_by=("part",), schemaString=json.dumps(SCHEMA)),
            *more,
        ]
    )
    if files:
        made.log(*files)
    return made


def report(made: Folder, **options: Any) -> LayoutPlan:
    chosen = LayoutOptions(**{"target_bytes": GIB, **options})
    return plan(made.open().snapshot(), chosen, RunContext.at(NOW))


def apart(count: int = 20, **given: Any) -> Folder:
    """Files that share no id."""
    return table(*(file(f"f{at}", at * 100, at * 100 + 99, **given) for at in range(count)))


def piled(count: int = 20, **given: Any) -> Folder:
    """Files with all ids each."""
    return table(*(file(f"f{at}", 0, 1999, **given) for at in range(count)))


def test_a_column_whose_files_are_apart_does_not_need_clustering() -> None:
    seen = report(apart(), columns=("id",))
    [column] = seen.columns
    assert (column.name, column.average_depth, column.average_overlap) == ("Id", 1, 0)
    assert [(each.up_to, each.files) for each in column.depths] == [(1, 20)]
    assert column.point.bytes == pytest.approx(0.05)
    assert (seen.status, seen.proposals[0].bytes_to_rewrite) == ("does-not-pay", 0)
    assert "no two files" in seen.reason


def test_a_column_whose_files_are_piled_up_gains_by_clustering() -> None:
    seen = report(piled(), columns=("Id",))
    [column], best = seen.columns, seen.proposals[0]
    assert (column.average_depth, column.range.bytes) == (20, 1)
    assert column.range.bytes_after == pytest.approx(0.06, abs=0.02)
    assert (best.old_keys, best.new_keys, best.changed, best.pays) == ((), ("Id",), True, True)
    assert (seen.status, best.bytes_to_rewrite) == ("pays", 20 * GIB)


def test_a_small_table_is_not_worth_it_unless_a_filter_saves_a_gigabyte_and_half_of_it() -> None:
    assert report(piled(size=10**8), target_bytes=10**8).status == "pays"
    seen = report(piled(size=10**7), target_bytes=10**7)
    assert seen.status == "does-not-pay" and "below 10 GiB" in seen.reason


def test_depth_is_counted_inside_partitions() -> None:
    made = table(*(file(f"f{at}", 0, 999, part=f"p{at}") for at in range(20)))
    [column] = report(made, columns=("id",)).columns
    assert (column.average_depth, column.range.bytes, column.range.bytes_after) == (1, 1, 1)


def test_files_without_bounds_of_nulls_and_of_one_value_are_counted() -> None:
    made = table(
        file("none", 0, 0, numRecords=0),
        file("nulls", 0, 0, minValues={}, maxValues={}, nullCount={"Id": 1000, "other": 0}),
        file("one", 7, 7),
        file("many", 7, 9),
    )
    [column] = report(made, columns=("id",)).columns
    assert column.files_without_bounds == 1
    assert (column.files_of_nulls, column.files_of_one_value) == (1, 1)
    # A filter on a value reads the file without bounds, but never that of nulls.
    assert column.point.files == pytest.approx((1 + (1 + 2) / 2) / 4, abs=0.15)


def test_conditions_are_measured_now_and_after() -> None:
    seen = report(piled(), where=("Id < 100", "Id < 100 AND f(other) = 1", "part = 'b'"))
    by_text = {each.condition: each for each in seen.conditions}
    plain = by_text["Id < 100"]
    assert (plain.files, plain.bytes, plain.bytes_skipped) == (20, 20 * GIB, 0)
    assert plain.bytes_skipped_after == pytest.approx(0.95, abs=0.06)
    assert by_text["Id < 100 AND f(other) = 1"].not_understood == ("f(other) = 1",)
    note = "not understood, or no column of the table, so skipping nothing here"
    assert seen.notes == (f"{note}: f(other) = 1",)
    assert by_text["part = 'b'"].files == 0
    assert seen.bytes_skipped == pytest.approx(1 / 3, abs=0.001)
    assert seen.proposals[0].new_keys == ("Id",)


def test_people_see_a_part_of_a_long_condition() -> None:
    long = "f(Id) > " + "1" * 100_000
    seen = report(piled(), where=(long, "lost = 1"), fail_under=50)
    assert {each.condition for each in seen.conditions} == {long, "lost = 1"}
    assert "no column of the table, so skipping nothing here: f(Id) > 1111" in seen.notes[0]
    assert seen.reason.startswith("the conditions compare no column")
    shown = f"{facts(seen)} {conclusion_of_plan(seen)}"
    assert "lost = 1" in shown and len(shown) < 10_000


def test_two_columns_are_proposed_if_conditions_compare_both() -> None:
    made = table(*(file(f"f{at}", 0, 1999) for at in range(100)))
    seen = report(made, where=("id = 7", "other = 7"))
    assert set(seen.proposals[0].new_keys) == {"Id", "other"}
    assert seen.proposals[0].bytes_read_after == pytest.approx(0.1, abs=0.05)


def test_good_old_keys_are_kept() -> None:
    key = domain(
        "delta.clustering", {"clusteringColumns": [["Id"]], "domainName": "delta.clustering"}
    )
    made = table(*(file(f"f{at}", 0, 1999) for at in range(20)), more=(key,))
    seen = report(made, columns=("other",))
    best = next(each for each in seen.proposals if each.new_keys == ("Id",))
    other = next(each for each in seen.proposals if each.new_keys == ("other",))
    assert (best.old_keys, best.changed, best.pays) == (("Id",), False, True)
    assert not other.changed and "the old keys gain as much" in other.reason
    assert (seen.clustering_columns, seen.clustering_depth) == (("Id",), 20)


def test_the_gate_closes_if_too_little_is_skipped() -> None:
    record, made = find("layout"), apart()
    closed = report(made, where=("Id < 1000",), fail_under=51)
    conclusion = record.conclusion_of_plan(closed)
    assert (closed.status, conclusion.outcome.exit_status) == ("below", 1)
    assert conclusion.problem is not None and "Id < 1000" in conclusion.problem
    assert record.conclusion(apply(made.open(), closed)).outcome.exit_status == 1
    opened = report(made, where=("Id < 1000",), fail_under=50)
    assert record.conclusion_of_plan(opened).outcome.exit_status == 0


def test_a_report_survives_json() -> None:
    made = apply(piled().open(), report(piled(), where=("id = 1",)))
    assert LayoutResult.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"fail_under": 5}, "needs conditions"),
        ({"fail_under": 500, "where": ("id = 1",)}, "less than or equal to 100"),
        ({"columns": ("nothing",)}, "nothing is not a column"),
        ({"columns": ("part",)}, "part is not a column"),
        ({"queries": "/no/such/file.sql"}, "does not exist"),
    ],
)
def test_invalid_requests_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        report(apart(), **options)


def test_an_empty_table_has_a_report() -> None:
    seen = report(table(), where=("id = 1",))
    assert (seen.status, seen.files, seen.proposals) == ("does-not-pay", 0, ())
    assert [each.average_depth for each in seen.columns] == [0, 0]


@pytest.mark.parametrize(
    ("kind", "least", "greatest"),
    [("string", "a" * (2 << 20), "z" * (2 << 20)), ("decimal(38,0)", -(10**38 - 1), 10**38 - 1)],
    ids=["text", "decimal"],
)
def test_bounds_may_be_as_far_apart_as_their_type_allows(
    kind: str, least: Any, greatest: Any
) -> None:
    made = Folder(first=[features(), metadata(schemaString=schema_string(field("c", kind)))])
    bounds = {"minValues": {"c": least}, "maxValues": {"c": greatest}, "nullCount": {"c": 0}}
    made.log(*(add(f"f{n}", stats=json.dumps({"numRecords": 1000, **bounds})) for n in range(2)))
    (column,) = report(made, where=("c = '5'", f"c > '{greatest}'")).columns
    assert (column.average_depth, column.range.bytes) == (2, 1)


def test_a_policy_makes_the_report_due_if_clustering_would_pay_and_once_it_no_longer_pays() -> None:
    rule = {"columns": ["id"]}
    seen = only(assess(piled().open().snapshot(), asked(layout=rule), now=NOW))
    assert (seen.status, seen.operation) == ("due", "layout")
    assert "clustering by" in seen.reason
    good = only(assess(apart().open().snapshot(), asked(layout=rule), now=NOW))
    assert good.status == "not-due" and "does not pay" in good.reason
    unknown = only(assess(piled().open().snapshot(), asked(layout={}), now=NOW))
    assert unknown.status == "not-due" and "neither conditions nor" in unknown.reason
    last = LastRun(operation="layout", at=NOW - timedelta(days=1), version=1, status="pays")
    later = only(assess(piled().open().snapshot(), asked(layout={}), now=NOW, last_runs=(last,)))
    assert (later.status, later.due_at) == ("not-due", NOW + timedelta(days=6))
    # The last report is outdated, and pages show it.
    told = LastRun(operation="layout", at=NOW - timedelta(days=8), version=1, status="pays")
    outdated = assess(apart().open().snapshot(), asked(layout=rule), now=NOW, last_runs=(told,))
    assert only(outdated).status == "due"


def test_statistics_in_columns_and_in_json_give_the_same_report(tmp_path: Path) -> None:
    made = Folder(
        tmp_path,
        first=[
            features("clustering", "domainMetadata"),
            metadata(
                partitioned_by=("part",),
                schemaString=json.dumps(SCHEMA),
                configuration={
                    "delta.checkpoint.writeStatsAsStruct": "true",
                    "delta.checkpoint.writeStatsAsJson": "false",
                },
            ),
        ],
    )
    made.log(*(file(f"f{at}", at, at + 10) for at in range(20)), file("none", 0, 0, numRecords=0))
    before = report(made)
    opened = made.open()
    checkpoint.apply(opened, checkpoint.plan(opened.snapshot()))
    [parquet] = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    adds = pq.read_table(parquet)["add"].combine_chunks()
    assert pc.struct_field(adds, "stats_parsed").null_count < len(adds)
    assert report(made).columns == before.columns


def test_planned_files_have_the_range_of_the_files_that_were_measured() -> None:
    values = np.random.default_rng(3).integers(0, 10**6, (FILES, ROWS))
    files = files_of(values, np.arange(FILES) % 2)
    measured = Measured(files, 1 << 20)
    measured.column(
        Column(names=("a",), path=("a",), physical=("a",), kind=KIND, is_partition=False)
    )
    planned = measured.cluster_by([("a",)]).columns[("a",)]
    assert pc.min(planned.least).as_py() == values.min()
    assert pc.max(planned.greatest).as_py() == values.max()

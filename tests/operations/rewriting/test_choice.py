"""Which files are rewritten, and together: with gain, in order, and not again right afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations.rewriting.choice import (
    OFTEN,
    Choice,
    ChoiceRules,
    choose,
    known_ratio,
    limited,
    not_too_often,
)
from delta_maintenance.operations.rewriting.live_columns import LiveColumns, Replaced
from delta_maintenance.protocol.statistics.clustering import CLUSTERING_TAGS

TARGET = 1000
RULES = ChoiceRules(target_bytes=TARGET, small_bytes=750)


def live(*files: dict[str, Any], partitions: int = 1) -> LiveColumns:
    """Columns of files that are given by the fields in which they differ from a plain one."""
    plain: dict[str, Any] = {
        "size": 100,
        "modified": 0,
        "rows": 10,
        "deleted": 0,
        "target": 0,
        "clustered": False,
        "partition": 0,
    }
    whole = [plain | {"path": f"f{at:04d}"} | file for at, file in enumerate(files)]

    def column(name: str) -> Any:
        return np.array([file[name] for file in whole], np.int64)

    providers = ["liquid" if file["clustered"] else None for file in whole]
    return LiveColumns(
        provider=pa.chunked_array([pa.array(providers, pa.string()).dictionary_encode()]),
        tags=pa.table({name: pa.nulls(len(whole), pa.string()) for name in CLUSTERING_TAGS}),
        path=pa.chunked_array([pa.array([file["path"] for file in whole], pa.string())]),
        vector=pa.chunked_array([pa.nulls(len(whole), pa.string())]),
        partitions={"p": pa.array([str(at) for at in range(partitions)])},
        last_write=np.zeros(partitions, np.int64),
        doubled=np.zeros(len(whole), np.bool_),
        respelled=np.zeros(len(whole), np.bool_),
        replaced=Replaced(*(np.zeros(0, kind) for kind in (np.int64, np.int64, np.bool_))),
        **{name: column(name) for name in plain if name != "clustered"},
    )


def bins(choice: Choice) -> list[list[int]]:
    return [choice.rows_of(number).tolist() for number in range(choice.bin_count)]


files = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.integers(0, 2500),
            "modified": st.integers(0, 5),
            "deleted": st.sampled_from([0, 0, 0, 1, 5, 10]),
            "target": st.sampled_from([0, 0, TARGET, TARGET // 2, 10]),
            "partition": st.integers(0, 2),
        }
    ),
    max_size=25,
)


@given(files)
@pytest.mark.conformance("RW-02", "RW-04", "RW-05", "RW-26", "PART-09")
def test_each_bin_is_of_one_partition_in_order_and_worth_it(found: list[dict[str, Any]]) -> None:
    columns = live(*found, partitions=3)
    choice = choose(columns, RULES)
    assert len(set(choice.rows.tolist())) == len(choice.rows)
    for rows in bins(choice):
        assert len({int(columns.partition[row]) for row in rows}) == 1
        keys = [(columns.modified[row], columns.path[row].as_py()) for row in rows]
        assert keys == sorted(keys)
        for row in rows:
            assert choice.reasons_of(row)
        if len(rows) == 1:
            assert choice.reasons_of(rows[0]) != ("small",)
        else:
            sizes = columns.live_bytes[rows]
            assert (sizes < 750).all() and sizes.sum() < 3 * TARGET
    parts = [int(columns.partition[rows[0]]) for rows in bins(choice)]
    assert parts == sorted(parts)
    for row in np.flatnonzero(columns.deleted > 0.05 * columns.rows):
        assert row in choice.rows


def _described(columns: LiveColumns) -> list[dict[str, Any]]:
    names = ("size", "modified", "rows", "deleted", "target", "partition")
    return [
        {
            "path": columns.path[row].as_py(),
            **{name: int(getattr(columns, name)[row]) for name in names},
        }
        for row in range(columns.count)
    ]


def applied(
    columns: LiveColumns, choice: Choice, ratio: float, *, name: str = "new"
) -> LiveColumns:
    """The files after the bins were rewritten."""
    gone = set(choice.rows.tolist())
    after = [file for row, file in enumerate(_described(columns)) if row not in gone]
    for number, rows in enumerate(bins(choice)):
        left = int((columns.rows[rows] - columns.deleted[rows]).sum())
        if left:
            after.append(
                {
                    "path": f"{name}{number}",
                    "size": int(columns.live_bytes[rows].sum() * ratio),
                    "modified": 100,
                    "rows": left,
                    "target": TARGET,
                    "partition": int(columns.partition[rows[0]]),
                }
            )
    return live(*after, partitions=3)


RATIOS = st.sampled_from([0.2, 0.3, 0.6, 0.9, 1.0])


@given(files, st.sampled_from([0.3, 0.6, 0.9, 1.0, 1.3]), RATIOS, RATIOS)
@settings(max_examples=300)
@pytest.mark.conformance("RW-04", "RW-06")
def test_a_second_run_right_after_plans_nothing(
    found: list[dict[str, Any]], ratio: float, expected: float, learnt: float
) -> None:
    columns = live(*found, partitions=3)
    once = choose(columns, RULES, ratio=expected)
    after = applied(columns, once, ratio)
    assert after.count <= columns.count
    assert bins(choose(after, RULES, ratio=learnt)) == []


def test_small_files_are_merged_into_about_equal_shares() -> None:
    choice = choose(live(*({"size": 100} for _ in range(35))), RULES)
    assert [len(rows) for rows in bins(choice)] == [9, 8, 9, 9]
    # Less than half a file is no file of its own.
    assert [len(rows) for rows in bins(choose(live(*({"size": 100},) * 14), RULES))] == [14]
    assert [len(rows) for rows in bins(choose(live(*({"size": 100},) * 15), RULES))] == [7, 8]


def test_what_rewrites_made_of_this_table_so_far_counts() -> None:
    """Rewriting made little of the bytes of a row; the limit is a tenth."""
    made = {"size": 10_000, "rows": 10_000, "target": TARGET}
    others = [{"size": 600, "rows": 50} for _ in range(40)]
    columns = live(made, *others)
    ratio = known_ratio(columns)
    assert ratio == 0.1
    choice = choose(columns, RULES, ratio=ratio)
    assert [len(rows) for rows in bins(choice)] == [20, 20]
    assert known_ratio(live(*others)) is None


def test_a_file_of_the_target_size_is_not_rewritten_because_it_would_shrink() -> None:
    columns = live(*({"size": 1200} for _ in range(6)), {"size": 100}, {"size": 100})
    assert bins(choose(columns, RULES, ratio=0.3)) == [[6, 7]]


@pytest.mark.conformance("RW-05")
def test_a_partition_with_too_few_small_files_is_left_alone() -> None:
    columns = live(*({"partition": part} for part in (0, 0, 1, 1, 1)), partitions=2)
    rules = replace(RULES, min_files=3)
    assert bins(choose(columns, rules)) == [[2, 3, 4]]


def test_a_lone_file_takes_a_reason_of_its_own() -> None:
    assert bins(choose(live({"size": 10}), RULES)) == []
    assert bins(choose(live({"size": 10, "deleted": 1}), RULES)) == [[0]]
    assert bins(choose(live({"size": 5000, "rows": 100, "deleted": 5}), RULES)) == []
    assert bins(choose(live({"size": 5000, "rows": 100, "deleted": 6}), RULES)) == [[0]]
    # How many rows there are is not known, and then any is too many.
    assert bins(choose(live({"size": 5000, "rows": -1, "deleted": 1}), RULES)) == [[0]]
    footers = {"codec": np.array([True, False])}
    found = choose(live({"size": 5000}, {"size": 5000}), RULES, footers=footers)
    assert bins(found) == [[0]] and found.reasons_of(0) == ("codec",)


def test_all_reasons_are_served_by_one_pass() -> None:
    columns = live({"size": 10, "deleted": 5}, {"size": 10}, {"size": 5000, "deleted": 5})
    choice = choose(columns, RULES)
    assert bins(choice) == [[0, 1], [2]]
    assert choice.reasons_of(0) == ("deleted-rows", "small")


@pytest.mark.conformance("RW-07", "CLU-04")
def test_clustered_files_and_hot_partitions_are_left_alone_and_named() -> None:
    columns = live(
        {"clustered": True},
        {"clustered": True, "deleted": 9},
        {},
        {},
        {"partition": 1},
        {"partition": 1},
        partitions=2,
    )
    written_lately = np.array([False, True])
    choice = choose(columns, RULES, written_lately=written_lately)
    assert bins(choice) == [[2, 3]]
    assert choice.left["clustered"].tolist() == [True, True, False, False, False, False]
    assert choice.left["written-lately"].tolist() == [False] * 4 + [True] * 2
    assert bins(choose(columns, replace(RULES, full=True))) == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.conformance("RW-06")
def test_a_file_of_an_earlier_rewrite_waits_for_enough_new_bytes() -> None:
    own = {"size": 500, "target": TARGET}
    assert bins(choose(live(own, {"size": 10}, {"size": 10}), RULES)) == [[1, 2]]
    assert bins(choose(live(own, {"size": 100}, {"size": 100}), RULES)) == [[0, 1, 2]]
    # It was made for a much smaller target: it is as small as any other.
    old = own | {"target": 100}
    assert bins(choose(live(old, old), RULES)) == [[0, 1]]


@pytest.mark.conformance("RW-06")
@pytest.mark.parametrize(("size", "most"), [(5, 7), (20, 5), (60, 4)])
def test_each_byte_is_written_a_few_times_however_small_the_appends_are(
    size: int, most: int
) -> None:
    """A run after each append of two files; the weekly limit would allow fewer rewrites."""
    columns, written, appends = live(partitions=3), 0, 3 * TARGET // (2 * size)
    for at in range(appends):
        append = [{"path": f"{at}-{n}", "size": size, "modified": at} for n in range(2)]
        columns = live(*_described(columns), *append, partitions=3)
        choice = choose(columns, RULES)
        written += int(columns.size[choice.rows].sum())
        columns = applied(columns, choice, 1.0, name=f"new{at}-")
    assert written <= most * appends * 2 * size


def test_budgets_take_what_removes_most_files_for_its_bytes() -> None:
    columns = live(
        *({"size": 500, "partition": 0} for _ in range(2)),
        *({"size": 10, "partition": 1} for _ in range(5)),
        partitions=2,
    )
    choice = choose(columns, RULES)
    assert bins(choice) == [[0, 1], [2, 3, 4, 5, 6]]
    assert bins(limited(columns, choice, max_bytes=999, max_files=None)) == [[2, 3, 4, 5, 6]]
    assert bins(limited(columns, choice, max_bytes=None, max_files=4)) == [[0, 1]]
    assert bins(limited(columns, choice, max_bytes=10, max_files=None)) == []
    assert bins(limited(columns, choice, max_bytes=None, max_files=None)) == bins(choice)


def test_an_empty_selection_is_not_an_error() -> None:
    assert bins(choose(live(), RULES)) == []


def test_files_of_earlier_rewrites_are_written_again_within_a_budget() -> None:
    made = {"size": 400, "target": 100}
    columns = live(
        *({**made, "partition": 0} for _ in range(2)),
        *({"size": 100, "partition": 1} for _ in range(2)),
        {**made, "size": 300, "partition": 2},
        {"size": 200, "partition": 2},
        {**made, "deleted": 10, "partition": 3},
        partitions=4,
    )
    choice = choose(columns, RULES)
    new, few, many, own = [2, 3], [4, 5], [0, 1], [6]
    assert bins(choice) == [many, new, few, own]
    # The bin with 300 bytes of an earlier rewrite comes before the bin with 800. Bins without such
    # bytes, or with a reason of their own, cost nothing.
    for budget, expected in (
        (0, [new, own]),
        (299, [new, own]),
        (300, [new, few, own]),
        (1099, [new, few, own]),
        (1100, [many, new, few, own]),
    ):
        within = not_too_often(columns, choice, budget=budget)
        assert bins(within) == expected, budget
        late = np.flatnonzero(within.left.get(OFTEN, np.zeros(7, np.bool_))).tolist()
        assert late == sorted({*range(7)} - {row for each in expected for row in each}), budget
    assert bins(not_too_often(live(), choose(live(), RULES), budget=0)) == []

"""The choice within a budget, on any due operations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.policies.budget.choice import (
    CHEAP_SHARE,
    Budget,
    BudgetChoice,
    DueWork,
    Part,
    Stage,
    Unit,
    choose,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DAY = timedelta(days=1)
_AMOUNTS = st.floats(0, 100, allow_nan=False)


def work(
    table: str,
    *parts: tuple[float, float],
    stage: Stage = "files",
    waits: float = 0,
    owner: str | None = None,
) -> DueWork:
    """Parts are pairs of a gain and seconds."""
    return DueWork(
        table=table,
        operation="optimize",
        stage=stage,
        due_since=NOW - waits * DAY,
        interval=DAY,
        parts=tuple(Part(gain=gain, cost={"cpu_seconds": cost}) for gain, cost in parts),
        owner=owner,
    )


def budget(
    seconds: float,
    *,
    limits: Mapping[Unit, float] | None = None,
    most_intervals: float = 7,
    owner_shares: Mapping[str, float] | None = None,
) -> Budget:
    amounts: Mapping[Unit, float] = {"cpu_seconds": seconds} if limits is None else limits
    return Budget(
        limits=amounts,
        most_intervals=most_intervals,
        every=DAY,
        owner_limits={
            owner: {unit: share * limit for unit, limit in amounts.items()}
            for owner, share in (owner_shares or {}).items()
        },
    )


def tables_of(choice: BudgetChoice) -> list[tuple[str, int, str]]:
    return [(chosen.work.table, chosen.parts, chosen.why) for chosen in choice.chosen]


def test_the_most_gain_for_its_cost_comes_first_and_parts_fill_the_rest() -> None:
    due = [
        work("large", (900, 100)),
        work("dense", (100, 5), (50, 5), (1, 5)),
        work("cheap", (10, 1)),
    ]
    choice = choose(due, budget(11), now=NOW)
    assert tables_of(choice) == [("dense", 2, "gain"), ("cheap", 1, "gain")]
    assert choice.spent == {"cpu_seconds": 11}
    [deferred] = choice.deferred
    assert (deferred.work.table, deferred.better) == ("large", 2)
    assert (deferred.needs, deferred.left) == (100 / 11, 0)


def test_a_first_part_that_pays_with_later_ones_is_taken_with_them() -> None:
    due = [work("opens", (1, 5), (100, 1)), work("plain", (5, 1))]
    assert tables_of(choose(due, budget(6), now=NOW)) == [("opens", 2, "gain")]


def test_repairs_come_first_and_may_exceed_the_budget_once() -> None:
    due = [
        work("fast", (1_000, 1)),
        work("broken", (0, 8), stage="repair"),
        work("broken too", (0, 8), stage="repair"),
        work("broken, too", (0, 8), stage="repair"),
    ]
    choice = choose(due, budget(10), now=NOW)
    assert tables_of(choice) == [("broken", 1, "repair"), ("broken too", 1, "repair")]


def test_cheap_upkeep_of_the_log_goes_before_rewriting() -> None:
    log = work("log", (1, 100 * CHEAP_SHARE), stage="log")
    dear = work("dear log", (1, 100 * CHEAP_SHARE + 1), stage="log")
    due = [work("files", (1_000, 99)), log, dear]
    assert tables_of(choose(due, budget(100), now=NOW)) == [("log", 1, "log"), ("files", 1, "gain")]


def test_what_waits_as_long_as_it_may_is_done_by_its_first_part() -> None:
    due = [
        work("dense", (1_000, 10), (1_000, 10)),
        work("poor", (1, 5), (1, 50), waits=7),
        work("young", (1, 5), waits=5),
    ]
    choice = choose(due, budget(20), now=NOW)
    assert tables_of(choice) == [
        ("poor", 1, "deadline"),
        ("dense", 1, "gain"),
        ("young", 1, "gain"),
    ]
    assert choice.keeps_deadlines


def test_many_deadlines_are_met_before_they_come_together() -> None:
    """Eight tables of 10 s do not fit into three quarters of the two nights of 40 s that follow."""
    due = [work(f"old {number}", (1, 10), waits=5) for number in range(8)]
    choice = choose([*due, work("dense", (1_000, 20))], budget(40), now=NOW)
    assert tables_of(choice) == [
        ("old 0", 1, "deadline"), ("old 1", 1, "deadline"), ("dense", 1, "gain")
    ]  # fmt: skip
    assert choice.keeps_deadlines
    assert not choose(due * 2, budget(40), now=NOW).keeps_deadlines


def test_the_most_gain_comes_first_among_deadlines_of_the_same_day() -> None:
    """On the first night, all of a neglected lake is due since moments that differ by seconds."""
    due = [work(f"t{gain}", (gain, 10), waits=(30 - gain) / 86_400) for gain in range(1, 30)]
    choice = choose(due, budget(20), now=NOW)
    assert tables_of(choice) == [("t29", 1, "deadline"), ("t28", 1, "deadline")]


def test_the_share_of_an_owner_leaves_the_rest_to_others() -> None:
    due = [
        *(work(f"a{number}", (100, 10), owner="a") for number in range(3)),
        work("b", (1, 10), owner="b"),
    ]
    choice = choose(due, budget(40, owner_shares={"a": 0.5}), now=NOW)
    assert tables_of(choice) == [("a0", 1, "gain"), ("a1", 1, "gain"), ("b", 1, "gain")]


def test_what_an_owner_has_left_is_no_share_of_what_all_have_left() -> None:
    """Others have spent most of a day, of which the owner has spent nothing."""
    due = [work("a", (100, 15), owner="a"), work("b", (100, 1), owner="b")]
    limits = replace(
        budget(20), owner_limits={"a": {"cpu_seconds": 16.0}, "b": {"cpu_seconds": -1.0}}
    )
    choice = choose(due, limits, now=NOW)
    assert tables_of(choice) == [("a", 1, "gain")]
    [deferred] = choice.deferred
    assert (deferred.needs, deferred.left) == (1 / 20, 0)
    free = [work("b", (1, 0), owner="b"), work("b too", (1, 0), owner="b", stage="repair")]
    assert choose(free, limits, now=NOW).chosen == ()


def test_no_deadline_is_too_far_away() -> None:
    due = [work("t", (1, 5), waits=-1_000_000), work("old", (1, 5), waits=20_000)]
    for number in (1.0, 1e7, 1e300):
        choice = choose(due, budget(1, most_intervals=number), now=NOW)
        assert [item.work.table for item in choice.chosen] == ["old"] * (number == 1)


@given(st.permutations([work(f"{at}", (at % 3, 4), stage="files") for at in range(6)]))
def test_the_order_of_the_tables_does_not_matter(due: list[DueWork]) -> None:
    choice = choose(due, budget(10), now=NOW)
    assert [item.work.table for item in choice.chosen] == ["2", "5"]
    assert [item.work.table for item in choice.deferred] == ["1", "4", "0", "3"]


def test_of_several_limits_the_scarcest_counts() -> None:
    def of(table: str, seconds: float, requests: float) -> DueWork:
        part = Part(gain=10, cost={"cpu_seconds": seconds, "requests": requests})
        return DueWork(
            table=table, operation="optimize", stage="files", due_since=NOW, interval=DAY,
            parts=(part,),
        )  # fmt: skip

    limits: Mapping[Unit, float] = {"cpu_seconds": 100, "requests": 10}
    choice = choose([of("requests", 1, 9), of("seconds", 50, 1)], budget(0, limits=limits), now=NOW)
    assert tables_of(choice) == [("seconds", 1, "gain"), ("requests", 1, "gain")]


_WORK = st.lists(
    st.builds(
        lambda parts, stage, waits, owner: work("t", *parts, stage=stage, waits=waits, owner=owner),
        st.lists(st.tuples(_AMOUNTS, _AMOUNTS), min_size=1, max_size=4),
        st.sampled_from(["repair", "log", "files", "files"]),
        st.floats(0, 20),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


@given(_WORK, st.floats(1, 200), st.floats(0.1, 1))
def test_the_budget_is_exceeded_by_one_operation_at_most(
    due: list[DueWork], seconds: float, share: float
) -> None:
    choice = choose(due, budget(seconds, owner_shares={"a": share}), now=NOW)
    assert len(choice.chosen) + len(choice.deferred) == len(due)
    spent = [
        part.cost["cpu_seconds"] for item in choice.chosen for part in item.work.parts[: item.parts]
    ]
    assert math.isclose(sum(spent), choice.spent["cpu_seconds"], abs_tol=1e-6)
    over = [item.work for item in choice.chosen if item.why in ("repair", "deadline")]
    most = max((sum(part.cost["cpu_seconds"] for part in item.parts) for item in over), default=0)
    assert sum(spent) <= seconds + most + 1e-6
    of_owner = sum(
        part.cost["cpu_seconds"]
        for item in choice.chosen
        if item.work.owner == "a"
        for part in item.work.parts[: item.parts]
    )
    assert of_owner <= share * seconds + most + 1e-6


@given(_WORK, _WORK, st.floats(1, 200))
def test_another_table_does_not_change_the_order_of_two(
    due: list[DueWork], others: list[DueWork], seconds: float
) -> None:
    due = [item for item in due if item.stage == "files"]
    limits = budget(seconds, most_intervals=1e6)
    rows = {id(item): at for at, item in enumerate(due)}

    def order(choice: BudgetChoice) -> list[int]:
        return [rows[id(item.work)] for item in choice.deferred if id(item.work) in rows]

    alone, beside = (
        order(choose(due, limits, now=NOW)),
        order(choose(due + others, limits, now=NOW)),
    )
    both = set(alone) & set(beside)
    assert [at for at in alone if at in both] == [at for at in beside if at in both]

"""What a run does on each table within a budget, on real tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from delta_maintenance.address import identity_of
from delta_maintenance.errors import BusyError
from delta_maintenance.operations.core.assessment import WorkPart
from delta_maintenance.policies import Assessment
from delta_maintenance.policies.approval import Approvals
from delta_maintenance.policies.assess import assess
from delta_maintenance.policies.budget.account import BudgetAccount
from delta_maintenance.policies.budget.choice import Gain
from delta_maintenance.policies.budget.debt import due_work, gain_of, in_requests, risk_of
from delta_maintenance.policies.budget.estimates import Correction, CostHistory
from delta_maintenance.policies.budget.selection import (
    Allotment,
    Selection,
    TableBudget,
    choice_text,
    select_work,
    spared_text,
)
from delta_maintenance.policies.definition.budget import BudgetRule
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.measuring import Cost, ExpectedCost
from delta_maintenance.policies.models import OperationOutcome, with_due_since
from delta_maintenance.storage import MemoryStore
from tests.support.tables.policy_tables import Ticking, asked, neglected, run_on, statuses
from tests.support.tables.vacuum_tables import NOW

RULES: dict[str, Any] = {"checkpoint": {"max_commits": 3}, "vacuum": True}


def account(store: MemoryStore | None = None, **limits: Any) -> BudgetAccount:
    rule = BudgetRule.model_validate(limits or {"day": {"requests": 10**9}})
    return BudgetAccount(rule=rule, run_id="run", store=store, now=lambda: NOW)


def table_of(name: str, commits: int = 12, **rules: Any) -> tuple[Assessment, PolicyTable]:
    policy_table = asked(name=name, **(rules or RULES))
    assessment = assess(neglected(commits).open().snapshot(), policy_table, now=NOW)
    assert assessment.health is not None
    fresh = replace(assessment.health, oldest_commit_since_checkpoint=NOW - timedelta(days=1))
    return replace(assessment, health=fresh), policy_table


def selected(*tables: tuple[Assessment, PolicyTable], **limits: Any) -> Selection:
    return select_work(tables, account(**limits), CostHistory(), now=NOW)


def states(selection: Selection, assessment: Assessment) -> dict[str, str]:
    return {each.operation: each.status for each in selection.defer(assessment).operations}


def test_what_does_not_fit_waits_with_a_reason_and_a_time() -> None:
    small, large = table_of("small", 8), table_of("large", 60)
    chosen = selected(small, large, day={"processor_time": timedelta(milliseconds=90)})
    assert states(chosen, large[0])["checkpoint"] == "due"
    waiting = chosen.defer(small[0])
    assert waiting.status == "deferred" and waiting.due == ()
    assert waiting.next_due_at == chosen.until
    for operation in waiting.operations:
        before, _, why = operation.reason.partition(", but deferred until 2026-07-01T00:00:00Z: ")
        assert operation.status == "deferred" and before
        assert "of the processor time" in why
        assert operation.due_at is not None and operation.due_at.hour == 0
    assert Selection.from_json(chosen.to_json()) == chosen


def test_without_limits_of_a_day_the_next_run_decides_again() -> None:
    pair = table_of("t")
    chosen = selected(pair, run={"requests": 1})
    assert chosen.until is None
    reasons = [each.reason for each in chosen.defer(pair[0]).operations if each.status != "due"]
    assert reasons and all("but deferred to the next run: " in reason for reason in reasons)


def test_what_a_run_has_no_room_for_may_fit_into_the_next_one_of_the_day() -> None:
    pair = table_of("t")
    limits = {"day": {"requests": 1000}, "run": {"requests": 1}}
    chosen = selected(pair, **limits)
    assert chosen.until is None and chosen.choice.deferred
    budget = TableBudget(table=pair[1], account=account(**limits))
    budget._spent.add("vacuum")
    assert "but deferred to the next run: " in budget.defer(pair[0]).operations[-1].reason


def test_the_share_of_an_owner_counts_what_it_has_spent() -> None:
    limits = {"day": {"processor_time": "100 s"}, "owners": {"finance": 0.4}}
    assessment, policy_table = table_of("t")
    assessment = replace(assessment, owner="finance")
    for owner, seconds, chosen in (("finance", 40.0, 0), ("sales", 99.0, 2)):
        shared = account(MemoryStore(), **limits)
        booked = shared.begin({"cpu_seconds": seconds}, owner=owner)
        assert booked is not None
        history = CostHistory(
            of_table={
                (identity_of(policy_table.uri), due.operation): Correction(
                    {"cpu_seconds": 0.45 / CostHistory().expected("t", due).costs["cpu_seconds"]},
                    1,
                    1,
                    1,
                )
                for due in assessment.due
            }
        )
        choice = select_work([(assessment, policy_table)], shared, history, now=NOW).choice
        assert len(choice.chosen) == chosen, "0.45 s each"


def test_a_budget_that_is_spent_defers_everything_and_names_what_is_spent() -> None:
    spent = account(day={"requests": 5, "processor_time": "1 h"})
    booked = spent.begin({"requests": 9.0}, owner=None)
    assert booked is not None
    pair = table_of("t")
    chosen = select_work([pair], spent, CostHistory(), now=NOW)
    assert not chosen.choice.chosen and chosen.defer(pair[0]).due == ()
    assert {item.work.operation for item in chosen.choice.deferred} == {"checkpoint", "vacuum"}
    assert "the budget of requests is spent" in chosen.defer(pair[0]).operations[0].reason


def test_without_ranking_everything_runs_as_long_as_something_is_left() -> None:
    pair = table_of("t")
    chosen = select_work([pair], account(run={"requests": 1}), CostHistory(), ranked=False, now=NOW)
    assert chosen.defer(pair[0]) == pair[0]
    assert not chosen.choice.deferred and not chosen.choice.spent
    assert [item.work.operation for item in chosen.choice.chosen] == ["checkpoint", "vacuum"]
    assert choice_text(chosen.choice.chosen[0]) == "usual order, while something is left"


def test_what_an_owner_may_not_take_waits_because_of_the_owner() -> None:
    (assessment, table), other = table_of("t"), table_of("u", 8)
    limits = {"day": {"requests": 1000}, "owners": {"finance": 0.015}}
    selection = selected((replace(assessment, owner="finance"), table), other, **limits)
    assert not selection.allotments["u"].deferred
    why = "it needs 17, with 1 of the requests left for tables of finance"
    assert selection.allotments["t"].deferred["vacuum"].endswith(why)


def test_what_fits_is_not_deferred() -> None:
    pair = table_of("t")
    assert selected(pair).defer(pair[0]) == pair[0]


def test_the_bytes_of_the_parts_that_fit_limit_the_run() -> None:
    assessment, policy_table = table_of("t", optimize={"min_files_saved": 2})
    (optimize,) = assessment.due
    parts = tuple(WorkPart(bytes=1000, saves_files=saved) for saved in (8, 4, 2, 1))
    optimize = replace(optimize, parts=parts, bytes_to_read=4000, bytes_to_copy=800, saves_files=15)
    divided = replace(assessment, operations=(optimize,))
    expected = CostHistory().expected("t", optimize).costs["cpu_seconds"]
    chosen = selected(
        (divided, policy_table), run={"processor_time": timedelta(seconds=0.6 * expected)}
    )
    (due,) = chosen.defer(divided).due
    assert due.options is not None
    assert getattr(due.options, "max_bytes") == 2000  # noqa: B009  not of all Options
    assert (due.bytes_to_read, due.requests) == (2000, optimize.requests // 2)
    assert due.bytes_to_copy == 400
    booked = chosen.allotments["t"].expected["optimize"].costs["cpu_seconds"]
    assert booked < 0.8 * expected, "half of the work, and what each run costs"
    budget = TableBudget(table=policy_table, account=account(), allotment=chosen.allotments["t"])
    assert budget.defer(divided).due == (due,) and budget.begin(due) is not None
    assert budget.defer(divided).due == (), "the rest does not fit, although it is still due"


def test_what_somebody_approves_is_not_divided_and_takes_only_its_plan() -> None:
    assessment, policy_table = table_of("t", optimize={"min_files_saved": 2})
    parts = tuple(WorkPart(bytes=1000, saves_files=2) for _ in range(4))
    optimize = replace(assessment.due[0], parts=parts, bytes_to_read=4000, needs_approval=True)
    expected = CostHistory().expected("t", optimize)
    (whole,) = due_work(assessment, optimize, policy_table, expected).parts
    assert whole.gain > 0 and whole.cost == {}, "a rewrite that nobody has approved is only planned"
    vacuum = replace(optimize, operation="vacuum")
    (planned,) = due_work(assessment, vacuum, policy_table, expected).parts
    assert planned.cost == expected.costs, "its plan lists the whole table"
    choice = selected((replace(assessment, operations=(optimize,)), policy_table)).choice
    assert choice.spared == Gain() and choice_text(choice.chosen[0]).endswith(", asks for approval")


def test_an_operation_that_the_choice_does_not_know_runs() -> None:
    pair = table_of("t")
    unknown = Allotment(deferred={"cluster": "it waits"})
    assert unknown.defer(pair[0]) == pair[0]


def test_a_run_books_what_it_takes_and_stops_when_nothing_is_left() -> None:
    table, policy_table = neglected(12), asked(**RULES)
    shared = account(MemoryStore(), day={"requests": 1})
    result = run_on(table, policy_table, budget=TableBudget(table=policy_table, account=shared))
    assert statuses(result) == {"checkpoint": "done"}
    assert result.after is not None and result.after.status == "deferred"
    assert shared.left()["requests"] <= 0
    (outcome,) = result.outcomes
    assert outcome.expected is not None and outcome.expected.requests > 0
    again = run_on(table, policy_table, budget=TableBudget(table=policy_table, account=shared))
    assert again.status == "deferred" and again.outcomes == ()
    assert again.before is not None and "the budget is spent" in again.before.operations[1].reason


def test_beside_each_other_operations_that_take_more_exceed_the_budget_by_one_at_most() -> None:
    """Each takes as much as the most expensive of its last runs."""
    store, policy_table = MemoryStore(), asked(**RULES)
    due = table_of("t")[0].due[0]
    cost = ExpectedCost(
        bytes_to_read=0, requests=10, costs={"requests": 10.0}, least=0.5, most=3, runs=5
    )
    running: list[tuple[BudgetAccount, str]] = []
    for number in range(10):
        shared = account(store, day={"requests": 100})
        shared.new_id = partial(str, number)
        allotment = Allotment(expected={due.operation: cost})
        budget = TableBudget(table=policy_table, account=shared, allotment=allotment)
        booked = budget.begin(due)
        if booked is not None:
            running.append((shared, booked))
    assert len(running) == 4, "of 30 each, as long as something is left"
    for shared, booked in running:
        shared.end(booked, {"requests": 30.0})
    assert account(store, day={"requests": 100}).left()["requests"] == -20
    # The run with the most requests may have taken the usual processor time.
    slow = replace(cost, most=1, highest={"requests": 80.0})
    shared = account(day={"requests": 100})
    budget = TableBudget(
        table=policy_table, account=shared, allotment=Allotment(expected={due.operation: slow})
    )
    assert budget.begin(due) is not None and shared.left() == {"requests": 20}
    # The last runs may have been alike by chance.
    alike = replace(cost, most=1, highest={"requests": 10.0})
    shared = account(day={"requests": 100})
    budget = TableBudget(
        table=policy_table, account=shared, allotment=Allotment(expected={due.operation: alike})
    )
    assert budget.begin(due) is not None and shared.left() == {"requests": 85}


def test_what_a_run_has_booked_is_not_chosen_again() -> None:
    pair, shared = table_of("t"), account(day={"requests": 1000})
    first = select_work([pair], shared, CostHistory(), now=NOW).choice
    assert {item.work.operation for item in first.chosen} == {"checkpoint", "vacuum"}
    budget = TableBudget(table=pair[1], account=shared)
    booked = budget.begin(pair[0].due[0])
    assert booked is not None
    for _ in range(2):
        again = select_work([pair], shared, CostHistory(), now=NOW).choice
        assert [item.work.operation for item in again.chosen] == ["vacuum"]
        # Its assessment is older than its end.
        shared.end(booked, {})


def test_what_a_killed_run_has_begun_takes_only_what_it_had_reserved() -> None:
    store = MemoryStore()
    killed = table_of("killed", 8, checkpoint={"max_commits": 3})
    other = table_of("other", 60)
    first = account(store, day={"requests": 100})
    (begun,) = killed[0].due
    budget = TableBudget(table=killed[1], account=first)
    assert budget.begin(begun) is not None
    second = replace(account(store, day={"requests": 100}), run_id="another run")
    alone = select_work([other], second, CostHistory(), now=NOW).choice
    both = select_work([killed, other], second, CostHistory(), now=NOW).choice
    again = both.chosen[0]
    assert (again.work.table, again.work.operation) == ("killed", "checkpoint")
    assert choice_text(again).endswith(", begun by another run")
    assert {item.work.operation for item in both.chosen if item.work.table == "other"} == {
        item.work.operation for item in alone.chosen
    }


def test_a_plan_books_nothing() -> None:
    table, policy_table = neglected(12), asked(**RULES)
    shared = account(MemoryStore(), day={"requests": 1})
    budget = TableBudget(table=policy_table, account=shared)
    result = run_on(table, policy_table, budget=budget, plan_only=True)
    assert len(result.outcomes) == 2 and shared.left() == {"requests": 1}


class Busy:
    """A lease that another process has."""

    def __enter__(self) -> None:
        raise BusyError("another process works on it", remedy="wait")

    def __exit__(self, *_: object) -> None: ...


def test_what_an_operation_booked_that_does_not_begin_is_left_to_others() -> None:
    """It waits for an approval, the time of the run is over, or another process has the table."""
    shared = account(MemoryStore(), day={"requests": 1000})

    def run_within(**options: Any) -> dict[str, str]:
        policy_table = asked(vacuum=True, **options.pop("rules", {}))
        budget = TableBudget(table=policy_table, account=shared)
        return statuses(run_on(neglected(12), policy_table, budget=budget, **options))

    waits = run_within(rules={"approval": ["vacuum"]}, approvals=Approvals(asked=("vacuum",)))
    assert waits == {"vacuum": "needs-approval"}
    late = run_within(rules={"limits": {"max_duration": "1 s"}}, now=Ticking(timedelta(seconds=5)))
    assert late == {"vacuum": "stopped"}
    with pytest.raises(BusyError):
        run_within(lease=Busy)
    assert shared.left() == {"requests": 1000}


def test_what_nobody_counted_on_spark_is_booked_as_expected() -> None:
    policy_table = asked(**RULES)
    expected = ExpectedCost(
        bytes_to_read=0,
        requests=10,
        costs={"cpu_seconds": 50.0, "seconds": 9.0, "requests": 10.0, "bytes_rewritten": 7.0},
        least=1,
        most=1,
    )
    cost = Cost(cpu_seconds=0.1, requests_read=1, bytes_written=1)
    for seconds, taken in ((None, 50.0), (30.0, 30.1)):
        shared = account(
            None, day={"processor_time": "100 s", "requests": 100, "rewritten": "100 B"}
        )
        due = replace(table_of("t")[0].due[0], engine="spark")
        allotment = Allotment(expected={due.operation: expected})
        budget = TableBudget(table=policy_table, account=shared, allotment=allotment)
        booked = budget.begin(due)
        assert booked is not None
        outcome = OperationOutcome(
            operation="optimize",
            status="done",
            reason="",
            started_at=NOW,
            engine="spark",
            cost=replace(cost, spark_task_seconds=seconds),
            expected=expected,
        )
        budget.end(booked, outcome)
        left = {"cpu_seconds": 100 - taken, "requests": 90, "bytes_rewritten": 93}
        assert shared.left() == pytest.approx(left)


def test_a_failed_operation_is_booked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_maintenance.operations.checkpoint import operation

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("lost")

    monkeypatch.setattr(operation, "apply", failing)
    table, policy_table = neglected(12), asked(checkpoint={"max_commits": 3})
    shared = account(MemoryStore(), run={"wall_time": "1 h"})
    run_on(table, policy_table, budget=TableBudget(table=policy_table, account=shared))
    assert len(shared._own) == 1 and {each.state for each in shared._own.values()} == {"ended"}


# The gain


def test_gains_are_those_of_all_readers_in_a_day() -> None:
    assessment, _ = table_of("t")
    assert assessment.health is not None
    health = replace(assessment.health, commits_a_day=10.0)
    checkpoint = next(each for each in assessment.due if each.operation == "checkpoint")
    one, three = (gain_of(checkpoint, health, readers=number) for number in (0, 3))
    assert one.log_files > 0 and three.log_files == 3 * one.log_files
    merging = replace(checkpoint, saves_files=7)
    assert gain_of(merging, health, readers=3).data_files == 3 * 10 * 7
    # Ten times a day: 10 ms for each commit, and a second for 60 MB.
    assert one.seconds_to_open == pytest.approx(0.01 * one.log_files + one.log_bytes / 60e6)
    assert one.seconds_to_open >= 10 * 0.01 * health.commits_since_checkpoint
    assert in_requests(Gain(stored_bytes=1 << 30)) == 2000
    assert in_requests(Gain(log_bytes=16 << 20, log_files=1, data_files=4)) == 7


def test_the_choice_states_what_its_parts_spare_in_units() -> None:
    assessment, policy_table = table_of("t", optimize={"min_files_saved": 2})
    parts = tuple(WorkPart(bytes=1000, saves_files=3) for _ in range(4))
    optimize = replace(assessment.due[0], parts=parts, bytes_to_read=4000, saves_files=12)
    assessment = replace(assessment, operations=(optimize,))
    whole = selected((assessment, policy_table)).choice.spared
    assert whole.data_files >= 12 and whole.log_files == 0
    half = 0.6 * CostHistory().expected("t", optimize).costs["cpu_seconds"]
    limited = selected((assessment, policy_table), run={"processor_time": timedelta(seconds=half)})
    assert limited.choice.spared.data_files == pytest.approx(whole.data_files / 2)
    assert spared_text(Gain()) == "spared a day: nothing"
    everything = Gain(
        data_files=1234, log_files=9000, log_bytes=2048, seconds_to_open=90, stored_bytes=4096
    )
    assert spared_text(everything) == (
        "spared a day: "
        "1,234 data files, 9,000 files of the log (2 KiB, 90.0 s to open), 4 KiB stored"
    )


def test_the_first_checkpoint_is_a_repair_and_later_ones_are_upkeep() -> None:
    assessment, policy_table = table_of("t")
    checkpoint = next(each for each in assessment.due if each.operation == "checkpoint")
    expected = CostHistory().expected("t", checkpoint)
    assert due_work(assessment, checkpoint, policy_table, expected).stage == "log"
    assert assessment.health is not None
    without = replace(assessment, health=replace(assessment.health, checkpoint_version=None))
    first = due_work(without, checkpoint, policy_table, expected)
    assert (first.stage, first.risk) == ("repair", "every reader opens all commits")


def test_what_readers_need_is_not_left_until_its_retention_ends() -> None:
    assessment, policy_table = table_of("t")
    checkpoint = next(each for each in assessment.due if each.operation == "checkpoint")
    health = assessment.health
    assert health is not None and risk_of(checkpoint, health) is None
    retention = health.log_retention
    for age, risk in (
        (retention - timedelta(days=2, hours=1), None),
        (
            retention - timedelta(days=1),
            "the log retention of commits that readers need ends on 2026-07-01",
        ),
        (
            retention + timedelta(days=1),
            "the log retention of commits that readers need ended on 2026-06-29",
        ),
    ):
        old = replace(health, oldest_commit_since_checkpoint=NOW - age)
        assert risk_of(checkpoint, old) == risk
        work = due_work(
            replace(assessment, health=old),
            checkpoint,
            policy_table,
            CostHistory().expected("t", checkpoint),
        )
        assert work.stage == ("log" if risk is None else "repair")
        assert risk_of(replace(checkpoint, operation="vacuum"), old) is None
    # Neither is the end of a calendar.
    for years, oldest in ((10_000, NOW), (1, datetime.max.replace(tzinfo=UTC))):
        long = replace(
            health, log_retention=timedelta(days=365 * years), oldest_commit_since_checkpoint=oldest
        )
        assert risk_of(checkpoint, long) is None
    # A short retention does not make every checkpoint a repair.
    brief = replace(
        health,
        log_retention=timedelta(days=2),
        oldest_commit_since_checkpoint=NOW - timedelta(days=1),
    )
    assert risk_of(checkpoint, brief) is None


def test_a_feature_that_others_need_comes_before_all_savings() -> None:
    rules = {"protocol": {"features": ["v2Checkpoint"]}, "checkpoint": {"max_commits": 3}}
    pair, busy = table_of("t", **rules), table_of("busy", 60)
    choice = selected(busy, pair, run={"processor_time": timedelta(hours=1)}).choice
    first = choice.chosen[0]
    assert (first.work.operation, first.why) == ("upgrade-protocol", "repair")
    assert choice_text(first) == "repair: what needs the feature is blocked"


# Since when an operation is due


def test_an_operation_is_due_since_it_was_found_due_first_until_it_runs() -> None:
    first = with_due_since(table_of("t")[0], None)
    assert {each.due_since for each in first.due} == {NOW}
    later = replace(table_of("t")[0], assessed_at=NOW + timedelta(days=3))
    assert {each.due_since for each in with_due_since(later, first).due} == {NOW}
    after_run = with_due_since(later, first, done=["checkpoint"])
    since = {each.operation: each.due_since for each in after_run.due}
    assert since == {"checkpoint": NOW + timedelta(days=3), "vacuum": NOW}
    deferred = Allotment(deferred={"vacuum": "it waits"}).defer(first)
    assert with_due_since(later, deferred) == with_due_since(later, first)

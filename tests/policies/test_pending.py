"""Plans that wait for an approval: which are kept, which are asked about, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from delta_maintenance.policies import AssessmentEntry, AssessmentStore, RunResult
from delta_maintenance.policies.approval import (
    PLAN_LIFE,
    PendingPlan,
    PutOff,
    pending_of,
    put_off_operations,
    still_asked,
)
from tests.support.tables.actions import add, remove
from tests.support.tables.policy_tables import asked, run_on
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago


def waiting_run() -> RunResult:
    """A run with a waiting vacuum of one file out of three."""
    table = Folder()
    for name in ("a", "b", "c"):
        table.log(add(f"{name}.parquet", stats='{"numRecords":1}'))
        table.file(f"{name}.parquet")
    table.log(remove("a.parquet", deletionTimestamp=days_ago(40)))
    return run_on(table, asked(vacuum=True, approval=["vacuum"]))


def test_a_plan_waits_with_its_numbers_until_its_operation_ends() -> None:
    run = waiting_run()
    (plan,) = pending_of(run)
    assert (plan.operation, plan.files, plan.share) == ("vacuum", 1, 1 / 3)
    assert plan.label == f"vacuum of {run.name}" and plan.due_since == plan.plan.planned_at
    assert PendingPlan.from_json(plan.to_json()) == plan

    later = run.outcomes[0].started_at + timedelta(days=2)
    made_later = (run.outcomes[0].result or {}) | {"planned_at": later.isoformat()}
    again = replace(run, outcomes=(replace(run.outcomes[0], result=made_later),))
    (renewed,) = pending_of(again, [plan])
    assert renewed.plan.planned_at == later and renewed.due_since == plan.due_since

    # Not planned again, as it was asked about before: the plan stays.
    silent = replace(run, outcomes=(replace(run.outcomes[0], result=None),))
    assert pending_of(silent, [plan]) == (plan,)
    assert pending_of(replace(run, outcomes=()), [plan]) == (plan,)
    for status in ("done", "nothing-to-do", "failed", "stopped"):
        ended = replace(run, outcomes=(replace(run.outcomes[0], status=status),))
        assert pending_of(ended, [plan]) == ()


def test_a_plan_is_renewed_after_a_day_unless_snoozed() -> None:
    (plan,) = pending_of(waiting_run())
    planned = plan.plan.planned_at
    almost, later = planned + PLAN_LIFE - timedelta(seconds=1), planned + PLAN_LIFE
    assert still_asked([plan], [], now=almost) == {"vacuum"}
    assert still_asked([plan], [], now=later) == frozenset()
    snoozed = PutOff(operation="vacuum", answer="snoozed", at=planned, until=later)
    assert still_asked([], [snoozed], now=almost) == {"vacuum"}
    assert put_off_operations([snoozed], now=later) == set()


def test_a_requested_plan_neither_ends_nor_stops_that_of_the_policy() -> None:
    run = waiting_run()
    (of_policy,) = pending_of(run)
    of_person = replace(of_policy, requested=True, link="/dags/d")
    planned = replace(run, outcomes=(replace(run.outcomes[-1], status="planned"),))
    assert pending_of(planned, [of_policy]) == (of_policy,), "to plan something ends nothing"
    done = replace(run, outcomes=(replace(run.outcomes[-1], status="done", result=None),))
    assert pending_of(done, [of_policy, of_person]) == (of_person,)
    assert pending_of(run, [of_person]) == (of_policy, of_person)
    at = of_policy.plan.planned_at
    assert still_asked([of_person], [], now=at) == frozenset()
    assert still_asked([of_policy], [], now=at) == {"vacuum"}
    assert of_policy.id == of_person.id != replace(of_policy, uri="/other").id


def test_pending_plans_follow_the_assessment(tmp_path: Path) -> None:
    store, run = AssessmentStore(str(tmp_path)), waiting_run()
    before = run.before
    assert before is not None
    store.save(before, run=run)

    def entry() -> AssessmentEntry:
        found = store.load(run.uri)
        assert isinstance(found, AssessmentEntry)
        return found

    (plan,) = entry().pending
    store.open_question(replace(plan, link="/dags/d"))
    assert [plan.link for plan in entry().pending] == ["/dags/d"]
    store.save(replace(before, status="failed", operations=()))
    assert len(entry().pending) == 1, "a store that is down has not decided anything"
    for days, answer in ((1, "snoozed"), (2, "rejected")):
        until = NOW + timedelta(days=days)
        put_off = PutOff(operation="vacuum", answer=answer, at=NOW, until=until)
        store.put_off(plan, put_off)
    assert [each.answer for each in entry().put_off] == ["rejected"]
    store.save(replace(before, assessed_at=NOW + timedelta(days=3)))
    assert entry().put_off == () and len(entry().pending) == 1
    calm = tuple(replace(each, status="not-due") for each in before.operations)
    store.save(replace(before, status="nothing-due", operations=calm))
    assert entry().pending == ()
    unknown = replace(plan, uri="s3://lake/unknown")
    store.open_question(unknown)
    store.close_question(unknown)
    store.put_off(unknown)
    assert store.load(unknown.uri) is None

"""The answers to the question about all plans of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan
from delta_maintenance.policies import ApprovedPlan, PendingPlan
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.operators import questions
from delta_maintenance_airflow.operators.approvals import LATER, DeltaApprovalsOperator
from delta_maintenance_airflow.operators.manual import DeltaApprovalOperator

pytestmark = pytest.mark.airflow
CONTEXT: Any = {"dag_run": SimpleNamespace(triggering_user_name="ann", run_type="manual")}

TASK = SimpleNamespace(dag_id="d", run_id="r", task_id="approve", map_index=-1)
CONTEXT_OF_TASK: Any = {**CONTEXT, "ti": TASK}


def pending(name: str, operation: str = "vacuum", **changes: Any) -> PendingPlan:
    plan = ApprovedPlan(
        operation=operation,
        table="/t",
        table_id="id",
        planned_at=clock.now(),
        options={},
        effect={},
        at_most={},
    )
    fields = {"uri": f"/lake/{name}", "reason": "due", "due_since": clock.now(), **changes}
    return PendingPlan(name=name, plan=plan, **fields)


@pytest.fixture
def question(
    airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DeltaApprovalsOperator:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path))
    plans = [pending("a"), pending("a", "clean-log"), pending("b")]
    return DeltaApprovalsOperator(task_id="approve", plans=[plan.to_json() for plan in plans])


def answer(operator: DeltaApprovalsOperator, option: str, *labels: str, **given: Any) -> Any:
    user = {"id": "1", "name": given.pop("by", "bob")}
    event = {"chosen_options": [option], "params_input": {"plans": list(labels), **given}}
    return operator.execute_complete(CONTEXT, {**event, "responded_by_user": user})


def test_only_the_chosen_plans_are_approved_one_row_for_each_table(
    question: DeltaApprovalsOperator,
) -> None:
    rows = answer(question, "Approve", "vacuum of a", "clean-log of a")
    assert [row["table"]["name"] for row in rows] == ["a"]
    assert [plan["operation"] for plan in rows[0]["plans"]] == ["vacuum", "clean-log"]
    assert len(answer(question, "Approve", "all of them")) == 2
    assert answer(question, "Approve") == [] == answer(question, LATER, "all of them")
    assert question.defaults == [LATER], "no answer approves nothing"


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("Approve", {"plans": ["vacuum of other"]}, "were not part of the question"),
        ("Snooze", {"snooze_until": "soon"}, "is not a date"),
    ],
)
def test_an_invalid_answer_is_requested_again(
    question: DeltaApprovalsOperator, option: str, given: dict[str, Any], said: str
) -> None:
    event = {"chosen_options": [option], "params_input": given, "responded_by_user": None}
    with pytest.raises(AirflowException, match=said):
        question.execute_complete(CONTEXT, event)


def test_the_requester_cannot_approve_if_another_person_must(
    question: DeltaApprovalsOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__SEPARATE_APPROVER", "True")
    with pytest.raises(AirflowException, match="another person"):
        answer(question, "Approve", "vacuum of a", by="ann")
    assert answer(question, "Reject", "vacuum of a", by="ann") == []
    assert len(answer(question, "Approve", "vacuum of a")) == 1


def test_a_plan_that_was_made_again_is_not_approved_by_a_page_that_shows_the_earlier_one(
    question: DeltaApprovalsOperator,
) -> None:
    plans = [PendingPlan.from_json(plan) for plan in question.plans]
    shown = [plans[0].id, plans[2].id]
    assert len(answer(question, "Approve", "vacuum of a", "vacuum of b", shown=shown)) == 2
    again = replace(plans[2], plan=replace(plans[2].plan, effect={"files": "=9"}))
    question.plans = [*question.plans[:2], again.to_json()]
    with pytest.raises(AirflowException, match="planned again"):
        answer(question, "Approve", "vacuum of a", "vacuum of b", shown=shown)
    assert answer(question, "Reject", "vacuum of b", shown=shown) == []

    manual = DeltaApprovalOperator(task_id="approve", plan={"pending": again.to_json()})
    event = {
        "chosen_options": ["Approve"],
        "responded_by_user": {"id": "1", "name": "bob"},
        "responded_at": clock.now(),
    }
    with pytest.raises(AirflowException, match="planned again"):
        manual.execute_complete(
            CONTEXT_OF_TASK, {**event, "params_input": {"shown": [plans[2].id]}}
        )
    for given in ({"shown": [again.id]}, {}):
        manual.execute_complete(CONTEXT_OF_TASK, {**event, "params_input": given})


def test_the_text_of_one_plan_is_escaped() -> None:
    hostile = "![x](https://evil.example/x.png)\n# [Sign in](https://evil.example) <script> `|"
    plan = FsckPlan(
        table="t",
        version=0,
        planned_at=clock.now(),
        options=FsckOptions(),
        findings=(),
        counts=(),
        reason=hostile,
    ).to_json()
    for shown in (plan, None):
        text = questions.plan_text("fsck", hostile, shown)
        assert "evil.example" in text
        outside = [part for line in text.splitlines() for part in line.split("`")[::2]]
        assert not any(mark in part for part in outside for mark in ("[", "<", "#", "evil"))


def test_the_text_of_the_question_is_bounded_and_escaped() -> None:
    hostile = "`</td><script>|\n# x" * 50
    plans = [pending(f"{number}{hostile}", reason=hostile) for number in range(200)]
    text = questions.plans_text(plans)
    assert len(text) < 9_000 and "more, in the log" in text
    rows = text.partition("\n\n")[2].partition("\n\nand ")[0].splitlines()
    assert all(row.count("|") == 8 for row in rows)
    assert all("<script>" not in part for row in rows for part in row.split("`")[::2])


def test_names_that_would_look_alike_are_told_apart(question: DeltaApprovalsOperator) -> None:
    # The first one is shown from right to left after its second letter.
    names = ["a_\u202eb", "a_\\u202eb", "a_b", "a\u200b_b"]
    plans = [pending(name) for name in names]
    labels = [plan.label for plan in plans]
    assert len(set(labels)) == len(names)
    shown = "".join([questions.plans_text(plans), questions.plan_text("fsck", names[0], None)])
    assert all(line.isprintable() for line in [*labels, *shown.splitlines()])
    question.plans = [plan.to_json() for plan in plans]
    (row,) = answer(question, "Approve", labels[0])
    assert row["table"]["name"] == names[0]

"""The plans that wait for an approval, and the questions of Airflow by which they are answered.

A plan exists before its question and after it: the store of assessments has the plans, Airflow has
the questions. Answers go from the browser to Airflow's own API, which checks the permission.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from urllib.parse import quote, unquote

from delta_maintenance.address import identity_of
from delta_maintenance.policies.approval import PLAN_LIFE, PendingPlan, put_off_operations
from delta_maintenance.policies.assessments import AssessmentEntry
from delta_maintenance.policies.entries import PlannedFiles

_LINK = re.compile(r"/dags/([^/]+)/runs/([^/]+)/tasks/([^/]+?)(?:/mapped/(\d+))?")
LARGE_SHARE = 0.5
"""A plan that deletes a larger share of the files is shown with it."""
FILE_COLUMNS = ("bytes", "reason", "path")
"""The parts of a line of a list of files."""
MOST_FILES = 1_000
"""The most files on a page; the download has all that are stored."""
_OPEN = ("awaiting_input", "deferred")
"""The states of a task that waits for an answer: since Airflow 3.3, and before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to people: a task of Airflow that waits for an answer."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def at(cls, link: str | None) -> Question | None:
        """Returns the question of a task, given the page of the task within Airflow."""
        match = _LINK.fullmatch(link or "")
        if match is None:
            return None
        dag, run, task = (unquote(segment) for segment in match.groups()[:3])
        return cls(dag_id=dag, run_id=run, task_id=task, map_index=int(match[4] or -1))

    @property
    def api(self) -> str:
        """The path of the question in Airflow's API."""
        dag, run, task = (
            quote(segment, safe="") for segment in (self.dag_id, self.run_id, self.task_id)
        )
        return f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/{self.map_index}/hitlDetails"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlan:
    """A plan that waits for an approval."""

    plan: PendingPlan
    question: Question | None
    """The open question about the plan; None if no run asks about it now."""

    @property
    def anchor(self) -> str:
        """The ID of the plan on the page."""
        text = "\0".join([identity_of(self.plan.uri), *map(str, self.plan.key)])
        return f"plan-{sha256(text.encode()).hexdigest()[:16]}"

    @property
    def until(self) -> datetime:
        """When the question closes, or the operation is planned again."""
        return self.plan.expires_at or self.plan.plan.planned_at + PLAN_LIFE


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTogether:
    """The plans of one question, or those about which no run asks now."""

    question: Question | None
    plans: tuple[WaitingPlan, ...]

    @property
    def size(self) -> int:
        """The number of plans."""
        return len(self.plans)

    @property
    def first(self) -> PendingPlan:
        """A plan that says what is the same for all: who asked, and until when."""
        return self.plans[0].plan

    def asked_by(self, names: Collection[str]) -> bool:
        """Whether a person with one of these names triggered the run that asks."""
        return self.first.asked_by is not None and self.first.asked_by in names


def open_questions(questions: frozenset[Question]) -> frozenset[Question]:
    """Returns the questions that wait for an answer, from Airflow's database.

    Nobody closes the question of a run that was deleted, or of a task that was marked.
    """
    if not questions:
        return frozenset()
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    asking = select(
        TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index
    ).where(
        TaskInstance.state.in_(_OPEN),
        TaskInstance.run_id.in_({question.run_id for question in questions}),
    )
    with create_session() as session:
        open_keys = {tuple(row) for row in session.execute(asking)}
    return frozenset(
        question
        for question in questions
        if (question.dag_id, question.run_id, question.task_id, question.map_index) in open_keys
    )


def questions_about(entries: Iterable[object]) -> frozenset[Question]:
    """Returns the questions that the entries know."""
    plans = (p for e in entries if isinstance(e, AssessmentEntry) for p in e.pending)
    return frozenset(question for plan in plans if (question := Question.at(plan.link)) is not None)


def waiting_plans(
    entry: AssessmentEntry, *, now: datetime, still_open: Collection[Question]
) -> tuple[WaitingPlan, ...]:
    """Returns the plans of a table that wait for an approval, without snoozed and approved ones.

    A plan that a person requested waits as long as its question. The plan of a policy waits until
    it is made again.
    """
    put_off, plans = put_off_operations(entry.put_off, now=now), []
    for plan in entry.pending:
        open_question = Question.at(plan.link) if plan.is_open(now) else None
        question = open_question if open_question in still_open else None
        is_fresh = plan.is_fresh(now)
        if question is None and (not is_fresh or plan.operation in put_off or plan.approved_at):
            continue
        plans.append(WaitingPlan(plan=plan, question=question))
    return tuple(plans)


def file_cells(files: PlannedFiles) -> Iterator[tuple[str, ...]]:
    """Yields the cells of each line: size, reason and path."""
    for line in files.lines:
        yield ("", "", *line.split("\t", 2))[-len(FILE_COLUMNS) :]


def group_plans(plans: Sequence[WaitingPlan]) -> tuple[AskedTogether, ...]:
    """Returns the plans by question, the oldest first; those without a question come last."""
    groups: dict[Question | None, list[WaitingPlan]] = {}
    for each in sorted(plans, key=lambda each: (each.question is None, each.plan.due_since)):
        groups.setdefault(each.question, []).append(each)
    return tuple(
        AskedTogether(question=question, plans=tuple(each)) for question, each in groups.items()
    )

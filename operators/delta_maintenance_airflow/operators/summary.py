"""The summary of a run over many tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowFailException, AirflowSkipException
from delta_maintenance_airflow.operators.select_tables import FOUND, LEFT_OVER

if TYPE_CHECKING:
    from airflow.sdk import Context

_SHOWN = 20


class DeltaSummaryOperator(BaseOperator):
    """Summarises a run over the tables of a policy; fails if tables need attention.

    Returns `tables`, the number of tables with work; `statuses`, the number of these by status;
    `not_assessed`, the number of tables and patterns that could not be assessed; `problems`, the
    first problems; `num_problems`, the number of problems; `left_over`, the number of tables that
    wait for the next run; and `text`.

    :param find_task: the task of `DeltaFindTablesOperator`; if it was skipped, so is this one.
    :param assess_task: the mapped task of `DeltaAssessOperator`.
    :param select_task: the task of `DeltaSelectWorkOperator`.
    :param run_task: the mapped task of `DeltaPolicyRunOperator`.
    """

    ui_color = "#00add4"

    def __init__(
        self, *, find_task: str, assess_task: str, select_task: str, run_task: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.find_task = find_task
        self.assess_task = assess_task
        self.select_task = select_task
        self.run_task = run_task

    def execute(self, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        found = _one(ti, self.find_task, FOUND)
        if found is None:
            raise AirflowFailException(f"no tables were found: see the log of {self.find_task}")
        if found["skipped"]:
            raise AirflowSkipException(found["skipped"])
        assessed = _all(ti, self.assess_task)
        failures = [*found["unlisted"], *(row for some in assessed for row in some)]
        failures = [row for row in failures if row["problem"]]
        missing = found["batches"] - len(assessed)
        if missing > 0:
            problem = f"{missing} of {found['batches']} batches of tables were not assessed"
            failures.append(
                {"name": self.assess_task, "problem": f"{problem}; see its failed tasks"}
            )
        summary = summarised(
            work=_one(ti, self.select_task, BaseXCom.XCOM_RETURN_KEY) or [],
            outcomes={each["name"]: each for each in _all(ti, self.run_task)},
            failures=failures,
            left_over=_one(ti, self.select_task, LEFT_OVER) or {},
        )
        self.log.info("%s", summary_text(summary))
        if summary["num_problems"]:
            # Airflow pushes the return value of a task only if it succeeds.
            ti.xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=summary)
            raise AirflowFailException(summary_text(summary))
        return summary


def _one(ti: Any, task_id: str, key: str) -> Any:
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=-1)


def _all(ti: Any, task_id: str) -> list[Any]:
    """Returns the values of the mapped tasks, including failed ones, by one request."""
    found = ti.xcom_pull(task_ids=[task_id], key=BaseXCom.XCOM_RETURN_KEY) or []
    return [each for each in found if each is not None]


def summarised(
    *,
    work: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    left_over: Mapping[str, Any],
) -> dict[str, Any]:
    """Summarises the tables with work, by name, and those that could not be assessed."""
    statuses: dict[str, int] = {}
    problems = [f"{row['name']}: {row['problem']}" for row in failures]
    for row in work:
        outcome = outcomes.get(row["name"])
        # A task that was skipped or killed has no value.
        status = outcome["status"] if outcome is not None else "not-finished"
        statuses[status] = statuses.get(status, 0) + 1
        if outcome is None:
            problems.append(f"{row['name']}: see its task, which has left no result")
        elif outcome["problem"]:
            problems.append(f"{row['name']}: {outcome['problem']}")
    waiting = int(left_over.get("tables") or 0)
    return {
        "tables": len(work),
        "statuses": statuses,
        "not_assessed": len(failures),
        "problems": problems[:_SHOWN],
        "num_problems": len(problems),
        "left_over": waiting,
        "text": "; ".join(
            part
            for part in (
                _ended(len(work), statuses),
                f"{len(failures):,} could not be assessed" if failures else None,
                _left_over(waiting, left_over.get("names") or []),
            )
            if part is not None
        ),
    }


def summary_text(summary: Mapping[str, Any]) -> str:
    """Formats the summary for people."""
    shown = summary["problems"]
    more = summary["num_problems"] - len(shown)
    lines = [summary["text"], *shown, *([f"and {more} more"] if more else [])]
    return "; ".join(lines)


def _ended(tables: int, statuses: Mapping[str, int]) -> str:
    if not tables:
        return "nothing was due"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{_count(tables, 'table')} with work: {counts}"


def _left_over(tables: int, names: Sequence[str]) -> str | None:
    if not tables:
        return None
    more = ", …" if tables > len(names) else ""
    return f"{_count(tables, 'table')} left for the next run: {', '.join(names)}{more}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"

"""The summary of a run over many tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

_SHOWN = 20


def summarised(
    context: Context, work: Sequence[Mapping[str, Any]], *, run_task: str
) -> dict[str, Any]:
    """What became of the tables with work: how many ended how, and what the first problems are.

    Looks at what each mapped task of `run_task` has left, failed ones included.
    """
    ti = context["ti"]
    found = [
        ti.xcom_pull(task_ids=run_task, key=BaseXCom.XCOM_RETURN_KEY, map_indexes=index)
        for index in range(len(work))
    ]
    statuses: dict[str, int] = {}
    problems: list[str] = []
    for table, outcome in zip(work, found, strict=True):
        # A task that was skipped or killed has left nothing.
        status = outcome["status"] if outcome else "failed" if table["problem"] else "not-finished"
        statuses[status] = statuses.get(status, 0) + 1
        problem = outcome["problem"] if outcome else table["problem"]
        if problem:
            problems.append(f"{table['name']}: {problem}")
        elif outcome is None:
            problems.append(f"{table['name']}: see its task, which has left no result")
    told = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return {
        "tables": len(work),
        "statuses": statuses,
        "problems": problems[:_SHOWN],
        "num_problems": len(problems),
        "text": f"{len(work)} tables with work: {told}" if work else "nothing was due",
    }


def concluded(context: Context, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the summary for XCom; fails the task where tables need somebody."""
    if summary["num_problems"]:
        # Airflow takes what a task returns only where it succeeds.
        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=dict(summary))
        raise AirflowFailException(told(summary))
    return dict(summary)


def told(summary: Mapping[str, Any]) -> str:
    """The summary for people."""
    shown = summary["problems"]
    more = summary["num_problems"] - len(shown)
    lines = [summary["text"], *shown, *([f"and {more} more"] if more else [])]
    return "; ".join(lines)

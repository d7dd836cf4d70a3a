"""Operators of the scheduled Dag around the work: choose tables, and summarise the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowFailException, AirflowSkipException
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import assessment_store, max_map_length
from delta_maintenance_airflow.tasks import retrying_only_what_may_pass, returned_values

if TYPE_CHECKING:
    from airflow.sdk import Context

FOUND = "found"
"""The XCom key of the search: the number of `tables` and of `batches`, the `unlisted` patterns, and
the reason why the run was `skipped`, if it was."""
LEFT_OVER = "left_over"
"""The XCom key of the tables that wait for the next run."""
_NAMED = 20
_AT_WORK = ("running", "queued", "scheduled", "up_for_retry", "up_for_reschedule", "restarting")


class DeltaFindTablesOperator(BaseOperator):
    """Finds the tables of a policy, and divides them into batches for `DeltaAssessOperator`.

    Returns the batches: lists of objects with `name` and `uri`. The tables that were assessed
    longest ago, or never, come first. A pattern that cannot be listed fails alone: the failure is
    stored for the health page, and is among the `unlisted` in the XCom `found`. If a store is
    unavailable, its patterns are listed again after a pause.

    :param policy: the file with the policy; the default is `[delta_maintenance] policy` in
        Airflow's configuration. (templated)
    :param only: names or addresses of the requested tables; empty for all. (templated)
    :param tables_per_batch: the least number of tables that one task assesses. Batches become
        larger if Airflow would not map a task over so many.
    :param work_tasks: tasks of the same Dag. While an earlier run of the Dag runs one of them, this
        run is skipped, because both would assess the same tables.
    """

    template_fields: Sequence[str] = ("policy", "only")
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        policy: str | None = None,
        only: Sequence[str] = (),
        tables_per_batch: int = 50,
        work_tasks: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.policy = policy
        self.only = only
        self.tables_per_batch = tables_per_batch
        self.work_tasks = work_tasks

    def execute(self, context: Context) -> list[list[dict[str, str]]]:
        ti = context["ti"]
        if self.work_tasks and self._is_another_at_work(ti):
            why = f"an earlier run of {ti.dag_id} is still running"
            ti.xcom_push(key=FOUND, value={"skipped": why})
            raise AirflowSkipException(why)
        from delta_maintenance import clock

        with retrying_only_what_may_pass():
            found = PolicyWork(self.policy).discover()
            store = assessment_store()
            failures = found.keep_failures(store, now=clock.now())
            saved_at = store.saved_at()
        for line in (*found.warnings(), *found.counts()):
            self.log.info("%s", line)
        for failure in failures:
            self.log.error("%s cannot be listed: %s", failure.name, failure.problem)
        tables = [
            {"name": table.name, "uri": table.uri}
            for table in oldest_first(found.tables, lambda table: saved_at(table.uri, table.name))
            if not self.only or any(table.answers_to(text) for text in self.only)
        ]
        size = max(self.tables_per_batch, -(-len(tables) // max_map_length()))
        batches = [tables[first : first + size] for first in range(0, len(tables), size)]
        self.log.info("%d tables in %d batches", len(tables), len(batches))
        unlisted = [{"name": each.name, "problem": each.problem} for each in failures]
        counts = {"tables": len(tables), "batches": len(batches), "unlisted": unlisted}
        ti.xcom_push(key=FOUND, value={**counts, "skipped": None})
        return batches

    def _is_another_at_work(self, ti: Any) -> bool:
        # None of these tasks of this run has begun yet.
        count: int = ti.get_ti_count(
            dag_id=ti.dag_id, task_ids=list(self.work_tasks), states=list(_AT_WORK)
        )
        return count > 0


class DeltaSelectWorkOperator(BaseOperator):
    """Chooses the tables with work for `DeltaPolicyRunOperator`: those maintained longest ago.

    Returns at most `most` of the tables with operations that are due. Tables that could not be
    assessed are left out. The names of the tables that wait for the next run, where they come
    first, are pushed to XCom as `left_over`: `{"tables": number, "names": the first 20}`.

    :param assessed: the return values of the tasks of `DeltaAssessOperator`. (templated)
    :param most: the most tables of one run; Airflow's limit for mapped tasks applies too.
    """

    template_fields: Sequence[str] = ("assessed",)
    ui_color = "#00add4"

    def __init__(
        self, *, assessed: Iterable[Sequence[Mapping[str, Any]]], most: int = 1_000, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.assessed = assessed
        self.most = most

    def execute(self, context: Context) -> list[dict[str, Any]]:
        rows = [dict(row) for some in self.assessed or () for row in some if row["due"]]
        rows.sort(key=lambda row: (row["last_run_at"] or "", row["name"]))
        most = min(self.most, max_map_length())
        chosen, left = rows[:most], rows[most:]
        names = [row["name"] for row in left[:_NAMED]]
        context["ti"].xcom_push(key=LEFT_OVER, value={"tables": len(left), "names": names})
        if left:
            self.log.warning(
                "%d tables wait for the next run, because this one takes %d: %s%s",
                len(left),
                most,
                ", ".join(names),
                ", …" if len(left) > len(names) else "",
            )
        elif not chosen:
            self.log.info("nothing is due on any table")
        return chosen


def oldest_first(tables: Iterable[Any], at: Callable[[Any], datetime | None]) -> list[Any]:
    """Sorts by an instant, with missing instants first. The sort is stable."""
    return sorted(tables, key=lambda table: at(table) or _NEVER)


_NEVER = datetime.min.replace(tzinfo=UTC)


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
        assessed = returned_values(ti, self.assess_task)
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
            outcomes={each["name"]: each for each in returned_values(ti, self.run_task)},
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

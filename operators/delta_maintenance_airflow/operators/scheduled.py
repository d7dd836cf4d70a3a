"""Operators of the scheduled Dag around the work: choose tables, and summarise the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowFailException, AirflowSkipException
from delta_maintenance_airflow.operators.batches import LEFT, BatchLimits, divide_into_batches
from delta_maintenance_airflow.operators.budget import choose_rows
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import assessment_store, max_map_length
from delta_maintenance_airflow.tasks import (
    flatten,
    link_to,
    retrying_only_what_may_pass,
    returned_rows,
    returned_values,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

FOUND = "found"
"""The XCom key of the search: the number of `tables` and of `batches`, the `unlisted` patterns, and
the reason why the run was `skipped`, if it was."""
LEFT_OVER = "left_over"
"""The XCom key of the tables that wait for the next run."""
DEFERRED = "deferred"
"""The XCom key of what waits because of the budget on tables that have no other work: the number of
`operations`, `until` when, and None for the next run."""
FAILED = "failed"
"""The XCom key of the failures of a run: the names of the `tables`, and problems `of_run` by the
names of its tasks."""
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
            reason = f"an earlier run of {ti.dag_id} is still running"
            ti.xcom_push(key=FOUND, value={"skipped": reason})
            raise AirflowSkipException(reason)
        from delta_maintenance import clock
        from delta_maintenance.policies.entries import acknowledgement_text

        with retrying_only_what_may_pass():
            discovery = PolicyWork(self.policy).session.discover()
            store = assessment_store()
            failures = discovery.keep_failures(store, now=clock.now())
            saved_at = store.saved_at()
        for line in discovery.warnings():
            self.log.warning("%s", line)
        for line in discovery.counts():
            self.log.info("%s", line)
        unlisted = [
            {
                "name": failure.name,
                "problem": failure.problem,
                "acknowledged": acknowledgement_text(store.entry_of(failure.uri, failure.name)),
            }
            for failure in failures
        ]
        for failure in unlisted:
            if failure["acknowledged"]:
                self.log.warning("%s is not listed; %s", failure["name"], failure["acknowledged"])
            else:
                self.log.error("%s cannot be listed: %s", failure["name"], failure["problem"])
        tables = [
            {"name": table.name, "uri": table.uri}
            for table in oldest_first(
                discovery.tables, lambda table: saved_at(table.uri, table.name)
            )
            if not self.only or any(table.answers_to(text) for text in self.only)
        ]
        size = max(self.tables_per_batch, -(-len(tables) // max_map_length()))
        batches = [tables[start : start + size] for start in range(0, len(tables), size)]
        self.log.info("%d tables in %d batches", len(tables), len(batches))
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

    If the policy has a budget, it decides which operations run, and the order of the tables.
    Returns at most `most` of the tables with operations that are due; with `batches`, lists of them
    for `DeltaPolicyBatchOperator`. Tables that could not be assessed are left out. The names of the
    tables that wait for the next run, where they come first, are pushed to XCom as `left_over`:
    `{"tables": number, "names": the first 20}`. With a budget, the operations of other tables that
    wait are stored for the health page, recorded in the ledger, and counted as `deferred`.

    :param assessed: the return values of the tasks of `DeltaAssessOperator`. (templated)
    :param policy: see `DeltaAssessOperator`. (templated)
    :param most: the most tables of one run; Airflow's limit for mapped tasks applies too.
    :param batches: the limits of a batch; None for a task for each table.
    """

    template_fields: Sequence[str] = ("assessed", "policy")
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        assessed: Iterable[Sequence[Mapping[str, Any]]],
        policy: str | None = None,
        most: int = 1_000,
        batches: BatchLimits | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.assessed = assessed
        self.policy = policy
        self.most = most
        self.batches = batches

    def execute(self, context: Context) -> list[Any]:
        rows = [dict(row) for batch_rows in self.assessed or () for row in batch_rows if row["due"]]
        rows.sort(key=lambda row: (row["last_run_at"] or "", row["name"]))
        with retrying_only_what_may_pass():
            work = PolicyWork(self.policy, may_lack=True)
            if (budget := work.policy.budget) is not None:
                ti, link = context["ti"], link_to(context)
                rows, deferred = choose_rows(
                    work, budget, assessment_store(), rows, ti=ti, link=link
                )
                ti.xcom_push(key=DEFERRED, value=deferred)
        max_rows = min(self.most, max_map_length())
        chosen, postponed = rows[:max_rows], rows[max_rows:]
        names = [row["name"] for row in postponed[:_NAMED]]
        context["ti"].xcom_push(key=LEFT_OVER, value={"tables": len(postponed), "names": names})
        if postponed:
            self.log.warning(
                "%d tables wait for the next run, because this one takes %d: %s%s",
                len(postponed),
                max_rows,
                ", ".join(names),
                ", …" if len(postponed) > len(names) else "",
            )
        elif not chosen:
            self.log.info("no table has work for this run")
        if self.batches is None:
            return chosen
        batches = divide_into_batches(chosen, self.batches)
        self.log.info("%d tables with work in %d tasks", len(chosen), len(batches))
        return batches


def oldest_first(tables: Iterable[Any], at: Callable[[Any], datetime | None]) -> list[Any]:
    """Sorts by an instant, with missing instants first. The sort is stable."""
    return sorted(tables, key=lambda table: at(table) or _NEVER)


_NEVER = datetime.min.replace(tzinfo=UTC)


_SHOWN = 20


class DeltaSummaryOperator(BaseOperator):
    """Summarises a run over the tables of a policy; fails if tables need attention.

    Returns `tables`, the number of tables with work; `statuses`, the number of these by status;
    `not_assessed`, the number of tables and patterns that could not be assessed; `problems`, the
    first problems; `num_problems`, the number of problems; `acknowledged`, the number of tables and
    patterns whose failures are known, which are no problems; `left_over`, the number of tables that
    wait for the next run; `deferred`, the number of operations that wait because of the budget; and
    `text`. All failures are in the XCom `failed`, for
    `DeltaFailureNotifier`.

    :param find_task: the task of `DeltaFindTablesOperator`; if it was skipped, so is this one.
    :param assess_task: the mapped task of `DeltaAssessOperator`.
    :param select_task: the task of `DeltaSelectWorkOperator`.
    :param run_task: the mapped task of `DeltaPolicyRunOperator` or `DeltaPolicyBatchOperator`.
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
        found_tables = _one(ti, self.find_task, FOUND)
        if found_tables is None:
            problem = f"no tables were found: see the log of {self.find_task}"
            ti.xcom_push(key=FAILED, value={"tables": [], "of_run": {self.find_task: problem}})
            raise AirflowFailException(problem)
        if found_tables["skipped"]:
            raise AirflowSkipException(found_tables["skipped"])
        assessed = returned_values(ti, self.assess_task)
        failures = [
            *found_tables["unlisted"],
            *(row for batch_rows in assessed for row in batch_rows),
        ]
        failures = [row for row in failures if row["problem"]]
        due_rows = flatten(_one(ti, self.select_task, BaseXCom.XCOM_RETURN_KEY) or [])
        outcomes = {outcome["name"]: outcome for outcome in returned_rows(ti, self.run_task)}
        failed = [row["name"] for row in (*failures, *outcomes.values()) if row["problem"]]
        lost: dict[str, str] = {}
        missing = found_tables["batches"] - len(assessed)
        if missing > 0:
            problem = f"{missing} of {found_tables['batches']} batches of tables were not assessed"
            lost[self.assess_task] = f"{problem}; see its failed tasks"
            failures.append({"name": self.assess_task, "problem": lost[self.assess_task]})
        if any(row["name"] not in outcomes for row in due_rows):
            lost[self.run_task] = "tables have left no result; see its failed tasks"
        ti.xcom_push(key=FAILED, value={"tables": failed, "of_run": lost})
        summary = summarise(
            due_rows=due_rows,
            outcomes=outcomes,
            failures=failures,
            left_over=_one(ti, self.select_task, LEFT_OVER) or {},
            deferred=_one(ti, self.select_task, DEFERRED) or {},
        )
        if summary["num_problems"]:
            self.log.error("%s", summary_text(summary))
            # Airflow pushes the return value of a task only if it succeeds.
            ti.xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=summary)
            raise AirflowFailException(summary_text(summary))
        self.log.info("%s", summary_text(summary))
        return summary


def _one(ti: Any, task_id: str, key: str) -> Any:
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=-1)


def summarise(
    *,
    due_rows: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    left_over: Mapping[str, Any],
    deferred: Mapping[str, Any],
) -> dict[str, Any]:
    """Summarises the tables with work, by name, and those that could not be assessed."""
    statuses: dict[str, int] = {}
    acknowledged = [row["name"] for row in failures if row.get("acknowledged")]
    unknown = [row for row in failures if not row.get("acknowledged")]
    problems = [f"{row['name']}: {row['problem']}" for row in unknown]
    left_names = list(left_over.get("names") or [])
    waiting = int(left_over.get("tables") or 0)
    operations = int(deferred.get("operations") or 0)
    for row in due_rows:
        outcome = outcomes.get(row["name"])
        by_choice = len((row.get("allotment") or {}).get("deferred") or ())
        operations += by_choice if outcome is None else outcome.get("deferred", by_choice)
        # A task that was skipped or killed has no value.
        status = outcome["status"] if outcome is not None else "not-finished"
        if status == LEFT:
            left_names, waiting = [*left_names, row["name"]][:_NAMED], waiting + 1
            continue
        if outcome is None:
            problems.append(f"{row['name']}: see its task, which has left no result")
        elif outcome.get("acknowledged"):
            acknowledged.append(row["name"])
            status = "acknowledged"
        elif outcome["problem"]:
            problems.append(f"{row['name']}: {outcome['problem']}")
        statuses[status] = statuses.get(status, 0) + 1
    begun = sum(statuses.values())
    return {
        "tables": begun,
        "statuses": statuses,
        "not_assessed": len(unknown),
        "problems": problems[:_SHOWN],
        "num_problems": len(problems),
        "acknowledged": len(acknowledged),
        "left_over": waiting,
        "deferred": operations,
        "text": "; ".join(
            section
            for section in (
                _counts_text(begun, statuses),
                f"{len(unknown):,} could not be assessed" if unknown else None,
                f"{len(acknowledged):,} known broken, acknowledged" if acknowledged else None,
                _left_over(waiting, left_names),
                _deferred(operations, deferred.get("until")),
            )
            if section is not None
        ),
    }


def summary_text(summary: Mapping[str, Any]) -> str:
    """Formats the summary for people."""
    problems = summary["problems"]
    num_hidden = summary["num_problems"] - len(problems)
    lines = [summary["text"], *problems, *([f"and {num_hidden} more"] if num_hidden else [])]
    return "; ".join(lines)


def _counts_text(tables: int, statuses: Mapping[str, int]) -> str:
    if not tables:
        return "nothing was due"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{_count(tables, 'table')} with work: {counts}"


def _left_over(tables: int, names: Sequence[str]) -> str | None:
    if not tables:
        return None
    rest = ", …" if tables > len(names) else ""
    return f"{_count(tables, 'table')} left for the next run: {', '.join(names)}{rest}"


def _deferred(operations: int, until: str | None) -> str | None:
    if not operations:
        return None
    when = "to the next run" if until is None else f"until {until}"
    return f"{_count(operations, 'operation')} deferred {when}, because of the budget"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"

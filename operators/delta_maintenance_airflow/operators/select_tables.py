"""Operators that choose tables of a policy: those to assess, and those to work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from delta_maintenance_airflow.compat import AirflowSkipException
from delta_maintenance_airflow.failures import retrying_only_what_may_pass
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import assessment_store, max_map_length

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
        for failure in failures:
            self.log.error("%s cannot be listed: %s", failure.name, failure.problem)
        wanted = set(self.only)
        tables = [
            {"name": table.name, "uri": table.uri}
            for table in oldest_first(found.tables, lambda table: saved_at(table.name))
            if not wanted or {table.name, table.uri} & wanted
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

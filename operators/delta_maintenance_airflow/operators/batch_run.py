"""The operator that maintains several tables of a policy in one task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)
from delta_maintenance_airflow.lineage import LineageFacts
from delta_maintenance_airflow.operators.batches import LEFT
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import assessment_store
from delta_maintenance_airflow.tasks import (
    as_flag,
    earlier_tries,
    link_to,
    retrying_only_what_may_pass,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.assessments import AssessmentStore

_SHOWN = 3


class DeltaPolicyBatchOperator(DeltaPolicyRunOperator):
    """Runs the operations that are due on several tables by their policy, one table after another.

    Returns a list with the result of each table; see `DeltaPolicyRunOperator`, whose other
    parameters it takes. A table that fails leaves the others alone: the task fails at its end, and
    a retry repeats only the tables for which that may help. The lease is that of the table that is
    being changed. A task for one table returns an object.

    :param tables: the tables, like `table` of `DeltaPolicyRunOperator`. (templated)
    :param time_limit: the time after which no further table is begun. The others are left for the
        next run.
    """

    template_fields: Sequence[str] = (
        "tables",
        *(field for field in DeltaPolicyRunOperator.template_fields if field != "table"),
    )

    def __init__(
        self,
        *,
        tables: Sequence[Mapping[str, Any]],
        time_limit: timedelta = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(table={}, **kwargs)
        self.tables = tables
        self.time_limit = time_limit
        self._lineages: list[LineageFacts] = []
        self._is_killed = False
        self._policy_work: PolicyWork | None = None

    def policy_work(self) -> PolicyWork:
        # One for all tables: its search for clones waits once for a store that does not answer.
        self._policy_work = self._policy_work or super().policy_work()
        return self._policy_work

    def execute(self, context: Context) -> Any:
        if len(self.tables) == 1:
            self.table = self.tables[0]
            return super().execute(context)
        return self._all(context)

    def _all(self, context: Context) -> list[dict[str, Any]]:
        end = time.monotonic() + self.time_limit.total_seconds()
        rows: list[dict[str, Any]] = []
        failures: list[Exception] = []
        left_names: list[str] = []
        for table in self._in_order(context):
            self.table, self._lineage = table, None
            if self._is_killed or time.monotonic() >= end:
                left_names.append(table["name"])
                facts: dict[str, Any] = {"name": table["name"], "uri": table["uri"]}
                rows.append({**facts, "status": LEFT, "problem": None})
                continue
            facts, failure = self._one(context)
            rows.append(facts)
            if isinstance(failure, AirflowSkipException):
                self.log.warning("%s: %s", table["name"], failure)
            elif failure is not None:
                if not facts.get("operations"):
                    self.log.error("%s: %s", table["name"], failure)
                failures.append(failure)
            if (reported := super().lineage()) is not None:
                self._lineages.append(reported)
        # The links and the lineage of the task are about no single table.
        self.table, self._lineage = {}, None
        if left_names:
            self.log.warning(
                "%d tables are left for the next run, because the time is over: %s",
                len(left_names),
                ", ".join(left_names),
            )
        if failures:
            # Airflow pushes the return value of a task only if it succeeds.
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=rows)
            raise _failure_of(failures, of=len(self.tables))
        return rows

    def _in_order(self, context: Context) -> Sequence[Mapping[str, Any]]:
        """The tables. On a retry, those come last at which the tries before may have been killed,
        because otherwise no try would come to the tables behind them.
        """
        tries = earlier_tries(self, context)
        if not tries:
            return self.tables
        with retrying_only_what_may_pass():
            store, link = assessment_store(), link_to(context)
            ended: list[Mapping[str, Any]] = []
            other_rows: list[Mapping[str, Any]] = []
            for table in self.tables:
                entry = store.entry_of(table["uri"], table["name"])
                (ended if entry is not None and entry.link == link else other_rows).append(table)
        return [*ended, *other_rows[tries:], *other_rows[:tries]]

    def _one(self, context: Context) -> tuple[dict[str, Any], Exception | None]:
        """The attempt on one table, which was perhaps made by an earlier try of this task."""
        try:
            with retrying_only_what_may_pass():
                before = self._tried_before(context, assessment_store())
            return self.attempt(context) if before is None else before
        except Exception as error:
            # Whatever is wrong with one table: its catalog, its connection, or our code.
            self.log.debug("the failure of %s", self.table["name"], exc_info=True)
            facts = {"name": self.table["name"], "uri": self.table["uri"], "status": "failed"}
            return {**facts, "problem": " ".join(str(error).split())}, error

    def _tried_before(
        self, context: Context, store: AssessmentStore
    ) -> tuple[dict[str, Any], Exception | None] | None:
        """Returns the outcome of an earlier try; None if the table is to be tried now."""
        if not earlier_tries(self, context):
            return None
        table = PolicyWork(self.policy).table(self.table.get("name"), self.table.get("uri"))
        entry = store.entry_of(table.uri, table.name)
        run = entry.run if entry is not None and entry.link == link_to(context) else None
        if entry is None or run is None or (run.exit_status and run.retryable):
            return None
        self.log.info("%s: an earlier try of this task has ended as %s", run.name, run.status)
        return self._facts_of_run(context, run, entry)

    def on_kill(self) -> None:
        self._is_killed = True
        super().on_kill()

    def lineages(self) -> Sequence[LineageFacts]:
        if self._lineages or self.table:
            return self._lineages or super().lineages()
        # The task has not begun.
        return [
            LineageFacts(table_uri=table["uri"], written=not as_flag(self.plan_only, "plan_only"))
            for table in self.tables
        ]


def _failure_of(failures: Sequence[Exception], *, of: int) -> Exception:
    text = "; ".join(str(failure) for failure in failures[:_SHOWN])
    rest = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    permanent = all(isinstance(failure, AirflowFailException) for failure in failures)
    kind = AirflowFailException if permanent else AirflowException
    return kind(f"{len(failures)} of {of} tables: {text}{rest}")

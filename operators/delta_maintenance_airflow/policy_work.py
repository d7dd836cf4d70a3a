"""From a policy to its tables: connections, Spark, and the stored state of each table."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.address import Address, is_catalog_name
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import core
from delta_maintenance.redaction import redact
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException, Stats
from delta_maintenance_airflow.hooks.delta import PolicyHook
from delta_maintenance_airflow.ledger import open_ledger, record_run
from delta_maintenance_airflow.settings import assessment_store, policy_path, report_folder
from delta_maintenance_airflow.spark.submission import SparkSubmission

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.core.policy_values import StorageRule
    from delta_maintenance.policies.approval import ApprovedPlan
    from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
    from delta_maintenance.policies.budget.estimates import CostHistory
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.execute import SubmitToSpark
    from delta_maintenance.policies.models import AssessedOperation, RunResult
    from delta_maintenance.policies.session import PolicySession

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PolicyWork:
    """The work of one task on tables of a policy."""

    path: str | None
    """The path of the policy; None for the one in Airflow's configuration."""
    may_lack: bool = False
    """Whether the policy may be absent, in which case every table has the defaults."""

    @cached_property
    def policy(self) -> Policy:
        """The policy document."""
        # Imported here because it loads pydantic models, which would slow down Dag parsing.
        from delta_maintenance.policies.definition.policy import Policy, load_policy

        path = self.path or policy_path()
        if path is None and self.may_lack:
            return Policy(version=1)
        if path is None:
            raise AirflowFailException(
                "there is no policy: name its file as [delta_maintenance] policy in Airflow's "
                "configuration"
            )
        return load_policy(path)

    @cached_property
    def session(self) -> PolicySession:
        """The tables of the policy, which share the folder of the assessments."""
        from delta_maintenance.policies.session import PolicySession

        return PolicySession(
            policy=self.policy, storage_options=_options_at, state=assessment_store().store
        )

    @cached_property
    def clones(self) -> PolicyClones:
        """The search for clones among all tables of the policy."""
        return self.session.clones()

    @cached_property
    def costs(self) -> tuple[CostHistory, str | None]:
        """What operations are expected to take by the ledger, and why it could not be read."""
        from delta_maintenance.ledger.costs import known_costs
        from delta_maintenance.ledger.recording import is_unreachable
        from delta_maintenance.policies.budget.estimates import CostHistory

        ledger = self.policy.ledger
        if ledger is not None and is_unreachable(ledger.uri, assessment_store().store):
            problem = "the store of the ledger failed a short while ago"
            problem = f"the usual order is used until the budget is spent: {problem}"
            return CostHistory(prices=self.policy.prices), problem
        opened = None if ledger is None else partial(open_ledger, ledger)
        return known_costs(opened, now=clock.now(), prices=self.policy.prices)

    def rules_of(self, name: str, uri: str) -> PolicyTable:
        """Returns a table of the policy with its rules; a request only for one in a catalog."""
        if is_catalog_name(name):
            return self.session.table_in_catalog(name)
        return self.policy.table_at(uri, name=name)

    def table(self, name: str | None, uri: str | None) -> PolicyTable:
        """Returns a table with its rules, by address, or by its name in the policy or in one of the
        policy's catalogs. A text that is a name in the policy is not taken for an address.
        """
        in_catalog = next((each for each in (name, uri) if each and is_catalog_name(each)), None)
        if in_catalog is not None:
            return self._complete_rules(self.session.table_in_catalog(in_catalog))
        if uri is None or name is None:
            text = str(name if uri is None else uri)
            uri = self.policy.address_of(text) or uri
            if uri is None:
                raise AirflowFailException(
                    f"the policy names no table {redact(text)!r}; give its address instead"
                )
        # Refused before the address gets into names, links and logs.
        Address.parse(uri)
        return self._complete_rules(self.policy.table_at(uri, name=name))

    def keep_run(
        self, store: AssessmentStore, result: RunResult, *, link: str
    ) -> AssessmentEntry | None:
        """Stores a run with the newest assessment of its table, and records it in the ledger."""
        assert result.newest_assessment is not None, "a run assesses its table"
        entry = store.keep(result.newest_assessment, result, link=link)
        record_run(self.policy.ledger, store, result, link=link)
        return entry

    def _complete_rules(self, table: PolicyTable) -> PolicyTable:
        """Completes the rules by what the connection says of other writers."""
        if table.rules.other_writers is not None:
            return table
        stated = PolicyHook(table.rules.storage).other_writers
        rules = table.rules.model_copy(update={"other_writers": stated})
        return table.model_copy(update={"rules": rules})


def _options_at(rule: StorageRule, root: str) -> Mapping[str, str]:
    try:
        return PolicyHook(rule).storage_options(root)
    except AirflowException as error:
        # For example a connection that does not exist.
        raise InvalidRequestError(str(error), remedy="correct the connection") from error


def submitter(
    context: Context, key: Sequence[Any], started: Callable[[SparkSubmission], None]
) -> SubmitToSpark:
    """Returns a function that submits Spark jobs through the connection that the policy names.

    `key` is the same in every try of a task. `started` is called with each submission, so that it
    can be killed.
    """

    def submit(
        table: PolicyTable,
        due: AssessedOperation,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        record = core.find(due.operation)
        hook, spark = PolicyHook(table.rules.storage), table.rules.spark
        options = due.options.to_json() if due.options is not None else {}
        binding = None if approved is None else approved.to_json()
        asked = json.dumps(
            [*key, table.uri, due.operation, plan_only, options, binding], sort_keys=True
        )
        submission = SparkSubmission(
            spark_conn_id=spark.connection or hook.spark_conn_id or "spark_default",
            spark_conf=spark.conf,
            spark_code=None,
            delta_hook=hook,
            report_folder=report_folder(),
            key=str(uuid.uuid5(uuid.NAMESPACE_URL, f"airflow:{asked}")),
            context=context,
        )
        started(submission)
        return submission.run(
            due.operation,
            table.uri,
            options,
            plan_only=plan_only,
            approved=binding,
            settles=lambda result: record.outcome_of(result.get("status", "")).succeeded,
        )

    return submit


def report_metrics(result: RunResult) -> None:
    """Reports a run to the metrics of Airflow. Raises nothing: they never fail a task."""
    # Imported here because it loads PyArrow, which would slow down Dag parsing.
    from delta_maintenance.metrics.runs import measurements

    try:
        for measurement in measurements(result):
            if measurement.metric.kind == "histogram":
                span = timedelta(seconds=measurement.value)
                Stats.timing(measurement.metric.in_otel, span, tags={**measurement.labels})
            else:
                Stats.incr(
                    measurement.metric.in_otel, int(measurement.value), tags={**measurement.labels}
                )
    except Exception:
        _log.warning("the metrics of a run were not reported", exc_info=True)

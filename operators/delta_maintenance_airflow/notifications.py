"""Notifications about the outcome of a run over the tables of a policy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowException, AirflowFailException, mask
from delta_maintenance_airflow.operators.scheduled import FAILED, summary_text
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.settings import assessment_store, notify_conn_id
from delta_maintenance_airflow.tasks import as_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.definition.alerts import AlertRules, Webhook


class DeltaFailureNotifier(BaseNotifier):
    """Tells the owners of tables what has failed since the last run of the Dag `delta_maintenance`,
    and which tables are well again, each once, by the `alerts` of the policy.

    For the callbacks of the task of `DeltaSummaryOperator`. A failure that stays the same, or is
    acknowledged, is not told. A message that is not delivered is part of the next run's.

    :param policy: the file with the policy; the default is `[delta_maintenance] policy` in
        Airflow's configuration. (templated)
    :param conn_id: the connection for owners whom the policy gives no webhook, unless it has a
        default; by default `[delta_maintenance] notify_conn_id`. (templated)
    """

    template_fields = ("policy", "conn_id")

    def __init__(self, *, policy: str | None = None, conn_id: str | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.conn_id = conn_id

    def notify(self, context: Context) -> None:
        ti = context["ti"]
        failed = ti.xcom_pull(task_ids=ti.task_id, key=FAILED)
        rules = self._rules()
        if failed is None or (rules.default is None and not rules.owners):
            return
        if as_flag(context["params"].get("plan_only", False)):
            # The stored runs are plans, which say nothing about failures.
            return
        from delta_maintenance import clock
        from delta_maintenance.policies.alerts import tell

        lost = tell(
            rules,
            assessment_store(),
            failed["tables"],
            self.deliver,
            title=ti.dag_id,
            now=clock.now(),
            of_run=failed["of_run"],
        )
        if lost:
            raise AirflowException("; ".join(map(str, lost)))

    def deliver(self, webhook: Webhook, text: str) -> bool:
        """Posts a message; returns false if the webhook has neither a connection nor a variable.

        Override this method to send messages by another notifier of Airflow.
        """
        from delta_maintenance.policies.webhook import post_by_environment

        if webhook.connection is None:
            return post_by_environment(webhook, text, environment=os.environ)
        from delta_maintenance.errors import AlertError

        try:
            _post(webhook.connection, {"text": text})
        except AirflowException as error:
            problem = str(error)
        else:
            return True
        raise AlertError(problem, remedy="the next run sends it again")

    def _rules(self) -> AlertRules:
        from delta_maintenance.policies.definition.alerts import Webhook

        rules = PolicyWork(self.policy).policy.alerts
        conn_id = self.conn_id or notify_conn_id()
        if rules.default is not None or conn_id is None:
            return rules
        return rules.model_copy(update={"default": Webhook(connection=conn_id)})


class MaintenanceSummaryNotifier(BaseNotifier):
    """Posts the summary of the Dag `delta_maintenance` as `{"text": ...}`, the format of chat
    webhooks.

    The address comes from a connection: its host is the URL, and its password, if any, the token of
    an `Authorization: Bearer` header. Without a connection, the summary is only logged.

    :param conn_id: the connection; the default is `[delta_maintenance] notify_conn_id` in Airflow's
        configuration.
    :param quiet: post nothing if there was no problem. (templated)
    """

    template_fields = ("conn_id", "quiet")

    def __init__(self, *, conn_id: str | None = None, quiet: bool = True) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.quiet = quiet

    def notify(self, context: Context) -> None:
        conn_id = self.conn_id or notify_conn_id()
        if conn_id is None:
            return
        ti = context["ti"]
        summary = ti.xcom_pull(task_ids=ti.task_id, key=BaseXCom.XCOM_RETURN_KEY)
        if summary is None or (self.quiet and not summary["num_problems"]):
            return
        _post(conn_id, {"text": f"{ti.dag_id}: {summary_text(summary)}"})


class ApprovalNotifier(BaseNotifier):
    """Posts that plans wait for an approval, with a link to the question, as `{"text": ...}`.

    :param conn_id: see `MaintenanceSummaryNotifier`.
    """

    template_fields = ("conn_id",)

    def __init__(self, *, conn_id: str | None = None) -> None:
        super().__init__()
        self.conn_id = conn_id

    def notify(self, context: Context) -> None:
        conn_id = self.conn_id or notify_conn_id()
        if conn_id is None:
            return
        from airflow.providers.standard.operators.hitl import HITLOperator

        ti, task = context["ti"], context["task"]
        assert isinstance(task, HITLOperator)
        first = (task.body or task.subject).partition("\n")[0]
        link = HITLOperator.generate_link_to_ui_from_context(context=context)
        _post(conn_id, {"text": f"{ti.dag_id}: {first} {link}"})


def _post(conn_id: str, message: dict[str, Any]) -> None:
    from delta_maintenance.errors import DeltaMaintenanceError
    from delta_maintenance.policies.webhook import post

    connection = BaseHook.get_connection(conn_id)
    address = connection.host or ""
    if not address.startswith(("https://", "http://")):
        raise AirflowFailException(
            f"the connection {conn_id} has no URL as its host; give https://..."
        )
    # The path of a webhook is a secret, and the log of the HTTP client contains it.
    mask(address)
    mask("/" + address.partition("://")[2].partition("/")[2])
    try:
        post(address, message["text"], name=f"the connection {conn_id}", token=connection.password)
    except DeltaMaintenanceError as error:
        problem = str(error)
    else:
        return
    raise AirflowException(problem)

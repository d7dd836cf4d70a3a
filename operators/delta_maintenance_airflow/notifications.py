"""Notifications about the outcome of a run over the tables of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowException, AirflowFailException, mask
from delta_maintenance_airflow.operators.scheduled import FAILED, summary_text
from delta_maintenance_airflow.settings import assessment_store, notify_conn_id
from delta_maintenance_airflow.tasks import as_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

_TIMEOUT = (5.0, 20.0)
"""Seconds to connect, and to wait for an answer."""


class _WebhookNotifier(BaseNotifier):
    """Posts to the URL of a connection."""

    template_fields: Sequence[str] = ("conn_id",)

    def __init__(self, *, conn_id: str | None = None) -> None:
        super().__init__()
        self.conn_id = conn_id

    def recipient(self) -> str | None:
        """Returns the ID of the connection; None if there is none."""
        return self.conn_id or notify_conn_id()


class DeltaFailureNotifier(_WebhookNotifier):
    """Posts what has failed since the last run of the Dag `delta_maintenance`, and which tables are
    well again, each once, as `{"text": ...}`.

    For the callbacks of the task of `DeltaSummaryOperator`. A failure that stays the same, or is
    acknowledged, is not posted. A message that is not delivered is part of the next run's.

    :param conn_id: see `MaintenanceSummaryNotifier`.
    """

    def notify(self, context: Context) -> None:
        ti = context["ti"]
        failed = ti.xcom_pull(task_ids=ti.task_id, key=FAILED)
        if failed is None or not self.has_recipient():
            return
        if as_flag(context["params"].get("plan_only", False), "plan_only"):
            # The stored runs are plans, which say nothing about failures.
            return
        from delta_maintenance import clock
        from delta_maintenance.policies.new_failures import report_new_failures

        report_new_failures(
            assessment_store(),
            failed["tables"],
            self.deliver,
            title=ti.dag_id,
            now=clock.now(),
            problems_of_run=failed["of_run"],
        )

    def has_recipient(self) -> bool:
        """Returns whether there is a connection. Override this method together with `deliver`."""
        return self.recipient() is not None

    def deliver(self, text: str) -> None:
        """Posts a message; an error makes it part of the next run's.

        Override this method to send messages by another notifier of Airflow.
        """
        conn_id = self.recipient()
        assert conn_id is not None
        _post(conn_id, text)


class MaintenanceSummaryNotifier(_WebhookNotifier):
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
        super().__init__(conn_id=conn_id)
        self.quiet = quiet

    def notify(self, context: Context) -> None:
        conn_id = self.recipient()
        if conn_id is None:
            return
        ti = context["ti"]
        summary = ti.xcom_pull(task_ids=ti.task_id, key=BaseXCom.XCOM_RETURN_KEY)
        if summary is None or (self.quiet and not summary["num_problems"]):
            return
        _post(conn_id, f"{ti.dag_id}: {summary_text(summary)}")


class ApprovalNotifier(_WebhookNotifier):
    """Posts that plans wait for an approval, with a link to the question, as `{"text": ...}`.

    :param conn_id: see `MaintenanceSummaryNotifier`.
    """

    def notify(self, context: Context) -> None:
        conn_id = self.recipient()
        if conn_id is None:
            return
        from airflow.providers.standard.operators.hitl import HITLOperator

        ti, task = context["ti"], context["task"]
        assert isinstance(task, HITLOperator)
        first_line = (task.body or task.subject).partition("\n")[0]
        link = HITLOperator.generate_link_to_ui_from_context(context=context)
        _post(conn_id, f"{ti.dag_id}: {first_line} {link}")


def _post(conn_id: str, text: str) -> None:
    """Posts a message. Errors name the connection: whoever knows the address can post."""
    # Imported here, because importing notifiers must not take long.
    import requests

    connection = BaseHook.get_connection(conn_id)
    address = connection.host or ""
    if not address.startswith(("https://", "http://")):
        raise AirflowFailException(
            f"the connection {conn_id} has no URL as its host; give https://..."
        )
    # The path of a webhook is a secret, and the log of the HTTP client contains it.
    mask(address)
    mask("/" + address.partition("://")[2].partition("/")[2])
    token = connection.password
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with requests.post(
            address,
            json={"text": text},
            headers=headers,
            # Without it, credentials in ~/.netrc would replace the header.
            auth=lambda request: request,
            # A redirected POST becomes a GET, which delivers nothing.
            allow_redirects=False,
            stream=True,
            timeout=_TIMEOUT,
        ) as response:
            status = response.status_code
        problem = None if 200 <= status < 300 else f"HTTP status {status}"
    except (requests.RequestException, ValueError) as error:
        # ValueError comes from a token that no header can contain.
        problem = type(error).__name__
    # Raised outside the handler: the caught error contains the address or the token.
    if problem is not None:
        raise AirflowException(
            f"the message to the connection {conn_id} was not accepted: {problem}"
        )

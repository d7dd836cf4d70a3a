"""Notifications about the outcome of a run over the tables of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.compat import AirflowException, AirflowFailException, mask
from delta_maintenance_airflow.operators.scheduled import summary_text
from delta_maintenance_airflow.settings import notify_conn_id

if TYPE_CHECKING:
    from airflow.sdk import Context

_SECONDS = 20


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
    # Airflow's own HTTP client, imported here because it would slow down Dag parsing.
    import httpx

    connection = BaseHook.get_connection(conn_id)
    address = connection.host or ""
    if not address.startswith(("https://", "http://")):
        raise AirflowFailException(
            f"the connection {conn_id} has no URL as its host; give https://..."
        )
    # The path of a webhook is a secret, and the log of the HTTP client contains it.
    mask(address)
    mask(httpx.URL(address).raw_path.decode())
    token = connection.password
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.post(address, json=message, headers=headers, timeout=_SECONDS)
    except httpx.HTTPError as error:
        raise AirflowException(f"{_lost(conn_id)}: {type(error).__name__}") from None
    if not answer.is_success:
        raise AirflowException(f"{_lost(conn_id)}: HTTP status {answer.status_code}")


def _lost(conn_id: str) -> str:
    return f"the notification through the connection {conn_id} was not accepted"

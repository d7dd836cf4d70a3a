"""The trigger behind the commit sensor: waits in the triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from airflow.triggers.base import BaseTrigger, TriggerEvent

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.triggers.polling import TableStream, serialize_trigger

if TYPE_CHECKING:
    from delta_maintenance.operations.watch import WaitProgress


class DeltaCommitTrigger(BaseTrigger):
    """Polls the log of one table until a condition holds, then fires once.

    The event is `{"status": "success", "table", "version", ...}`. It is `{"status": "error",
    "message", ...}` if the condition cannot become true: there is no table, or no longer one, the
    store rejects the credentials, or the request is wrong. Polls of a store that is unavailable or
    throttles are repeated, with growing pauses.

    :param table_uri: the address of the table.
    :param condition: the condition: `operations.watch.WaitCondition` as JSON.
    :param delta_conn_id: the connection with the storage options of the table.
    :param poll_interval: seconds between two polls.
    """

    def __init__(
        self,
        *,
        table_uri: str,
        condition: Mapping[str, Any],
        delta_conn_id: str | None = None,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        # Airflow stores it in its database, which must not contain an address with credentials.
        Address.parse(table_uri)
        self.table_uri = table_uri
        self.condition = dict(condition)
        self.delta_conn_id = delta_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return serialize_trigger(self, "table_uri", "condition", "delta_conn_id", "poll_interval")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            payload = await self._wait_for_commit()
        except (DeltaMaintenanceError, AirflowException) as error:
            payload = {"status": "error", "error": type(error).__name__, "message": str(error)}
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # untyped

    async def _wait_for_commit(self) -> dict[str, Any]:
        stream = TableStream(
            table_uri=self.table_uri,
            hook=DeltaHook(self.delta_conn_id),
            poll_interval=self.poll_interval,
            condition=self.condition,
        )
        async with aclosing(stream.results()) as results:
            async for result in results:
                if result.trouble is not None:
                    raise result.trouble
                poll = cast("WaitProgress", result.poll)
                if poll.done:
                    return {"status": "success", **poll.found()}
        raise AssertionError("a stream of polls has no end")

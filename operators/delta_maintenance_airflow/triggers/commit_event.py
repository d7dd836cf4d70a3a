"""Sends an asset event for each new commit of a table."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from delta_maintenance.address import Address
from delta_maintenance.operations.position import Position
from delta_maintenance_airflow.compat import asset_states
from delta_maintenance_airflow.hooks.delta import DeltaHook, PolicyAccess
from delta_maintenance_airflow.triggers.announcements import CommitWatcher
from delta_maintenance_airflow.triggers.cursor import Cursor
from delta_maintenance_airflow.triggers.polling import PollResult, TableStream, serialize_trigger

_ARGUMENTS = (
    "table_uri",
    "delta_conn_id",
    "poll_interval",
    "min_commits",
    "operations",
    "after_version",
)


class DeltaCommitEventTrigger(BaseEventTrigger):
    """Triggers Dags when rows of a table were added or removed. For an `AssetWatcher`.

    Maintenance commits never trigger a Dag: neither OPTIMIZE, VACUUM and similar ones of any
    engine, nor changes of properties or of the protocol, nor commits of this package. The payload
    of the event is `{"status": "changed", "table", "from_version", "to_version"}`: all commits
    after the first version up to the second.

    With Airflow 3.3 the watcher stores its position in the state of its asset. After a restart it
    continues there: no commit is missed, and an event is repeated only if the triggerer died within
    seconds of it. The first time, it begins at the newest version of the table. Before 3.3 it does
    so at every start.

    A missing table, rejected credentials and a wrong address are reported once, as
    `{"status": "error", "table", "error", "message"}`, so that the triggered run can fail with the
    message. The watcher continues, and notices when the problem is solved. Polls of a store that is
    unavailable or throttles are repeated, with growing pauses.

    All watchers of a table with the same connection, or policy, and interval share one poll loop.

    :param table_uri: the address of the table.
    :param delta_conn_id: the connection with the storage options of the table; None if the
        environment of the triggerer provides them.
    :param policy: instead of a connection, the file of a policy whose `storage` specifies the
        access to the table. The triggerer reads it whenever it opens the table.
    :param poll_interval: seconds between two polls.
    :param min_commits: the number of such commits that an event waits for.
    :param operations: count only these operations, such as `MERGE`; others trigger no Dag.
    :param after_version: the version at which to begin if no position is stored, instead of the
        newest one; -1 is before the first.
    """

    settling_seconds: ClassVar[float] = 5.0
    """The time for which an event may take to reach the database. A position that is stored sooner
    could outlive an event that was lost with its triggerer."""

    def __init__(
        self,
        *,
        table_uri: str,
        delta_conn_id: str | None = None,
        poll_interval: float = 30.0,
        min_commits: int = 1,
        operations: Sequence[str] = (),
        after_version: int | None = None,
        policy: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        if policy is not None and delta_conn_id is not None:
            raise ValueError("give delta_conn_id or policy, which names the connection itself")
        if poll_interval <= 0 or min_commits < 1:
            raise ValueError("poll_interval must be above 0 and min_commits 1 or more")
        # Airflow stores it in its database, which must not contain an address with credentials.
        Address.parse(table_uri)
        self.table_uri = table_uri
        self.delta_conn_id = delta_conn_id
        self.poll_interval = float(poll_interval)
        self.min_commits = min_commits
        # Airflow distinguishes watchers by their arguments, so equal ones must be normalised.
        self.operations = sorted({name.upper() for name in operations})
        self.after_version = after_version
        self.policy = policy

    def serialize(self) -> tuple[str, dict[str, Any]]:
        # Airflow's database stores these arguments, so they name the policy and contain no options.
        names = () if self.policy is None else ("policy",)
        return serialize_trigger(self, *_ARGUMENTS, *names)

    def shared_stream_key(self) -> Hashable | None:
        by_policy = () if self.policy is None else (self.policy,)
        return ("delta-log", self.table_uri, self.delta_conn_id, self.poll_interval, *by_policy)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[PollResult, None]:
        policy = kwargs.get("policy")
        hook = DeltaHook(kwargs["delta_conn_id"]) if policy is None else PolicyAccess(policy)
        stream = TableStream(
            table_uri=kwargs["table_uri"], hook=hook, poll_interval=kwargs["poll_interval"]
        )
        async with aclosing(stream.results()) as results:
            async for result in results:
                yield result

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        # Streams are shared since Airflow 3.3.
        async with (
            aclosing(self.open_shared_stream(self.serialize()[1])) as results,
            aclosing(self.filter_shared_stream(results)) as events,
        ):
            async for event in events:
                yield event

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[PollResult]
    ) -> AsyncGenerator[TriggerEvent, None]:
        cursor = Cursor(asset_states(self), self._cursor_name())
        position = await cursor.load()
        if position is None and self.after_version is not None:
            position = Position(version=self.after_version, announced=self.after_version)
        watcher = CommitWatcher(
            self.table_uri,
            min_commits=self.min_commits,
            operations=self.operations,
            position=position,
        )
        async for result in shared_stream:
            poll = await watcher.take(result)
            if poll is None:
                continue
            if poll.event is not None:
                yield TriggerEvent(poll.event)  # type: ignore[no-untyped-call]  # untyped
                await asyncio.sleep(self.settling_seconds)
            await cursor.save(poll.position)

    def _cursor_name(self) -> str:
        """The same for equal watchers: an asset may have several."""
        identity = json.dumps([self.table_uri, self.operations, self.min_commits])
        return f"delta_commits_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

"""Waits for the commits of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from delta_maintenance_airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    default_deferrable,
)
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.tasks import (
    as_flag,
    as_names,
    as_number,
    retrying_only_what_may_pass,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.watch import Wait, WaitCondition, WaitProgress

__all__ = ["DeltaCommitSensor"]


class CommitConditions(TypedDict, total=False):
    """The commits that count: those that meet all of these conditions."""

    data_changes_only: bool | str
    """Only commits that add or remove rows, and no maintenance."""
    operations: Sequence[str] | str
    """Only commits of these operations, such as `MERGE`."""
    protocol_changes: bool | str
    """Only commits that change the protocol."""
    properties: Sequence[str] | str
    """Only commits that change one of these table properties."""


_CONDITIONS = tuple(CommitConditions.__annotations__)


class DeltaCommitSensor(BaseSensorOperator):
    """Waits for a version, for new commits, or for commits that no checkpoint covers.

    Give exactly one of `version`, `after_version` and `min_commits_since_checkpoint`.

    A poll makes one listing, which starts where the last one ended, and reads the newest commit if
    it is new. It does not open the table, except that the first poll does if `commits` names
    properties.

    The return value, which is pushed to XCom, is `{"table": ..., "version": newest version}`. With
    `after_version` it also has `commits`, the number of commits that counted. With
    `min_commits_since_checkpoint` it also has `checkpoint_version` (null without a checkpoint) and
    `commits`.

    A wrong address, rejected credentials or an unreadable log fail the task at once, even with
    `soft_fail`, which applies to timeouts only. While the task is deferred, polls of a store that
    is unavailable or throttles are repeated, with growing pauses.

    :param table_uri: the address of the table. (templated)
    :param version: wait until this version exists. (templated)
    :param after_version: wait for `min_commits` commits after this version; -1 is before the first.
        (templated)
    :param min_commits: the number of commits that `after_version` waits for; one by default.
        (templated)
    :param commits: the commits that count for `after_version`, all by default; see
        `CommitConditions`. (templated)
    :param min_commits_since_checkpoint: wait until readers must replay this number of commits on
        top of the newest checkpoint; 0 does not wait. (templated)
    :param delta_conn_id: the connection with the storage options of the table; None if the
        environment of the worker provides them. (templated)
    :param deferrable: wait in the triggerer, which can wait for thousands of tables at once. The
        default is `[operators] default_deferrable`.
    """

    template_fields: Sequence[str] = (
        "table_uri",
        "version",
        "after_version",
        "min_commits",
        "commits",
        "min_commits_since_checkpoint",
        "delta_conn_id",
    )
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        table_uri: str,
        version: int | str | None = None,
        after_version: int | str | None = None,
        min_commits: int | str = 1,
        commits: CommitConditions | None = None,
        min_commits_since_checkpoint: int | str | None = None,
        delta_conn_id: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        waits_for = (version, after_version, min_commits_since_checkpoint)
        if sum(value is not None for value in waits_for) != 1:
            raise ValueError(
                "give exactly one of version, after_version and min_commits_since_checkpoint"
            )
        if unknown := sorted(set(commits or ()) - set(_CONDITIONS)):
            raise ValueError(
                f"commits has no {', '.join(unknown)}; its keys are {', '.join(_CONDITIONS)}"
            )
        self.table_uri = table_uri
        self.version = version
        self.after_version = after_version
        self.min_commits = min_commits
        self.commits = commits or {}
        self.min_commits_since_checkpoint = min_commits_since_checkpoint
        self.delta_conn_id = delta_conn_id
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self._wait: Wait | None = None

    def execute(self, context: Context) -> Any:
        # Around the whole wait and not in `poke`: the base class treats an AirflowFailException
        # from there as a timeout, and `soft_fail` would hide a broken table.
        with retrying_only_what_may_pass():
            if not self.deferrable:
                return super().execute(context)
            condition = self._condition()
            poll = self._poll(condition)
            if poll.done:
                return poll.found()
            self._defer(condition)

    def poke(self, context: Context) -> PokeReturnValue:
        poll = self._poll(None)
        return PokeReturnValue(is_done=poll.done, xcom_value=poll.found())

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the wait with the event of the trigger."""
        if event["status"] != "success":
            raise AirflowFailException(event["message"])
        payload = {name: value for name, value in event.items() if name != "status"}
        self.log.info("%s is at version %d", payload["table"], payload["version"])
        return payload

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skip:
            # `soft_fail` is for timeouts, not for a table that cannot be watched.
            if isinstance(skip.__cause__, AirflowFailException):
                raise skip.__cause__ from None
            raise

    def _poll(self, condition: WaitCondition | None) -> WaitProgress:
        """Polls until nothing is left to read."""
        # Imported here because it loads NumPy and pydantic, which would slow down Dag parsing.
        from delta_maintenance.operations.watch import Wait

        if self._wait is None:
            # Kept from one poke to the next, so that each begins where the last one ended.
            store = DeltaHook(self.delta_conn_id).open_watched(self.table_uri)
            self._wait = Wait(store, condition or self._condition())
        while (poll := self._wait.poll()).more:
            pass
        facts = (f"{name.replace('_', ' ')} {value}" for name, value in poll.found().items())
        self.log.info("%s", ", ".join(facts))
        return poll

    def _condition(self) -> WaitCondition:
        from delta_maintenance.operations.watch import (
            CommitFilter,
            WaitCondition,
            current_properties,
        )

        after = as_number(self.after_version)
        commits = self.commits
        properties = as_names(commits.get("properties", ()))
        known = {}
        if properties and after is not None:
            options = DeltaHook(self.delta_conn_id).options_for(self.table_uri)
            known = current_properties(
                self.table_uri, properties, version=after, storage_options=options
            )
        return WaitCondition(
            version=as_number(self.version),
            after_version=after,
            min_commits=int(self.min_commits),
            commits=CommitFilter(
                data_changes_only=as_flag(
                    commits.get("data_changes_only", False), "data_changes_only"
                ),
                operations=as_names(commits.get("operations", ())),
                protocol_changes=as_flag(
                    commits.get("protocol_changes", False), "protocol_changes"
                ),
                properties=properties,
            ),
            known_properties=known,
            min_commits_since_checkpoint=as_number(self.min_commits_since_checkpoint),
        )

    def _defer(self, condition: WaitCondition) -> None:
        # Imported here because it loads the code of triggers, which would slow down Dag parsing.
        from delta_maintenance_airflow.triggers.commit import DeltaCommitTrigger

        self.defer(
            trigger=DeltaCommitTrigger(
                table_uri=self.table_uri,
                condition=condition.to_json(),
                delta_conn_id=self.delta_conn_id,
                poll_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

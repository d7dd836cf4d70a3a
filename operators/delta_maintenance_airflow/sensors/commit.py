"""Waits for the commits of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from delta_maintenance_airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    default_deferrable,
)
from delta_maintenance_airflow.failures import retrying_only_what_may_pass
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.template_values import as_flag, as_names, as_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.watch import Wait, WaitCondition, WaitProgress


class DeltaCommitSensor(BaseSensorOperator):
    """Waits until a table has a version, some new commits, or some that no checkpoint covers.

    Give exactly one of `version`, `after_version` and `min_commits_since_checkpoint`. Commits after
    a version can be told apart: by whether they change data, by their operation, by whether they
    change the protocol or certain table properties; a commit counts where all of that is true.

    A poll is one listing that begins where the last one ended, and a small read where there is
    something new; it never opens the table. (The first poke opens it once where properties are
    waited for.)

    What it returns (and pushes to XCom) is `{"table": ..., "version": newest version}`; with
    `after_version` also `commits`, those that counted; with `min_commits_since_checkpoint` also
    `checkpoint_version` (null without one) and `commits`.

    A wrong address, credentials that are turned away or a log that cannot be read fail the task at
    once, `soft_fail` or not: only waiting in vain is skipped by `soft_fail`. While a task is
    deferred, a store that is down or throttles is asked again, less and less often.

    :param table_uri: the address of the table. (templated)
    :param version: wait until this version exists. (templated)
    :param after_version: wait for `min_commits` commits after this version; -1 is before the first.
        (templated)
    :param min_commits: how many commits `after_version` waits for, by default one. (templated)
    :param data_changes_only: count only commits with which rows came or went, and no maintenance.
        (templated)
    :param operations: count only commits of these operations, such as `MERGE`. (templated)
    :param protocol_changes: count only commits that change the protocol. (templated)
    :param properties: count only commits that change one of these table properties. (templated)
    :param min_commits_since_checkpoint: wait until a reader has to replay so many commits on top of
        the newest checkpoint; 0 does not wait. (templated)
    :param delta_conn_id: the connection with the storage options of the table; None where the
        worker's environment has all it takes. (templated)
    :param deferrable: wait in the triggerer, where thousands of tables can be waited for at once.
        By default what `[operators] default_deferrable` says.
    """

    template_fields: Sequence[str] = (
        "table_uri",
        "version",
        "after_version",
        "min_commits",
        "data_changes_only",
        "operations",
        "protocol_changes",
        "properties",
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
        data_changes_only: bool | str = False,
        operations: Sequence[str] | str = (),
        protocol_changes: bool | str = False,
        properties: Sequence[str] | str = (),
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
        self.table_uri = table_uri
        self.version = version
        self.after_version = after_version
        self.min_commits = min_commits
        self.data_changes_only = data_changes_only
        self.operations = operations
        self.protocol_changes = protocol_changes
        self.properties = properties
        self.min_commits_since_checkpoint = min_commits_since_checkpoint
        self.delta_conn_id = delta_conn_id
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self._wait: Wait | None = None

    def execute(self, context: Context) -> Any:
        # Around the whole wait, not in `poke`: the base class takes an AirflowFailException from
        # there for a wait in vain, and `soft_fail` would hide a broken table.
        with retrying_only_what_may_pass():
            if not self.deferrable:
                return super().execute(context)
            condition = self._condition()
            seen = self._poll(condition)
            if seen.done:
                return seen.found()
            self._defer(condition)

    def poke(self, context: Context) -> PokeReturnValue:
        seen = self._poll(None)
        return PokeReturnValue(is_done=seen.done, xcom_value=seen.found())

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the wait by what the trigger found."""
        if event["status"] != "success":
            raise AirflowFailException(event["message"])
        found = {name: value for name, value in event.items() if name != "status"}
        self.log.info("%s is at version %d", found["table"], found["version"])
        return found

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skip:
            # `soft_fail` is for a wait in vain, not for a table that cannot be watched.
            if isinstance(skip.__cause__, AirflowFailException):
                raise skip.__cause__ from None
            raise

    def _poll(self, condition: WaitCondition | None) -> WaitProgress:
        """Looks once, in as many polls as it takes."""
        # Loads numpy and pydantic, which the parsing of DAGs must not wait for.
        from delta_maintenance.operations.watch import Wait

        if self._wait is None:
            # Kept from one poke to the next, so that each begins where the last one ended.
            store = DeltaHook(self.delta_conn_id).open_watched(self.table_uri)
            self._wait = Wait(store, condition or self._condition())
        while (seen := self._wait.poll()).more:
            pass
        facts = (f"{name.replace('_', ' ')} {value}" for name, value in seen.found().items())
        self.log.info("%s", ", ".join(facts))
        return seen

    def _condition(self) -> WaitCondition:
        from delta_maintenance.operations.watch import (
            CommitFilter,
            WaitCondition,
            current_properties,
        )

        after = as_number(self.after_version)
        properties = as_names(self.properties)
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
                data_changes_only=as_flag(self.data_changes_only),
                operations=as_names(self.operations),
                protocol_changes=as_flag(self.protocol_changes),
                properties=properties,
            ),
            known_properties=known,
            min_commits_since_checkpoint=as_number(self.min_commits_since_checkpoint),
        )

    def _defer(self, condition: WaitCondition) -> None:
        # Loads what runs triggers, which the parsing of DAGs must not wait for.
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

"""Waits for the commits of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from delta_maintenance_airflow.failures import retrying_only_what_may_pass
from delta_maintenance_airflow.hooks.delta import DeltaHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaCommitSensor(BaseSensorOperator):
    """Waits until a table has a version, some new commits, or some that no checkpoint covers.

    Give exactly one of `version`, `after_version` and `min_commits_since_checkpoint`. A poke costs
    two requests to the store: a small read and a listing that starts at the newest checkpoint. It
    never opens the table.

    What it returns (and pushes to XCom) is `{"table": ..., "version": newest version}`, with
    `min_commits_since_checkpoint` also `checkpoint_version` (null without one) and `commits`.

    A wrong address or a log that cannot be read fails the task at once, `soft_fail` or not: only
    waiting in vain is skipped by `soft_fail`.

    :param table_uri: the address of the table. (templated)
    :param version: wait until this version exists. (templated)
    :param after_version: wait for `min_commits` commits after this version. (templated)
    :param min_commits: how many commits `after_version` waits for, by default one. (templated)
    :param min_commits_since_checkpoint: wait until a reader has to replay so many commits on top of
        the newest checkpoint; 0 does not wait. (templated)
    :param delta_conn_id: the connection with the storage options of the table; None where the
        worker's environment has all it takes. (templated)
    """

    template_fields: Sequence[str] = (
        "table_uri",
        "version",
        "after_version",
        "min_commits",
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
        min_commits_since_checkpoint: int | str | None = None,
        delta_conn_id: str | None = None,
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
        self.min_commits_since_checkpoint = min_commits_since_checkpoint
        self.delta_conn_id = delta_conn_id

    def execute(self, context: Context) -> Any:
        # Around the whole wait, not in `poke`: the base class takes an AirflowFailException from
        # there for a wait in vain, and `soft_fail` would hide a broken table.
        with retrying_only_what_may_pass():
            return super().execute(context)

    def poke(self, context: Context) -> PokeReturnValue:
        # Loads pyarrow, which the parsing of DAGs must not wait for.
        from delta_maintenance.operations import commits

        table = DeltaHook(self.delta_conn_id).open_table(self.table_uri)
        if self.min_commits_since_checkpoint is not None:
            lag = commits.checkpoint_lag(table)
            self.log.info(
                "%s is at version %d, %d commits after its newest checkpoint",
                lag.table,
                lag.version,
                lag.commits,
            )
            return PokeReturnValue(
                is_done=lag.commits >= int(self.min_commits_since_checkpoint),
                xcom_value={**lag.to_json(), "commits": lag.commits},
            )
        if self.after_version is not None:
            known = int(self.after_version)
            wanted = known + int(self.min_commits)
            # -1 is a table that had no commit yet.
            version = commits.latest_version(table, known=max(known, 0))
        else:
            assert self.version is not None
            wanted = int(self.version)
            version = commits.latest_version(table)
        self.log.info("%s is at version %d; waiting for %d", table.uri, version, wanted)
        return PokeReturnValue(
            is_done=version >= wanted, xcom_value={"table": table.uri, "version": version}
        )

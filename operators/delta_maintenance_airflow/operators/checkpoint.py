"""Writes the checkpoint of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaCheckpointOperator(DeltaSparkOperator):
    """Writes a checkpoint of a table's newest version, so that readers need not replay its log.

    A checkpoint adds no version and deletes nothing. It is read back and compared before any
    reader can see it, so a task that fails or is killed leaves the table as it was, and running it
    twice does no harm. Where the version has a sound checkpoint already, the task says so and
    succeeds.

    `status` is `written`, `already-there` or `nothing-to-do`. Takes the parameters of
    `DeltaSparkOperator`. `options` are fields of `CheckpointOptions`: `kind` (`auto`, `classic`,
    `v2-classic`, `v2-json`, `v2-parquet`), `actions_per_sidecar`, `incremental` (`auto`, `never`,
    `always`), `time_zone`, `auto_spark_bytes`.
    """

    operation = "checkpoint"
    pins_version = True

    def read_options(self, given: Mapping[str, Any]) -> CheckpointOptions:
        from delta_maintenance.operations import checkpoint

        return checkpoint.CheckpointOptions.from_json(given)

    def read_result(self, value: Mapping[str, Any]) -> CheckpointResult:
        from delta_maintenance.operations import checkpoint

        return checkpoint.CheckpointResult.from_json(value)

    def prepare(
        self, table: Table, options: CheckpointOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import checkpoint

        snapshot = table.snapshot()
        plan = checkpoint.plan(snapshot, options, now=clock.now())
        return Prepared(
            plan,
            lambda: checkpoint.apply(
                table, plan, snapshot=snapshot, new_id=clock.new_id, progress=progress
            ),
        )

    def summary(self, result: CheckpointResult) -> str:
        return (
            f"{result.status} {result.path} of version {result.version} with {result.sidecars} "
            f"sidecars: {result.actions} actions, {result.bytes_written} bytes"
        )

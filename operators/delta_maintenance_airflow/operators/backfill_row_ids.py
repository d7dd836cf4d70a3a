"""Enables row tracking on a table that has files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.backfill_row_ids import (
        BackfillRowIdsOptions,
        BackfillRowIdsResult,
    )
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaRowTrackingBackfillOperator(DeltaSparkOperator):
    """Gives row IDs to every file of a table, some at a time, and enables row tracking.

    Others may write meanwhile. A task that ends anywhere is continued by the next one, and two at a
    time do no harm. With the engine `spark` the job reads the footers of files whose statistics do
    not tell their number of rows.

    `status` is `enabled` or `nothing-to-do`. A task that made some commits and could not go on
    fails, with the status `incomplete` in XCom, and may be retried. Takes the parameters of
    `DeltaSparkOperator`. `options` are fields of `BackfillRowIdsOptions`: `files_per_commit`,
    `auto_spark_files`, `other_writers`, `operation_id`, `operation_since`, `checkpoint`,
    `convert_draft`, `lift_suspension`.
    """

    operation = "backfill-row-ids"
    names_commits = True

    def read_options(self, given: Mapping[str, Any]) -> BackfillRowIdsOptions:
        from delta_maintenance.operations import backfill_row_ids

        return backfill_row_ids.BackfillRowIdsOptions.from_json(given)

    def read_result(self, value: Mapping[str, Any]) -> BackfillRowIdsResult:
        from delta_maintenance.operations import backfill_row_ids

        return backfill_row_ids.BackfillRowIdsResult.from_json(value)

    def prepare(
        self, table: Table, options: BackfillRowIdsOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import backfill_row_ids

        snapshot = table.snapshot()
        plan = backfill_row_ids.plan(snapshot, options, now=clock.now())
        return Prepared(
            plan,
            lambda: backfill_row_ids.apply(table, plan, progress=progress, snapshot=snapshot),
        )

    def summary(self, result: BackfillRowIdsResult) -> str:
        return (
            f"{result.status} at version {result.version}: {result.files_backfilled} files in "
            f"{result.num_commits} commits, high-water mark {result.high_water_mark}"
        )

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        if getattr(document, "status", None) != "incomplete":
            return None
        return DeltaMaintenanceError(
            f"{document.num_commits} commits were made, then: {document.problem}",
            remedy="see the Result, and run again to go on",
        )

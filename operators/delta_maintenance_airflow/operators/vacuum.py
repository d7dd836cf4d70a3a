"""Deletes data files that no retained version of a table needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, StorageError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.reporting import DeltaReportingOperator
from delta_maintenance_airflow.operators.spark_base import BY_JOB, DeltaSparkOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.vacuum import VacuumOptions, VacuumPlan, VacuumResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaVacuumOperator(DeltaReportingOperator, DeltaSparkOperator):
    """Deletes data files, deletion vectors and change data files that nothing retained refers to.

    The log is read again before every few thousand deletions, so that others may write meanwhile. A
    retention shorter than the table's own, or than a week, is refused unless
    `allow_short_retention` and `no_other_writers` are both given; so are more than 1,000 files that
    are more than half of all, without `allow_large_delete`. A task that is killed is continued by
    the next one. With the engine `spark` a job lists the table, finds what is dead and deletes it
    in parallel; it makes the plan, too.

    `status` is `vacuumed` or `nothing-to-do`. A task that could not delete a file fails, with the
    status `partly` in XCom, and may be retried. Takes the parameters of `DeltaReportingOperator`
    and of `DeltaSparkOperator`; the report has each file with size, time and the reason. `options`
    are fields of `VacuumOptions`: `mode` (`full`, `lite`, `inventory`), `retention`,
    `allow_short_retention`, `no_other_writers`, `as_of`, `keep_versions`, `inventory`,
    `foreign_files`, `allow_large_delete`, `ignore_missing_files`, `log_commits`, `other_writers`,
    `auto_spark_bytes`.
    """

    operation = "vacuum"
    asks_for_writers = True
    plans_by_job = True
    template_fields: Sequence[str] = (*DeltaSparkOperator.template_fields, "report_uri")

    def read_options(self, given: Mapping[str, Any]) -> VacuumOptions:
        from delta_maintenance.operations import vacuum

        return vacuum.VacuumOptions.from_json(given)

    def read_plan(self, value: Mapping[str, Any]) -> VacuumPlan:
        from delta_maintenance.operations import vacuum

        return vacuum.VacuumPlan.from_json(value)

    def read_result(self, value: Mapping[str, Any]) -> VacuumResult:
        from delta_maintenance.operations import vacuum

        return vacuum.VacuumResult.from_json(value)

    def prepare(self, table: Table, options: VacuumOptions, progress: LoggedProgress) -> Prepared:
        # Before the table is opened: what comes later must not look older than it is.
        now = clock.now()
        from delta_maintenance.operations import vacuum
        from delta_maintenance.operations.vacuum.report import write_report

        snapshot = table.snapshot()
        if vacuum.engine_for(snapshot, options) == "spark":
            return BY_JOB
        inventory = options.inventory
        surveyed = vacuum.survey(
            snapshot,
            options,
            now=now,
            storage_options=None if inventory is None else self.hook.options_for(inventory),
        )
        if (report := self.new_report()) is not None:
            address, storage_options = report
            write_report(
                surveyed.found.batches(),
                address,
                table=table.store,
                storage_options=storage_options,
            )
        return Prepared(
            surveyed.plan,
            lambda: vacuum.apply(
                table,
                surveyed.plan,
                now=clock.now(),
                new_id=clock.new_id,
                progress=progress,
                surveyed=surveyed,
            ),
        )

    def summary(self, result: VacuumResult) -> str:
        return (
            f"{result.status}: {result.deleted} files and {result.directories} directories "
            f"deleted, {result.bytes} bytes"
        )

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        if getattr(document, "status", None) != "partly":
            return None
        if document.lost:
            return CorruptTableError(
                f"{len(document.lost)} files came back into use after they were deleted",
                file=document.lost[0],
                remedy="restore them from a backup, or the table to a version without them",
            )
        why = document.stopped or f"{document.failed} files, first {document.failures[0]}"
        return StorageError(
            f"{document.deleted} files were deleted, and others could not be: {why}",
            remedy="see the Result, and run again",
        )

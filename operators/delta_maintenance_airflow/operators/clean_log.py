"""Deletes log files that the retention of a table no longer requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.reporting import DeltaReportingOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaLogCleanupOperator(DeltaReportingOperator):
    """Cuts off the history of a table at the newest checkpoint that its log retention covers.

    That checkpoint is read before anything goes, the oldest commits go first, and every version
    that is to stay opens whenever it stops. No data file is touched. A retention shorter than the
    table's own, or than a day, is refused unless `allow_short_retention` and `no_other_writers` are
    both given.

    `status` is `cleaned` or `nothing-to-do`. A task that could not delete a file fails, with the
    status `partly` in XCom, and may be retried. Takes the parameters of `DeltaReportingOperator`;
    the report names every file that goes. `options` are fields of `CleanLogOptions`:
    `log_retention`, `allow_short_retention`, `no_other_writers`, `as_of`, `to_the_minute`.
    """

    operation = "clean-log"

    def read_options(self, given: Mapping[str, Any]) -> CleanLogOptions:
        from delta_maintenance.operations import clean_log

        return clean_log.CleanLogOptions.from_json(given)

    def prepare(self, table: Table, options: CleanLogOptions, progress: LoggedProgress) -> Prepared:
        from delta_maintenance.operations import clean_log
        from delta_maintenance.operations.clean_log.report import write_report

        plan = clean_log.plan(table.snapshot(), options, now=clock.now())
        if (report := self.new_report()) is not None:
            address, storage_options = report
            write_report(plan, address, table=table.store, storage_options=storage_options)
        return Prepared(
            plan,
            lambda: clean_log.apply(
                table, plan, now=clock.now(), new_id=clock.new_id, progress=progress
            ),
        )

    def summary(self, result: CleanLogResult) -> str:
        deleted = sum(group.deleted for group in result.groups)
        return f"{result.status}: {deleted} files deleted, oldest version {result.oldest_version}"

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        failed = getattr(document, "failed", 0)
        if not failed:
            return None
        return StorageError(
            f"{failed} files could not be deleted, first {document.failures[0]}",
            remedy="see the Result, and run again",
        )

"""Checks the integrity of a table, and repairs damage that can be repaired without data loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.reporting import DeltaReportingOperator
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.fsck import FsckOptions, FsckPlan, FsckResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaFsckOperator(DeltaReportingOperator, DeltaSparkOperator):
    """Holds commits, checkpoints, compactions, checksums and files of a table against each other.

    Changes nothing unless a repair is asked for. A task that finds the table corrupt, and leaves it
    so, fails at once; what was found is in XCom all the same. With the engine `spark` the job opens
    the files of a `deep` examination.

    `status` is `sound` or `warnings`. `num_corrupt` counts the findings of corruption. Takes the
    parameters of `DeltaReportingOperator` and of `DeltaSparkOperator`; the report has every
    finding. `options` are fields of `FsckOptions`: `deep`, `auto_spark_files`, `repair`,
    `remove_missing_files`, `allow_append_only`, `other_writers`.
    """

    operation = "fsck"
    asks_for_writers = True
    template_fields: Sequence[str] = (*DeltaSparkOperator.template_fields, "report_uri")

    def read_options(self, given: Mapping[str, Any]) -> FsckOptions:
        from delta_maintenance.operations import fsck

        return fsck.FsckOptions.from_json(given)

    def read_result(self, value: Mapping[str, Any]) -> FsckResult:
        from delta_maintenance.operations import fsck

        return fsck.FsckResult.from_json(value)

    def needs_job(self, plan: FsckPlan) -> bool:
        # Also where nothing is to be repaired: the files are yet to be opened.
        return plan.engine == "spark"

    def prepare(self, table: Table, options: FsckOptions, progress: LoggedProgress) -> Prepared:
        from delta_maintenance.operations import fsck

        address, storage_options = self.new_report() or (None, None)
        surveyed = fsck.survey(
            table,
            options,
            now=clock.now(),
            report=address,
            storage_options=storage_options,
            progress=progress,
        )
        return Prepared(
            surveyed.plan,
            lambda: fsck.apply(
                table,
                surveyed.plan,
                now=clock.now(),
                new_id=clock.new_id,
                progress=progress,
                surveyed=surveyed,
            ),
        )

    def summary(self, result: FsckResult) -> str:
        repairs = "".join(f"; {repair}" for repair in result.repairs)
        return f"{_findings(result)}{repairs}"

    def facts(self, document: FsckPlan | FsckResult) -> Mapping[str, Any]:
        told = {} if document.report is None else {"report_uri": document.report}
        return {"num_corrupt": document.num_corrupt, **told}

    def wrote(self, result: FsckResult) -> bool:
        return any(repair.status == "done" for repair in result.repairs)

    def failure(self, document: FsckPlan | FsckResult) -> DeltaMaintenanceError | None:
        if not document.num_corrupt:
            return None
        return CorruptTableError(_findings(document), remedy="see each finding for what to do")


def _findings(document: FsckPlan | FsckResult) -> str:
    counts = [f"{count.count} {count.kind} ({count.severity})" for count in document.counts]
    return f"{document.status}: {', '.join(counts) or 'nothing found'}"

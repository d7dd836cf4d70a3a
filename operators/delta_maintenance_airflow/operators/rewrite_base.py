"""What operators that rewrite data files have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator, Prepared

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.rewriting.models import RewriteOptions, RewriteResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaRewriteOperator(DeltaMaintenanceOperator):
    """Base of the operators that rewrite data files."""

    asks_for_writers = True

    def prepare(self, table: Table, options: RewriteOptions, progress: LoggedProgress) -> Prepared:
        from delta_maintenance.operations.core.execution import Execution
        from delta_maintenance.operations.core.registry import find

        prepared = find(self.operation).prepare(
            table, options, now=clock.now(), execution=Execution(progress=progress)
        )
        assert prepared is not None
        return Prepared(prepared.plan, prepared.apply)

    def summary(self, result: RewriteResult) -> str:
        return (
            f"{result.status} at version {result.version}: {result.files_before} files became "
            f"{result.files_after} in {result.num_commits} commits, {result.rows} rows"
        )

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        from delta_maintenance.operations.core.registry import find

        if not hasattr(document, "status"):
            return None
        ending = find(self.operation).ending(document)
        return ending.error(table=document.table, version=document.version)

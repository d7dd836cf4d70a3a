"""Writes log compactions of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError, RefusedError
from delta_maintenance_airflow.operators.base import Prepared
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.compact_log import CompactLogOptions, CompactLogResult
    from delta_maintenance_airflow.progress import LoggedProgress


class DeltaLogCompactionOperator(DeltaSparkOperator):
    """Puts the commits after the newest checkpoint into fewer files, for readers to read instead.

    Adds no version and deletes nothing. Each compaction is read back and compared before any reader
    can see it; running the task twice, or two at a time, does no harm.

    `status` is `written`, `already-there` or `nothing-to-do`. A task that finds a compaction which
    does something else than its commits fails. Takes the parameters of `DeltaSparkOperator`.
    `options` are fields of `CompactLogOptions`: `commits_per_file`, `first_version`,
    `last_version`, `partial`, `auto_spark_bytes`.
    """

    operation = "compact-log"

    def read_options(self, given: Mapping[str, Any]) -> CompactLogOptions:
        from delta_maintenance.operations import compact_log

        return compact_log.CompactLogOptions.from_json(given)

    def read_result(self, value: Mapping[str, Any]) -> CompactLogResult:
        from delta_maintenance.operations import compact_log

        return compact_log.CompactLogResult.from_json(value)

    def prepare(
        self, table: Table, options: CompactLogOptions, progress: LoggedProgress
    ) -> Prepared:
        from delta_maintenance.operations import compact_log

        snapshot = table.snapshot()
        plan = compact_log.plan(snapshot, options, now=clock.now())
        return Prepared(
            plan,
            lambda: compact_log.apply(table, plan, snapshot=snapshot, progress=progress),
        )

    def summary(self, result: CompactLogResult) -> str:
        windows = len(result.windows)
        return f"{result.status}: {windows} windows, {result.bytes_written} bytes written"

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        failures = getattr(document, "failures", ())
        if not failures:
            return None
        first = failures[0]
        kind = CorruptTableError if first.status == "differs" else RefusedError
        return kind(
            f"{len(failures)} windows could not be compacted, first versions "
            f"{first.first_version} to {first.last_version}: {first.reason}",
            file=first.path,
            remedy="see the Result for each of them",
        )

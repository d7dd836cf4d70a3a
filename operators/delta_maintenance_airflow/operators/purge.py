"""Rewrites data files without deleted rows and dropped columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance_airflow.operators.rewrite_base import DeltaRewriteOperator

if TYPE_CHECKING:
    from delta_maintenance.operations.purge import PurgeOptions


class DeltaPurgeOperator(DeltaRewriteOperator):
    """Rewrites each data file that holds deleted rows, or values of dropped columns, without them.

    No live row changes: new files are read back from storage and compared before each commit.
    Older versions keep the old files until a vacuum deletes them.

    `status` is `rewritten` or `nothing-to-do`. A task fails with the status `conflict` if other
    writers changed the sources of all its work, with `partly` if it ended early, and may then be
    retried; with `failed` it is not retried. Takes the parameters of `DeltaMaintenanceOperator`.
    `options` are fields of `PurgeOptions`: `where`, `quiet_for`, `above_percent`,
    `dropped_columns`, `max_bytes`, `max_files`, `max_duration`, `proof`, `workers`,
    `other_writers`.
    """

    operation = "purge"

    def read_options(self, given: Mapping[str, Any]) -> PurgeOptions:
        from delta_maintenance.operations import purge

        return purge.PurgeOptions.from_json(given)

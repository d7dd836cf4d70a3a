"""Merges small data files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta_maintenance_airflow.operators.rewrite_base import DeltaRewriteOperator

if TYPE_CHECKING:
    from delta_maintenance.operations.optimize import OptimizeOptions


class DeltaOptimizeOperator(DeltaRewriteOperator):
    """Merges small data files, and rewrites files with many deleted rows.

    No row changes: new files are read back from storage and compared before each commit. Other
    writers may commit at the same time. The old files stay until a vacuum.

    `status` is `rewritten` or `nothing-to-do`. A task fails with the status `conflict` if other
    writers changed the sources of all its work, with `partly` if it ended early, and may then be
    retried; with `failed` it is not retried. Takes the parameters of `DeltaMaintenanceOperator`.
    `options` are fields of `OptimizeOptions`: `where`, `quiet_for`, `target_bytes`, `min_files`,
    `deleted_percent`, `int96`, `other_codecs`, `full`, `max_bytes`, `max_files`, `max_duration`,
    `proof`, `workers`, `other_writers`.
    """

    operation = "optimize"

    def read_options(self, given: Mapping[str, Any]) -> OptimizeOptions:
        from delta_maintenance.operations import optimize

        return optimize.OptimizeOptions.from_json(given)

"""The record of the operation `optimize`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.optimize.options import (
    OptimizeOptions,
    OptimizePlan,
    OptimizeResult,
)
from delta_maintenance.operations.rewriting.record import rewrite_record

RECORD = rewrite_record(
    "optimize",
    title="Optimize: merge small data files",
    summary="merge small data files, and rewrite files with many deleted rows",
    description=(
        "Merge small data files of each partition and rewrite files with many deleted rows, "
        "without changing any row: new files are read back and compared before each commit. "
        "Other writers may commit at the same time. The old files stay until a vacuum."
    ),
    options=OptimizeOptions,
    plan=OptimizePlan,
    result=OptimizeResult,
    policy=PolicyPart(
        key="optimize",
        rule="delta_maintenance.operations.optimize.policy:OptimizeRule",
        description="Merging of small data files.",
        due="delta_maintenance.operations.optimize.policy:due",
    ),
)

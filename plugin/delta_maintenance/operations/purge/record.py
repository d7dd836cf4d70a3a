"""The record of the operation `purge`."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.purge.options import PurgeOptions, PurgePlan, PurgeResult
from delta_maintenance.operations.rewriting.record import rewrite_record

RECORD = rewrite_record(
    "purge",
    title="Purge deleted rows from data files",
    summary="rewrite data files without their deleted rows and dropped columns",
    description=(
        "Rewrite each data file that holds deleted rows, or values of dropped columns, without "
        "them. No live row changes: new files are read back and compared before each commit. "
        "Older versions keep the old files until a vacuum."
    ),
    options=PurgeOptions,
    plan=PurgePlan,
    result=PurgeResult,
    policy=PolicyPart(
        key="purge",
        rule="delta_maintenance.operations.purge.policy:PurgeRule",
        description="Removal of deleted rows from data files.",
        due="delta_maintenance.operations.purge.policy:due",
    ),
)

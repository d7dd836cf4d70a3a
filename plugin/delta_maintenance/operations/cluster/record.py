"""The record of the operation `cluster`."""

from __future__ import annotations

from dataclasses import replace

from delta_maintenance.operations.cluster.options import ClusterOptions, ClusterPlan, ClusterResult
from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.rewriting.record import rewrite_record

_RECORD = rewrite_record(
    "cluster",
    title="Cluster: order rows so that readers skip files",
    summary="order the rows of data files by several columns, so that readers skip more files",
    description=(
        "Sort the rows of new data files by the clustering columns of the table, or by named "
        "columns, without changing any row: new files are read back and compared before each "
        "commit. Each run sorts what arrived, and earlier files only if they have at most eight "
        "times its bytes. Other writers may commit at the same time. The old files stay until a "
        "vacuum."
    ),
    options=ClusterOptions,
    plan=ClusterPlan,
    result=ClusterResult,
    policy=PolicyPart(
        key="cluster",
        rule="delta_maintenance.operations.cluster.policy:ClusterRule",
        description="Sorting of the rows of data files by the clustering columns.",
        due="delta_maintenance.operations.cluster.policy:due",
    ),
)
RECORD = replace(_RECORD, decisive=(*_RECORD.decisive, "columns"))

"""Each operator of Airflow with the result of its task on a table of `overdue_tables`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_maintenance_airflow import operators
from tests.support.tables.overdue_tables import FEATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator, and the result of its task on a neglected table."""

    operator: type[operators.DeltaCheckpointOperator]
    module: str
    """The module of the operation in `delta_maintenance.operations`."""
    done: str
    """The status of the first run."""
    noop: str = "nothing-to-do"
    """The status of the second one."""
    planned: str = "planned"
    """The status of a plan."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, Any]
    """Arguments with which it must fail immediately."""
    commits: int = 0
    """Versions that the first run adds."""

    @property
    def verb(self) -> str:
        """The name of the case."""
        return self.operator.operation


def _case(operator: Any, module: str, done: str, **fields: Any) -> Case:
    return Case(operator=operator, module=module, done=done, **fields)


_SHORT = {"allow_short_retention": True}
CASES = (
    _case(
        operators.DeltaCheckpointOperator,
        "checkpoint",
        "written",
        refused={"options": {"kind": "v2-json"}},
    ),
    _case(
        operators.DeltaChecksumOperator,
        "checksum",
        "written",
        refused={"options": {"checkpoints": "some"}},
    ),
    _case(
        operators.DeltaCompactLogOperator,
        "compact_log",
        "written",
        refused={"options": {"last_version": 99}},
    ),
    _case(
        operators.DeltaCleanLogOperator,
        "clean_log",
        "cleaned",
        refused={"options": {"log_retention": "P29D", **_SHORT}},
    ),
    _case(
        operators.DeltaCleanStagedOperator,
        "clean_staged",
        # The table is not catalog-managed.
        "nothing-to-do",
        refused={"options": {"as_of": "yesterday"}},
    ),
    _case(
        operators.DeltaVacuumOperator,
        "vacuum",
        "vacuumed",
        refused={"options": {"retention": "PT1H", **_SHORT}},
        commits=2,
    ),
    _case(
        operators.DeltaFsckOperator,
        "fsck",
        "sound",
        noop="sound",
        refused={"report_uri": "{{ params.root }}/fsck/report.parquet"},
    ),
    _case(
        operators.DeltaUpgradeProtocolOperator,
        "upgrade_protocol",
        "committed",
        arguments={"features": ["deletionVectors"]},
        refused={"features": ["teleportation"]},
        commits=1,
    ),
    _case(
        operators.DeltaSetPropertiesOperator,
        "set_properties",
        "committed",
        arguments={"properties": {"delta.logRetentionDuration": "interval 60 days"}},
        refused={"properties": {"delta.logRetentionDuration": "a while"}},
        commits=1,
    ),
    _case(
        operators.DeltaAddConstraintOperator,
        "add_constraint",
        "committed",
        arguments={"name": "positive", "expression": "abs(id) > 0"},
        refused={"expression": " "},
        commits=1,
    ),
    _case(
        operators.DeltaDropFeatureOperator,
        "drop_feature",
        "dropped",
        arguments={"feature": FEATURE},
        refused={"feature": "appendOnly"},
        commits=4,
    ),
    _case(
        operators.DeltaBackfillRowIdsOperator,
        "backfill_row_ids",
        "enabled",
        refused={"options": {"files_per_commit": 0}},
        commits=3,
    ),
    _case(
        operators.DeltaOptimizeOperator,
        "optimize",
        "rewritten",
        refused={"options": {"where": "id = 1"}},
        commits=1,
    ),
    _case(
        operators.DeltaPurgeOperator,
        "purge",
        "nothing-to-do",
        refused={"options": {"where": "id = 1"}},
    ),
    _case(
        operators.DeltaExpireOperator,
        "expire",
        "nothing-to-do",
        arguments={"column": "id", "older_than": "P1D", "options": {"unit": "us"}},
        refused={"column": "nothing", "older_than": "P1D"},
    ),
    _case(
        operators.DeltaRecomputeStatsOperator,
        "recompute_stats",
        "recomputed",
        refused={"options": {"files_per_commit": 0}},
        commits=1,
    ),
    _case(
        operators.DeltaLayoutOperator,
        "layout",
        "does-not-pay",
        noop="does-not-pay",
        planned="does-not-pay",
        refused={"options": {"columns": ["nothing"]}},
    ),
    _case(
        operators.DeltaSetClusteringOperator,
        "set_clustering",
        "committed",
        arguments={"by": ["id"]},
        refused={"by": ["nothing"]},
        commits=2,
    ),
    _case(
        operators.DeltaClusterOperator,
        "cluster",
        "rewritten",
        arguments={"options": {"by": ["id"]}},
        refused={"options": {"by": ["nothing"]}},
        commits=1,
    ),
    _case(
        operators.DeltaKeepVersionOperator,
        "keep_version",
        "kept",
        arguments={"name": "audit-2026"},
        refused={"options": {"keep": 99}},
    ),
    _case(
        operators.DeltaErasureReportOperator,
        "erasure_report",
        "erased",
        noop="erased",
        arguments={"where": "id = -4711"},
        refused={"where": "nothing = 1"},
    ),
)
BY_VERB = {case.verb: case for case in CASES}

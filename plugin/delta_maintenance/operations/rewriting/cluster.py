"""The `cluster` operation: rows in an order in which readers skip files and row groups.

The rows of new files are sorted by a curve over the clustering columns, together with those of
earlier files as far as that is worth it. Rows keep their values, row IDs and commit versions, which
is proved before each commit as in `optimize`. Implements the requirements for writers of "Clustered
Table".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from delta_maintenance.clock import new_id
from delta_maintenance.operations.cluster import ClusterOptions, ClusterPlan, ClusterResult
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.cluster_planning import order_of, surveyed
from delta_maintenance.operations.rewriting.planning import Survey
from delta_maintenance.operations.rewriting.verb import RewriteVerb
from delta_maintenance.table.read.snapshot import Snapshot


class _ClusterVerb(RewriteVerb[ClusterOptions, ClusterPlan, ClusterResult]):
    def _surveyed(self, snapshot: Snapshot, options: ClusterOptions, now: datetime) -> Survey:
        return surveyed(snapshot, options, now, new_id=new_id)

    def _planned(self, surveyed: Survey, options: ClusterOptions, now: datetime) -> ClusterPlan:
        order = order_of(surveyed.snapshot, options)
        planned = super()._planned(surveyed, options, now)
        return replace(planned, columns=tuple(column.name for column in order.columns))

    def _parameters(self, surveyed: Survey, options: ClusterOptions) -> Mapping[str, Any]:
        order = order_of(surveyed.snapshot, options)
        names = [column.name for column in (*order.columns, *order.others)]
        if not order.of_table:
            return {"zOrderBy": names, "clusterBy": [], "auto": False}
        return {"zOrderBy": [], "clusterBy": names, "auto": False, "isFull": options.full}


def _reason(fields: Mapping[str, Any]) -> str:
    if fields["is_noop"]:
        if fields["reasons"] or fields["left_alone"]:
            return "the files that are not clustered are left alone"
        return "all files are clustered"
    files = count_text(fields["files"], "file")
    after = f"{fields['files_after']:,} with {size_text(fields['bytes_after'])}"
    return f"{files} with {size_text(fields['bytes'])} are sorted, and become about {after}"


def _rules(options: ClusterOptions, target_bytes: int) -> ChoiceRules:
    raise AssertionError("files are chosen by `planning`")


_VERB = _ClusterVerb(
    options_type=ClusterOptions,
    plan_type=ClusterPlan,
    result_type=ClusterResult,
    operation="OPTIMIZE",
    parameters={},
    rules=_rules,
    footer_reasons=lambda options: (),
    reason=_reason,
)

plan = _VERB.plan
apply = _VERB.apply
prepare = _VERB.prepare

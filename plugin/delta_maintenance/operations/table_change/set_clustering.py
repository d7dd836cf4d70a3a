"""The `set-clustering` operation: sets or removes the clustering columns of a table.

One commit changes the domain `delta.clustering` and adds the features that it needs. No data file
is changed: `cluster`, or OPTIMIZE in Delta Spark, orders the rows. Implements the requirements for
writers of "Clustered Table": every live file must have statistics of every clustering column.
Statistics that are missing are computed and committed first, by `recompute-stats`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import (
    CommitConflictError,
    IncompleteError,
    InvalidRequestError,
    RefusedError,
    locating,
)
from delta_maintenance.operations import recompute_stats
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions, RecomputeStatsPlan
from delta_maintenance.operations.set_clustering import (
    SetClusteringOptions,
    SetClusteringPlan,
    SetClusteringResult,
)
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import ChangeVerb, require_changeable
from delta_maintenance.protocol.actions.file_columns import STRING_MAP
from delta_maintenance.protocol.actions.model import DomainMetadata
from delta_maintenance.protocol.changes.enable import TableChange
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.columns import column_of
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.clustering import DOMAIN, clustering_configuration
from delta_maintenance.protocol.schema.types import to_arrow_type
from delta_maintenance.protocol.statistics.audit import is_tagged_unbounded, unbounded_columns
from delta_maintenance.protocol.statistics.clustering import (
    ClusteringColumn,
    current_columns,
    named_columns,
    require_allowed,
)
from delta_maintenance.protocol.statistics.ranks import file_bounds
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_proved

FEATURES = ("clustering", "domainMetadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringDecision(Decision):
    """A decision with the clustering columns before and after it, by logical names."""

    compared: ClassVar[tuple[str, ...]] = (*Decision.compared, "columns_before", "columns_after")

    columns_before: tuple[str, ...] = ()
    columns_after: tuple[str, ...] = ()
    statistics: RecomputeStatsPlan | None = None
    """The statistics to compute first."""


def plan(
    snapshot: Snapshot,
    options: SetClusteringOptions | None = None,
    context: RunContext | None = None,
) -> SetClusteringPlan:
    """Plans the change for the latest snapshot. Reads only the log, and writes nothing.

    Raises `InvalidRequestError` for an invalid request, and `RefusedError` or
    `UnsupportedFeatureError` if this table does not permit it.
    """
    return _VERB.plan(snapshot, options, context)


def apply(
    table: Table, plan: SetClusteringPlan, context: RunContext | None = None
) -> SetClusteringResult:
    """Computes missing statistics, and commits the planned change if a new plan would make it too.

    Raises `RefusedError` if the table was replaced or must no longer be changed, or if statistics
    cannot be computed, `IncompleteError` if only some are committed, `CommitConflictError` if other
    writers add files without statistics at the same time, and `CommitUnknownError` if the outcome
    of a commit is unknown.
    """
    context = context or RunContext()
    recomputed = 0
    if plan.files_to_recompute and not plan.is_noop:
        recomputed = _compute_statistics(table, plan, context)

    def examine(snapshot: Snapshot) -> None:
        todo = _statistics_of(snapshot, plan.options)
        if todo is not None:
            raise CommitConflictError(
                "another writer added files without statistics of the clustering columns",
                table=snapshot.table,
                version=snapshot.version,
                remedy="run again",
            )

    result = _VERB.apply(table, plan, context, examine=examine if plan.joins else None)
    return replace(result, files_recomputed=recomputed)


def _compute_statistics(table: Table, plan: SetClusteringPlan, context: RunContext) -> int:
    """Returns the number of files with new statistics."""
    snapshot = table.snapshot()
    todo = _statistics_of(snapshot, plan.options)
    if todo is None:
        return 0
    done = recompute_stats.apply(table, todo, context.without_engine(), snapshot=snapshot)
    if done.status == "partly":
        raise IncompleteError(
            f"the statistics of the clustering columns are not complete: {done.problem}",
            table=table.uri,
            remedy="run again to continue",
        )
    if done.problem is not None:
        raise RefusedError(
            f"the statistics of the clustering columns cannot be computed: {done.problem}",
            table=table.uri,
            remedy="see with fsck --deep what is wrong with these files",
        )
    return done.files_recomputed


def _decide(
    snapshot: Snapshot, options: SetClusteringOptions, operation_id: str
) -> ClusteringDecision:
    if bool(options.by) == options.none:
        raise InvalidRequestError(
            "either clustering columns or their removal must be requested",
            remedy="name columns with --by, or give --none",
        )
    require_proved(snapshot)
    with locating(table=snapshot.table, version=snapshot.version):
        decision = _decided(snapshot, options)
    if not decision.is_noop:
        require_changeable(snapshot, decision, writers=options)
    return decision


def _decided(snapshot: Snapshot, options: SetClusteringOptions) -> ClusteringDecision:
    protocol, metadata = snapshot.protocol, snapshot.metadata
    columns = named_columns(options.by, protocol, metadata)
    require_allowed(columns, protocol, metadata)
    before = _current(snapshot)
    now = TableChange(protocol=protocol, metadata=metadata)
    old = None if before is None else [column.path for column in before]
    names_before = tuple(column.name for column in before or ())
    names_after = tuple(column.name for column in columns)
    # A table that never was clustered needs no feature to stay so.
    is_lost = supports(protocol, "clustering") and DOMAIN not in snapshot.domain_metadata
    features = FEATURES if columns or old != [] or is_lost else ()
    changed = upgraded_protocol(protocol, features=features, met=features)
    if old == [column.path for column in columns] and changed == protocol and not is_lost:
        return ClusteringDecision(
            operation="",
            parameters={},
            before=now,
            after=now,
            columns_before=names_before,
            columns_after=names_after,
        )
    joining = [column for column in columns if column.path not in (old or ())]
    return ClusteringDecision(
        operation="CLUSTER BY",
        parameters={
            "oldClusteringColumns": ",".join(names_before),
            "newClusteringColumns": ",".join(names_after),
        },
        before=now,
        after=TableChange(protocol=changed, metadata=metadata),
        domains=(
            DomainMetadata(
                domain=DOMAIN,
                configuration=clustering_configuration([column.path for column in columns]),
            ),
        ),
        depends_on_files=bool(joining),
        columns_before=names_before,
        columns_after=names_after,
        statistics=_statistics_of(snapshot, options),
    )


def _current(snapshot: Snapshot) -> tuple[ClusteringColumn, ...] | None:
    """Returns the current columns; None if the domain is damaged, so that it is written again."""
    try:
        return current_columns(snapshot.protocol, snapshot.metadata, snapshot.domain_metadata)
    except RefusedError:
        return None


def _statistics_of(snapshot: Snapshot, options: SetClusteringOptions) -> RecomputeStatsPlan | None:
    """Returns the plan to compute statistics that new clustering columns lack, or None.

    Raises `RefusedError` if bounds of such a column cannot be stated.
    """
    columns = named_columns(options.by, snapshot.protocol, snapshot.metadata)
    before = {column.path for column in _current(snapshot) or ()}
    joining = [column for column in columns if column.path not in before]
    if not joining:
        return None
    types = {column.path: to_arrow_type(column.type) or pa.null() for column in joining}
    missing = snapshot.avoiding_damage(lambda sound: _missing(sound, types))
    if not missing.any():
        return None
    todo = recompute_stats.plan(
        snapshot,
        RecomputeStatsOptions(
            cluster_by=options.by,
            engine="local",
            other_writers=options.other_writers,
            quiet=options.quiet,
        ),
    )
    if todo.is_noop:
        column, files = next(
            (column, files)
            for column, files in zip(joining, missing.tolist(), strict=True)
            if files
        )
        raise RefusedError(
            f"{count_text(files, 'file')} with values of the column {column.name} for which "
            "statistics cannot state a bound, which every file of a clustered table must have",
            remedy="cluster by another column",
        )
    return todo


def _missing(
    snapshot: Snapshot, types: dict[tuple[str, ...], pa.DataType]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns for each column the number of files that lack its statistics."""
    missing_counts = np.zeros(len(types), np.int64)
    fields = {"add": ("path", "stats", "stats_parsed", "tags"), "remove": ("path",)}
    for batch in snapshot.log.scan(fields=fields):
        adds = batch.adds
        stats = column_of(adds, "stats", {"stats": pa.string()}).combine_chunks()
        parsed = None
        if "stats_parsed" in adds.column_names:
            parsed = adds["stats_parsed"].combine_chunks()
        bounds = file_bounds(stats, types, parsed=parsed)
        tags = unbounded_columns(column_of(adds, "tags", {"tags": STRING_MAP}).combine_chunks())
        for at, (path, kind) in enumerate(types.items()):
            lacks = ~bounds.is_complete(path)
            if not pa.types.is_floating(kind):
                lacks |= is_tagged_unbounded(tags, path)
            missing_counts[at] += np.count_nonzero(lacks)
    return missing_counts


def _reason(_: Snapshot, decision: Decision) -> str:
    assert isinstance(decision, ClusteringDecision)
    after = ", ".join(decision.columns_after) or "no columns"
    if decision.is_noop:
        return f"the table is already clustered by {after}"
    before = ", ".join(decision.columns_before) or "no columns"
    reason = f"the table is clustered by {before}, and is to be clustered by {after}"
    if decision.statistics is None:
        return reason
    files = count_text(decision.statistics.files, "file")
    return f"{reason}; the statistics of {files} are computed first"


def _planned(_: Snapshot, decision: Decision) -> dict[str, Any]:
    if not isinstance(decision, ClusteringDecision):
        return {}
    todo = decision.statistics
    return {
        "columns_before": decision.columns_before,
        "columns_after": decision.columns_after,
        "joins": decision.depends_on_files,
        "files_to_recompute": 0 if todo is None else todo.files,
        "bytes_to_open": 0 if todo is None else todo.bytes,
        "statistics_commits": 0 if todo is None else todo.commits,
    }


_VERB = ChangeVerb(
    options_type=SetClusteringOptions,
    plan_type=SetClusteringPlan,
    result_type=SetClusteringResult,
    decide=_decide,
    reason=_reason,
    planned=_planned,
    done=lambda plan: {"columns": plan.columns_after},
)

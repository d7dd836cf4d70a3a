"""The `set-clustering` operation: sets or removes the clustering columns of a table.

One commit changes the domain `delta.clustering` and adds the features that it needs. No data file
is changed: `cluster`, or OPTIMIZE in Delta Spark, orders the rows. Implements the requirements for
writers of "Clustered Table": every live file must have statistics of every clustering column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, RefusedError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.set_clustering.options import (
    SetClusteringOptions,
    SetClusteringPlan,
    SetClusteringResult,
)
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import require_changeable
from delta_maintenance.operations.table_change.verb import ChangeVerb
from delta_maintenance.protocol.actions.model import DomainMetadata
from delta_maintenance.protocol.changes.enable import TableChange
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.clustering.bounds import file_bounds
from delta_maintenance.protocol.clustering.columns import (
    ClusteringColumn,
    current_columns,
    named_columns,
    require_allowed,
)
from delta_maintenance.protocol.schema.clustering import DOMAIN, clustering_configuration
from delta_maintenance.protocol.schema.types import to_arrow_type
from delta_maintenance.table.read.active_files import column_of
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_consistent

FEATURES = ("clustering", "domainMetadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringDecision(Decision):
    """A decision with the clustering columns before and after it, by logical names."""

    columns_before: tuple[str, ...] = ()
    columns_after: tuple[str, ...] = ()


def _decide(
    snapshot: Snapshot, options: SetClusteringOptions, operation_id: str
) -> ClusteringDecision:
    if bool(options.by) == options.none:
        raise InvalidRequestError(
            "either clustering columns or their removal must be requested",
            remedy="name columns with by, or set none",
        )
    require_consistent(snapshot)
    try:
        decision = _decided(snapshot, options)
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from None
    if not decision.is_noop:
        require_changeable(snapshot, decision, other_writers=options.other_writers)
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
    features = FEATURES if columns or old != [] else ()
    changed = upgraded_protocol(protocol, features=features, met=features)
    if old == [column.path for column in columns] and changed == protocol:
        return ClusteringDecision(
            operation="",
            parameters={},
            before=now,
            after=now,
            columns_before=names_before,
            columns_after=names_after,
        )
    joining = [column for column in columns if column.path not in (old or ())]
    _require_statistics(snapshot, joining)
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
    )


def _current(snapshot: Snapshot) -> tuple[ClusteringColumn, ...] | None:
    """Returns the current columns; None if the domain is damaged, so that it is written again."""
    try:
        return current_columns(snapshot.protocol, snapshot.metadata, snapshot.domain_metadata)
    except RefusedError:
        return None


def _require_statistics(snapshot: Snapshot, columns: Sequence[ClusteringColumn]) -> None:
    """Refuses columns of which a live file has no statistics."""
    if not columns:
        return
    types = {column.path: to_arrow_type(column.type) or pa.null() for column in columns}
    missing = snapshot.avoiding_damage(lambda sound: _missing(sound, types))
    for column, files in zip(columns, missing, strict=True):
        if files:
            raise RefusedError(
                f"{count_text(int(files), 'file')} without statistics of the column {column.name}, "
                "which every file of a clustered table must have",
                remedy="run recompute-stats first",
            )


def _missing(
    snapshot: Snapshot, types: dict[tuple[str, ...], pa.DataType]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns for each column the number of files that lack its statistics."""
    found = np.zeros(len(types), np.int64)
    fields = {"add": ("path", "stats", "stats_parsed"), "remove": ("path",)}
    for batch in snapshot.log.scan(fields=fields):
        adds = batch.adds
        stats = column_of(adds, "stats", {"stats": pa.string()}).combine_chunks()
        parsed = None
        if "stats_parsed" in adds.column_names:
            parsed = adds["stats_parsed"].combine_chunks()
        bounds = file_bounds(stats, types, parsed=parsed)
        found += [np.count_nonzero(~bounds.is_complete(path)) for path in types]
    return found


def _reason(decision: Decision) -> str:
    assert isinstance(decision, ClusteringDecision)
    after = ", ".join(decision.columns_after) or "no columns"
    if decision.is_noop:
        return f"the table is already clustered by {after}"
    before = ", ".join(decision.columns_before) or "no columns"
    return f"the table is clustered by {before}, and is to be clustered by {after}"


_VERB = ChangeVerb(
    options_type=SetClusteringOptions,
    plan_type=SetClusteringPlan,
    result_type=SetClusteringResult,
    decide=_decide,
    reason=_reason,
    planned=lambda decision: (
        {"columns_before": decision.columns_before, "columns_after": decision.columns_after}
        if isinstance(decision, ClusteringDecision)
        else {}
    ),
    done=lambda plan: {"columns": plan.columns_after},
)
plan = _VERB.plan
apply = _VERB.apply

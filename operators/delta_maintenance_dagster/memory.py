"""The state of a table between runs, kept in the metadata of its maintenance asset.

Dagster's event log keeps it, so that it survives restarts, redeployments and the loss of a machine.
The maintenance that a table needs follows from its log; this state covers operations that leave no
commit, and plans that wait for an approval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import dagster as dg

from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.models import LastRun

METADATA_KEY = "delta/last_runs"
PENDING_KEY = "delta/pending_plans"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The state that the last run on a table left for the next one."""

    last_runs: tuple[LastRun, ...] = ()
    pending: tuple[PendingPlan, ...] = ()

    def to_metadata(self) -> dict[str, dg.MetadataValue[Any]]:
        """Returns the metadata values to be stored."""
        return {
            METADATA_KEY: dg.MetadataValue.json([run.to_json() for run in self.last_runs]),
            PENDING_KEY: dg.MetadataValue.json([plan.to_json() for plan in self.pending]),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """Parses the metadata of an event. Plans of another release are dropped."""
        # Imported here, so that loading definitions does not need it.
        from delta_maintenance.errors import InvalidRequestError
        from delta_maintenance.policies.approval import PendingPlan
        from delta_maintenance.policies.models import LastRun

        runs = tuple(LastRun.from_json(value) for value in _list(metadata, METADATA_KEY))
        try:
            plans = tuple(PendingPlan.from_json(value) for value in _list(metadata, PENDING_KEY))
        except InvalidRequestError:
            plans = ()
        return cls(last_runs=runs, pending=plans)


def recall(instance: dg.DagsterInstance, table: DeltaTable) -> Memory:
    """Returns the state after the last run on a table, from the newest event that contains it."""
    newest = max(_recorded_events(instance, table), key=lambda event: event[0], default=None)
    return Memory.from_metadata(newest[1]) if newest is not None else Memory()


def _recorded_events(
    instance: dg.DagsterInstance, table: DeltaTable
) -> Iterable[tuple[float, Mapping[str, Any]]]:
    """Yields instants and values: of the last materialization, and of an observation after a
    failure.
    """
    key = table.maintenance_key
    materialized = instance.get_latest_materialization_event(key)
    if materialized is not None and materialized.asset_materialization is not None:
        metadata = materialized.asset_materialization.metadata
        if METADATA_KEY in metadata:
            yield materialized.timestamp, metadata
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        if observation is not None and METADATA_KEY in observation.metadata:
            yield record.timestamp, observation.metadata


def _list(metadata: Mapping[str, Any], key: str) -> list[Any]:
    value = metadata.get(key)
    items = value.value if isinstance(value, dg.JsonMetadataValue) else None
    return items if isinstance(items, list) else []

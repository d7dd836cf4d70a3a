"""The state of a table between runs, kept in the metadata of its maintenance asset.

Dagster's event log keeps it, so that it survives restarts, redeployments and the loss of a machine.
The maintenance that a table needs follows from its log; this state only covers operations that
leave no commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.models import LastRun

METADATA_KEY = "delta/last_runs"


def to_metadata(last_runs: tuple[LastRun, ...]) -> dg.JsonMetadataValue:
    """The metadata value to store."""
    return dg.MetadataValue.json([run.to_json() for run in last_runs])


def recall(instance: dg.DagsterInstance, table: DeltaTable) -> tuple[LastRun, ...]:
    """The last runs of the operations on a table, from the newest event that has them."""
    # Imported here because definitions must load fast.
    from delta_maintenance.policies.models import LastRun

    told = max(_told(instance, table), key=lambda event: event[0], default=None)
    return tuple(LastRun.from_json(value) for value in told[1]) if told is not None else ()


def _told(instance: dg.DagsterInstance, table: DeltaTable) -> Iterator[tuple[float, Any]]:
    """Instants and values: of the last materialization, and of an observation after a failure."""
    key = table.maintenance_key
    materialized = instance.get_latest_materialization_event(key)
    if materialized is not None and materialized.asset_materialization is not None:
        value = materialized.asset_materialization.metadata.get(METADATA_KEY)
        if isinstance(value, dg.JsonMetadataValue):
            yield materialized.timestamp, value.value
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        value = observation.metadata.get(METADATA_KEY) if observation is not None else None
        if isinstance(value, dg.JsonMetadataValue):
            yield record.timestamp, value.value

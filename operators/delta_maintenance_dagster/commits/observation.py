"""The source asset of a table: Dagster observes its version but never materialises it."""

# Without `from __future__ import annotations`: Dagster reads the annotation of a context as a type.

import warnings
from collections.abc import Iterator

import dagster as dg

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_dagster.commits.watch import Look, Position, look
from delta_maintenance_dagster.references import Reference
from delta_maintenance_dagster.resources import DeltaStorageResource
from delta_maintenance_dagster.tables import DeltaTable

DATA_VERSION = "dagster/data_version"
"""The tag of an observation with the data version."""


def build_table_asset(
    table: DeltaTable, *, storage: Reference[DeltaStorageResource]
) -> dg.AssetsDefinition:
    """The external asset of a table. Its data version is the newest version that changed data.

    The commit sensor observes it whenever data changes; *Observe* in the user interface does the
    same manually. (Dagster does not keep the data version of an external asset that cannot be
    observed, and all dependent assets stay unsynced.)
    """
    storage = storage.named(table.policy.rules.storage.connection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        observable = dg.multi_observable_source_asset(
            specs=[table.spec()],
            name=f"{table.op_name}__observe",
            description=f"Reads the newest version from the log of {table.uri}.",
            required_resource_keys=storage.required,
        )

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        known = _known_version(context.instance, table)
        before = Position(version=known) if known is not None else None
        try:
            seen = _looked(storage.resolve(context.resources), table, before)
        except DeltaMaintenanceError as error:
            problem = str(error.located(table=table.uri))
            raise dg.Failure(problem, allow_retries=error.retryable) from error
        version = known if seen.data_version is None else seen.data_version
        yield dg.ObserveResult(
            asset_key=table.key,
            metadata=observed(table, seen.position.version),
            data_version=dg.DataVersion(str(version)),
        )

    asset: dg.AssetsDefinition = observable(observe)
    return asset


def observed(table: DeltaTable, version: int) -> dict[str, dg.MetadataValue]:
    """Returns the metadata of an observation in addition to the data version."""
    return {
        "version": dg.MetadataValue.int(version),
        "dagster/uri": dg.MetadataValue.text(table.uri),
    }


def _looked(storage: DeltaStorageResource, table: DeltaTable, before: Position | None) -> Look:
    # Imported here because it loads the clients of object stores; definitions must load fast.
    from delta_maintenance.operations.watch import LogWatch, open_watched

    options = storage.storage_options(table.policy.rules.storage, uri=table.uri)
    store = open_watched(table.uri, options or None)
    version = before.version if before is not None else None
    seen = look(LogWatch(store, version=version), before)
    # Unlike the sensor, this has no later tick for unread commits.
    while seen.data_version is None and seen.position.unread:
        seen = look(LogWatch(store, version=seen.position.version), seen.position)
    return seen


def _known_version(instance: dg.DagsterInstance, table: DeltaTable) -> int | None:
    for record in instance.fetch_observations(table.key, limit=1).records:
        tags = record.asset_observation.tags if record.asset_observation is not None else {}
        version = (tags or {}).get(DATA_VERSION, "")
        if version.isdecimal():
            return int(version)
    return None

"""The sensor that reacts to new commits, if they change data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_dagster.commits.observation import DATA_VERSION, observed
from delta_maintenance_dagster.commits.watch import Look, Positions, look
from delta_maintenance_dagster.references import Reference
from delta_maintenance_dagster.resources import DeltaStorageResource
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

_PARALLEL = 16
_SHOWN = 3


class CommitSensor(dg.Model, dg.Resolvable):
    """The settings of the sensor that watches for commits."""

    interval_seconds: int = Field(
        default=60, ge=1, description="The minimum number of seconds between two polls."
    )
    min_commits: int = Field(
        default=1,
        ge=1,
        description="The number of new versions after which a run is requested.",
    )


def build_commit_sensor(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    job: UnresolvedAssetJobDefinition | dg.JobDefinition,
    storage: Reference[DeltaStorageResource],
    min_commits: int = 1,
    interval_seconds: int = 60,
) -> dg.SensorDefinition:
    """Watches the logs of tables, and requests a run on those whose data changed.

    Each change of data is an observation of the table's asset, with the version as its data
    version; a run is requested after `min_commits` versions since the last request. Maintenance
    commits request no run: OPTIMIZE, VACUUM and similar ones of any engine, and all commits of this
    library. A tick makes at most two requests to the store per table. A version has one run key,
    even with several sensors, a restarted daemon or a repeated tick.

    Off by default.
    """
    stores = [storage.named(table.policy.rules.storage.connection) for table in tables]

    @dg.sensor(
        name=name,
        target=job,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        required_resource_keys=set().union(*(store.required for store in stores)),
        description="Requests maintenance of Delta tables whose data changed.",
    )
    def commits(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        positions = Positions(context.cursor)
        problems: list[str] = []
        moved: list[tuple[DeltaTable, int]] = []
        requests: list[dg.RunRequest] = []
        for table, seen in _looks(tables, stores, positions, context.resources):
            if isinstance(seen, DeltaMaintenanceError):
                problems.append(str(seen))
                continue
            position = seen.position
            if seen.data_version is not None:
                moved.append((table, seen.data_version))
                if position.requested < 0 or position.version - position.requested >= min_commits:
                    requests.append(_request(table, seen.data_version))
                    position = replace(position, requested=position.version)
            positions[table.uri] = position
        for problem in problems:
            context.log.warning(problem)
        if problems and len(problems) == len(tables):
            raise dg.Failure(f"no table could be polled: {'; '.join(problems[:_SHOWN])}")
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[_observation(table, version) for table, version in moved],
            cursor=positions.to_cursor({table.uri for table in tables}),
            skip_reason=None if requests else _summary(tables, moved, problems),
        )

    return commits


def _looks(
    tables: Sequence[DeltaTable],
    stores: Sequence[Reference[DeltaStorageResource]],
    positions: Positions,
    resources: Any,
) -> Iterator[tuple[DeltaTable, Look | DeltaMaintenanceError]]:
    """Polls all tables, some in parallel, and returns the results in order. An error on one table
    does not stop the others.
    """
    # Imported here because it loads the clients of object stores; definitions must load fast.
    from delta_maintenance.operations.watch import LogWatch, open_watched

    resolved = {reference: reference.resolve(resources) for reference in set(stores)}

    def one(
        table: DeltaTable, reference: Reference[DeltaStorageResource]
    ) -> Look | DeltaMaintenanceError:
        before = positions[table.uri]
        try:
            rule = table.policy.rules.storage
            options = resolved[reference].storage_options(rule, uri=table.uri)
            store = open_watched(table.uri, options or None)
            version = before.version if before is not None else None
            return look(LogWatch(store, version=version), before)
        except DeltaMaintenanceError as error:
            return error.located(table=table.uri)

    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        yield from zip(tables, pool.map(one, tables, stores), strict=True)


def _request(table: DeltaTable, version: int) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{table.uri}@{version}",
        asset_selection=[table.maintenance_key],
        tags={"delta/table": table.policy.name, "delta/version": str(version)},
    )


def _observation(table: DeltaTable, version: int) -> dg.AssetObservation:
    return dg.AssetObservation(
        table.key,
        metadata=observed(table, version),
        tags={DATA_VERSION: str(version)},
    )


def _summary(tables: Sequence[DeltaTable], moved: Sequence[object], problems: Sequence[str]) -> str:
    message = f"{len(moved)} of {len(tables)} tables changed, and none by enough commits"
    if not moved:
        message = f"none of {len(tables)} tables changed"
    if problems:
        message = f"{message}; {len(problems)} could not be polled: {'; '.join(problems[:_SHOWN])}"
    return message

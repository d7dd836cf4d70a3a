"""Commits of tables: polls, the observed asset of a table, and the sensor that reacts to them."""

# Without `from __future__ import annotations`: Dagster reads the annotation of a context as a type.

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, PrivateAttr

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.position import Position, repeat_after
from delta_maintenance_dagster.new_tables import NewTables
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

DATA_VERSION = "dagster/data_version"
"""The tag of an observation with the data version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorPosition(Position):
    """The position in the log of one table, and the requests of a run for `announced`."""

    attempt: int = 0
    """The number of requests for that version; 0 when a run has succeeded."""
    first_at: float = 0.0
    """The time of the first of these requests, in seconds since 1970."""
    again_at: float = 0.0
    """The time of the next look whether a run has succeeded."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parses the result of `to_json`, in which JSON replaced the tuples by lists."""
        fields = {_FIELDS.get(name, name): field for name, field in value.items()}
        unread = tuple((int(low), int(high)) for low, high in fields.get("unread") or ())
        return cls(**{**fields, "unread": unread})

    def to_json(self) -> dict[str, Any]:
        """Returns the fields by their names in the cursor of a sensor."""
        return {name: getattr(self, field) for name, field in _FIELDS.items()}

    def requesting(self, version: int, *, at: datetime) -> Self:
        """Returns the state after a request for a version."""
        is_new = not self.attempt or version != self.announced
        first_at = at.timestamp() if is_new else self.first_at
        pause = repeat_after(timedelta(seconds=at.timestamp() - first_at))
        return replace(
            self,
            announced=version,
            attempt=1 if is_new else self.attempt + 1,
            first_at=first_at,
            again_at=(at + pause).timestamp(),
        )


_FIELDS = {"version": "version", "requested": "announced"}
_FIELDS |= {name: name for name in ("unread", "half_read", "attempt", "first_at", "again_at")}


class Positions:
    """The cursor of a sensor: a position for each table, by its address."""

    def __init__(self, cursor: str | None) -> None:
        positions = json.loads(cursor) if cursor else {}
        self._known = {uri: SensorPosition.from_json(value) for uri, value in positions.items()}

    def __getitem__(self, uri: str) -> SensorPosition | None:
        return self._known.get(uri)

    def __setitem__(self, uri: str, position: SensorPosition) -> None:
        self._known[uri] = position

    def to_cursor(self, uris: set[str]) -> str:
        """Returns the cursor as text, without the tables that are no longer watched."""
        return json.dumps(
            {uri: position.to_json() for uri, position in self._known.items() if uri in uris},
            separators=(",", ":"),
        )


def build_table_asset(
    table: DeltaTable, *, storage: Reference[DeltaStorageResource]
) -> dg.AssetsDefinition:
    """The external asset of a table. Its data version is the newest version that changed data.

    The commit sensor observes it whenever data changes; *Observe* in the user interface does the
    same manually. (Dagster does not keep the data version of an external asset that cannot be
    observed, and all dependent assets stay unsynced.)
    """
    storage = storage.of(table.policy.rules.storage.connection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        observable = dg.multi_observable_source_asset(
            specs=[table.spec()],
            name=f"{table.op_name}__observe",
            description=f"Reads the newest version from the log of {table.uri}.",
            required_resource_keys=storage.keys,
        )

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        try:
            newest, data_version = read_versions(
                context.instance, storage.resolve(context.resources), table
            )
        except DeltaMaintenanceError as error:
            problem = str(error.locate(table=table.uri))
            raise dg.Failure(problem, allow_retries=error.retryable) from error
        yield dg.ObserveResult(
            asset_key=table.key,
            metadata=describe_version(table, newest),
            data_version=dg.DataVersion(str(data_version)),
        )

    asset: dg.AssetsDefinition = observable(observe)
    return asset


def describe_version(table: DeltaTable, version: int) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of every observation of a table, in addition to the data version."""
    return {
        "version": dg.MetadataValue.int(version),
        **{key: dg.MetadataValue.text(value) for key, value in table.location.items()},
    }


def read_versions(
    instance: dg.DagsterInstance, storage: DeltaStorageResource, table: DeltaTable
) -> tuple[int, int]:
    """Returns the newest version of a table, and the newest version that changed data.

    Reads the log from the last observation on. Raises the errors of `poll_table`.
    """
    known_version = _known_version(instance, table)
    before = SensorPosition(version=known_version) if known_version is not None else None
    # Unlike the sensor, this has no later tick for unread commits.
    position, changed = poll_table(storage, table, before, to_the_end=True)
    data_version = known_version if changed is None else changed
    assert data_version is not None
    return position.version, data_version


def poll_table(
    storage: DeltaStorageResource,
    table: DeltaTable,
    before: SensorPosition | None,
    *,
    to_the_end: bool = False,
) -> tuple[SensorPosition, int | None]:
    """Polls a log, starting from the state `before`. Also returns the newest commit that changed
    data, if one is new.

    A table that was never polled counts as changed. One commit is read, unless `to_the_end`.
    """
    # Imported here because it loads the clients of object stores; definitions must load fast.
    from delta_maintenance.operations.watch import CommitCount, CommitFilter, LogWatch, open_watched

    options = storage.storage_options(table.policy.rules.storage, uri=table.uri)
    store = open_watched(table.uri, options or None)
    watch = LogWatch(store, version=before.version if before is not None else None)
    polled = watch.poll()
    # A log that does not continue at the known version is another log.
    if before is None or polled.since != before.version:
        return SensorPosition(version=polled.version), polled.version
    count = CommitCount(CommitFilter(data_changes_only=True), before)
    while not count.count(watch, newest=polled.version) and to_the_end:
        watch.poll_again()
    return replace(count.position, counted=0), count.matched


def _known_version(instance: dg.DagsterInstance, table: DeltaTable) -> int | None:
    for record in instance.fetch_observations(table.key, limit=1).records:
        tags = record.asset_observation.tags if record.asset_observation is not None else {}
        version = (tags or {}).get(DATA_VERSION, "")
        if version.isdecimal():
            return int(version)
    return None


_PARALLEL = 16
_SHOWN = 3
_MOST_REVIEWED = 50
"""The maximum number of tables for which one tick asks Dagster about their last runs."""
_BETWEEN_REVIEWS = timedelta(minutes=1)
_LONGEST_RUN = timedelta(days=1)
"""The age at which an unfinished run counts as lost, because Dagster may not notice its end."""
_TABLE_TAG = "delta/table"


class CommitSensor(dg.Model, dg.Resolvable):
    """The settings of the sensor that watches for commits."""

    interval_seconds: int = Field(
        default=60, ge=1, description="The minimum number of seconds between two polls."
    )
    min_commits: int = Field(
        default=1, ge=1, description="The number of new versions after which a run is requested."
    )
    _new_tables: NewTables | None = PrivateAttr(default=None)

    @property
    def new_tables(self) -> NewTables | None:
        """The tables of catalogs that the sensor reports because it cannot watch them."""
        return self._new_tables

    def reporting(self, new_tables: NewTables) -> Self:
        """Returns these settings for a sensor that reports new tables."""
        copy = self.model_copy()
        copy._new_tables = new_tables
        return copy


def build_commit_sensor(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    job: "UnresolvedAssetJobDefinition | dg.JobDefinition",
    storage: Reference[DeltaStorageResource],
    min_commits: int = 1,
    interval_seconds: int = 60,
    new_tables: NewTables | None = None,
) -> dg.SensorDefinition:
    """Watches the logs of tables, and requests a run on those whose data changed.

    Each change of data is an observation of the table's asset, with the version as its data
    version; a run is requested after `min_commits` versions since the last request. Maintenance
    commits request no run: OPTIMIZE, VACUUM and similar ones of any engine, and all commits of this
    library. A tick makes at most two requests to the store per table. A version has one run key,
    even with several sensors, a restarted daemon or a repeated tick. Runs are requested again, with
    other keys and after growing pauses, until one has succeeded.

    Off by default.
    """
    stores = [storage.of(table.policy.rules.storage.connection) for table in tables]

    @dg.sensor(
        name=name,
        target=job,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        required_resource_keys=set().union(*(store.keys for store in stores)),
        description="Requests maintenance of Delta tables whose data changed.",
    )
    def commits(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        positions, now = Positions(context.cursor), clock.now()
        problems: list[str] = []
        moved: list[tuple[DeltaTable, int]] = []
        requests: list[dg.RunRequest] = []
        for table, polled in _polls(tables, stores, positions, context.resources):
            if isinstance(polled, DeltaMaintenanceError):
                problems.append(str(polled))
                continue
            position, changed = polled
            if changed is not None:
                moved.append((table, changed))
                if position.announced < 0 or position.version - position.announced >= min_commits:
                    requests.append(_request(table, changed))
                    position = position.requesting(position.version, at=now)
            positions[table.uri] = position
        for table, position in _overdue(tables, positions, now):
            positions[table.uri], request = _review(context.instance, table, position, now)
            requests += [request] if request is not None else []
        for problem in problems:
            context.log.warning(problem)
        new_names = new_tables.text() if new_tables is not None else None
        if problems and len(problems) == len(tables):
            raise dg.Failure(f"no table could be polled: {'; '.join(problems[:_SHOWN])}")
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[_observation(table, version) for table, version in moved],
            cursor=positions.to_cursor({table.uri for table in tables}),
            skip_reason=None if requests else _summary(tables, moved, problems, new_names),
        )

    return commits


def _polls(
    tables: Sequence[DeltaTable],
    stores: Sequence[Reference[DeltaStorageResource]],
    positions: Positions,
    resources: Any,
) -> list[tuple[DeltaTable, tuple[SensorPosition, int | None] | DeltaMaintenanceError]]:
    """Polls all tables, some in parallel, and returns the results in order. An error on one table
    does not stop the others.
    """
    resolved = {reference: reference.resolve(resources) for reference in set(stores)}

    def one(
        table: DeltaTable, reference: Reference[DeltaStorageResource]
    ) -> tuple[SensorPosition, int | None] | DeltaMaintenanceError:
        try:
            return poll_table(resolved[reference], table, positions[table.uri])
        except DeltaMaintenanceError as error:
            return error.locate(table=table.uri)

    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return [*zip(tables, pool.map(one, tables, stores), strict=True)]


def _overdue(
    tables: Sequence[DeltaTable], positions: Positions, now: datetime
) -> list[tuple[DeltaTable, SensorPosition]]:
    """Returns the tables with a requested version to look after, the longest overdue first."""
    all_of_them = ((table, positions[table.uri]) for table in tables)
    overdue = [
        (table, position)
        for table, position in all_of_them
        if position is not None and position.attempt and position.again_at <= now.timestamp()
    ]
    return sorted(overdue, key=lambda one: one[1].again_at)[:_MOST_REVIEWED]


def _review(
    instance: dg.DagsterInstance, table: DeltaTable, position: SensorPosition, now: datetime
) -> tuple[SensorPosition, dg.RunRequest | None]:
    """Requests another run if none since the first request has succeeded or is under way."""
    # SQLite keeps the times of runs in whole seconds.
    since = datetime.fromtimestamp(position.first_at // 1 - 1, UTC)
    runs = dg.RunsFilter(tags={_TABLE_TAG: table.policy.name}, created_after=since)
    for record in instance.get_run_records(runs, limit=1):
        if record.dagster_run.is_success:
            return replace(position, attempt=0), None
        if not record.dagster_run.is_finished and now - record.create_timestamp < _LONGEST_RUN:
            return replace(position, again_at=(now + _BETWEEN_REVIEWS).timestamp()), None
    position = position.requesting(position.announced, at=now)
    return position, _request(table, position.announced, attempt=position.attempt)


def _request(table: DeltaTable, version: int, *, attempt: int = 1) -> dg.RunRequest:
    key = f"{table.uri}@{version}"
    return dg.RunRequest(
        run_key=key if attempt == 1 else f"{key}#{attempt}",
        asset_selection=[table.maintenance_key],
        tags={_TABLE_TAG: table.policy.name, "delta/version": str(version)},
    )


def _observation(table: DeltaTable, version: int) -> dg.AssetObservation:
    return dg.AssetObservation(
        table.key, metadata=describe_version(table, version), tags={DATA_VERSION: str(version)}
    )


def _summary(
    tables: Sequence[DeltaTable],
    moved: Sequence[object],
    problems: Sequence[str],
    new_names: str | None,
) -> str:
    followed = count_text(len(tables), "table")
    message = f"{len(moved)} of {followed} changed, and none by enough commits"
    if not moved:
        message = f"no change in {followed}"
    if problems:
        message = f"{message}; {len(problems)} could not be polled: {'; '.join(problems[:_SHOWN])}"
    return message if new_names is None else f"{message}; {new_names}"

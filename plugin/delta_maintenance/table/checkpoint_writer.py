"""Writing checkpoints: staged, verified with our own reader, published, then announced.

Implements "Checkpoints", "Sidecar Files" and "Last Checkpoint File" for writers. Everything is
written to a staging folder first and read back from there as any reader would. Only then does it
become visible: sidecars before the top-level file, the hint last. So a crash leaves at most
sidecars that nothing refers to, and a failure leaves the table as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Any, Literal, Protocol

import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions import (
    CheckpointMetadata,
    DomainMetadata,
    Metadata,
    Sidecar,
    Txn,
)
from delta_maintenance.protocol.checkpoint import (
    FileActionLayout,
    UnknownFieldsError,
    kept_txns,
    single_action_table,
    single_actions,
    unexpired,
)
from delta_maintenance.protocol.features import supports
from delta_maintenance.protocol.last_checkpoint import V2CheckpointHint, parse_hint, render_hint
from delta_maintenance.protocol.log_files import (
    LAST_CHECKPOINT,
    SIDECAR_DIRECTORY,
    classic_checkpoint_name,
    uuid_checkpoint_name,
)
from delta_maintenance.protocol.path_audit import PathAudit
from delta_maintenance.protocol.schema import (
    ColumnMappingMode,
    DeltaType,
    StructType,
    column_mapping_mode,
    parse_schema,
    physical_name,
)
from delta_maintenance.protocol.statistics import statistics_arrow_type
from delta_maintenance.storage.base import FileStatus, Store
from delta_maintenance.table.action_file import ActionFile, ParquetStyle, Tally
from delta_maintenance.table.checkpoint_verification import verify_checkpoint, verify_sidecar
from delta_maintenance.table.log_segment import LOG_DIRECTORY
from delta_maintenance.table.snapshot import Snapshot
from delta_maintenance.table.staging import Staging, publish, staging
from delta_maintenance.table.standing_files import StandingFiles

WrittenKind = Literal["classic", "v2-classic", "v2-json", "v2-parquet"]
Progress = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and of how much, where that is known."""

_PARALLEL_UPLOADS = 4
_INLINE_JSON_ACTIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """All that decides the content of a checkpoint, but for the snapshot."""

    kind: WrittenKind
    actions_per_sidecar: int
    """0 keeps file actions in the top-level file."""
    layout: FileActionLayout
    style: ParquetStyle
    deleted_after_ms: int | None
    """Tombstones deleted at or before this instant are left out; None keeps all."""
    txns_updated_after_ms: int | None
    """Transactions last updated at or before this instant are left out; None keeps all."""

    @property
    def is_v2(self) -> bool:
        """Whether it is a V2 checkpoint by content."""
        return self.kind != "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarReport:
    """A published sidecar and what is in it."""

    sidecar: Sidecar
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSet:
    """The sidecars of one checkpoint."""

    reports: tuple[SidecarReport, ...]
    expired_tombstones: int


class SidecarEngine(Protocol):
    """Who writes the sidecars: this process, or a cluster."""

    def write_sidecars(self, snapshot: Snapshot, spec: CheckpointSpec) -> SidecarSet:
        """Writes, verifies and publishes every file action of the snapshot that stands."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A published checkpoint."""

    path: str
    """The top-level file, relative to the table root."""
    sidecars: tuple[Sidecar, ...]
    bytes_written: int
    actions: int
    tally: Tally
    expired_tombstones: int
    hint_updated: bool


def layout_of(snapshot: Snapshot, *, zone: tzinfo | None) -> FileActionLayout:
    """The columns that the table's properties and schema ask for.

    Partition values are typed only where their text says all there is to say: for timestamps that
    takes a zone.
    """
    properties, metadata = snapshot.properties, snapshot.metadata
    as_struct = properties.write_stats_as_struct
    # Without structs on either side there is nothing to convert, and the schema may say anything.
    if metadata.schema_string is None or not (as_struct or snapshot.checkpoint is not None):
        return FileActionLayout(stats_as_json=properties.write_stats_as_json, statistics_type=None)
    schema = parse_schema(metadata.schema_string)
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    statistics_type = statistics_arrow_type(
        schema,
        partition_columns=metadata.partition_columns,
        mode=mode,
        tight_bounds=supports(snapshot.protocol, "deletionVectors"),
    )
    partitions = _partition_types(metadata, schema, mode) if as_struct else {}
    zoneless = zone is None and any(str(kind) == "timestamp" for kind in partitions.values())
    return FileActionLayout(
        stats_as_json=properties.write_stats_as_json,
        statistics_type=statistics_type if as_struct else None,
        source_type=statistics_type,
        partition_types=None if zoneless or not partitions else partitions,
        zone=zone,
        columns=frozenset(physical_name(column, mode) for column in schema.fields),
    )


def _partition_types(
    metadata: Metadata, schema: StructType, mode: ColumnMappingMode
) -> dict[str, DeltaType]:
    partitions = {}
    for name in metadata.partition_columns:
        column = schema.find(name)
        if column is None:
            raise RefusedError(
                f"the partition column {name!r} is not in the schema",
                remedy="repair the table's metadata first",
            )
        partitions[physical_name(column, mode)] = column.type
    return partitions


def write_checkpoint(
    snapshot: Snapshot,
    spec: CheckpointSpec,
    *,
    new_id: NewId,
    engine: SidecarEngine | None = None,
    progress: Progress | None = None,
) -> WrittenCheckpoint:
    """Writes one checkpoint of the snapshot's version and announces it.

    `FileExistsError` where another writer's classic checkpoint is there first, `RefusedError` where
    the table's paths or statistics forbid it, `VerificationError` where the result does not read
    back; in all these cases nothing is announced.
    """
    while True:
        try:
            with staging() as staged:
                return _Writing(snapshot, spec, staged, new_id, progress).run(engine)
        except UnknownFieldsError as wider:
            # Nothing has been published: all columns have to be known before the first file.
            spec = replace(spec, layout=wider.layout)


class LocalSidecars:
    """Writes sidecars in this process, one after the other, of at most so many actions each."""

    def __init__(self, staged: Staging, new_id: NewId, progress: Progress | None = None) -> None:
        self._staged = staged
        self._new_id = new_id
        self._progress = progress

    def write_sidecars(self, snapshot: Snapshot, spec: CheckpointSpec) -> SidecarSet:
        """See `SidecarEngine`. Publishes nothing before the last sidecar is verified."""
        files = standing(snapshot, spec, self._progress)
        return roll_sidecars(files, spec, self._staged, snapshot.store, self._new_id)


def roll_sidecars(
    files: Iterable[tuple[StandingFiles, int]],
    spec: CheckpointSpec,
    staged: Staging,
    store: Store,
    new_id: NewId,
) -> SidecarSet:
    """Sidecars of what `kept` gives. Publishes nothing before the last one is verified."""
    rolling = RollingSidecars(staged, spec, new_id)
    expired = 0
    try:
        for batch, dropped in files:
            expired += dropped
            rolling.write(batch)
        rolling.finish()
    except BaseException:
        rolling.abandon()
        raise
    return SidecarSet(reports=rolling.publish(store), expired_tombstones=expired)


class RollingSidecars:
    """Sidecars under way: each is staged and verified, all are published together."""

    def __init__(self, staged: Staging, spec: CheckpointSpec, new_id: NewId) -> None:
        self._staged = staged
        self._spec = spec
        self._new_id = new_id
        self._done: list[tuple[str, Tally]] = []
        self._name = ""
        self._file: ActionFile | None = None
        self._room = 0

    def write(self, batch: StandingFiles) -> None:
        """Appends file actions, starting new sidecars as they fill up."""
        adds, tombstones = batch.adds, batch.tombstones
        while adds.num_rows + tombstones.num_rows:
            if self._file is None:
                self._begin()
            assert self._file is not None
            first = min(adds.num_rows, self._room)
            second = min(tombstones.num_rows, self._room - first)
            self._file.write_files(adds.slice(0, first), tombstones.slice(0, second))
            adds, tombstones = adds.slice(first), tombstones.slice(second)
            self._room -= first + second
            if not self._room:
                self.finish()

    def finish(self) -> None:
        """Completes and verifies the sidecar under way, if there is one."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            verify_sidecar(self._staged, self._name, file.tally)
            self._done.append((self._name, file.tally))

    def publish(self, store: Store) -> tuple[SidecarReport, ...]:
        """Makes all of them visible; nothing refers to them yet."""
        with ThreadPoolExecutor(_PARALLEL_UPLOADS) as pool:
            statuses = list(
                pool.map(lambda done: publish(self._staged, store, done[0]), self._done)
            )
        return tuple(
            SidecarReport(sidecar=_sidecar(status), tally=tally)
            for status, (_, tally) in zip(statuses, self._done, strict=True)
        )

    def abandon(self) -> None:
        """Lets go of the sidecar under way."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _begin(self) -> None:
        self._name = f"{SIDECAR_DIRECTORY}/{self._new_id()}.parquet"
        layout = self._spec.layout
        schema = pa.schema([("add", layout.add_type), ("remove", layout.remove_type)])
        self._file = ActionFile(self._staged.path(self._name), schema, layout, self._spec.style)
        self._room = self._spec.actions_per_sidecar


def standing(
    snapshot: Snapshot, spec: CheckpointSpec, progress: Progress | None = None
) -> Iterator[tuple[StandingFiles, int]]:
    """The file actions that a checkpoint holds, with the number of expired tombstones left out.

    `RefusedError` at the end where the paths of the table forbid writing.
    """
    done = 0
    for batch, expired in kept(
        snapshot.scan(),
        root=snapshot.table,
        deleted_after_ms=spec.deleted_after_ms,
        commit_times=commit_times(snapshot),
    ):
        yield batch, expired
        done += batch.adds.num_rows + batch.tombstones.num_rows
        if progress is not None:
            progress("file actions", done, None)


def kept(
    files: Iterable[StandingFiles],
    *,
    root: str,
    deleted_after_ms: int | None,
    commit_times: Mapping[int, int],
) -> Iterator[tuple[StandingFiles, int]]:
    """Of all standing files of a table, or of those at some paths, what a checkpoint holds.

    Each batch comes with the number of expired tombstones left out of it. `RefusedError` at the end
    where the paths forbid writing.
    """
    audit = PathAudit(root)
    for batch in files:
        audit.offer(batch.adds, batch.tombstones)
        unexpired_ones = unexpired(
            batch.tombstones, deleted_after_ms=deleted_after_ms, commit_times=commit_times
        )
        expired = batch.tombstones.num_rows - unexpired_ones.num_rows
        yield StandingFiles(batch.adds, unexpired_ones), expired
    problem = audit.problem()
    if problem is not None:
        raise RefusedError(
            problem,
            remedy="readers disagree about this table: repair it before anything writes to it",
        )


def commit_times(snapshot: Snapshot) -> dict[int, int]:
    """When each commit after the checkpoint was written, in milliseconds since 1970-01-01 UTC."""
    return {
        entry.file.version: entry.status.modified_ms
        for entry in snapshot.segment.commits
        if entry.file.version is not None
    }


@dataclass(slots=True)
class _Writing:
    """One attempt at one checkpoint."""

    snapshot: Snapshot
    spec: CheckpointSpec
    staged: Staging
    new_id: NewId
    progress: Progress | None
    sidecars: SidecarSet = field(
        default_factory=lambda: SidecarSet(reports=(), expired_tombstones=0)
    )
    inline: Tally = field(default_factory=Tally)
    expired: int = 0

    def run(self, engine: SidecarEngine | None) -> WrittenCheckpoint:
        spec, store = self.spec, self.snapshot.store
        if spec.is_v2 and spec.actions_per_sidecar:
            engine = engine or LocalSidecars(self.staged, self.new_id, self.progress)
            self.sidecars = engine.write_sidecars(self.snapshot, spec)
            self.expired = self.sidecars.expired_tombstones
        name = self._name()
        actions = self._single_actions()
        if spec.kind == "v2-json":
            self._write_json(name, actions)
        else:
            self._write_parquet(name, actions)
        self._verify(name, actions)
        status = publish(self.staged, store, name)
        return self._announce(status, len(actions))

    def _name(self) -> str:
        version = self.snapshot.version
        match self.spec.kind:
            case "v2-json":
                return uuid_checkpoint_name(version, self.new_id(), "json")
            case "v2-parquet":
                return uuid_checkpoint_name(version, self.new_id(), "parquet")
            case _:
                return classic_checkpoint_name(version)

    def _single_actions(self) -> list[tuple[str, dict[str, Any]]]:
        state = self.snapshot.state
        return single_actions(
            protocol=state.protocol,
            metadata=state.metadata,
            txns=self._txns(),
            domains=self._domains(),
            checkpoint_metadata=CheckpointMetadata(version=self.snapshot.version)
            if self.spec.is_v2
            else None,
            sidecars=[report.sidecar for report in self.sidecars.reports],
        )

    def _txns(self) -> list[Txn]:
        txns = [txn for _, txn in sorted(self.snapshot.state.txns.items())]
        return kept_txns(txns, updated_after_ms=self.spec.txns_updated_after_ms)

    def _domains(self) -> list[DomainMetadata]:
        return [domain for _, domain in sorted(self.snapshot.state.domains.items())]

    @property
    def _inlines(self) -> bool:
        return not self.spec.is_v2 or not self.spec.actions_per_sidecar

    def _write_parquet(self, name: str, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        singles = single_action_table(actions, version_2=self.spec.is_v2)
        layout = self.spec.layout
        files = [pa.field("add", layout.add_type), pa.field("remove", layout.remove_type)]
        schema = pa.schema([*files, *singles.schema])
        with ActionFile(self.staged.path(name), schema, layout, self.spec.style) as file:
            if self._inlines:
                for batch, expired in standing(self.snapshot, self.spec, self.progress):
                    self.expired += expired
                    file.write_files(batch.adds, batch.tombstones)
            file.write_singles(singles)
        self.inline = file.tally

    def _write_json(self, name: str, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        lines = [json.dumps({kind: value}, ensure_ascii=False) for kind, value in actions]
        if self._inlines:
            for batch, expired in standing(self.snapshot, self.spec, self.progress):
                self.expired += expired
                self.inline.include(batch.adds, batch.tombstones)
                if self.inline.adds + self.inline.tombstones > _INLINE_JSON_ACTIONS:
                    raise RefusedError(
                        f"a JSON checkpoint without sidecars is for up to {_INLINE_JSON_ACTIONS} "
                        "file actions",
                        remedy="ask for sidecars, or for the kind v2-parquet",
                    )
                lines.extend(_json_lines("add", self.spec.layout.adds(batch.adds)))
                lines.extend(_json_lines("remove", self.spec.layout.removes(batch.tombstones)))
        self.staged.path(name).write_bytes("".join(f"{line}\n" for line in lines).encode())

    def _verify(self, name: str, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        verify_checkpoint(
            self.staged,
            name,
            version=self.snapshot.version,
            sidecar_store=self.snapshot.store,
            actions=actions,
            inline=self.inline if self._inlines else None,
        )

    def _announce(self, status: FileStatus, single_count: int) -> WrittenCheckpoint:
        tally = Tally()
        tally.add(self.inline)
        for report in self.sidecars.reports:
            tally.add(report.tally)
        sidecars = tuple(report.sidecar for report in self.sidecars.reports)
        actions = single_count + tally.adds + tally.tombstones
        size = status.size + sum(sidecar.size_in_bytes for sidecar in sidecars)
        uuid_named = self.spec.kind in ("v2-json", "v2-parquet")
        updated = announce(
            self.snapshot.store,
            version=self.snapshot.version,
            actions=actions,
            size_in_bytes=size,
            num_files=tally.adds,
            v2=V2CheckpointHint(
                path=status.path.rpartition("/")[2],
                size_in_bytes=status.size,
                modification_time=status.modified_ms,
                sidecar_files=sidecars,
            )
            if uuid_named
            else None,
        )
        return WrittenCheckpoint(
            path=status.path,
            sidecars=sidecars,
            bytes_written=size,
            actions=actions,
            tally=tally,
            expired_tombstones=self.expired,
            hint_updated=updated,
        )


def announce(
    store: Store,
    *,
    version: int,
    actions: int,
    size_in_bytes: int,
    num_files: int,
    v2: V2CheckpointHint | None,
) -> bool:
    """Points `_last_checkpoint` at a published checkpoint, unless it points at a newer one."""
    path = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
    try:
        current = parse_hint(store.read(path))
    except FileNotFoundError:
        current = None
    if current is not None and current.version > version:
        return False
    store.put(
        path,
        render_hint(
            version=version,
            size=actions,
            size_in_bytes=size_in_bytes,
            num_of_add_files=num_files,
            v2_checkpoint=v2,
        ),
    )
    return True


def _sidecar(status: FileStatus) -> Sidecar:
    return Sidecar(
        path=status.path.rpartition("/")[2],
        size_in_bytes=status.size,
        modification_time=status.modified_ms,
    )


def _json_lines(action: str, rows: pa.StructArray) -> list[str]:
    return [
        json.dumps({action: _without_nulls(row)}, ensure_ascii=False)
        for row in rows.to_pylist(maps_as_pydicts="strict")
    ]


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    # A null partition value means something; a null field does not.
    return {
        name: value
        for name, value in row.items()
        if value is not None and name not in ("stats_parsed", "partitionValues_parsed")
    }

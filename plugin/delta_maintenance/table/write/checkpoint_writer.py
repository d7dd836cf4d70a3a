"""Writing checkpoints: stage, verify with our own reader, publish, update the hint.

Implements "Checkpoints" and "Last Checkpoint File" for writers. Everything is
written to a staging folder first and read back from there as any reader would. Only then does it
become visible: sidecars before the top-level file, the hint last. So a crash leaves at most
sidecars that nothing refers to, and a failure leaves the table as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import (
    CheckpointMetadata,
    DomainMetadata,
    Sidecar,
    Txn,
)
from delta_maintenance.protocol.delta_log.checkpoint_rows import (
    UnknownFieldsError,
    kept_txns,
    single_action_table,
    single_actions,
)
from delta_maintenance.protocol.delta_log.file_names import (
    LAST_CHECKPOINT,
    classic_checkpoint_name,
    uuid_checkpoint_name,
)
from delta_maintenance.protocol.delta_log.last_checkpoint import (
    V2CheckpointHint,
    parse_hint,
    render_hint,
)
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.segment import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.action_file import ActionFile, Tally
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_writer import (
    LocalSidecars,
    SidecarEngine,
    SidecarSet,
    standing,
)
from delta_maintenance.table.write.staging import Staging, publish, staging
from delta_maintenance.table.write.verify import verify_checkpoint

_INLINE_JSON_ACTIONS = 10_000


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
                    file.write_files(batch.adds, batch.tombstones, add_hashes=batch.add_hashes)
            file.write_singles(singles)
        self.inline = file.tally

    def _write_json(self, name: str, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        lines = [json.dumps({kind: value}, ensure_ascii=False) for kind, value in actions]
        layout = self.spec.layout
        if layout.statistics_type is not None:
            # Lines have room for text alone.
            layout = replace(layout, stats_as_json=True, statistics_type=None, partition_types=None)
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
                lines.extend(_json_lines("add", layout.adds(batch.adds)))
                lines.extend(_json_lines("remove", layout.removes(batch.tombstones)))
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

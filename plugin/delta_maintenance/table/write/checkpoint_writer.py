"""Writing checkpoints: stage, verify with our own reader, publish, update the hint.

Implements "Checkpoints" and "Last Checkpoint File" for writers. Everything is first written to a
staging folder and read back from there as by any reader. Only then does it become visible: first
the sidecars, then the top-level file, last the hint. A crash therefore leaves at most sidecars
without a reference, and a failure leaves the table unchanged.
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
from delta_maintenance.protocol.delta_log.sidecars import checkpoint_tags, spark_schema
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, read_hint, stated_files
from delta_maintenance.table.read.log_view import contradiction_error
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import ActionFile, CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    NotReusableError,
    ReuseSurvey,
    missing_sidecars,
    require_newest,
)
from delta_maintenance.table.write.sidecar_writer import (
    LocalSidecars,
    SidecarEngine,
    SidecarSet,
    checkpoint_actions,
    sidecar_schema,
)
from delta_maintenance.table.write.staging import Staging, publish, staging, verify_checkpoint

_INLINE_JSON_ACTIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A published checkpoint."""

    path: str
    """The top-level file, relative to the table root."""
    sidecars: tuple[Sidecar, ...]
    """All sidecars."""
    taken_over: int
    """The number of sidecars that were taken over from an earlier checkpoint."""
    bytes_written: int
    """Without the bytes of sidecars that were taken over."""
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
    reuse: ReuseSurvey | None = None,
) -> WrittenCheckpoint:
    """Writes one checkpoint of the snapshot's version and updates the hint.

    `reuse` states the sidecars of an earlier checkpoint that are taken over. Raises
    `FileExistsError` if another writer's classic checkpoint exists already, `RefusedError` if the
    paths or statistics of the table forbid it, `VerificationError` if the result does not read
    back, and `NotReusableError` if a sidecar to be taken over is not usable. In all these cases the
    hint is not changed.
    """
    while True:
        try:
            with staging() as staged:
                return _Writing(snapshot, spec, staged, new_id, progress, reuse).run(engine)
        except UnknownFieldsError as wider:
            # Nothing has been published: all columns must be known before the first file.
            spec = replace(spec, layout=wider.layout)


@dataclass(slots=True)
class _Writing:
    """One attempt at one checkpoint."""

    snapshot: Snapshot
    spec: CheckpointSpec
    staged: Staging
    new_id: NewId
    progress: Progress | None
    reuse: ReuseSurvey | None
    sidecars: SidecarSet = field(
        default_factory=lambda: SidecarSet(reports=(), expired_tombstones=0)
    )
    inline: Tally = field(default_factory=Tally)
    expired: int = 0

    def run(self, engine: SidecarEngine | None) -> WrittenCheckpoint:
        spec, store = self.spec, self.snapshot.log.store
        if spec.is_v2 and spec.actions_per_sidecar:
            engine = engine or LocalSidecars(self.staged, self.new_id, self.progress)
            self.sidecars = engine.write_sidecars(self.snapshot, spec, reuse=self.reuse)
            self.expired = self.sidecars.expired_tombstones
        name = self._name()
        actions = self._write_json(name) if spec.kind == "v2-json" else self._write_parquet(name)
        self._verify(name, actions)
        self._require_agreement()
        if self.reuse is not None:
            require_newest(self.snapshot, self.reuse.base)
            self._require_reused(self.reuse)
        status = publish(self.staged, store, name)
        if self.reuse is not None:
            try:
                # A clean-up deletes the sidecars of the base only after it has seen a newer
                # checkpoint. Such a checkpoint either exists by now, or the clean-up will see it
                # together with this one and keep the sidecars.
                require_newest(self.snapshot, self.reuse.base, beside=status.path)
                self._require_reused(self.reuse)
            except BaseException:
                # No other process uses the checkpoint, and no hint names it yet. Its sidecars may
                # be deleted.
                store.delete(status.path)
                raise
        return self._announce(status, len(actions))

    def _require_agreement(self) -> None:
        """Compares the totals with the version checksum, for which all files must be known."""
        stated = stated_files(self.snapshot.log.store, self.snapshot.version)
        tally = self._tally()
        sums = (tally.adds, tally.size)
        if stated is not None and stated != sums:
            raise contradiction_error(
                f"the checkpoint would have {sums[0]} files of {sums[1]} bytes where the version "
                f"checksum has {stated[0]} of {stated[1]}"
            )

    def _require_reused(self, reuse: ReuseSurvey) -> None:
        """Checks that reused sidecars exist, because a concurrent clean-up may delete them until
        the checkpoint is visible.
        """
        missing = missing_sidecars(self.snapshot.log.store, reuse)
        if missing:
            raise NotReusableError(f"{missing[0]} is missing or has another size")

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
        state = self.snapshot.log.state
        return single_actions(
            protocol=state.protocol,
            metadata=state.metadata,
            txns=self._txns(),
            domains=self._domains(),
            checkpoint_metadata=CheckpointMetadata(version=self.snapshot.version, tags=self._tags())
            if self.spec.is_v2
            else None,
            sidecars=[report.sidecar for report in self.sidecars.all],
        )

    def _tags(self) -> dict[str, str]:
        reports = self.sidecars.all
        schema = None
        if self.sidecars.reports:
            schema = spark_schema(sidecar_schema(self.spec.layout))
        if self.reuse is not None:
            schema = self.reuse.with_fields_of_base(schema)
        return checkpoint_tags(
            self._tally(),
            sidecar_actions=sum(report.tally.actions for report in reports),
            sidecar_bytes=sum(report.sidecar.size_in_bytes for report in reports),
            schema=schema,
        )

    def _tally(self) -> Tally:
        """The totals of all file actions of the checkpoint."""
        return Tally.total([self.inline, *(report.tally for report in self.sidecars.all)])

    def _txns(self) -> list[Txn]:
        txns = [txn for _, txn in sorted(self.snapshot.log.state.txns.items())]
        return kept_txns(txns, updated_after_ms=self.spec.txns_updated_after_ms)

    def _domains(self) -> list[DomainMetadata]:
        return [domain for _, domain in sorted(self.snapshot.log.state.domains.items())]

    @property
    def _inlines(self) -> bool:
        return not self.spec.is_v2 or not self.spec.actions_per_sidecar

    def _write_parquet(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        layout = self.spec.layout
        singles = single_action_table(self._single_actions(), version_2=self.spec.is_v2)
        schema = pa.schema([*sidecar_schema(layout), *singles.schema])
        with ActionFile(self.staged.path(name), schema, layout, self.spec.style) as file:
            if self._inlines:
                for batch, expired in checkpoint_actions(self.snapshot, self.spec, self.progress):
                    self.expired += expired
                    file.write_files(batch.adds, batch.tombstones, add_hashes=batch.add_hashes)
            self.inline = file.tally
            # The tags contain the number of files.
            actions = self._single_actions()
            file.write_singles(single_action_table(actions, version_2=self.spec.is_v2))
        return actions

    def _write_json(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        lines: list[str] = []
        layout = self.spec.layout
        if layout.statistics_type is not None:
            # JSON lines can represent these values only as text.
            layout = replace(layout, stats_as_json=True, statistics_type=None, partition_types=None)
        if self._inlines:
            for batch, expired in checkpoint_actions(self.snapshot, self.spec, self.progress):
                self.expired += expired
                self.inline.include(batch.adds, batch.tombstones)
                if self.inline.adds + self.inline.tombstones > _INLINE_JSON_ACTIONS:
                    raise RefusedError(
                        f"a JSON checkpoint without sidecars is for up to {_INLINE_JSON_ACTIONS} "
                        "file actions",
                        remedy="request sidecars, or the kind v2-parquet",
                    )
                lines.extend(_json_lines("add", layout.adds(batch.adds)))
                lines.extend(_json_lines("remove", layout.removes(batch.tombstones)))
        actions = self._single_actions()
        lines[:0] = [json.dumps({kind: value}, ensure_ascii=False) for kind, value in actions]
        self.staged.path(name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        return actions

    def _verify(self, name: str, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        verify_checkpoint(
            self.staged,
            name,
            version=self.snapshot.version,
            sidecar_store=self.snapshot.log.store,
            actions=actions,
            inline=self.inline if self._inlines else None,
            open_sidecars=self.reuse is None,
        )

    def _announce(self, status: FileStatus, single_count: int) -> WrittenCheckpoint:
        tally = self._tally()
        sidecars = tuple(report.sidecar for report in self.sidecars.all)
        sidecar_bytes = sum(report.sidecar.size_in_bytes for report in self.sidecars.reports)
        actions = single_count + tally.actions
        uuid_named = self.spec.kind in ("v2-json", "v2-parquet")
        updated = announce(
            self.snapshot.log.store,
            version=self.snapshot.version,
            actions=actions,
            size_in_bytes=status.size + sum(sidecar.size_in_bytes for sidecar in sidecars),
            num_files=tally.adds,
            v2=V2CheckpointHint(
                path=status.path.rpartition("/")[2],
                size_in_bytes=status.size,
                modification_time=status.modified_ms,
                # The summaries are only needed for the next checkpoint, and would make the hint
                # large.
                sidecar_files=tuple(replace(sidecar, tags=None) for sidecar in sidecars),
            )
            if uuid_named
            else None,
        )
        return WrittenCheckpoint(
            path=status.path,
            sidecars=sidecars,
            taken_over=len(self.sidecars.taken_over),
            bytes_written=status.size + sidecar_bytes,
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
        current = parse_hint(read_hint(store, path))
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
    # A null partition value has a meaning, unlike a null field.
    return {
        name: value
        for name, value in row.items()
        if value is not None and name not in ("stats_parsed", "partitionValues_parsed")
    }

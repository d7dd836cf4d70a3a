"""Writes checkpoints in tests, and compares the active actions before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import LogFileKind, parse_log_file_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus, Store
from delta_maintenance.table.read import Snapshot, Table
from tests.support.tables.actions import Action, dv_id
from tests.support.tables.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=1)
"""A day after the first commit of tables of `TableBuilder`."""

LOG = "_delta_log"
SIDECARS = f"{LOG}/_sidecars"
V2_KINDS = ("v2-classic", "v2-json", "v2-parquet")
SHAPES = [
    ("classic", 50_000),
    *((kind, actions) for kind in V2_KINDS for actions in (0, 1, 3, 50_000)),
]
"""Every kind with every way to distribute its file actions: the kind, and actions per sidecar."""

KEEP_TOMBSTONES = {"delta.deletedFileRetentionDuration": "interval 20000 days"}
"""Table properties under which no tombstone expires before the year 2024."""


def write(
    table: Table, kind: str = "auto", per_sidecar: int = 50_000, **others: Any
) -> CheckpointResult:
    """Plans and writes one checkpoint; `version`, `now` and `new_id` may be given too."""
    snapshot = table.snapshot(version=others.pop("version", None))
    ids = {"new_id": others.pop("new_id")} if "new_id" in others else {}
    context = RunContext.at(others.pop("now", NOW), **ids)
    options = CheckpointOptions(kind=kind, actions_per_sidecar=per_sidecar, **others)  # type: ignore[arg-type]
    plan = checkpoint.plan(snapshot, options, context)
    return checkpoint.apply(table, plan, context, snapshot=snapshot)


@dataclass
class State:
    """The complete state of a version, as JSON objects without nulls."""

    protocol: Action
    metadata: Action
    txns: dict[str, Action]
    domains: dict[str, Action]
    live: dict[tuple[str, str | None], Action]
    tombstones: dict[tuple[str, str | None], Action]


def state_of(snapshot: Snapshot) -> State:
    """Returns a version as the library reads it, without statistics and typed values."""
    state = State(
        protocol=without_nulls(snapshot.protocol.to_json()),
        metadata=without_nulls(snapshot.metadata.to_json()),
        txns={name: without_nulls(txn.to_json()) for name, txn in snapshot.log.state.txns.items()},
        domains={
            name: without_nulls(domain.to_json())
            for name, domain in snapshot.log.state.domains.items()
        },
        live={},
        tombstones={},
    )
    for batch in snapshot.log.scan():
        for files, rows in ((state.live, batch.adds), (state.tombstones, batch.tombstones)):
            for row in rows.to_pylist(maps_as_pydicts="strict"):
                value = {name: item for name, item in row.items() if name not in _NOT_IN_JSON}
                key = value["path"], dv_id(value)
                assert key not in files, f"{key} stands twice"
                files[key] = without_nulls(value)
    return state


def as_checkpointed(state: State) -> State:
    """Returns the state as a checkpoint stores it: no data change, removes without statistics and
    tags.
    """
    return State(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=state.txns,
        domains=state.domains,
        live={key: value | {"dataChange": False} for key, value in state.live.items()},
        tombstones={
            key: {name: item for name, item in value.items() if name not in ("stats", "tags")}
            | {"dataChange": False}
            for key, value in state.tombstones.items()
        },
    )


def without_nulls(value: Any) -> Any:
    """Returns the value without null fields; partition values keep their nulls."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: item if name == "partitionValues" else without_nulls(item)
        for name, item in value.items()
        if item is not None
    }


def only(store: Store, path: str, version: int) -> Table:
    """Returns the table with only the checkpoint at `path` and the commit of its version."""
    copy = MemoryStore()
    for status in [*store.list_from(LOG), *store.list_from(SIDECARS)]:
        file = parse_log_file_name(status.path.removeprefix(f"{LOG}/"))
        own_commit = file.kind is LogFileKind.COMMIT and file.version == version
        if status.path == path or own_commit or status.path.startswith(SIDECARS):
            copy.put(status.path, store.read(status.path))
    return Table(copy)


def files_of(store: Store) -> dict[str, bytes]:
    """Returns every file of the log and of the folder of sidecars, with its bytes."""
    return {status.path: store.read(status.path) for status in statuses_of(store)}


def statuses_of(store: Store) -> Iterable[FileStatus]:
    """Returns the same files as the store lists them."""
    return [*store.list_from(LOG), *store.list_from(SIDECARS)]


def on_disk(store: Store, root: Path) -> Path:
    """Copies the log to a folder, for other readers."""
    for path, data in files_of(store).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


_NOT_IN_JSON = ("stats_parsed", "partitionValues_parsed", "_commit_version")

"""A V2 checkpoint under a classic name, for clients without support for V2 ("V2 Spec").

Such a client ignores UUID-named checkpoints. If the oldest remaining file of a log is such a
checkpoint, the client finds no complete log and reports a broken table. A checkpoint under a
classic name leads it to the protocol, which names the missing feature.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.delta_log.checkpoint_rows import (
    FileActionLayout,
    single_action_table,
    single_actions,
)
from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    classic_checkpoint_name,
    parse_log_file_name,
)
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec, ParquetStyle, layout_of
from delta_maintenance.table.write.checkpoint_writer import write_checkpoint
from delta_maintenance.table.write.staging import Staging, publish, staging, verify_checkpoint


def lacks_classic_name(checkpoint: CheckpointFiles, listing: LogListing) -> bool:
    """Whether clients without V2 see no checkpoint of this version."""
    return all(
        files.kind is LogFileKind.UUID_CHECKPOINT
        for files in listing.checkpoints
        if files.version == checkpoint.version
    )


def write_compatible_checkpoint(snapshot: Snapshot, *, new_id: NewId) -> str:
    """Writes a copy of the UUID-named checkpoint of a snapshot's version under the classic name.

    Sidecars are shared, not copied. Returns the path, relative to the table root. A checkpoint of
    another writer under that name is accepted; `RefusedError` if it cannot be read.
    """
    checkpoint = snapshot.log.checkpoint
    if checkpoint is None or checkpoint.files.version != snapshot.version:
        raise RefusedError(
            "the checkpoint of this version cannot be used",
            table=snapshot.table,
            version=snapshot.version,
            remedy="write a new one",
        )
    name = classic_checkpoint_name(snapshot.version)
    path = f"{LOG_DIRECTORY}/{name}"
    with suppress(FileExistsError):
        if checkpoint.files.entries[0].file.encoding == "parquet" or checkpoint.sidecars:
            with staging() as staged:
                _stage(snapshot, checkpoint, staged, name)
                publish(staged, snapshot.log.store, name)
        else:
            write_checkpoint(snapshot, _inline(snapshot), new_id=new_id)
    _require_readable(snapshot, path)
    return path


def _stage(snapshot: Snapshot, checkpoint: Checkpoint, staged: Staging, name: str) -> None:
    top = checkpoint.files.entries[0]
    if top.file.encoding == "parquet":
        with snapshot.log.store.open(top.path) as source, staged.path(name).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return
    singles, state = checkpoint.singles, snapshot.log.state
    actions = single_actions(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=list(singles.txns.values()),
        domains=list(singles.domains.values()),
        checkpoint_metadata=singles.checkpoint_metadata[0],
        sidecars=singles.sidecars,
    )
    table = single_action_table(actions, version_2=True)
    layout = FileActionLayout(stats_as_json=True, statistics_type=None)
    for column, kind in (("remove", layout.remove_type), ("add", layout.add_type)):
        # Some readers expect these columns, although the file actions are in the sidecars.
        table = table.add_column(0, column, pa.nulls(table.num_rows, kind))
    pq.write_table(table, staged.path(name))
    verify_checkpoint(
        staged,
        name,
        version=snapshot.version,
        sidecar_store=snapshot.log.store,
        actions=actions,
        inline=None,
    )


def _inline(snapshot: Snapshot) -> CheckpointSpec:
    return CheckpointSpec(
        kind="v2-classic",
        actions_per_sidecar=0,
        layout=layout_of(snapshot, zone=None),
        style=ParquetStyle(),
        deleted_after_ms=None,
        txns_updated_after_ms=None,
    )


def _require_readable(snapshot: Snapshot, path: str) -> None:
    status = snapshot.log.store.stat(path)
    try:
        if status is None:
            raise UnusableCheckpointError("it was deleted again")
        entry = LogEntry(parse_log_file_name(path.removeprefix(f"{LOG_DIRECTORY}/")), status)
        files = CheckpointFiles(snapshot.version, entry.file.kind, (entry,))
        Checkpoint(snapshot.log.store, files)
    except UnusableCheckpointError as error:
        raise RefusedError(
            f"an unreadable checkpoint file exists ({error.problem})",
            file=path,
            remedy="run fsck --repair, which replaces a damaged checkpoint if the log before it is "
            "complete",
        ) from None

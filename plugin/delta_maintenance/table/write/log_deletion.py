"""Deletes files of a log in batches of exact names, and points the hint at what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delta_maintenance.errors import StorageError
from delta_maintenance.protocol.delta_log.file_names import LAST_CHECKPOINT, LogFileKind
from delta_maintenance.protocol.delta_log.last_checkpoint import V2CheckpointHint, render_hint
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_inventory import SoundCheckpoint
from delta_maintenance.table.read.segment import hinted_version

_BATCH = 1000


def delete_in_batches(
    store: Store, names: Sequence[str]
) -> Iterator[tuple[int, dict[str, StorageError]]]:
    """Deletes files, given relative to `_delta_log`, in order.

    Yields for each batch the number of deleted files, and the errors of the others, which were
    tried twice. The deletion stops when the caller stops iterating.
    """
    for start in range(0, len(names), _BATCH):
        batch = [f"{LOG_DIRECTORY}/{name}" for name in names[start : start + _BATCH]]
        failures = _delete(store, batch)
        if failures:
            # Stores delete a batch in any order: a temporary failure must not leave a gap in the
            # log.
            failures = _delete(store, list(failures))
        yield len(batch) - len(failures), failures


def lead_hint_to(store: Store, sound: SoundCheckpoint) -> bool:
    """Points `_last_checkpoint` at a checkpoint if it points at an older one."""
    current = hinted_version(store)
    if current is None or current >= sound.checkpoint.files.version:
        return False
    put_hint(store, sound)
    return True


def put_hint(store: Store, sound: SoundCheckpoint) -> None:
    """Points `_last_checkpoint` at a checkpoint, whatever it names now."""
    files = sound.checkpoint.files
    sidecars = sound.checkpoint.sidecars
    top_level = sum(entry.status.size for entry in files.entries)
    entry = files.entries[0]
    v2 = V2CheckpointHint(
        path=entry.file.name,
        size_in_bytes=entry.status.size,
        modification_time=entry.status.modified_ms,
        sidecar_files=sidecars,
    )
    hint = render_hint(
        version=files.version,
        size=sound.actions,
        size_in_bytes=top_level + sum(sidecar.size_in_bytes for sidecar in sidecars),
        num_of_add_files=sound.live.adds,
        parts=len(files.entries) if files.kind is LogFileKind.MULTIPART_CHECKPOINT else None,
        v2_checkpoint=v2 if files.kind is LogFileKind.UUID_CHECKPOINT else None,
    )
    store.put(f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}", hint)


def _delete(store: Store, paths: list[str]) -> dict[str, StorageError]:
    try:
        return store.delete_many(paths)
    except StorageError as error:
        return dict.fromkeys(paths, error)

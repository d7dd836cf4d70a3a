"""Local staging of files of the log, which are verified by reading them back before publication.

The verification of a checkpoint compares the number and the keys of all file actions, the bytes of
the live files, and every other action field by field.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, VerificationError
from delta_maintenance.protocol.actions.paths import written_locations
from delta_maintenance.protocol.columns import MembershipFilter, hash_texts
from delta_maintenance.protocol.delta_log.checkpoint_rows import single_actions
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY, parse_log_file_name
from delta_maintenance.protocol.delta_log.sidecars import SidecarSummary
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.scratch import scratch_folder
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.data.parquet.files import read_range
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.checkpoint_reader import FILE_COLUMNS, Checkpoint
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry
from delta_maintenance.table.read.segment import CheckpointFiles

MOST_REPLACED = 512 << 20
"""The largest file in bytes that replaces an empty one; it is held in memory."""

_FIELDS = ("path", "size", "deletionVector")


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder laid out like a table, with a log and a folder of sidecars."""

    store: LocalStore
    root: Path

    def path(self, name: str) -> Path:
        """Returns the local path of a file of the log; `name` is relative to `_delta_log`."""
        return self.root / LOG_DIRECTORY / name

    def entry(self, name: str) -> LogEntry:
        """Returns the staged file as an entry of a listing."""
        path = f"{LOG_DIRECTORY}/{name}"
        status = self.store.stat(path)
        if status is None:
            raise VerificationError("a staged file no longer exists", file=path)
        return LogEntry(parse_log_file_name(name), status)


@contextmanager
def staging() -> Iterator[Staging]:
    """Creates a staging folder, which is always removed at the end of the block."""
    with scratch_folder() as root:
        (root / LOG_DIRECTORY / SIDECAR_DIRECTORY).mkdir(parents=True)
        yield Staging(LocalStore(str(root)), root)


def publish(staged: Staging, store: Store, name: str) -> FileStatus:
    """Publishes a staged checkpoint file or sidecar, and deletes the local copy.

    An empty file of that name is replaced in one step. Raises `FileExistsError` if another file
    of that name exists, and `VerificationError` if the published file is incomplete.
    """
    path = f"{LOG_DIRECTORY}/{name}"
    size = staged.path(name).stat().st_size
    try:
        with staged.path(name).open("rb") as source, store.create(path) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except FileExistsError:
        published = store.stat(path)
        if published is None or published.size or size > MOST_REPLACED:
            raise
        # Its writer has died, or will replace this file by a checkpoint of the same version. At no
        # time is the name without a checkpoint, as it would be after a deletion.
        store.put(path, staged.path(name).read_bytes())
    status = require_whole(store, path, size=size)
    staged.path(name).unlink()
    return status


def require_whole(store: Store, path: str, *, size: int) -> FileStatus:
    """Returns the status of a file that was just published; `VerificationError` if it is
    incomplete.
    """
    status = store.stat(path)
    if status is None or status.size != size:
        raise VerificationError(
            f"the published file has {status.size if status else 'no'} bytes instead of {size}",
            file=path,
            remedy="find the other process that writes to this folder",
        )
    return status


def verify_sidecar(staged: Staging, name: str, summary: SidecarSummary) -> None:
    """Raises `VerificationError` unless the staged sidecar has exactly these file actions, and its
    filter contains the locations of all of them.
    """
    # Loaded here, because log compactions need only `require_whole`.
    import pyarrow.parquet as pq

    path = f"{LOG_DIRECTORY}/{name}"
    tally = Tally()
    with _reading_back(path), pq.ParquetFile(staged.path(name)) as parquet:
        location_filter = _filter_of(staged, name, summary)
        for action in FILE_COLUMNS:
            columns = [f"{action}.{field}" for field in _FIELDS]
            for batch in parquet.iter_batches(columns=columns):
                rows = batch.column(0)
                rows = rows.filter(pc.is_valid(rows))
                table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
                none = table.slice(0, 0)
                tally.include(*((table, none) if action == "add" else (none, table)))
                if location_filter is not None and not _knows_all(location_filter, table["path"]):
                    raise _different(path, "its filter does not contain all of its files")
    _require_files(path, tally, summary.tally)


def _knows_all(location_filter: MembershipFilter, paths: pa.ChunkedArray) -> bool:
    return all(
        location_filter.may_hold(hash_texts(written_locations(chunk))).all()
        for chunk in paths.chunks
    )


def _filter_of(staged: Staging, name: str, summary: SidecarSummary) -> MembershipFilter | None:
    if summary.filter is None:
        return None
    with staged.path(name).open("rb") as file:
        data = read_range(file, summary.filter.offset, summary.filter.length)
        return MembershipFilter.from_bytes(data)


def verify_checkpoint(
    staged: Staging,
    name: str,
    *,
    version: int,
    sidecar_store: Store,
    actions: Sequence[tuple[str, Mapping[str, Any]]],
    inline: Tally | None,
    open_sidecars: bool = True,
) -> None:
    """Raises `VerificationError` unless the staged top-level file has exactly these actions.

    Its sidecars are in `sidecar_store` already, and can be opened unless `open_sidecars` is False.
    `inline` has the totals of its own file actions; None if sidecars contain them.
    """
    entry = staged.entry(name)
    tally_read = Tally()
    with _reading_back(entry.path):
        files = CheckpointFiles(version, entry.file.kind, (entry,))
        checkpoint = Checkpoint(
            staged.store, files, sidecar_store=sidecar_store, open_sidecars=open_sidecars
        )
        if inline is not None:
            fields = {action: _FIELDS for action in FILE_COLUMNS}
            keys = MapKeys(partition_columns=frozenset())
            batches = checkpoint.file_actions(keys=keys, fields=fields)
            for tally in in_parallel(lambda batch: Tally.of(batch.adds, batch.removes), batches):
                tally_read.add(tally)
    _require_files(entry.path, tally_read, inline or Tally())
    _require_actions(entry.path, _actions_of(checkpoint), actions)


def _actions_of(checkpoint: Checkpoint) -> Sequence[tuple[str, Mapping[str, Any]]]:
    singles = checkpoint.singles
    if singles.protocol is None or singles.metadata is None:
        return []
    return single_actions(
        protocol=singles.protocol,
        metadata=singles.metadata,
        txns=list(singles.txns.values()),
        domains=list(singles.domains.values()),
        checkpoint_metadata=next(iter(singles.checkpoint_metadata), None),
        sidecars=singles.sidecars,
    )


def _require_files(path: str, tally_read: Tally, expected: Tally) -> None:
    if tally_read != expected:
        raise _different(path, f"{tally_read} instead of {expected}")


def _require_actions(
    path: str,
    read_back: Sequence[tuple[str, Mapping[str, Any]]],
    expected: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    # A null field and an absent one are equal, because Parquet has no absent fields.
    read, written = (
        [(kind, _dense(value)) for kind, value in actions] for actions in (read_back, expected)
    )
    if read != written:
        lost = sorted({kind for kind, value in written if (kind, value) not in read})
        raise _different(path, f"{len(read)} instead of {len(written)} actions, {lost} among them")


def _different(path: str, problem: str) -> VerificationError:
    return VerificationError(
        f"the file reads back differently: {problem}",
        file=path,
        remedy="report this with the log of the table: nothing was published",
    )


@contextmanager
def _reading_back(path: str) -> Iterator[None]:
    # Raised as a separate error, so that it is not mistaken for damage to the snapshot's own
    # checkpoint.
    try:
        yield
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        problem = error.problem if isinstance(error, CorruptTableError) else str(error)
        raise VerificationError(
            f"the file cannot be read back: {problem}",
            file=path,
            remedy="check the space and health of the disk for temporary files, and run again",
        ) from error


def _dense(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _dense(item) for key, item in value.items() if item is not None}
    return [_dense(item) for item in value] if isinstance(value, list | tuple) else value

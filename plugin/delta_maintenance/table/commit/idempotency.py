"""Finding the commits of earlier runs of a task by their operation IDs.

A task that died may have committed, and another writer may have undone its changes since. A second
run has to find that commit; otherwise it would apply the changes again. Only the first line of each
commit is read, because this library writes `commitInfo` there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.commit.build import OPERATION_ID
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import LogEntry, read_ahead
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot

_SKEW_MS = 600_000
"""Tolerated difference between the clocks of the task and of the store."""
_PREFIX_BYTES = 1 << 16
"""Longer than nearly all first lines."""
_COMMIT_INFO_PREFIX = b'{"commitInfo"'


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCommit:
    """A commit of the same task."""

    operation_id: str
    version: int


def commit_since(
    snapshot: Snapshot, operation_ids: Collection[str], began: datetime | None
) -> EarlierCommit | None:
    """The newest retained commit with one of these IDs, up to the version of the snapshot.

    `began` is the time at which the task first started; commits whose files are older, by the clock
    of the store, are not read. For a task that just started, this usually costs no request at all.
    Without `began` all retained commits are read.
    """
    newest_commit = _known(snapshot, operation_ids)
    if newest_commit is not None:
        return newest_commit
    since_ms = None if began is None else epoch_millis(began) - _SKEW_MS

    def is_older(entry: LogEntry) -> bool:
        return since_ms is not None and entry.status.modified_ms < since_ms

    segment = snapshot.log.segment
    entries: Sequence[LogEntry] = segment.commits
    # A checkpoint is never older than the commits that it replaces.
    if segment.checkpoint is not None and not all(map(is_older, segment.checkpoint.entries)):
        listed = list_log(snapshot.log.store).commits
        entries = [listed[version] for version in sorted(listed) if version <= snapshot.version]
    earlier_commit, _ = _newest(snapshot, [e for e in entries if not is_older(e)], operation_ids)
    return earlier_commit


def commit_after(
    snapshot: Snapshot, operation_ids: Collection[str], version: int
) -> EarlierCommit | None:
    """The newest commit with one of these IDs after `version`, up to the version of the snapshot.

    Raises `RefusedError` if one of these commits was deleted, so that the answer is unknown.
    """
    newest_commit = _known(snapshot, operation_ids)
    versions = range(version + 1, snapshot.version + 1)
    if newest_commit is not None or not versions:
        return newest_commit
    entries: Sequence[LogEntry] = snapshot.log.segment.commits[-len(versions) :]
    if len(entries) < len(versions):
        listed = list_log(snapshot.log.store, first_version=versions[0]).commits
        entries = [listed[at] for at in sorted(listed) if at in versions]
    earlier_commit, deleted = _newest(snapshot, entries, operation_ids)
    if earlier_commit is None and (deleted or len(entries) < len(versions)):
        raise RefusedError(
            f"commits after version {version}, for which this was planned, were deleted, so an "
            "earlier run of this task may have committed already",
            table=snapshot.table,
            version=snapshot.version,
            remedy="plan again",
        )
    return earlier_commit


def _known(snapshot: Snapshot, operation_ids: Collection[str]) -> EarlierCommit | None:
    operation_id = _own(snapshot.log.state.commit_info, operation_ids)
    return (
        None
        if operation_id is None
        else EarlierCommit(operation_id=operation_id, version=snapshot.version)
    )


def _newest(
    snapshot: Snapshot, entries: Sequence[LogEntry], operation_ids: Collection[str]
) -> tuple[EarlierCommit | None, bool]:
    """The newest commit with one of the IDs, and whether a commit file to be read was deleted."""
    store = snapshot.log.store
    if snapshot.log.state.commit_info is not None:
        entries = [entry for entry in entries if entry.file.version != snapshot.version]
    deleted = False
    reading = read_ahead(store, entries, lambda entry: _first_line(store, entry))
    for entry, line in reading:
        deleted = deleted or line is None
        operation_id = _own(_commit_info(line or b""), operation_ids)
        if operation_id is not None:
            assert entry.file.version is not None
            return EarlierCommit(operation_id=operation_id, version=entry.file.version), deleted
    return None, deleted


def _own(info: CommitInfo | None, operation_ids: Collection[str]) -> str | None:
    operation_id = None if info is None else info.values.get(OPERATION_ID)
    return operation_id if isinstance(operation_id, str) and operation_id in operation_ids else None


def _first_line(store: Store, entry: LogEntry) -> bytes | None:
    """The first line of a commit, or None if the file was deleted since it was listed."""
    try:
        prefix = store.read_head(entry.path, _PREFIX_BYTES)
        if b"\n" not in prefix and len(prefix) == _PREFIX_BYTES:
            prefix = store.read(entry.path)
    except FileNotFoundError:
        return None
    return prefix.partition(b"\n")[0]


def _commit_info(line: bytes) -> CommitInfo | None:
    """The `commitInfo` of a commit of this library; other writers may put theirs on any line."""
    if not line.startswith(_COMMIT_INFO_PREFIX):
        return None
    try:
        values = json.loads(line)["commitInfo"]
    except ValueError:
        return None
    return CommitInfo(values=values) if isinstance(values, dict) else None

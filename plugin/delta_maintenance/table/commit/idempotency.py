"""Whether a task stands in the log already, by the ids of its operations.

A task that died may have committed before, and somebody may have undone since what it did. Run
again, or waking up late, it must find its commit, or it would do the same over their heads. Of a
commit only the first line is read: there this library has its `commitInfo`.
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
from delta_maintenance.table.read.read_ahead import read_ahead
from delta_maintenance.table.read.segment import LogEntry, list_log
from delta_maintenance.table.read.snapshot import Snapshot

_SKEW_MS = 600_000
"""How far the clock by which a task began may be off the clock of the store."""
_HEAD_BYTES = 1 << 16
"""Nearly always more than the first line."""
_FIRST = b'{"commitInfo"'


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCommit:
    """A commit of the same task."""

    operation_id: str
    version: int


def commit_since(
    snapshot: Snapshot, operation_ids: Collection[str], began: datetime | None
) -> EarlierCommit | None:
    """The newest commit with one of these ids, up to the snapshot, as far as the log retains it.

    `began` is when the task first did: what the store took before that, by its own clock, is left
    out. Of a task that has just begun nothing is left to be read, and most of the time nothing to
    be listed. Without it every retained commit is looked at.
    """
    known = _known(snapshot, operation_ids)
    if known is not None:
        return known
    since_ms = None if began is None else epoch_millis(began) - _SKEW_MS

    def is_older(entry: LogEntry) -> bool:
        return since_ms is not None and entry.status.modified_ms < since_ms

    segment = snapshot.segment
    entries: Sequence[LogEntry] = segment.commits
    # A checkpoint is no older than the commits that it stands for.
    if segment.checkpoint is not None and not all(map(is_older, segment.checkpoint.entries)):
        listed = list_log(snapshot.store).commits
        entries = [listed[version] for version in sorted(listed) if version <= snapshot.version]
    found, _ = _newest(snapshot, [e for e in entries if not is_older(e)], operation_ids)
    return found


def commit_after(
    snapshot: Snapshot, operation_ids: Collection[str], version: int
) -> EarlierCommit | None:
    """The newest commit with one of these ids after a version, up to the snapshot.

    `RefusedError` where one of these commits is gone, so that nobody can tell.
    """
    known = _known(snapshot, operation_ids)
    versions = range(version + 1, snapshot.version + 1)
    if known is not None or not versions:
        return known
    entries: Sequence[LogEntry] = snapshot.segment.commits[-len(versions) :]
    if len(entries) < len(versions):
        listed = list_log(snapshot.store, first_version=versions[0]).commits
        entries = [listed[at] for at in sorted(listed) if at in versions]
    found, gone = _newest(snapshot, entries, operation_ids)
    if found is None and (gone or len(entries) < len(versions)):
        raise RefusedError(
            f"commits since version {version}, for which this was planned, are gone, so that it "
            "may have been done already",
            table=snapshot.table,
            version=snapshot.version,
            remedy="plan again",
        )
    return found


def _known(snapshot: Snapshot, operation_ids: Collection[str]) -> EarlierCommit | None:
    own = _own(snapshot.state.commit_info, operation_ids)
    return None if own is None else EarlierCommit(operation_id=own, version=snapshot.version)


def _newest(
    snapshot: Snapshot, entries: Sequence[LogEntry], operation_ids: Collection[str]
) -> tuple[EarlierCommit | None, bool]:
    """The newest commit with one of the ids, and whether files were gone on the way to it."""
    store = snapshot.store
    if snapshot.state.commit_info is not None:
        entries = [entry for entry in entries if entry.file.version != snapshot.version]
    gone = False
    reading = read_ahead(store, entries, lambda entry: _first_line(store, entry))
    for entry, line in reading:
        gone = gone or line is None
        own = _own(_commit_info(line or b""), operation_ids)
        if own is not None:
            assert entry.file.version is not None
            return EarlierCommit(operation_id=own, version=entry.file.version), gone
    return None, gone


def _own(info: CommitInfo | None, operation_ids: Collection[str]) -> str | None:
    given = None if info is None else info.values.get(OPERATION_ID)
    return given if isinstance(given, str) and given in operation_ids else None


def _first_line(store: Store, entry: LogEntry) -> bytes | None:
    """None where the file is gone since it was listed."""
    try:
        head = store.read_head(entry.path, _HEAD_BYTES)
        if b"\n" not in head and len(head) == _HEAD_BYTES:
            head = store.read(entry.path)
    except FileNotFoundError:
        return None
    return head.partition(b"\n")[0]


def _commit_info(line: bytes) -> CommitInfo | None:
    """That of a commit of this library; others may have theirs anywhere, and may be damaged."""
    if not line.startswith(_FIRST):
        return None
    try:
        values = json.loads(line)["commitInfo"]
    except ValueError:
        return None
    return CommitInfo(values=values) if isinstance(values, dict) else None

"""Reads the commits that other writers made concurrently, and advances a snapshot over them.

`follow` is for operations that make many commits: opening the table again before each commit would
read the whole log each time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.features.in_commit_timestamps import is_active
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_ahead, read_listed
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.log_view import LogView, VanishedFileError
from delta_maintenance.table.read.segment import LogSegment, find_commit, latest_version, list_log
from delta_maintenance.table.read.snapshot import Snapshot

_FIELDS = {
    "add": ("path", "deletionVector", "stats", "baseRowId", "defaultRowCommitVersion"),
    "remove": ("path", "deletionVector"),
}


def read_concurrent_commit(
    store: Store, entry: LogEntry, *, partition_columns: Collection[str]
) -> ConcurrentCommit:
    """The parts of one commit that conflict detection needs, with one request.

    Raises `FileNotFoundError` if the commit file was deleted, and `CorruptTableError` if it cannot
    be read or contains two actions where the protocol allows one: a commit on top of it would have
    to choose between them.
    """
    version = entry.file.version
    assert version is not None
    try:
        text = split(entry.path, read_listed(store, entry.status))
        actions, beside = parse_other_lines(text, commit_info=True)
        if actions.repeated:
            raise CorruptTableError(
                f"the commit contains two actions for {min(actions.repeated)}", file=entry.path
            )
        files = parse_file_actions(
            [FileLines.of(text, beside)],
            keys=MapKeys(partition_columns=frozenset(partition_columns)),
            fields=_FIELDS,
        )
    except CorruptTableError as error:
        raise error.locate(table=store.root, version=version, file=entry.path) from None
    return ConcurrentCommit(
        version=version,
        modified_ms=entry.status.modified_ms,
        commit_info=actions.commit_info,
        protocol=actions.protocol,
        metadata=actions.metadata,
        txns=actions.txns,
        domains=actions.domains,
        adds=files.adds,
        removes=files.removes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The latest version and the commits that led to it."""

    snapshot: Snapshot
    commits: tuple[ConcurrentCommit, ...]
    """The commits of other writers since the old snapshot, by ascending version."""


def advance(snapshot: Snapshot, *, landed: Landed | None = None) -> Advance:
    """The latest version, with one listing and one read for each commit since `snapshot`.

    `landed` is a commit of the caller that changes neither protocol nor metadata. It is applied
    without being read. Raises `VanishedFileError` if commits in between were deleted; the table
    then has to be opened again.
    """
    listing = list_log(snapshot.log.store, first_version=snapshot.version + 1)
    newest = max(latest_version(listing) or 0, landed.version if landed is not None else 0)
    if newest <= snapshot.version:
        return Advance(snapshot=snapshot, commits=())
    entries = []
    for version in range(snapshot.version + 1, newest + 1):
        entry = find_commit(snapshot.log.store, listing, version)
        if entry is None:
            raise _vanished_file(snapshot, f"commit {version} was deleted")
        entries.append(entry)
    commits = _read(
        snapshot, [e for e in entries if landed is None or e.file.version != landed.version]
    )
    return Advance(snapshot=_advance_snapshot(snapshot, entries, commits, landed), commits=commits)


def _read(snapshot: Snapshot, entries: Sequence[LogEntry]) -> tuple[ConcurrentCommit, ...]:
    columns = snapshot.log.physical_partition_columns

    def read(entry: LogEntry) -> ConcurrentCommit:
        return read_concurrent_commit(snapshot.log.store, entry, partition_columns=columns)

    try:
        commits = read_ahead(snapshot.log.store, entries, read)
        return tuple(commit for _, commit in commits)[::-1]
    except FileNotFoundError as error:
        raise _vanished_file(snapshot, f"{error.filename} was deleted") from None


def _advance_snapshot(
    snapshot: Snapshot,
    entries: Sequence[LogEntry],
    commits: Sequence[ConcurrentCommit],
    landed: Landed | None,
) -> Snapshot:
    by_version = {commit.version: commit for commit in commits}
    state, newest_entry = snapshot.log.state, entries[-1]
    replay = StateReplay()
    for version in range(snapshot.version + len(entries), snapshot.version, -1):
        commit = by_version.get(version)
        if commit is None:
            assert landed is not None
            replay.add(domains=landed.domains)
        else:
            replay.add(
                protocol=commit.protocol,
                metadata=commit.metadata,
                txns=commit.txns.values(),
                domains=commit.domains.values(),
            )
    replay.add(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=state.txns.values(),
        domains=state.domains.values(),
    )
    assert replay.protocol is not None and replay.metadata is not None
    newest = by_version.get(snapshot.version + len(entries), landed)
    info = None if newest is None else newest.commit_info
    in_commit = None
    if info is not None and is_active(replay.protocol, replay.metadata.configuration):
        in_commit = info.in_commit_timestamp
    segment = _extend_segment(snapshot.log.segment, entries)
    state = replace(
        state,
        protocol=replay.protocol,
        metadata=replay.metadata,
        txns=replay.txns,
        domains=replay.present_domains(),
        commit_info=info,
    )
    log = snapshot.log
    return Snapshot(
        log=LogView(
            store=log.store,
            segment=segment,
            tail=LogTail(log.store, segment.tail),
            checkpoint=log.checkpoint,
            state=state,
            contradiction=log.contradiction,
            evidence=log.evidence,
        ),
        timestamp_ms=in_commit if in_commit is not None else newest_entry.status.modified_ms,
        warnings=snapshot.warnings,
        reopen=lambda error: _advance_snapshot(snapshot.avoiding(error), entries, commits, landed),
    )


def _extend_segment(segment: LogSegment, entries: Sequence[LogEntry]) -> LogSegment:
    return replace(
        segment,
        version=segment.version + len(entries),
        tail=(*segment.tail, *entries),
        commits=(*segment.commits, *entries),
        last_commit=entries[-1],
    )


def _vanished_file(snapshot: Snapshot, problem: str) -> VanishedFileError:
    return VanishedFileError(
        f"{problem} after version {snapshot.version} was read",
        table=snapshot.table,
        version=snapshot.version,
        file=LOG_DIRECTORY,
        remedy="open the table again",
    )

"""Guarded commits that Delta Spark has overwritten, and what was lost with them.

A copy says what this library committed; the log says what is there now. That a log clean-up has
deleted a commit is no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.errors import CorruptTableError, StorageError, table_text
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.commit.staged import locations_of
from delta_maintenance.protocol.delta_log.file_names import GUARDED_PREFIX, commit_name
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import SingleActions, parse_other_lines, split
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.commit.guarded import GUARDED_FOR, GuardedCommit, guarded_commits
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_listed, read_text
from delta_maintenance.table.read.log_view import EXAMINE
from delta_maintenance.table.read.segment import arrange, list_entries, list_log

_logger = logging.getLogger(__name__)

GuardState = Literal["sound", "overwritten", "uncertain", "deleted"]
"""`uncertain`: another commit has the version, and it is unknown whether this one ever had it.
`deleted`: no commit has the version, because of a log clean-up, or because none was made.
"""
_FIELDS = {action: ("path", "deletionVector", "size") for action in ("add", "remove")}
_MOST_LATER = 500
"""The maximum number of later commits that are read to find those that need a lost file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """What is no longer in the log of a table."""

    guard: GuardedCommit
    problem: str
    """The commit, its successor and the loss, as one clause."""
    removed: pa.ChunkedArray
    """The paths of files that it removed, and that are live again."""
    added: pa.ChunkedArray
    """The paths of files that it added, and that no version has."""
    needed_by: tuple[int, ...] = ()
    """The first later versions that refer to a file that only it added: the table is damaged."""


def states_of(
    store: Store, guarded: Iterable[LogEntry], commits: Mapping[int, LogEntry]
) -> list[tuple[GuardedCommit, GuardState]]:
    """Returns the state of each guarded commit in a listing, by ascending version.

    `commits` are commits that were listed; others are looked up. Takes no request if the store
    states tags of contents, and two reads for each commit otherwise.
    """
    return [
        (guard, _state(store, guard, commits.get(guard.version)))
        for guard in guarded_commits(guarded)
    ]


def _state(store: Store, guard: GuardedCommit, entry: LogEntry | None) -> GuardState:
    path = f"{LOG_DIRECTORY}/{commit_name(guard.version)}"
    status: FileStatus | None = store.stat(path) if entry is None else entry.status
    try:
        if status is None:
            return "deleted"
        if guard.is_at(status, store):
            return "sound"
    except FileNotFoundError:
        return "deleted"
    return "uncertain" if guard.mark is None else "overwritten"


def require_not_overwritten(
    store: Store, guarded: Iterable[LogEntry], commits: Mapping[int, LogEntry]
) -> list[GuardedCommit]:
    """Raises `CorruptTableError` for the first guarded commit that was overwritten.

    Returns those that are uncertain.
    """
    states = states_of(store, guarded, commits)
    lost = next((guard for guard, state in states if state == "overwritten"), None)
    if lost is not None:
        raise CorruptTableError(
            describe_loss(store, lost).problem,
            table=store.root,
            version=lost.version,
            file=lost.copy.path,
            remedy=EXAMINE,
        )
    return [guard for guard, state in states if state == "uncertain"]


def verify_guarded(store: Store) -> None:
    """Verifies all guarded commits at the end of a run, and deletes copies that are old enough.

    Raises `CorruptTableError` for the first one that was overwritten.
    """
    try:
        guarded = arrange(list_entries(store, start=GUARDED_PREFIX)).guarded
        first_version = min((guard.version for guard in guarded_commits(guarded)), default=None)
        if first_version is None:
            return
        listing = list_log(store, first_version=first_version)
        uncertain = require_not_overwritten(store, listing.guarded, listing.commits)
    except StorageError as error:
        _logger.warning("the commits of %s are not verified yet: %s", table_text(store.root), error)
        return
    # Other runs may have deleted all of them since the first listing.
    newest_ms = max((entry.status.modified_ms for entry in listing.guarded), default=0)
    young_ms = newest_ms - GUARDED_FOR // timedelta(milliseconds=1)
    old = [e.path for e in listing.guarded if e.status.modified_ms < young_ms]
    for guard in uncertain:
        if guard.copy.path in old:
            _logger.warning(
                "%s: version %d is of another writer, and a commit of this library may have had "
                "it before; %s, the copy of that commit, is deleted a day after it",
                table_text(store.root),
                guard.version,
                guard.copy.path,
            )
    if old:
        # The mark of a copy is deleted first, because a copy without it proves nothing.
        store.delete_many(sorted(old, reverse=True))


def describe_loss(store: Store, guard: GuardedCommit) -> LostCommit:
    """Reads what an overwritten commit changed, what replaced it, and which later commits need it.

    What cannot be read is left out.
    """
    none = pa.chunked_array([], pa.string())
    path = f"{LOG_DIRECTORY}/{commit_name(guard.version)}"
    try:
        replaced_by = _engine(_parse(path, read_text(store, path))[0].commit_info)
    except (CorruptTableError, StorageError, FileNotFoundError):
        replaced_by = "an unknown engine"
    try:
        actions, removes, adds = _parse(guard.copy.path, read_listed(store, guard.copy.status))
    except (CorruptTableError, StorageError, FileNotFoundError) as error:
        problem = f"a commit was overwritten by {replaced_by}, and its copy cannot be read: {error}"
        return LostCommit(guard=guard, problem=problem, removed=none, added=none)
    info = actions.commit_info
    time = None if info is None else info.values.get("timestamp")
    at = f" of {clock.text(clock.instant(time))}" if isinstance(time, int) else ""
    parts = [
        f"{info.operation if info is not None else 'a commit'}{at} was overwritten by {replaced_by}"
    ]
    for files, outcome in ((removes, "removed, live again"), (adds, "added, now in no version")):
        if files.num_rows:
            size = pc.sum(files["size"]).as_py() or 0
            parts.append(f"files that it {outcome}: {files.num_rows} ({size} bytes)")
    changed = [name for name in ("protocol", "metadata") if getattr(actions, name) is not None]
    changed += [*(f"the domain {name}" for name in actions.domains)]
    changed += [*(f"the transaction of {name}" for name in actions.txns)]
    if changed:
        parts.append(f"changes without effect: {', '.join(changed)}")
    needing = _versions_that_need(store, guard, adds)
    if needing:
        versions = ", ".join(map(str, needing))
        referring = (
            f"versions {versions} refer" if len(needing) > 1 else f"version {versions} refers"
        )
        parts.append(f"the table is damaged: {referring} to files that it added")
    return LostCommit(
        guard=guard,
        problem="; ".join(parts),
        removed=removes["path"],
        added=adds["path"],
        needed_by=needing,
    )


def _parse(path: str, data: bytes) -> tuple[SingleActions, pa.Table, pa.Table]:
    text = split(path, data)
    actions, beside = parse_other_lines(text, commit_info=True)
    keys = MapKeys(partition_columns=frozenset())
    files = parse_file_actions([FileLines.of(text, beside)], keys=keys, fields=_FIELDS)
    return actions, files.removes, files.adds


def _versions_that_need(store: Store, guard: GuardedCommit, adds: pa.Table) -> tuple[int, ...]:
    """Returns the first versions that refer to a file that only the lost commit added."""
    lost, versions = locations_of(adds, root=store.root), []
    listing = list_log(store, first_version=guard.version)
    for version, entry in sorted(listing.commits.items())[:_MOST_LATER] if len(lost) else ():
        try:
            _, *file_actions = _parse(entry.path, read_listed(store, entry.status))
        except (CorruptTableError, StorageError, FileNotFoundError):
            continue
        locations = (locations_of(files, root=store.root) for files in file_actions)
        if any(pc.any(pc.is_in(each, value_set=lost)).as_py() for each in locations):
            versions.append(version)
    return tuple(versions[:3])


def _engine(info: CommitInfo | None) -> str:
    engine = None if info is None else info.values.get("engineInfo")
    return engine if isinstance(engine, str) else "an unknown engine"

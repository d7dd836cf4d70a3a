"""Committing to a table while other writers commit to it.

A commit is first tried at the version after the snapshot. If another writer created that version,
`protocol.commit.conflicts` compares both commits, and the commit is built again for the next
version. The result is a `CommitOutcome`, or `CommitUnknownError` if the store gives no certain
answer. After a put with an unknown outcome no other version is tried.

Implements "Creation of New Log Entries". A commit without concurrent commits takes one put and one
listing; each lost race takes one more listing and one read per concurrent commit. The version
checksum takes at most a read and a put; `manifests` states what symlink manifests take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

import pyarrow as pa

from delta_maintenance import __version__, clock
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    locating,
    table_text,
)
from delta_maintenance.protocol.actions.model import (
    CommitInfo,
    DomainMetadata,
    Json,
    Metadata,
    Protocol,
    Txn,
)
from delta_maintenance.protocol.commit.build import (
    OPERATION_ID,
    BuiltCommit,
    Provenance,
    build,
    render_commit,
)
from delta_maintenance.protocol.commit.conflicts import (
    Attempt,
    ConcurrentCommit,
    Conflict,
    IsolationLevel,
    Rule,
    check,
)
from delta_maintenance.protocol.commit.rules import check_commit
from delta_maintenance.protocol.commit.staged import (
    ReadSet,
    StagedActions,
    staged_adds,
    staged_removes,
)
from delta_maintenance.protocol.features.registry import require_supported
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.schema.contradictions import contradictions
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.table.commit.checksums import write_checksum
from delta_maintenance.table.commit.commit_put import CommitPut
from delta_maintenance.table.commit.concurrent_commits import read_concurrent_commit
from delta_maintenance.table.commit.idempotency import commit_after
from delta_maintenance.table.commit.manifests import update_manifests
from delta_maintenance.table.commit.other_writers import OtherWriters, guarded_window
from delta_maintenance.table.commit.outcome import (
    AlreadyDone,
    CommitOutcome,
    Conflicted,
    Landed,
    Superseded,
    kind_of,
    lost_races,
    require_committable,
    require_no_external_log,
)
from delta_maintenance.table.read.log_file import LogEntry
from delta_maintenance.table.read.segment import find_commit, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import EXAMINE

_logger = logging.getLogger(__name__)
_MAX_ATTEMPTS = 50
_MAX_PAUSE = 2.0
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The process that commits: its settings, which are the same for each of its commits."""

    other_writers: OtherWriters | None = None
    """Required for tables on S3."""
    quiet: timedelta | None = None
    """With Delta Spark as another writer on S3, as in `DeclaredWriters`."""
    checksum: bool = True
    """Whether to write a version checksum if all of its numbers are certain."""
    repairs: bool = False
    """Whether it repairs tables, as in `require_writable`."""
    engine_info: str = f"delta-maintenance/{__version__}"
    """Recorded in `commitInfo`."""
    # Evaluated late, because tests replace the clock.
    now: Callable[[], datetime] = field(default_factory=lambda: clock.now)
    new_id: clock.NewId = field(default_factory=lambda: clock.new_id)
    sleep: Callable[[float], None] = time.sleep
    """Waits between two attempts, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds:
    """The row IDs of the files that a commit adds."""

    preserved: bool = True
    """False if rows are moved without their row IDs."""
    highest: int = row_tracking.NO_ROW_ID
    """The highest row ID found in the files, for tables whose high-water mark may be too low."""


class Transaction:
    """One commit on top of a snapshot: stage actions, declare what was read, then commit once.

    Not thread-safe. All conditions that follow from the snapshot and the staged actions are checked
    before anything is written.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        operation: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
        planned_version: int | None = None,
        isolation: IsolationLevel | None = None,
        row_ids: RowIds | None = None,
        writer: Writer | None = None,
    ) -> None:
        """Begins a transaction.

        Args:
            snapshot: The version that the commit is based on.
            operation: Recorded in `commitInfo`, like `parameters`.
            operation_id: Identifies the task; a second run of the task returns `AlreadyDone`.
            planned_version: The version after which commits with `operation_id` are searched, by
                default the version of the snapshot. `idempotency.commit_since` searches further
                back for callers that plan again.
            isolation: By default the weakest level that is correct for the staged actions.
            row_ids: Required if rows are moved without their row IDs, or if the high-water mark of
                the table may be too low.
            writer: By default a `Writer` without settings.
        """
        self._snapshot = snapshot
        self._operation = operation
        self._operation_id = operation_id
        self._planned_version = snapshot.version if planned_version is None else planned_version
        self._isolation = isolation
        self._row_ids = row_ids or RowIds()
        self._writer = writer or Writer()
        self._quiet = guarded_window(snapshot.table, self._writer)
        self._provenance = Provenance(
            read_version=snapshot.version,
            engine_info=self._writer.engine_info,
            txn_id=self._writer.new_id(),
            operation_id=operation_id,
            parameters=parameters or {},
        )
        self._actions = StagedActions()
        self._reads = ReadSet()
        self._drops: frozenset[str] = frozenset()
        self._used = False

    def stage_info(
        self, *, metrics: Mapping[str, Any], tags: Mapping[str, str] | None = None
    ) -> None:
        """Records `operationMetrics` and `tags` in `commitInfo`."""
        self._provenance = replace(self._provenance, metrics=metrics, tags=tags or {})

    def stage_protocol(self, protocol: Protocol, *, drops: Sequence[str] = ()) -> None:
        """Replaces the protocol. `drops` must name every feature that it removes."""
        self._actions = replace(self._actions, protocol=protocol)
        self._drops = frozenset(drops)

    def stage_metadata(self, metadata: Metadata, *, version_properties: Sequence[str] = ()) -> None:
        """Replaces the metadata.

        The value of the properties in `version_properties` becomes the version of the commit. The
        properties that record when in-commit timestamps were enabled are added automatically.
        """
        self._actions = replace(self._actions, metadata=metadata)
        self._provenance = replace(self._provenance, version_properties=tuple(version_properties))

    def stage_txn(self, app_id: str, version: int) -> None:
        """Records the progress of an application; `AlreadyDone` if it is recorded already."""
        txn = Txn(app_id=app_id, version=version)
        self._actions = replace(self._actions, txns=(*self._actions.txns, txn))

    def stage_domain(self, name: str, configuration: str) -> None:
        """Writes a domain. The row ID high-water mark is updated automatically if it increases."""
        domain = DomainMetadata(domain=name, configuration=configuration)
        self._actions = replace(self._actions, domains=(*self._actions.domains, domain))

    def remove_domain(self, name: str) -> None:
        """Removes a domain. The log keeps its last configuration, as the protocol requires.

        Raises `InvalidRequestError` if the table has no such domain.
        """
        present = self._snapshot.log.state.domains.get(name)
        if present is None:
            raise InvalidRequestError(
                f"the table has no domain {name!r} to remove",
                remedy="use the name of a domain of the table",
            )
        removed = replace(present, removed=True, draft_map=False)
        self._actions = replace(self._actions, domains=(*self._actions.domains, removed))

    def stage_adds(self, adds: pa.Table | Sequence[Json]) -> None:
        """Adds files, as the columns of a snapshot's scan or as the objects of `add` actions.

        A file without `baseRowId` gets row IDs automatically. A file that was committed before must
        repeat all fields that the log has for it.
        """
        columns = self._snapshot.log.physical_partition_columns
        new_adds = staged_adds(adds, partition_columns=columns)
        self._actions = replace(self._actions, adds=_concat(self._actions.adds, new_adds))

    def stage_removes(self, removes: pa.Table | Sequence[Json]) -> None:
        """Removes files, as returned by `removes_of` or as the objects of `remove` actions."""
        columns = self._snapshot.log.physical_partition_columns
        new_removes = staged_removes(removes, partition_columns=columns)
        self._actions = replace(self._actions, removes=_concat(self._actions.removes, new_removes))

    def stage_changes(self, changes: pa.Table) -> None:
        """Adds change data files, with the columns of `CDC_TYPES`.

        They must contain all changes of the commit, because readers of changes then read nothing
        else of it ("Add CDC File").
        """
        self._actions = replace(self._actions, changes=changes)

    def read_files(self, files: pa.Table) -> None:
        """Declares live files, by `path` and `deletionVector`, that the commit depends on."""
        self._reads = replace(self._reads, files=files)

    def read_whole_table(self) -> None:
        """Declares that the commit depends on all live files."""
        self._reads = replace(self._reads, whole_table=True)

    def commit(self, *, max_attempts: int = _MAX_ATTEMPTS) -> CommitOutcome:
        """Commits the staged actions, trying at most `max_attempts` versions.

        Raises `RefusedError` or `UnsupportedFeatureError` if the commit is not allowed, on its own
        or because of a concurrent commit; `CorruptTableError` if a concurrent commit cannot be
        understood; `StorageError` if the store failed. In these cases nothing was written. Raises
        `CommitUnknownError` if it is unknown whether the commit was written.
        """
        if self._used:
            raise InvalidRequestError("the transaction was already used", remedy="begin a new one")
        self._used = True
        done = self._done_before()
        if done is not None:
            return done
        attempt = self._first_attempt()
        require_no_external_log(self._store)
        for number in range(1, max_attempts + 1):
            built = self._build(attempt)
            if self._put(built) is Put.DONE:
                self._write_checksum(built)
                update_manifests(self._snapshot, built, attempt.metadata_after)
                return Landed(
                    version=built.version,
                    attempts=number,
                    in_commit_timestamp=built.in_commit_timestamp,
                    num_adds=built.actions.adds.num_rows,
                    num_removes=built.actions.removes.num_rows,
                    domains=built.actions.domains,
                    commit_info=CommitInfo(values=built.commit_info),
                )
            rebased = self._rebase(attempt, number)
            if not isinstance(rebased, Attempt):
                return rebased
            attempt = rebased
            self._writer.sleep(_pause(number, self._provenance.txn_id))
        return lost_races(attempt.version, attempts=max_attempts)

    @property
    def _store(self) -> Store:
        return self._snapshot.log.store

    def _first_attempt(self) -> Attempt:
        """The attempt on top of the snapshot, after its preconditions were checked."""
        snapshot, state = self._snapshot, self._snapshot.log.state
        require_committable(
            snapshot,
            self._actions,
            drops=self._drops,
            writers=self._writer,
            repairs=self._writer.repairs,
        )
        domain = state.domains.get(row_tracking.DOMAIN)
        mark = row_tracking.high_water_mark(domain.configuration if domain is not None else None)
        needed = IsolationLevel.needed_by(self._actions)
        return Attempt(
            root=snapshot.table,
            operation=self._operation,
            base_version=snapshot.version,
            protocol=state.protocol,
            metadata=state.metadata,
            high_water_mark=max(mark, self._row_ids.highest),
            previous_ms=snapshot.timestamp_ms,
            actions=self._actions,
            reads=self._reads,
            isolation=self._isolation or needed,
            preserves_row_ids=self._row_ids.preserved,
        )

    def _done_before(self) -> AlreadyDone | None:
        """The commit of an earlier run of this task, if the log has one up to the snapshot."""
        for txn in self._actions.txns:
            present = self._snapshot.log.state.txns.get(txn.app_id)
            if present is not None and present.version >= txn.version:
                return AlreadyDone(version=self._snapshot.version)
        if self._operation_id is None:
            return None
        earlier = commit_after(self._snapshot, [self._operation_id], self._planned_version)
        return None if earlier is None else AlreadyDone(version=earlier.version)

    def _is_mine(self, info: CommitInfo | None) -> bool:
        mine = self._operation_id
        return mine is not None and info is not None and info.values.get(OPERATION_ID) == mine

    def _build(self, attempt: Attempt) -> BuiltCommit:
        try:
            built = build(attempt, self._provenance, now_ms=clock.epoch_millis(self._writer.now()))
            check_commit(
                built.actions,
                protocol=attempt.protocol_after,
                metadata=attempt.metadata_after,
                reads=attempt.reads,
                root=attempt.root,
            )
        except RefusedError as error:
            raise error.locate(table=attempt.root, version=attempt.version) from None
        return built

    def _put(self, built: BuiltCommit) -> Put:
        put = CommitPut(store=self._store, txn_id=self._provenance.txn_id, quiet=self._quiet)
        with locating(version=built.version):
            return put.put(built.version, render_commit(built.commit_info, built.actions))

    def _rebase(self, attempt: Attempt, number: int) -> Attempt | CommitOutcome:
        """The attempt on top of all concurrent commits, or the outcome if that is not possible."""
        listing = list_log(self._store, first_version=attempt.version)
        newest = max(listing.commits, default=-1)
        tried = attempt.version
        while attempt.base_version < max(newest, tried):
            concurrent = self._read_concurrent(find_commit(self._store, listing, attempt.version))
            if concurrent is None:
                conflict = Conflict(
                    rule=Rule.LOG_CLEANED,
                    version=attempt.version,
                    explanation=f"version {attempt.version} was committed first and then deleted",
                    remedy="run again to use the latest version",
                )
                return Conflicted(version=tried, attempts=number, conflict=conflict)
            if self._is_mine(concurrent.commit_info):
                return AlreadyDone(version=concurrent.version)
            if concurrent.protocol is not None:
                needs = kind_of(self._actions)
                require_supported(
                    concurrent.protocol, needs, table=attempt.root, version=concurrent.version
                )
            result = check(attempt, concurrent)
            if isinstance(result, Conflict):
                return Conflicted(version=tried, attempts=number, conflict=result)
            if result.attempt.actions.is_empty and not attempt.actions.is_empty:
                return Superseded(version=concurrent.version)
            attempt = result.attempt
            if concurrent.metadata is not None:
                self._require_consistent(attempt)
        return attempt

    def _require_consistent(self, attempt: Attempt) -> None:
        """Refuses to commit on top of the contradictory metadata of another writer."""
        domains = self._snapshot.domain_metadata
        contradiction = next(contradictions(attempt.protocol, attempt.metadata, domains), None)
        if contradiction is not None and not self._writer.repairs:
            raise CorruptTableError(
                contradiction[1], table=attempt.root, version=attempt.base_version, remedy=EXAMINE
            )

    def _read_concurrent(self, entry: LogEntry | None) -> ConcurrentCommit | None:
        """The concurrent commit, or None if a log clean-up deleted it."""
        if entry is None:
            return None
        columns = self._snapshot.log.physical_partition_columns
        try:
            return read_concurrent_commit(self._store, entry, partition_columns=columns)
        except FileNotFoundError:
            return None

    def _write_checksum(self, built: BuiltCommit) -> None:
        try:
            # If a guarded commit is overwritten, a checksum would contradict the other commit.
            if self._writer.checksum and self._quiet is None:
                write_checksum(self._snapshot, built, reads=self._reads)
        except DeltaMaintenanceError as error:
            # The commit has landed, and readers do not need the checksum.
            table = table_text(self._snapshot.table)
            _logger.warning("version %d of %s has no checksum: %s", built.version, table, error)


def _concat(staged: pa.Table, additional: pa.Table) -> pa.Table:
    if not staged.num_rows:
        return additional
    return pa.concat_tables([staged, additional], promote_options="default")


def _pause(lost: int, txn_id: str) -> float:
    """The pause in seconds after `lost` lost races; differs between writers."""
    longest = min(_MAX_PAUSE, 0.02 * (1 << min(lost - 1, 10)))
    return longest * crc32(f"{txn_id} {lost}".encode()) / 2**32

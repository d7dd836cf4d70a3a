"""A Delta table at an address: access to its snapshots and its history."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from delta_maintenance.address import CATALOG_TABLE, Access, Located, is_catalog_name
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    NotADeltaTableError,
    VersionNotFoundError,
    locating,
)
from delta_maintenance.protocol.delta_log.file_names import version_prefix
from delta_maintenance.protocol.delta_log.last_checkpoint import LastCheckpointHint
from delta_maintenance.protocol.delta_log.replay import FileReplay, StateReplay
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.features.registry import (
    Operation,
    check_protocol,
    require_supported,
    supports,
)
from delta_maintenance.protocol.ndjson.split import parse_other_lines
from delta_maintenance.storage import open_store
from delta_maintenance.storage.addresses import expect_access
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.active_files import active_in_tail
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError
from delta_maintenance.table.read.file_index import FileIndex
from delta_maintenance.table.read.history import (
    CommitEntry,
    InCommitTimes,
    commit_history,
    millis_of,
    read_commit_info,
    version_at,
)
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, LogEntry, read_listed, relisting
from delta_maintenance.table.read.log_reader import LogTail, compaction_problem
from delta_maintenance.table.read.log_view import LogView, SnapshotState, VanishedFileError
from delta_maintenance.table.read.managed_log import (
    ManagedStore,
    managed_log,
    require_stated_version,
)
from delta_maintenance.table.read.segment import (
    LogListing,
    LogSegment,
    arrange,
    choose_segment,
    last_checkpoint_hint,
    list_entries,
    list_log,
    no_log,
    segment_after,
    without_compaction,
)
from delta_maintenance.table.read.snapshot import COUNTED_FIELDS, Snapshot

_NO_SUCH_STATE = (CorruptTableError, NotADeltaTableError, VersionNotFoundError)

_relisting = partial(
    relisting,
    vanished=lambda error: CorruptTableError(
        "a file that the log lists cannot be found",
        file=error.filename or str(error),
        remedy="find the process that deletes files of this log",
    ),
)


def open_table(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    access: Access | None = None,
) -> Table:
    """Returns the table at `uri`: the address of its root, in any form that `open_store` accepts,
    or its name in a catalog, such as `uc://main.sales.orders`.

    Reads nothing of the table yet. `storage_options` are those of the store, including credentials,
    and those of the catalog (`catalogs.settings.settings_of`). `access` says which credentials a
    catalog is asked for; by default those for reading, until something is written.
    """
    text, options = os.fspath(uri), dict(storage_options or {})
    if is_catalog_name(text) or CATALOG_TABLE in options:
        # Imported here because most tables belong to no catalog.
        from delta_maintenance.catalogs.reference import locate

        located = locate(text, options, access=access)
    else:
        located = Located(address=text, storage_options=options)
    store = open_store(located.address, located.storage_options)
    store = managed_log(store, located.storage_options, os.environ)
    return Table(store, located=located)


class Table:
    """A Delta table. It keeps no state: every snapshot is read anew."""

    def __init__(self, store: Store, *, located: Located | None = None) -> None:
        self.store = store
        self.located = located
        """Where the table was found, with the options of its store; None if it was not opened by
        `open_table`."""

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"

    @property
    def uri(self) -> str:
        """The address of the table root."""
        return self.store.root

    def expect(self, access: Access, *, managed: bool = False) -> None:
        """States what the next requests are for, so that a catalog that vends credentials denies
        those for writing before the work, and is not asked for them by what only reads.

        A catalog-managed table is skipped unless `managed`: most operations refuse to write to it.
        Raises the errors of `storage.addresses.expect_access`.
        """
        if self.located is not None and (managed or not isinstance(self.store, ManagedStore)):
            options = self.located.storage_options
            expect_access(self.store.address, options, access, below=LOG_DIRECTORY)

    def snapshot(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> Snapshot:
        """Opens the latest version, or `version`, or the version that was current at `timestamp`.

        `timestamp` is a datetime with a zone, ISO 8601 text, or milliseconds since 1970-01-01 UTC.
        Raises `NotADeltaTableError`, `VersionNotFoundError`, `CorruptTableError`,
        `UnsupportedFeatureError` or `StorageError`, which name table, version and file.
        """
        if version is not None and timestamp is not None:
            raise InvalidRequestError("give a version or a timestamp, not both")
        with locating(table=self.uri):
            if timestamp is not None:
                instant = millis_of(timestamp)
                version = _relisting(lambda: version_at(self.store, instant, self._in_commit_times))
            return self._snapshot(version)

    def snapshot_without(self, checkpoint: str, *, version: int) -> Snapshot:
        """Opens a version without the checkpoint whose first file has this name.

        Raises the errors of `snapshot`, also if the log has no other base.
        """
        return self._snapshot(version, frozenset({checkpoint}))

    def forward(self, snapshot: Snapshot, *, newest_checkpoint: bool = False) -> Snapshot:
        """Opens the latest version, given an earlier snapshot of this table.

        One request lists the log from that version on, and each newer commit is read once. The
        table is opened from scratch if a checkpoint or log compaction appeared, or if the log of
        the snapshot no longer exists. With `newest_checkpoint`, the listing begins behind the
        checkpoint of the snapshot, so that one of an older version counts as well. If the snapshot
        remembers its files, so does the new one.
        """
        try:
            listing = self._listing_after(snapshot.log.segment, newest_checkpoint=newest_checkpoint)
            segment = None
            if listing is not None and listing.commits:
                segment = segment_after(snapshot.log.segment, listing)
            if segment is not None:
                require_stated_version(self.store, segment.version)
                return self._follow_segment(snapshot, segment)
        except FileNotFoundError:
            # A commit was deleted after the listing.
            pass
        except DeltaMaintenanceError as error:
            raise error.locate(table=self.uri) from error.__cause__
        opened = self.snapshot()
        if snapshot.log.index is not None:
            opened.remember_files()
        return opened

    def _listing_after(self, segment: LogSegment, *, newest_checkpoint: bool) -> LogListing | None:
        """Lists the log from a version on; None if a checkpoint before it is to be used."""
        first_version = segment.version
        if newest_checkpoint:
            first_version = min(first_version, segment.base_version + 1)
        older: list[LogEntry] = []
        newer: list[LogEntry] = []
        for entry in list_entries(self.store, start=version_prefix(first_version)):
            (older if (entry.file.version or 0) < segment.version else newer).append(entry)
        if arrange(older).checkpoints:
            return None
        return arrange(newer, first_version=segment.version)

    def _follow_segment(self, before: Snapshot, segment: LogSegment) -> Snapshot:
        if segment.version == before.version:
            return before
        newer = LogTail(self.store, segment.tail[len(before.log.segment.tail) :])
        followed = self._replay(
            segment, before.log.checkpoint, [*before.warnings], frozenset(), since=(before, newer)
        )
        if before.log.index is not None:
            batches = newer.batches(keys=followed.log.map_keys(), fields=COUNTED_FIELDS)
            tail_index = FileIndex.of(active_in_tail(batches, FileReplay()))
            followed.log.index = before.log.index.followed_by(tail_index)
        return followed

    def history(self, limit: int | None = None) -> list[CommitEntry]:
        """The retained commits, newest first, each with the version in the name of its file.

        At most `limit` commits; without it, all of them.
        """
        if limit is not None and limit < 0:
            raise InvalidRequestError(
                f"{limit} is not a number of commits", remedy="give 0 or more"
            )
        with locating(table=self.uri):
            return _relisting(
                lambda: commit_history(self.store, self._in_commit_times, limit=limit)
            )

    def latest_version(self, *, known: int = 0) -> int:
        """Returns the newest version, by one listing that begins at the version `known`."""
        with locating(table=self.uri):
            return self._segment(None, known, frozenset()).version

    def _snapshot(
        self,
        version: int | None,
        avoid: frozenset[str] = frozenset(),
        warnings: tuple[str, ...] = (),
    ) -> Snapshot:
        return _relisting(lambda: self._open(version, avoid, [*warnings]))

    def _open(self, version: int | None, avoid: frozenset[str], warnings: list[str]) -> Snapshot:
        hint = last_checkpoint_hint(self.store)
        first_version = (
            hint.version if hint is not None and (version or hint.version) >= hint.version else 0
        )
        last_failure: UnusableCheckpointError | None = None
        contradiction: str | None = None
        while True:
            try:
                segment = self._segment(version, first_version, avoid)
            except _NO_SUCH_STATE as error:
                raise last_failure or error from None
            try:
                checkpoint = (
                    Checkpoint(self.store, segment.checkpoint, trust_tags=True)
                    if segment.checkpoint
                    else None
                )
            except UnusableCheckpointError as error:
                warnings.append(_passed_over(error.file, error.problem))
                avoid |= {segment.checkpoint.name} if segment.checkpoint else set()
                last_failure, first_version = error, 0
                continue
            if checkpoint is not None and contradiction is None:
                contradiction = checkpoint.hint_problem(hint)
                name = checkpoint.files.name
                if contradiction is not None and self._agrees_without(avoid | {name}, hint):
                    warnings.append(_passed_over(f"{LOG_DIRECTORY}/{name}", contradiction))
                    avoid, first_version = avoid | {name}, 0
                    continue
                if contradiction is not None:
                    warnings.append(f"the log contradicts this version: {contradiction}; run fsck")
            segment = self._with_sound_compactions(segment, warnings)
            return self._replay(segment, checkpoint, warnings, avoid, contradiction=contradiction)

    def _agrees_without(self, avoid: frozenset[str], hint: LastCheckpointHint | None) -> bool:
        """Whether the log without some checkpoints has as many files as the hint states."""
        try:
            snapshot = self._snapshot(None if hint is None else hint.version, avoid)
            return hint is not None and snapshot.counts.num_files == hint.num_of_add_files
        except DeltaMaintenanceError:
            return False

    def _segment(self, version: int | None, start: int, avoid: frozenset[str]) -> LogSegment:
        if start:
            try:
                return self._chosen(list_log(self.store, first_version=start), version, avoid)
            except _NO_SUCH_STATE:
                # The hint may be wrong or ahead of its checkpoint: list the whole log.
                pass
        listing = list_log(self.store)
        if not listing.commits and not listing.checkpoints:
            self._require_log(listing)
        return self._chosen(listing, version, avoid)

    def _chosen(
        self, listing: LogListing, version: int | None, avoid: frozenset[str]
    ) -> LogSegment:
        segment = choose_segment(listing, version, avoid=avoid)
        if version is None:
            require_stated_version(self.store, segment.version)
        return segment

    def _require_log(self, listing: LogListing) -> None:
        if listing.incomplete:
            raise CorruptTableError(
                "the log contains only an incomplete checkpoint",
                file=f"{LOG_DIRECTORY}/{listing.incomplete[0]}",
                remedy="restore the log from a backup",
            )
        if next(self.store.list_from(LOG_DIRECTORY), None) is None:
            raise no_log()

    def _with_sound_compactions(self, segment: LogSegment, warnings: list[str]) -> LogSegment:
        for entry in segment.tail:
            if entry.file.end_version is None:
                continue
            try:
                problem = compaction_problem(read_listed(self.store, entry.status), entry.path)
            except FileNotFoundError:
                problem = "it no longer exists"
            except CorruptTableError as error:
                problem = error.problem
            if problem is not None:
                warnings.append(_passed_over(entry.path, problem))
                segment = without_compaction(segment, entry.file.name)
        return segment

    def _replay(
        self,
        segment: LogSegment,
        checkpoint: Checkpoint | None,
        warnings: list[str],
        avoid: frozenset[str],
        *,
        since: tuple[Snapshot, LogTail] | None = None,
        contradiction: str | None = None,
    ) -> Snapshot:
        """`since` are an earlier snapshot and the part of the tail that it does not have."""
        replay = StateReplay()
        unknown: set[str] = set()
        commit_info = None
        before, newer = since or (None, LogTail(self.store, segment.tail))
        for entry, text in newer.without_files():
            is_last = entry is segment.last_commit
            try:
                actions, _ = parse_other_lines(text, commit_info=is_last)
            except CorruptTableError as error:
                raise error.locate(version=entry.file.version) from None
            replay.add(
                protocol=actions.protocol,
                metadata=actions.metadata,
                txns=actions.txns.values(),
                domains=actions.domains.values(),
                draft_high_water_mark=actions.draft_high_water_mark,
                repeated=actions.repeated,
            )
            unknown |= actions.unknown
            if is_last:
                commit_info = actions.commit_info
        tail = newer if before is None else before.log.tail.followed_by(newer)
        if before is not None:
            _offer_state(replay, before.log.state)
            unknown |= before.log.state.unknown_actions
        elif checkpoint is not None:
            _offer_checkpoint(replay, checkpoint)
        if segment.last_commit is not None and segment.last_commit not in segment.tail:
            # Without the commit of this version, there is no commitInfo.
            try:
                commit_info = read_commit_info(self.store, segment.last_commit)
            except CorruptTableError as error:
                warnings.append(_passed_over(segment.last_commit.path, error.problem))
        if replay.protocol is None or replay.metadata is None:
            missing = "protocol" if replay.protocol is None else "metaData"
            base = segment.checkpoint
            raise CorruptTableError(
                f"the snapshot has no {missing}",
                version=segment.version,
                file=f"{LOG_DIRECTORY}/{base.name}" if base is not None else LOG_DIRECTORY,
                remedy="restore the log from a backup"
                if base is None
                else "move this checkpoint aside if the commits before it are still there",
            )
        state = SnapshotState(
            protocol=replay.protocol,
            metadata=replay.metadata,
            txns=replay.txns,
            domains=replay.present_domains(),
            commit_info=commit_info,
            draft_high_water_mark=replay.draft_high_water_mark,
            repeated_actions=frozenset(replay.repeated),
            unknown_actions=frozenset(unknown),
        )
        with locating(version=segment.version, file=LOG_DIRECTORY):
            check_protocol(state.protocol)
            require_supported(
                state.protocol, Operation.READ, table=self.uri, version=segment.version
            )
        asks = isinstance(self.store, ManagedStore)
        managed = supports(state.protocol, "catalogManaged") and not asks
        if managed and _UNASKED_CATALOG not in warnings:
            warnings.append(_UNASKED_CATALOG)
        return Snapshot(
            log=LogView(
                store=self.store,
                segment=segment,
                tail=tail,
                checkpoint=checkpoint,
                state=state,
                contradiction=contradiction if before is None else before.log.contradiction,
                evidence=None if before is None else before.log.evidence,
            ),
            timestamp_ms=_timestamp(segment, state),
            warnings=tuple(warnings),
            reopen=partial(self._reopen, segment, avoid, tuple(warnings)),
        )

    def _reopen(
        self,
        segment: LogSegment,
        avoid: frozenset[str],
        warnings: tuple[str, ...],
        error: CorruptTableError,
    ) -> Snapshot:
        vanished = isinstance(error, VanishedFileError)
        if segment.checkpoint is not None and not vanished:
            avoid |= {segment.checkpoint.name}
        warnings = (*warnings, _passed_over(error.file, error.problem))
        try:
            snapshot = self._snapshot(segment.version, avoid, warnings)
        except _NO_SUCH_STATE as failure:
            # Raised for a version that is no longer retained.
            raise failure.locate(table=self.uri) if vanished else error from None
        if snapshot.log.segment == segment:
            raise error
        return snapshot

    def _in_commit_times(self) -> InCommitTimes | None:
        state = self._snapshot(None).log.state
        properties = TableProperties.from_configuration(state.metadata.configuration)
        if not _has_in_commit_times(state, properties):
            return None
        return InCommitTimes(
            first_version=properties.in_commit_timestamp_enablement_version or 0,
            first_ms=properties.in_commit_timestamp_enablement_timestamp,
        )


def _offer_state(replay: StateReplay, state: SnapshotState) -> None:
    replay.add(
        protocol=state.protocol,
        metadata=state.metadata,
        txns=state.txns.values(),
        domains=state.domains.values(),
        draft_high_water_mark=None
        if state.draft_high_water_mark is None
        else dict(state.draft_high_water_mark),
        repeated=state.repeated_actions,
    )


def _offer_checkpoint(replay: StateReplay, checkpoint: Checkpoint) -> None:
    singles = checkpoint.singles
    draft = singles.draft_high_water_mark
    replay.add(
        protocol=singles.protocol,
        metadata=singles.metadata,
        txns=singles.txns.values(),
        domains=singles.domains.values(),
        # Databricks 12.2 wrote the column without a value.
        draft_high_water_mark=draft
        if draft and any(v is not None for v in draft.values())
        else None,
    )


def _timestamp(segment: LogSegment, state: SnapshotState) -> int | None:
    properties = TableProperties.from_configuration(state.metadata.configuration)
    if _has_in_commit_times(state, properties) and state.commit_info is not None:
        in_commit = state.commit_info.in_commit_timestamp
        if in_commit is not None:
            return in_commit
    return segment.last_commit.status.modified_ms if segment.last_commit is not None else None


def _has_in_commit_times(state: SnapshotState, properties: TableProperties) -> bool:
    supported = supports(state.protocol, "inCommitTimestamp")
    return supported and properties.enable_in_commit_timestamps


_UNASKED_CATALOG = (
    "only versions that the catalog of the table has published are visible: there may be newer "
    "ones; open the table by its name in the catalog"
)


def _passed_over(file: str | None, problem: str) -> str:
    if problem.startswith(f"{file} is "):
        return f"skipped {file}, which{problem.removeprefix(str(file))}"
    return f"skipped {file}: {problem}"

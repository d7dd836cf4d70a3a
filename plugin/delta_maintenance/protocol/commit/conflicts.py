"""Conflict detection between a commit in progress and concurrent commits.

The protocol leaves the rules to writers. These are the rules of Delta Spark, so that both tools
agree on which of two commits must fail. `check` is a pure function of the commit in progress and
one concurrent commit; it is called for each concurrent commit in the order of their versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, REMOVE_TYPES, empty
from delta_maintenance.protocol.actions.model import (
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
)
from delta_maintenance.protocol.commit.metadata_conflicts import (
    enables_row_tracking,
    forbidden_change,
)
from delta_maintenance.protocol.commit.staged import (
    ReadSet,
    StagedActions,
    locations_of,
    logical_locations,
)
from delta_maintenance.protocol.features.in_commit_timestamps import is_active
from delta_maintenance.protocol.features.registry import supported_features
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.statistics.as_json import num_records

BACKFILL = "ROW TRACKING BACKFILL"
"""The operation name by which all writers recognise a commit that only assigns row IDs."""
UNBACKFILL = "ROW TRACKING UNBACKFILL"
"""The operation that removes row IDs before row tracking is dropped."""


class IsolationLevel(Enum):
    """What a commit guarantees about the versions between the one it read and its own."""

    SERIALIZABLE = "Serializable"
    """The commit is the same as if it had read the version directly before its own."""
    SNAPSHOT_ISOLATION = "SnapshotIsolation"
    """No other commit changed the files that it changes; sufficient if no rows change."""

    @classmethod
    def needed_by(cls, actions: StagedActions) -> IsolationLevel:
        """The weakest level that is correct for these actions whatever others appended."""
        changes_state = actions.protocol or actions.metadata or actions.txns
        foreign = any(domain.domain != row_tracking.DOMAIN for domain in actions.domains)
        if changes_state or foreign or actions.changes_data:
            return cls.SERIALIZABLE
        return cls.SNAPSHOT_ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A commit in progress that starts from `base_version`."""

    root: str
    """The address of the table, needed to compare paths."""
    operation: str
    base_version: int
    protocol: Protocol
    """The protocol of the base version."""
    metadata: Metadata
    """The metadata of the base version."""
    high_water_mark: int = row_tracking.NO_ROW_ID
    """The highest row ID assigned up to the base version."""
    previous_ms: int | None
    """The in-commit timestamp of the base version if active, otherwise the modification time of its
    file, in milliseconds since 1970; None if neither is available."""
    actions: StagedActions
    reads: ReadSet = field(default_factory=ReadSet)
    isolation: IsolationLevel
    preserves_row_ids: bool = True
    """Whether moved rows keep their row IDs; true if no rows are moved."""

    @property
    def version(self) -> int:
        """The version to commit."""
        return self.base_version + 1

    @property
    def protocol_after(self) -> Protocol:
        """The protocol of the new version."""
        return self.actions.protocol or self.protocol

    @property
    def metadata_after(self) -> Metadata:
        """The metadata of the new version."""
        return self.actions.metadata or self.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentCommit:
    """A commit of another writer at the version that this writer tried to commit."""

    version: int
    modified_ms: int
    """The modification time of its file, in milliseconds since 1970."""
    commit_info: CommitInfo | None = None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    adds: pa.Table = field(default_factory=lambda: empty(ADD_TYPES))
    """At least `path`, `deletionVector`, `stats`, `baseRowId` and `defaultRowCommitVersion`."""
    removes: pa.Table = field(default_factory=lambda: empty(REMOVE_TYPES))
    """At least `path` and `deletionVector`."""

    @property
    def operation(self) -> str | None:
        """The name of the operation, or None if the writer did not record it."""
        return self.commit_info.operation if self.commit_info is not None else None

    @property
    def only_advances_identity_columns(self) -> bool:
        """Whether its metadata only updates identity columns, which conflicts with nothing."""
        tags = self.commit_info.values.get("tags") if self.commit_info is not None else None
        return isinstance(tags, Mapping) and tags.get("delta.identity.schemaUpdate") == "true"


class Rule(Enum):
    """The reason why a commit conflicts with a concurrent commit."""

    PROTOCOL = "the protocol changed"
    METADATA = "the metadata changed"
    DOMAIN = "a domain changed"
    TRANSACTION = "the application already committed"
    ROW_TRACKING = "row tracking changed"
    APPEND = "files were added that should have been read"
    DELETE = "a file that was read was removed"
    DELETE_TWICE = "a file to be removed was removed"
    DELETION_VECTOR = "a file has another deletion vector"
    SAME_PATH = "a file with the same path was written"
    LOG_CLEANED = "the concurrent commits were deleted"
    """Detected while concurrent commits are read, not by `check`."""
    RETRIES = "all attempts were used up"
    """Every attempt lost against a concurrent commit without a conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The commit cannot be made. Nothing of it is in the log."""

    rule: Rule
    version: int
    """The version of the concurrent commit."""
    explanation: str
    """One clause."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The commit can still be made, on top of the concurrent commit."""

    attempt: Attempt
    dropped_files: int = 0
    """Files that are no longer added again because the concurrent commit added or removed them."""


def check(mine: Attempt, concurrent: ConcurrentCommit) -> Rebased | Conflict:
    """The attempt rebased onto a concurrent commit, or the conflict between them.

    The concurrent commit must have the version after `mine.base_version` and a protocol that this
    release supports. Staged actions do not change, with two exceptions. Files that are only added
    again are dropped if the concurrent commit touched them, because adding them could restore
    removed files. Row IDs that the concurrent commit assigned to a file are taken over. `build`
    recomputes everything that depends on the version from the returned attempt.
    """
    if concurrent.version != mine.version:
        raise ValueError(f"{concurrent.version} does not follow {mine.base_version}")
    for rule in _STATE_RULES:
        conflict = rule(mine, concurrent)
        if conflict is not None:
            return conflict
    remaining = _without_touched_files(mine, concurrent)
    for rule in _FILE_RULES:
        conflict = rule(remaining, concurrent)
        if conflict is not None:
            return conflict
    dropped = mine.actions.adds.num_rows - remaining.actions.adds.num_rows
    return Rebased(attempt=_on_top_of(remaining, concurrent), dropped_files=dropped)


def highest_row_id(concurrent: ConcurrentCommit) -> int:
    """The highest row ID that the commit assigned, according to its mark and its files."""
    domain = concurrent.domains.get(row_tracking.DOMAIN)
    mark = row_tracking.NO_ROW_ID
    if domain is not None and not domain.removed:
        mark = row_tracking.high_water_mark(domain.configuration)
    # A mark below the IDs of the files is invalid, and trusting it would assign the IDs twice.
    return max(
        mark,
        row_tracking.highest_assigned_row_id(
            concurrent.adds["baseRowId"], num_records(concurrent.adds["stats"])
        ),
    )


def _protocol(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    theirs = concurrent.protocol
    if theirs is not None and theirs != mine.protocol:
        before, after = supported_features(mine.protocol), supported_features(theirs)
        dropped, added = sorted(before - after), sorted(after - before - _HARMLESS_FEATURES)
        if mine.actions.protocol is not None or mine.actions.metadata is not None:
            return _conflict(
                Rule.PROTOCOL, concurrent, "it changed the protocol, as does this commit"
            )
        if dropped:
            return _conflict(Rule.PROTOCOL, concurrent, f"it dropped the feature {dropped[0]}")
        if added:
            return _conflict(Rule.PROTOCOL, concurrent, f"it added the feature {added[0]}")
    if mine.actions.protocol is None:
        return None
    lost = supported_features(mine.protocol) - supported_features(mine.actions.protocol)
    changed = concurrent.adds.num_rows or concurrent.metadata is not None or concurrent.domains
    if lost and changed:
        text = f"it may have used the feature {min(lost)}, which this commit drops"
        return _conflict(Rule.PROTOCOL, concurrent, text)
    return None


def _metadata(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    theirs = concurrent.metadata
    if theirs is None or theirs == mine.metadata:
        return None
    if mine.actions.metadata is not None:
        return _conflict(Rule.METADATA, concurrent, "it changed the metadata, as does this commit")
    if concurrent.only_advances_identity_columns:
        return None
    change = forbidden_change(mine.metadata, theirs, concurrent.protocol or mine.protocol)
    if change is not None:
        return _conflict(Rule.METADATA, concurrent, f"it changed {change}")
    if not mine.preserves_row_ids and enables_row_tracking(mine.metadata, theirs):
        text = "it enabled row tracking, and the rows moved here would lose their row IDs"
        return _conflict(Rule.ROW_TRACKING, concurrent, text)
    return None


def _domains(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    for domain in mine.actions.domains:
        if domain.domain in concurrent.domains and domain.domain != row_tracking.DOMAIN:
            return _conflict(Rule.DOMAIN, concurrent, f"it wrote the domain {domain.domain!r}")
    return None


def _transactions(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    for txn in mine.actions.txns:
        theirs = concurrent.txns.get(txn.app_id)
        if theirs is not None:
            text = f"it contains transaction {theirs.version} of the application {txn.app_id!r}"
            return _conflict(Rule.TRANSACTION, concurrent, text)
    return None


def _backfills(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    if {mine.operation, concurrent.operation} == {BACKFILL, UNBACKFILL}:
        text = "one of the commits assigns row IDs and the other one removes them"
        return _conflict(Rule.ROW_TRACKING, concurrent, text)
    return None


def _appends(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    if mine.isolation is IsolationLevel.SNAPSHOT_ISOLATION or mine.reads.is_empty:
        return None
    if {mine.operation, concurrent.operation} & {
        BACKFILL,
        UNBACKFILL,
    } or not concurrent.adds.num_rows:
        return None
    path = concurrent.adds["path"][0].as_py()
    return _conflict(Rule.APPEND, concurrent, f"it added {path}, which was not read")


def _read_files(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    if mine.reads.whole_table and concurrent.removes.num_rows:
        path = concurrent.removes["path"][0].as_py()
        return _conflict(Rule.DELETE, concurrent, f"it removed {path}, which was read")
    return _file_conflict(mine, concurrent, mine.reads.files, Rule.DELETE, "was read")


def _removed_files(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    return _file_conflict(
        mine, concurrent, mine.actions.removes, Rule.DELETE_TWICE, "was to be removed"
    )


def _file_conflict(
    mine: Attempt, concurrent: ConcurrentCommit, files: pa.Table | None, rule: Rule, reason: str
) -> Conflict | None:
    """A conflict if the concurrent commit removed a file or changed its deletion vector."""
    if files is None or not files.num_rows:
        return None
    ours = locations_of(files, root=mine.root)
    removed = pc.is_in(ours, value_set=locations_of(concurrent.removes, root=mine.root))
    added = pc.is_in(ours, value_set=locations_of(concurrent.adds, root=mine.root))
    is_same_file = pc.is_in(
        logical_locations(files, root=mine.root),
        value_set=logical_locations(concurrent.adds, root=mine.root),
    )
    changed = pc.and_not(added, is_same_file)
    touched = pc.or_(removed, changed)
    if not pc.any(touched).as_py():
        return None
    at = pc.index(touched, True).as_py()
    path = files["path"][at].as_py()
    if added[at].as_py():
        text = f"it changed the deletion vector of {path}, which {reason}"
        return _conflict(Rule.DELETION_VECTOR, concurrent, text)
    return _conflict(rule, concurrent, f"it removed {path}, which {reason}")


def _added_files(mine: Attempt, concurrent: ConcurrentCommit) -> Conflict | None:
    """A conflict if a new file has a path that the concurrent commit added or removed."""
    # Adding a path that this commit also removes only changes the deletion vector of a live file.
    # `_removed_files` checks that case.
    ours = mine.actions.adds
    if not ours.num_rows or mine.actions.only_re_adds:
        return None
    added = locations_of(ours, root=mine.root)
    is_new = pc.invert(
        pc.is_in(added, value_set=locations_of(mine.actions.removes, root=mine.root))
    )
    for batch in (concurrent.adds, concurrent.removes):
        is_taken = pc.and_(is_new, pc.is_in(added, value_set=locations_of(batch, root=mine.root)))
        if pc.any(is_taken).as_py():
            path = ours["path"].filter(is_taken)[0].as_py()
            text = f"it added or removed {path}, which this commit adds"
            return _conflict(Rule.SAME_PATH, concurrent, text)
    return None


_STATE_RULES: tuple[Callable[[Attempt, ConcurrentCommit], Conflict | None], ...] = (
    _protocol,
    _metadata,
    _domains,
    _transactions,
    _backfills,
)
_FILE_RULES: tuple[Callable[[Attempt, ConcurrentCommit], Conflict | None], ...] = (
    _appends,
    _read_files,
    _removed_files,
    _added_files,
)

_HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features whose addition does not invalidate a commit that was started without them."""

_REMEDIES: Mapping[Rule, str] = {
    Rule.TRANSACTION: "check the commits of the application; the work may already be done"
}


def _conflict(rule: Rule, concurrent: ConcurrentCommit, explanation: str) -> Conflict:
    operation = f" ({concurrent.operation})" if concurrent.operation else ""
    return Conflict(
        rule=rule,
        version=concurrent.version,
        explanation=f"version {concurrent.version}{operation} was committed first: {explanation}",
        remedy=_REMEDIES.get(rule, "run again to use the latest version"),
    )


def _without_touched_files(mine: Attempt, concurrent: ConcurrentCommit) -> Attempt:
    """The attempt with the row IDs of the concurrent commit and without re-adds it touched."""
    actions, reads = mine.actions, mine.reads
    if actions.only_re_adds and (concurrent.adds.num_rows or concurrent.removes.num_rows):
        touched = _touched_rows(mine, concurrent)
        actions = replace(actions, adds=actions.adds.filter(pc.invert(touched)))
        if reads.files is not None:
            # The commit no longer depends on files that it no longer adds.
            dropped = locations_of(mine.actions.adds.filter(touched), root=mine.root)
            unused = pc.is_in(locations_of(reads.files, root=mine.root), value_set=dropped)
            reads = replace(reads, files=reads.files.filter(pc.invert(unused)))
    if concurrent.adds.num_rows:
        actions = replace(
            actions,
            adds=_with_ids_of(concurrent, actions.adds, mine.root),
            removes=_with_ids_of(concurrent, actions.removes, mine.root),
        )
    return replace(mine, actions=actions, reads=reads)


def _touched_rows(mine: Attempt, concurrent: ConcurrentCommit) -> pa.BooleanArray:
    ours = mine.actions.adds
    added = pc.is_in(
        locations_of(ours, root=mine.root), value_set=locations_of(concurrent.adds, root=mine.root)
    )
    removed = pc.is_in(
        locations_of(ours, root=mine.root),
        value_set=locations_of(concurrent.removes, root=mine.root),
    )
    if concurrent.operation in (BACKFILL, UNBACKFILL) and mine.operation not in (
        BACKFILL,
        UNBACKFILL,
    ):
        # A backfill added the file again with new row IDs, which are taken over.
        is_same_file = pc.is_in(
            logical_locations(ours, root=mine.root),
            value_set=logical_locations(concurrent.adds, root=mine.root),
        )
        added = pc.and_not(added, is_same_file)
    return pc.or_(added, removed)


def _with_ids_of(concurrent: ConcurrentCommit, batch: pa.Table, root: str) -> pa.Table:
    """The batch with the row IDs and commit versions of files that the other commit re-added."""
    if not batch.num_rows:
        return batch
    at = pc.index_in(
        locations_of(batch, root=root), value_set=locations_of(concurrent.adds, root=root)
    )
    has_match = pc.is_valid(at)
    for name in ("baseRowId", "defaultRowCommitVersion"):
        theirs = concurrent.adds[name].take(at)
        # A missing ID is meaningful only if the concurrent commit removes IDs.
        has_id = has_match if concurrent.operation == UNBACKFILL else pc.is_valid(theirs)
        column = pc.if_else(has_id, theirs, batch[name])
        batch = batch.set_column(batch.column_names.index(name), name, column)
    return batch


def _on_top_of(mine: Attempt, concurrent: ConcurrentCommit) -> Attempt:
    protocol = concurrent.protocol or mine.protocol
    metadata = concurrent.metadata or mine.metadata
    in_commit = (
        concurrent.commit_info.in_commit_timestamp if concurrent.commit_info is not None else None
    )
    active = is_active(protocol, metadata.configuration)
    return replace(
        mine,
        base_version=concurrent.version,
        protocol=protocol,
        metadata=metadata,
        high_water_mark=max(mine.high_water_mark, highest_row_id(concurrent)),
        previous_ms=in_commit if active and in_commit is not None else concurrent.modified_ms,
    )

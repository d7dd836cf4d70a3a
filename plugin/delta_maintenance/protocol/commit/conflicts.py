"""Whether a commit can follow one that was quicker, and what becomes of it.

The protocol leaves this to writers; the rules are those of Delta Spark, so that a commit of ours
and one of Spark's never both believe to have been right. `check` is a pure function of the commit
under way and one winner; it is called once for each winner, in the order of their versions.
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
from delta_maintenance.protocol.commit.staged import ReadSet, StagedActions, logical_places, places
from delta_maintenance.protocol.features.in_commit_timestamps import is_active
from delta_maintenance.protocol.features.registry import supported_features
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.protocol.statistics.stats import num_records

BACKFILL = "ROW TRACKING BACKFILL"
"""The operation by whose name every writer recognises a commit that only hands out row IDs."""
UNBACKFILL = "ROW TRACKING UNBACKFILL"
"""The operation that takes row IDs away before row tracking is dropped."""


class IsolationLevel(Enum):
    """What a commit claims about the versions between the one it read and its own."""

    SERIALIZABLE = "Serializable"
    """It would have done the same had it read the version before its own."""
    SNAPSHOT_ISOLATION = "SnapshotIsolation"
    """Nobody else changed what it changes; enough where no rows come or go."""

    @classmethod
    def needed_by(cls, actions: StagedActions) -> IsolationLevel:
        """The weakest level at which these actions are right whatever was appended meanwhile."""
        changes_state = actions.protocol or actions.metadata or actions.txns
        foreign = any(domain.domain != row_tracking.DOMAIN for domain in actions.domains)
        if changes_state or foreign or actions.changes_data:
            return cls.SERIALIZABLE
        return cls.SNAPSHOT_ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A commit under way, as if it had started from `base_version`."""

    root: str
    """The table's address, to tell whether two paths are one."""
    operation: str
    base_version: int
    protocol: Protocol
    """In force at the base."""
    metadata: Metadata
    """In force at the base."""
    high_water_mark: int = row_tracking.NO_ROW_ID
    """The highest row ID known to be assigned up to the base."""
    previous_ms: int | None
    """When the base was committed: its in-commit timestamp where they are active, else the time of
    its file; None where that is gone."""
    actions: StagedActions
    reads: ReadSet = field(default_factory=ReadSet)
    isolation: IsolationLevel
    preserves_row_ids: bool = True
    """Whether rows that it moves keep their row IDs; true where it moves none."""

    @property
    def version(self) -> int:
        """The version to be tried next."""
        return self.base_version + 1

    @property
    def protocol_after(self) -> Protocol:
        """In force once it is committed."""
        return self.actions.protocol or self.protocol

    @property
    def metadata_after(self) -> Metadata:
        """In force once it is committed."""
        return self.actions.metadata or self.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningCommit:
    """A commit that somebody else made at the version that was tried."""

    version: int
    modified_ms: int
    """The time of its file."""
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
        """The name of the operation, where its writer left one."""
        return self.commit_info.operation if self.commit_info is not None else None

    @property
    def only_moves_identities(self) -> bool:
        """Whether its metadata only counts on identity columns, which concerns nobody else."""
        tags = self.commit_info.values.get("tags") if self.commit_info is not None else None
        return isinstance(tags, Mapping) and tags.get("delta.identity.schemaUpdate") == "true"


class Rule(Enum):
    """Why a commit cannot follow a winner."""

    PROTOCOL = "the protocol changed"
    METADATA = "the metadata changed"
    DOMAIN = "a domain changed"
    TRANSACTION = "the application committed already"
    ROW_TRACKING = "row tracking changed"
    APPEND = "files were added that should have been read"
    DELETE = "a file that was read is gone"
    DELETE_TWICE = "a file to be removed is gone"
    DELETION_VECTOR = "a file has another deletion vector"
    SAME_PATH = "a file of the same path was written"
    LOG_CLEANED = "the winning commits are gone"
    """Found while reading winners, not by `check`."""
    RETRIES = "others were quicker every time"
    """The tries are spent, though every winner could be followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The commit cannot be made; nothing of it is in the log."""

    rule: Rule
    version: int
    """Of the winner."""
    explanation: str
    """One clause."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The commit can still be made, on top of the winner."""

    attempt: Attempt
    dropped_files: int = 0
    """Files left out because the winner had added or removed them itself."""


def check(mine: Attempt, winner: WinningCommit) -> Rebased | Conflict:
    """What becomes of `mine` behind a winner whose protocol this release supports.

    The winner must be the commit right after `mine.base_version`. What was staged stays as it is,
    but for files that only repeat live ones: those the winner touched are left out, since adding
    them again could bring removed files back. Row IDs that the winner gave to a file are taken
    over; everything that depends on the version is built anew from the attempt that is returned.
    """
    if winner.version != mine.version:
        raise ValueError(f"{winner.version} does not follow {mine.base_version}")
    for rule in _STATE_RULES:
        conflict = rule(mine, winner)
        if conflict is not None:
            return conflict
    kept = _without_touched_files(mine, winner)
    for rule in _FILE_RULES:
        conflict = rule(kept, winner)
        if conflict is not None:
            return conflict
    dropped = mine.actions.adds.num_rows - kept.actions.adds.num_rows
    return Rebased(attempt=_on_top_of(kept, winner), dropped_files=dropped)


def highest_row_id(winner: WinningCommit) -> int:
    """The highest row ID known to be assigned by its mark and by its files."""
    domain = winner.domains.get(row_tracking.DOMAIN)
    mark = row_tracking.NO_ROW_ID
    if domain is not None and not domain.removed:
        mark = row_tracking.high_water_mark(domain.configuration)
    # A mark below the IDs given out is illegal, and believing it would give them out twice.
    return max(
        mark,
        row_tracking.highest_assigned_row_id(
            winner.adds["baseRowId"], num_records(winner.adds["stats"])
        ),
    )


def _protocol(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    theirs = winner.protocol
    if theirs is not None and theirs != mine.protocol:
        before, after = supported_features(mine.protocol), supported_features(theirs)
        dropped, added = sorted(before - after), sorted(after - before - _HARMLESS_FEATURES)
        if mine.actions.protocol is not None or mine.actions.metadata is not None:
            return _conflict(Rule.PROTOCOL, winner, "it changed the protocol, as this one does")
        if dropped:
            return _conflict(Rule.PROTOCOL, winner, f"it dropped the feature {dropped[0]}")
        if added:
            return _conflict(Rule.PROTOCOL, winner, f"it added the feature {added[0]}")
    if mine.actions.protocol is None:
        return None
    lost = supported_features(mine.protocol) - supported_features(mine.actions.protocol)
    changed = winner.adds.num_rows or winner.metadata is not None or winner.domains
    if lost and changed:
        what = f"it may have used the feature {min(lost)}, which is about to be dropped"
        return _conflict(Rule.PROTOCOL, winner, what)
    return None


def _metadata(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    theirs = winner.metadata
    if theirs is None or theirs == mine.metadata:
        return None
    if mine.actions.metadata is not None:
        return _conflict(Rule.METADATA, winner, "it changed the metadata, as this one does")
    if winner.only_moves_identities:
        return None
    change = forbidden_change(mine.metadata, theirs, winner.protocol or mine.protocol)
    if change is not None:
        return _conflict(Rule.METADATA, winner, f"it changed {change}")
    if not mine.preserves_row_ids and enables_row_tracking(mine.metadata, theirs):
        what = "it enabled row tracking, and the rows moved here would lose their row IDs"
        return _conflict(Rule.ROW_TRACKING, winner, what)
    return None


def _domains(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    for domain in mine.actions.domains:
        if domain.domain in winner.domains and domain.domain != row_tracking.DOMAIN:
            return _conflict(Rule.DOMAIN, winner, f"it wrote the domain {domain.domain!r}")
    return None


def _transactions(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    for txn in mine.actions.txns:
        theirs = winner.txns.get(txn.app_id)
        if theirs is not None:
            what = f"it holds transaction {theirs.version} of the application {txn.app_id!r}"
            return _conflict(Rule.TRANSACTION, winner, what)
    return None


def _backfills(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    if {mine.operation, winner.operation} == {BACKFILL, UNBACKFILL}:
        what = "it gives row IDs where this one takes them away, or the other way round"
        return _conflict(Rule.ROW_TRACKING, winner, what)
    return None


def _appends(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    if mine.isolation is IsolationLevel.SNAPSHOT_ISOLATION or mine.reads.is_empty:
        return None
    if {mine.operation, winner.operation} & {BACKFILL, UNBACKFILL} or not winner.adds.num_rows:
        return None
    path = winner.adds["path"][0].as_py()
    return _conflict(Rule.APPEND, winner, f"it added {path}, which was not read")


def _read_files(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    if mine.reads.whole_table and winner.removes.num_rows:
        path = winner.removes["path"][0].as_py()
        return _conflict(Rule.DELETE, winner, f"it removed {path}, which was read")
    return _gone(mine, winner, mine.reads.files, Rule.DELETE, "was read")


def _removed_files(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    return _gone(mine, winner, mine.actions.removes, Rule.DELETE_TWICE, "was to be removed")


def _gone(
    mine: Attempt, winner: WinningCommit, files: pa.Table | None, rule: Rule, why: str
) -> Conflict | None:
    """A conflict where the winner removed one of the files or gave it another vector."""
    if files is None or not files.num_rows:
        return None
    ours = places(files, root=mine.root)
    removed = pc.is_in(ours, value_set=places(winner.removes, root=mine.root))
    added = pc.is_in(ours, value_set=places(winner.adds, root=mine.root))
    same = pc.is_in(
        logical_places(files, root=mine.root),
        value_set=logical_places(winner.adds, root=mine.root),
    )
    changed = pc.and_not(added, same)
    touched = pc.or_(removed, changed)
    if not pc.any(touched).as_py():
        return None
    at = pc.index(touched, True).as_py()
    path = files["path"][at].as_py()
    if added[at].as_py():
        what = f"it gave {path}, which {why}, another deletion vector"
        return _conflict(Rule.DELETION_VECTOR, winner, what)
    return _conflict(rule, winner, f"it removed {path}, which {why}")


def _added_files(mine: Attempt, winner: WinningCommit) -> Conflict | None:
    """A conflict where a new file has the path of one that the winner added or removed."""
    # A path that this commit removes too is a new vector for a live file: judged as a removal.
    ours = mine.actions.adds
    if not ours.num_rows or mine.actions.only_re_adds:
        return None
    added = places(ours, root=mine.root)
    new = pc.invert(pc.is_in(added, value_set=places(mine.actions.removes, root=mine.root)))
    for batch in (winner.adds, winner.removes):
        taken = pc.and_(new, pc.is_in(added, value_set=places(batch, root=mine.root)))
        if pc.any(taken).as_py():
            path = ours["path"].filter(taken)[0].as_py()
            return _conflict(Rule.SAME_PATH, winner, f"it wrote about {path}, as this one does")
    return None


_STATE_RULES: tuple[Callable[[Attempt, WinningCommit], Conflict | None], ...] = (
    _protocol,
    _metadata,
    _domains,
    _transactions,
    _backfills,
)
_FILE_RULES: tuple[Callable[[Attempt, WinningCommit], Conflict | None], ...] = (
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
"""Features that ask nothing of a commit begun without them, or only what is built anew anyway."""

_REMEDIES: Mapping[Rule, str] = {
    Rule.TRANSACTION: "look at what the application committed; it may be done already",
}


def _conflict(rule: Rule, winner: WinningCommit, explanation: str) -> Conflict:
    who = f" ({winner.operation})" if winner.operation else ""
    return Conflict(
        rule=rule,
        version=winner.version,
        explanation=f"version {winner.version}{who} was committed first: {explanation}",
        remedy=_REMEDIES.get(rule, "run again, on the table as it is now"),
    )


def _without_touched_files(mine: Attempt, winner: WinningCommit) -> Attempt:
    """The attempt without re-adds of files that the winner touched, with the winner's row IDs."""
    actions, reads = mine.actions, mine.reads
    if actions.only_re_adds and (winner.adds.num_rows or winner.removes.num_rows):
        touched = _touched(mine, winner)
        actions = replace(actions, adds=actions.adds.filter(pc.invert(touched)))
        if reads.files is not None:
            # What is not done any more was not needed either.
            dropped = places(mine.actions.adds.filter(touched), root=mine.root)
            unused = pc.is_in(places(reads.files, root=mine.root), value_set=dropped)
            reads = replace(reads, files=reads.files.filter(pc.invert(unused)))
    if winner.adds.num_rows:
        actions = replace(
            actions,
            adds=_with_ids_of(winner, actions.adds, mine.root),
            removes=_with_ids_of(winner, actions.removes, mine.root),
        )
    return replace(mine, actions=actions, reads=reads)


def _touched(mine: Attempt, winner: WinningCommit) -> pa.BooleanArray:
    ours = mine.actions.adds
    added = pc.is_in(places(ours, root=mine.root), value_set=places(winner.adds, root=mine.root))
    removed = pc.is_in(
        places(ours, root=mine.root), value_set=places(winner.removes, root=mine.root)
    )
    if winner.operation in (BACKFILL, UNBACKFILL) and mine.operation not in (BACKFILL, UNBACKFILL):
        # It repeated the file with other row IDs, which are taken over; nothing else is outdated.
        same = pc.is_in(
            logical_places(ours, root=mine.root),
            value_set=logical_places(winner.adds, root=mine.root),
        )
        added = pc.and_not(added, same)
    return pc.or_(added, removed)


def _with_ids_of(winner: WinningCommit, batch: pa.Table, root: str) -> pa.Table:
    """The batch, repeating row IDs and commit versions of paths that the winner added again."""
    if not batch.num_rows:
        return batch
    at = pc.index_in(places(batch, root=root), value_set=places(winner.adds, root=root))
    known = pc.is_valid(at)
    for name in ("baseRowId", "defaultRowCommitVersion"):
        theirs = winner.adds[name].take(at)
        # An absent ID means something only where the winner was about taking IDs away.
        given = known if winner.operation == UNBACKFILL else pc.is_valid(theirs)
        column = pc.if_else(given, theirs, batch[name])
        batch = batch.set_column(batch.column_names.index(name), name, column)
    return batch


def _on_top_of(mine: Attempt, winner: WinningCommit) -> Attempt:
    protocol = winner.protocol or mine.protocol
    metadata = winner.metadata or mine.metadata
    in_commit = winner.commit_info.in_commit_timestamp if winner.commit_info is not None else None
    active = is_active(protocol, metadata.configuration)
    return replace(
        mine,
        base_version=winner.version,
        protocol=protocol,
        metadata=metadata,
        high_water_mark=max(mine.high_water_mark, highest_row_id(winner)),
        previous_ms=in_commit if active and in_commit is not None else winner.modified_ms,
    )

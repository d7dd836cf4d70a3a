"""The conditions that are checked before a commit is written, and its outcomes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from delta_maintenance.address import StoreKind
from delta_maintenance.errors import CommitConflictError, RefusedError, locating
from delta_maintenance.protocol.actions.model import CommitInfo, DomainMetadata
from delta_maintenance.protocol.commit.conflicts import Conflict, Rule
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.features.registry import (
    Operation,
    require_supported,
    supported_features,
    without_features,
)
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.commit.other_writers import DeclaredWriters, require_declared_writers
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_consistent, require_permitted


def require_committable(
    snapshot: Snapshot,
    actions: StagedActions,
    *,
    drops: Collection[str],
    writers: DeclaredWriters,
    repairs: bool = False,
) -> None:
    """Refuses a commit that must not be made on top of the snapshot.

    `drops` are the features that the new protocol may lose; `repairs` is as in `require_writable`,
    whose errors are raised. `RefusedError` for everything else.
    """
    table, version, protocol = snapshot.table, snapshot.version, snapshot.protocol
    with locating(table=table, version=version):
        require_declared_writers(table, writers)
        has_files = actions.adds.num_rows or actions.removes.num_rows
        require_permitted(snapshot, kind_of(actions) if has_files else Operation.CHANGE_METADATA)
        # The caller is responsible for the features that this commit drops.
        require_supported(
            without_features(protocol, drops), kind_of(actions), table=table, version=version
        )
        if not repairs:
            require_consistent(snapshot)
        if actions.protocol is not None:
            require_supported(actions.protocol, Operation.COMMIT)
            lost = supported_features(protocol) - supported_features(actions.protocol)
            if lost - set(drops):
                raise RefusedError(
                    f"the new protocol lacks {', '.join(sorted(lost - set(drops)))}",
                    remedy="list all features of the table, including implied ones",
                )
        _require_no_draft(snapshot, actions)


def kind_of(actions: StagedActions) -> Operation:
    """Returns the kind of operation whose feature support a commit of these actions needs."""
    changes = actions.protocol is not None or actions.metadata is not None
    return Operation.CHANGE_METADATA if changes else Operation.COMMIT


def require_no_external_log(store: Store) -> None:
    """Refuses a log whose commits go through DynamoDB, if there are traces of that."""
    if store.address.kind is not StoreKind.S3:
        return
    # Delta Spark's log store for DynamoDB writes each commit here before it copies it.
    trace = next(store.list_from(f"{LOG_DIRECTORY}/.tmp"), None)
    if trace is not None:
        raise RefusedError(
            "commits of this table go through DynamoDB, and a commit that bypasses it could "
            "be lost",
            table=store.root,
            file=trace.path,
            remedy="commit through Delta Spark, or remove the folder once no writer uses DynamoDB",
        )


def _require_no_draft(snapshot: Snapshot, actions: StagedActions) -> None:
    """Refuses logs with drafts of row tracking, unless the commit converts them."""
    state = snapshot.log.state
    written = {domain.domain for domain in actions.domains}
    drafts = [
        f"the domain {name!r} with a map for its configuration"
        for name, domain in sorted(state.domains.items())
        if domain.draft_map and name not in written
    ]
    if state.draft_high_water_mark is not None and row_tracking.DOMAIN not in {
        *written,
        *state.domains,
    }:
        drafts.append("the action rowIdHighWaterMark")
    if drafts:
        raise RefusedError(
            f"the log contains {drafts[0]}, which belongs to a 2023 draft of row tracking",
            remedy="run upgrade-protocol --convert-draft first",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The commit is in the log."""

    version: int
    attempts: int
    """Versions that were tried, including this one."""
    in_commit_timestamp: int | None
    """Milliseconds since 1970-01-01 UTC; None if the table does not have them."""
    num_adds: int
    """Added files, without those that concurrent commits made unnecessary."""
    num_removes: int
    domains: tuple[DomainMetadata, ...] = field(default=(), compare=False)
    """The domains that the commit wrote, including the row ID high-water mark."""
    commit_info: CommitInfo | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """An earlier run of the same task already committed; nothing was written."""

    version: int
    """The version of that commit; for an application's transaction, the version that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Concurrent commits made all changes of this commit unnecessary; nothing was written."""

    version: int
    """The version of the last concurrent commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted:
    """A concurrent commit conflicts with this one; nothing was written."""

    version: int
    """The version that was tried."""
    attempts: int
    conflict: Conflict

    def as_error(self, table: str) -> CommitConflictError:
        """The conflict as an error, for callers that cannot continue without the commit."""
        return CommitConflictError(
            self.conflict.explanation,
            table=table,
            version=self.version,
            remedy=self.conflict.remedy,
        )


def lost_races(version: int, *, attempts: int) -> Conflicted:
    """Returns the outcome if other writers committed first in each attempt, last at `version`."""
    conflict = Conflict(
        rule=Rule.RETRIES,
        version=version - 1,
        explanation=f"other writers committed first, {attempts} times in a row",
        remedy="run again when fewer writers are active",
    )
    return Conflicted(version=version, attempts=attempts, conflict=conflict)


CommitOutcome = Landed | AlreadyDone | Superseded | Conflicted

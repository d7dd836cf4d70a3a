"""The plan to drop a feature from a table: all decisions of `drop-feature`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointKind, CheckpointOptions
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.drop_feature import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropStep,
    Status,
    StepKind,
    Way,
)
from delta_maintenance.operations.drop_feature.file_rewrites import planned_rewrite
from delta_maintenance.operations.drop_feature.preparation import (
    missing_vector_tombstones,
    property_changes,
)
from delta_maintenance.operations.drop_feature.traces import (
    BARRIER,
    CheckedFooters,
    FileTraces,
    HistoryOutlook,
    file_traces,
    history_outlook,
    plan_truncation,
    ready_after,
    standing_barrier,
    state_trace,
)
from delta_maintenance.operations.drop_feature.unmapping import (
    extent,
    planned_conversion,
    unmapping_contract,
)
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.operations.rewriting.contract import Contract, unmapped_domains
from delta_maintenance.operations.rewriting.engine import default_workers, memory_bound
from delta_maintenance.operations.table_change.documents import ProtocolVersions
from delta_maintenance.operations.table_change.models import cut_off_by
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes.client_support import impacts
from delta_maintenance.protocol.changes.drop import (
    CHECKPOINT_PROTECTION,
    PROTECTED_BEFORE,
    FeatureRemoval,
    downgraded_protocol,
    feature_names,
    removal_of,
    require_removable,
)
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.features.registry import find_feature
from delta_maintenance.table.commit.outcome import require_committable, require_no_external_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import passed_time
from delta_maintenance.table.writable import require_proved

_SHOWN_TRACES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """The commit that drops a feature."""

    protocol: Protocol
    metadata: Metadata
    """Unchanged if no property changes."""
    version_properties: tuple[str, ...]
    """The properties whose value becomes the version of the commit."""
    domain: str | None
    """The domain that is removed with the feature, if it exists."""


def downgrade(snapshot: Snapshot, removal: FeatureRemoval, name: str, way: Way) -> Downgrade:
    """Returns the contents of the commit that drops the feature after a snapshot."""
    protects = way == "protect-history"
    domain = removal.own_domain
    return Downgrade(
        protocol=downgraded_protocol(
            snapshot.protocol, name, adds=[CHECKPOINT_PROTECTION] if protects else []
        ),
        metadata=removal.without(snapshot.metadata),
        version_properties=(PROTECTED_BEFORE,) if protects else (),
        domain=domain if domain in snapshot.log.state.domains else None,
    )


def checkpoint_options(removal: FeatureRemoval) -> CheckpointOptions:
    """Returns the options of checkpoints during the operation, which must not use the feature."""
    kind: CheckpointKind = "classic" if removal.v2_checkpoints else "auto"
    # A sidecar that is taken over may contain traces of the feature.
    return CheckpointOptions(kind=kind, engine="local", incremental="never")


def decide(
    snapshot: Snapshot, options: DropFeatureOptions, context: RunContext, *, operation_id: str
) -> DropFeaturePlan:
    """Returns the plan for a snapshot. Refuses forbidden requests before anything is changed."""
    removal, now = _removal(options), context.started
    require_proved(snapshot)
    if not _has_feature(snapshot, options, removal):
        reason = f"the table does not have the feature {options.feature}"
        return nothing_to_do(snapshot, options, now=now, operation_id=operation_id, reason=reason)
    decision = _Decision(snapshot, options, removal, context, CheckedFooters())
    decision.require_allowed()
    return decision.plan(operation_id)


def nothing_to_do(
    snapshot: Snapshot,
    options: DropFeatureOptions,
    *,
    now: datetime,
    operation_id: str,
    reason: str,
) -> DropFeaturePlan:
    """Returns a plan that changes nothing."""
    protocol = ProtocolVersions.of(snapshot.protocol)
    return DropFeaturePlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=now,
        options=options,
        operation_id=operation_id,
        way=None,
        steps=(),
        ends="nothing-to-do",
        protocol_before=protocol,
        protocol_after=protocol,
        reason=reason,
    )


def require_droppable(
    snapshot: Snapshot, options: DropFeatureOptions, *, now: datetime, footers: CheckedFooters
) -> tuple[Downgrade, FileTraces]:
    """Refuses the same requests as `decide`, without planning. The snapshot must have the feature.

    Returns the effects of the drop at this version, and the files that must be stripped first.
    """
    decision = _Decision(snapshot, options, _removal(options), RunContext.at(now), footers)
    decision.require_allowed()
    return decision.down, decision.files


class _Decision:
    def __init__(
        self,
        snapshot: Snapshot,
        options: DropFeatureOptions,
        removal: FeatureRemoval,
        context: RunContext,
        footers: CheckedFooters,
    ) -> None:
        self.snapshot = snapshot
        self.options = options
        self.removal = removal
        self.context = context
        self.now = context.started
        self.way = _way(options, removal)
        self.down = downgrade(snapshot, removal, options.feature, self.way)
        self.footers = footers
        self.outlook: HistoryOutlook | None = None

    @cached_property
    def files(self) -> FileTraces:
        """The live files that use the feature; refusals that need no file precede their errors."""
        return file_traces(self.snapshot, self.removal, footers=self.footers)

    def plan(self, operation_id: str) -> DropFeaturePlan:
        snapshot = self.snapshot
        steps = list(self._preparation())
        ends: Status = "dropped"
        ready_at = None
        if self.way == "truncate-history":
            ends, ready_at, more = self._truncation()
            steps.extend(more)
        if self.way == "protect-history":
            missing = BARRIER - len(standing_barrier(snapshot, self.removal))
            steps.append(
                _step(
                    "barrier-checkpoints",
                    f"{missing} empty commits with a checkpoint each",
                    commits=missing,
                )
            )
        if ends == "dropped":
            steps.append(_step("drop", self._drop_detail(), commits=1))
            if self.way == "protect-history":
                steps.append(_step("checkpoint", "one of the first version without the feature"))
        traces = self.outlook.traces if self.outlook is not None else ()
        cleaning = self.outlook.cleaning if self.outlook is not None else None
        return DropFeaturePlan(
            table=snapshot.table,
            version=snapshot.version,
            planned_at=self.now,
            options=self.options,
            operation_id=operation_id,
            way=self.way,
            steps=tuple(steps),
            ends=ends,
            ready_at=ready_at,
            protocol_before=ProtocolVersions.of(snapshot.protocol),
            protocol_after=ProtocolVersions.of(self.down.protocol),
            opened_to=tuple(
                # The clients that the opposite change would cut off gain access.
                impact.client
                for impact in impacts(self.down.protocol, snapshot.protocol)
            ),
            cut_off=cut_off_by(snapshot.protocol, self.down.protocol),
            history_traces=tuple(str(trace) for trace in traces[:_SHOWN_TRACES]),
            num_history_traces=len(traces),
            oldest_version=cleaning.oldest_version if cleaning is not None else None,
            groups=cleaning.groups if cleaning is not None else (),
            reason=self._reason(ends),
            notes=tuple(self._notes()),
        )

    def require_allowed(self) -> None:
        """Refuses forbidden requests."""
        snapshot, removal, state = self.snapshot, self.removal, self.snapshot.log.state
        require_removable(
            self.options.feature, state.protocol, state.metadata, tuple(state.domains)
        )
        staged = StagedActions(protocol=self.down.protocol, metadata=self.down.metadata)
        require_committable(snapshot, staged, drops=(removal.feature,), writers=self.options)
        require_no_external_log(snapshot.log.store)
        if removal.rewrites == "physical-names":
            unmapped_domains(snapshot)
            if extent(snapshot) != "no file":
                unmapping_contract(snapshot, target_bytes=1)
        elif removal.rewrites is not None and self._rewrites():
            Contract.of(snapshot, target_bytes=1, proof="rows")
        if self.way != "direct":
            checkpoint.plan(snapshot, checkpoint_options(removal), context=RunContext.at(self.now))

    def _rewrites(self) -> bool:
        """Whether data files, or their description in the schema, must change first."""
        metadata = self.snapshot.metadata
        return self.files.count > 0 or self.removal.rewritten(metadata) != metadata

    def _preparation(self) -> Iterator[DropStep]:
        snapshot, removal = self.snapshot, self.removal
        domains = sorted(snapshot.log.state.domains) if removal.leaked_domains else []
        if domains:
            yield _step(
                "remove-domains",
                f"removes {', '.join(domains)}: no remaining feature uses them",
                commits=1,
            )
        switched_off = removal.prepared(snapshot.metadata)
        is_used = removal.metadata_trace(snapshot.metadata) is not None
        if is_used and switched_off != snapshot.metadata:
            change = _changes(snapshot.metadata, switched_off)
            yield _step(
                "switch-off", (f"{change}: writers must not start to use the feature"), commits=1
            )
        if removal.rewrites is not None and self._rewrites():
            mapped = removal.rewrites == "physical-names"
            yield from self._unmapping() if mapped else self._rewriting()
        if removal.strips_files and self.files.count:
            commits = -(-self.files.count // self.options.files_per_commit)
            yield _step(
                "strip-files",
                f"adds {count_text(self.files.count, 'file')} again without "
                f"{' and '.join(removal.file_fields)}, in {count_text(commits, 'commit')}",
                commits=commits,
            )
        if "deletionVector" in removal.file_fields:
            retention = snapshot.properties.deleted_file_retention // timedelta(milliseconds=1)
            missing = missing_vector_tombstones(
                snapshot, deleted_after_ms=epoch_millis(passed_time(snapshot, self.now)) - retention
            )
            if missing.num_rows:
                yield _step(
                    "keep-vector-files",
                    f"adds tombstones of {count_text(missing.num_rows, 'vector file')}, for "
                    "writers that would not know that older versions need them",
                    commits=1,
                )

    def _rewriting(self) -> Iterator[DropStep]:
        snapshot, removal = self.snapshot, self.removal
        planned = planned_rewrite(snapshot, removal, writers=self.options, now=self.now)
        if not planned.is_noop:
            amount = f"{count_text(planned.files, 'data file')} with {size_text(planned.bytes)}"
            yield _step(
                "rewrite-files",
                f"writes {amount} again, for the reason {removal.rewrites}",
                commits=planned.commits,
                memory_bytes=planned.memory_bytes,
            )
        if removal.rewritten(snapshot.metadata) != snapshot.metadata:
            yield _step(
                "forget-type-changes",
                "removes the record of type changes from the schema, once no file has an earlier "
                "type",
                commits=1,
            )

    def _unmapping(self) -> Iterator[DropStep]:
        planned = planned_conversion(self.snapshot)
        files, memory = "no data file changes", 0
        if planned is not None and planned.count:
            memory = memory_bound(default_workers(), planned.group_bytes)
            amount = f"{count_text(planned.count, 'data file')} with {size_text(planned.bytes)}"
            files = f"writes {amount} again, under logical names and in the same commit"
        yield _step(
            "remove-mapping",
            f"removes the mapping from properties and schema; {files}",
            commits=1,
            memory_bytes=memory,
        )

    def _truncation(self) -> tuple[Status, datetime | None, list[DropStep]]:
        cut_off = _step(
            "cut-off-checkpoint",
            ("history before it can be deleted when it is old enough"),
            commits=1,
        )
        options, removal, snapshot = self.options, self.removal, self.snapshot
        if state_trace(snapshot, removal) is not None:
            # Current uses will become history that is too recent.
            plan_truncation(snapshot, options, self.context)
            return "waiting", ready_after(snapshot, self.now), [cut_off]
        self.outlook = history_outlook(
            Table(snapshot.log.store), snapshot, removal, options, self.context
        )
        if not self.outlook.traces:
            return "dropped", None, []
        if self.outlook.cleaning is not None:
            oldest = self.outlook.cleaning.oldest_version
            return (
                "dropped",
                None,
                [_step("truncate-history", (f"all versions before {oldest} are deleted"))],
            )
        if self.outlook.has_cut_off:
            return "waiting", self.outlook.ready_at, []
        return "waiting", ready_after(snapshot, self.now), [cut_off]

    def _drop_detail(self) -> str:
        change = _changes(self.snapshot.metadata, self.down.metadata)
        parts = [
            f"the protocol becomes {_protocol_text(self.down.protocol)}",
            *([change] if change else []),
            *(f"sets {key} to the version itself" for key in self.down.version_properties),
            *([f"removes the domain {self.down.domain}"] if self.down.domain else []),
        ]
        return "; ".join(parts)

    def _reason(self, ends: Status) -> str:
        name = self.options.feature
        if self.way == "direct":
            return f"{name} only concerns writers, so every older version stays readable"
        if self.way == "protect-history":
            return f"older versions need {name} to be read, and stay behind protected checkpoints"
        if ends == "dropped":
            return "no retained version needs the feature to be read"
        if self.outlook is None:
            return f"{name} is still in use, and versions that need it are kept for the retention"
        return f"versions that need {name} cannot be deleted yet: {self.outlook.reason}"

    def _notes(self) -> Iterator[str]:
        before, after = self.snapshot.protocol, self.down.protocol
        name = self.options.feature
        for who, old, new in (
            ("readers", before.min_reader_version, after.min_reader_version),
            ("writers", before.min_writer_version, after.min_writer_version),
        ):
            if old != new:
                yield f"{who} need version {new} of the protocol instead of {old}"
        if self.way == "protect-history":
            yield (
                f"versions before the drop still need {name}; clean-log keeps the files that "
                "protect them"
            )
            if CHECKPOINT_PROTECTION not in feature_names(before):
                yield f"writers must support {CHECKPOINT_PROTECTION} from now on"
        if self.removal.leaves is not None:
            yield self.removal.leaves
        yield from commit_notes(self.snapshot)


def _way(options: DropFeatureOptions, removal: FeatureRemoval) -> Way:
    if options.truncate_history:
        return "truncate-history"
    return "protect-history" if removal.protects_history else "direct"


def _removal(options: DropFeatureOptions) -> FeatureRemoval:
    removal = removal_of(options.feature)
    if options.truncate_history and not removal.may_truncate:
        raise InvalidRequestError(
            f"readers of older versions do not need {options.feature}, so that no history has to "
            "be deleted",
            remedy="leave out --truncate-history",
        )
    if removal.needs_truncation and not options.truncate_history:
        raise RefusedError(
            f"{options.feature} can only be dropped together with the history that it protects",
            remedy="run again with --truncate-history",
        )
    return removal


def _has_feature(snapshot: Snapshot, options: DropFeatureOptions, removal: FeatureRemoval) -> bool:
    names = feature_names(snapshot.protocol)
    if options.feature in names:
        return True
    spelled = sorted(
        name
        for name in names
        if (feature := find_feature(name)) is not None and feature.name == removal.feature
    )
    if spelled:
        raise RefusedError(
            f"the table does not list {options.feature} but {spelled[0]}",
            remedy=f"request {spelled[0]}",
        )
    return False


def _step(kind: StepKind, detail: str, *, commits: int = 0, memory_bytes: int = 0) -> DropStep:
    return DropStep(kind=kind, detail=detail, commits=commits, memory_bytes=memory_bytes)


def _changes(before: Metadata, after: Metadata) -> str:
    given, taken = property_changes(before, after)
    changes = [f"sets {key}={value}" for key, value in given.items()]
    return ", ".join([*changes, *(f"unsets {key}" for key in taken)])


def _protocol_text(protocol: Protocol) -> str:
    versions = f"({protocol.min_reader_version}, {protocol.min_writer_version})"
    if protocol.writer_features is None:
        return versions
    return f"{versions} with {', '.join(sorted(feature_names(protocol))) or 'no feature'}"

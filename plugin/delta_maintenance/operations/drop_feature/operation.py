"""The `drop-feature` operation: removes a feature from a table, so that more clients can use it.

First, the feature is disabled and its traces are removed. Older versions still need it. They are
either protected from clients without the feature, by checkpoints that such clients cannot read past
and that `checkpointProtection` keeps, or deleted, which takes a second run after a retention. Then
one commit changes the protocol. Every step reads the table again, so that a later run can complete
an interrupted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from delta_maintenance.clock import as_clock
from delta_maintenance.errors import (
    CommitConflictError,
    DeltaMaintenanceError,
    RefusedError,
    locating,
)
from delta_maintenance.operations import checkpoint, clean_log
from delta_maintenance.operations.clean_log import CleanLogResult
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.drop_feature import (
    DropCommit,
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
    Status,
    StepKind,
)
from delta_maintenance.operations.drop_feature.file_rewrites import (
    FileStripping,
    forget_type_changes,
    rewrite_files,
)
from delta_maintenance.operations.drop_feature.planning import (
    checkpoint_options,
    decide,
    downgrade,
    nothing_to_do,
    require_droppable,
)
from delta_maintenance.operations.drop_feature.preparation import (
    Committer,
    FeatureGoneError,
    keep_vector_files,
    remove_domains,
    switch_off,
)
from delta_maintenance.operations.drop_feature.traces import (
    BARRIER,
    EMPTY_COMMIT,
    CheckedFooters,
    FileTraces,
    HistoryOutlook,
    checkpoint_trace,
    file_traces,
    history_outlook,
    history_traces,
    outdated,
    ready_at,
    standing_barrier,
    state_trace,
)
from delta_maintenance.operations.drop_feature.unmapping import remove_mapping
from delta_maintenance.operations.table_change.documents import ProtocolVersions
from delta_maintenance.operations.table_change.operation import already_applied
from delta_maintenance.protocol.changes.drop import removal_of
from delta_maintenance.table.commit.idempotency import commit_after
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table


def plan(
    snapshot: Snapshot, options: DropFeatureOptions, context: RunContext | None = None
) -> DropFeaturePlan:
    """Plans to drop the feature. Reads the live files, and the log if history is truncated.

    Raises `RefusedError` if the feature cannot be dropped, with the step that is required first;
    `UnsupportedFeatureError` for an unknown feature; `InvalidRequestError` for an option that does
    not apply to the feature.
    """
    context = context or RunContext()
    # Callers may ignore the types.
    options = options.validated()
    with locating(table=snapshot.table, version=snapshot.version):
        done = already_applied(
            snapshot, operation_id=options.operation_id, since=options.operation_since
        )
        operation_id = options.operation_id or context.new_id()
        if done is not None:
            return nothing_to_do(
                snapshot, options, now=context.started, operation_id=operation_id, reason=done
            )
        return decide(snapshot, options, context, operation_id=operation_id)


def apply(
    table: Table, plan: DropFeaturePlan, context: RunContext | None = None
) -> DropFeatureResult:
    """Performs the planned steps that are still necessary. Another run completes an interrupted
    one.

    Raises the errors of `plan` before anything is changed, `CommitConflictError` if other writers
    use the feature again or win repeatedly, and `CommitUnknownError`, after which another run finds
    the outcome. Steps that succeeded before an error remain valid.
    """
    context = context or RunContext()
    with locating(table=table.uri):
        return _DropFeatureRun(table, plan, context).run()


class _DropFeatureRun:
    """One execution of a plan."""

    def __init__(self, table: Table, plan: DropFeaturePlan, context: RunContext) -> None:
        self.table = table
        self.planned = plan
        self.options = plan.options
        self.removal = removal_of(plan.options.feature)
        self.context = context
        self.now = context.now
        self.new_id = context.new_id
        self.progress = context.progress
        self.committer = Committer(
            table=table, feature=plan.options.feature, writer=context.writer(plan.options)
        )
        self.commits: list[DropCommit] = []
        self.checkpoints: list[int] = []
        self.cleaned: CleanLogResult | None = None
        self.notes: list[str] = []
        self.footers = CheckedFooters()
        self.unused_until: int | None = None
        """The newest version that is known to have no live file that uses the feature."""

    def run(self) -> DropFeatureResult:
        if self.planned.way is None:
            return self._result(self.planned.version, "nothing-to-do", self.planned.reason)
        snapshot = self.table.snapshot()
        earlier = commit_after(snapshot, [self.planned.operation_id], self.planned.version)
        if earlier is not None:
            note = "an earlier run of this task dropped it"
            return self._result(earlier.version, "dropped", note)
        try:
            return self._run(self.committer.require_feature(snapshot))
        except FeatureGoneError as gone:
            return self._result(gone.version, "nothing-to-do", "the feature was already dropped")

    def _run(self, snapshot: Snapshot) -> DropFeatureResult:
        down, files = require_droppable(
            snapshot, self.options, now=self.now(), footers=self.footers
        )
        if ProtocolVersions.of(down.protocol) != self.planned.protocol_after:
            raise RefusedError(
                "the protocol of the table has changed since the plan",
                version=snapshot.version,
                remedy="plan again",
            )
        if not self.removal.strips_files and not files.count:
            self.unused_until = snapshot.version
        self._prepare(snapshot, files)
        searched = None
        if self.planned.way == "truncate-history":
            outlook = self._truncate_history()
            if outlook.traces:
                return self._waiting(outlook)
            searched = outlook.version
        if self.planned.way == "protect-history":
            self._raise_barrier()
        version = self._drop(searched)
        if self.planned.way == "protect-history":
            self._last_checkpoint(version)
        return self._result(version, "dropped")

    def _prepare(self, snapshot: Snapshot, files: FileTraces) -> None:
        committer, removal = self.committer, self.removal
        self._note("remove-domains", remove_domains(committer, removal))
        self._note("switch-off", switch_off(committer, removal))
        metadata = snapshot.metadata
        if removal.rewrites == "physical-names":
            self._note("remove-mapping", remove_mapping(committer, progress=self.progress))
        elif (
            files.count and removal.rewrites is not None or removal.rewritten(metadata) != metadata
        ):
            self._note("rewrite-files", *rewrite_files(committer, removal, progress=self.progress))
            forgotten = forget_type_changes(committer, removal, self.footers)
            self._note("forget-type-changes", forgotten)
        if removal.strips_files:
            stripping = FileStripping(
                committer=committer,
                removal=removal,
                files_per_commit=self.options.files_per_commit,
                expected=files.count,
                progress=self.progress,
            )
            self.unused_until = stripping.run()
            self._note("strip-files", *stripping.versions)
        retention = snapshot.properties.deleted_file_retention
        kept_vectors = keep_vector_files(committer, removal, retention=retention)
        self._note("keep-vector-files", kept_vectors)

    def _truncate_history(self) -> HistoryOutlook:
        """Deletes all history that is old enough, and returns the remaining traces."""
        outlook = self._outlook()
        if outlook.cleaning is not None:
            self.cleaned = clean_log.apply(self.table, outlook.cleaning, self._context_now())
            outlook = self._outlook()
        return outlook

    def _outlook(self) -> HistoryOutlook:
        return history_outlook(
            self.table, self.committer.snapshot(), self.removal, self.options, self._context_now()
        )

    def _context_now(self) -> RunContext:
        now = self.now()
        return replace(self.context, started=now, now=as_clock(now))

    def _waiting(self, outlook: HistoryOutlook) -> DropFeatureResult:
        snapshot = self.committer.snapshot()
        instant = outlook.ready_at
        if not outlook.has_cut_off:
            version = snapshot.version
            if not outdated(outlook.traces, version):
                version = self._commit_nothing("cut-off-checkpoint")
            self._checkpoint(version)
            instant = ready_at(self.table, snapshot, version)
        files = count_text(len(outlook.traces), "file")
        self.notes.append(f"in the way: {files} of the log, first {outlook.traces[0]}")
        waiting = self._result(snapshot.version, "waiting", outlook.reason, ready_at=instant)
        return replace(waiting, held=outlook.held)

    def _raise_barrier(self) -> None:
        standing = standing_barrier(self.committer.snapshot(), self.removal)
        for version in standing:
            # The last one may lack its checkpoint.
            self._checkpoint(version)
        for _ in range(BARRIER - len(standing)):
            self._checkpoint(self._commit_nothing("barrier-checkpoints"))

    def _commit_nothing(self, kind: StepKind) -> int:
        """Commits an empty version for a checkpoint without traces of the feature."""

        def stage(snapshot: Snapshot) -> Transaction:
            self._require_unused(snapshot)
            return self.committer.begin(snapshot, EMPTY_COMMIT)

        return self._commit_step(kind, stage)

    def _checkpoint(self, version: int) -> None:
        """Writes a checkpoint of a version, and checks that it does not use the feature."""
        snapshot = self.table.snapshot(version=version)
        planned = checkpoint.plan(
            snapshot, checkpoint_options(self.removal), context=RunContext.at(self.now())
        )
        result = checkpoint.apply(
            self.table, planned, context=RunContext(new_id=self.new_id), snapshot=snapshot
        )
        trace = checkpoint_trace(self.table.snapshot(version=version), self.removal)
        if trace is not None:
            raise self._used_again(trace, version)
        if result.status == "written":
            self.checkpoints.append(version)

    def _last_checkpoint(self, version: int) -> None:
        """Writes a checkpoint, so that clients without the feature need not read earlier protocols.

        It is optional.
        """
        try:
            self._checkpoint(version)
        except DeltaMaintenanceError as error:
            # The feature is dropped even if this step fails.
            self.notes.append(f"version {version} has no checkpoint: {error.problem}")

    def _drop(self, searched: int | None) -> int:
        """Commits the protocol on top of a version that is known to have no traces.

        `searched` is the version up to which the history has none either, if that matters.
        """
        name, way = self.options.feature, self.planned.way
        assert way is not None

        def stage(snapshot: Snapshot) -> Transaction:
            nonlocal searched
            self._require_unused(snapshot)
            trace = checkpoint_trace(snapshot, self.removal)
            if trace is not None:
                raise self._used_again(trace, snapshot.version)
            if searched is not None:
                self._require_clean_history(snapshot, searched + 1)
                searched = snapshot.version
            down = downgrade(snapshot, self.removal, name, way)
            if ProtocolVersions.of(down.protocol) != self.planned.protocol_after:
                raise self._conflict("the protocol changed in the meantime", snapshot.version)
            transaction = self.committer.begin(
                snapshot,
                "DROP FEATURE",
                parameters={"featureName": name, "truncateHistory": self.options.truncate_history},
                operation_id=self.planned.operation_id,
                planned_version=self.planned.version,
            )
            transaction.stage_protocol(down.protocol, drops=[self.removal.feature])
            if down.metadata != snapshot.metadata or down.version_properties:
                transaction.stage_metadata(
                    down.metadata, version_properties=down.version_properties
                )
            if down.domain is not None:
                transaction.remove_domain(down.domain)
            return transaction

        return self._commit_step("drop", stage)

    def _require_unused(self, snapshot: Snapshot) -> None:
        trace = state_trace(snapshot, self.removal)
        if trace is None:
            files = file_traces(
                snapshot, self.removal, footers=self.footers, none_until=self.unused_until
            )
            trace = f"the file {files.first}" if files.count else None
        if trace is not None:
            raise self._used_again(trace, snapshot.version)
        self.unused_until = snapshot.version

    def _require_clean_history(self, snapshot: Snapshot, first_version: int) -> None:
        traces = history_traces(snapshot, self.removal, first_version=first_version)
        if traces:
            raise self._used_again(traces[0].file.name, snapshot.version)

    def _used_again(self, what: str, version: int) -> CommitConflictError:
        return self._conflict(
            f"{what} uses {self.options.feature} again, although it was disabled", version
        )

    def _conflict(self, problem: str, version: int) -> CommitConflictError:
        return CommitConflictError(
            problem,
            table=self.table.uri,
            version=version,
            remedy="plan again after other writers have stopped changing this",
        )

    def _commit_step(self, kind: StepKind, stage: Callable[[Snapshot], Transaction]) -> int:
        version = self.committer.commit(stage)
        assert version is not None
        self._note(kind, version)
        return version

    def _note(self, kind: StepKind, *versions: int | None) -> None:
        self.commits.extend(
            DropCommit(kind=kind, version=version) for version in versions if version is not None
        )

    def _result(
        self, version: int, status: Status, *notes: str, ready_at: datetime | None = None
    ) -> DropFeatureResult:
        return DropFeatureResult(
            table=self.planned.table,
            feature=self.options.feature,
            version=version,
            status=status,
            way=self.planned.way,
            commits=tuple(self.commits),
            checkpoints=tuple(self.checkpoints),
            cleaned=self.cleaned,
            protocol=self.planned.protocol_after if status == "dropped" else None,
            ready_at=ready_at,
            notes=(*self.notes, *(note for note in notes if note)),
        )

"""Removes a feature from the live files before it is dropped, in new files or in new adds.

For `deletionVectors`, the deleted rows are removed from the live files. For `typeWidening`, files
with earlier types are rewritten in the current types, and the record of the type changes is removed
from the schema. For features whose traces are only in the log, files are added again without the
fields of the feature, in batches while other writers commit. Their changes to a file take
precedence, so that no removed file is restored. The next pass handles files that they add with the
feature. Implements the writer requirements of "Type Widening" and "Deletion Vectors" for a
feature that will be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import pyarrow as pa

from delta_maintenance.errors import (
    CommitConflictError,
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
)
from delta_maintenance.operations.backfill_row_ids.batches import in_batches
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.drop_feature.preparation import Committer
from delta_maintenance.operations.drop_feature.traces import (
    CheckedFooters,
    file_traces,
    traced_files,
)
from delta_maintenance.operations.rewriting.choice import DOUBLED, ChoiceRules
from delta_maintenance.operations.rewriting.live_columns import OLD_TYPES, doubled_files_error
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.verb import RewriteVerb
from delta_maintenance.protocol.changes.drop import FeatureRemoval
from delta_maintenance.protocol.commit.conflicts import UNBACKFILL
from delta_maintenance.table.commit.beside_writers import PASSES, BesideWriters, restart_reading
from delta_maintenance.table.commit.concurrent_commits import Advance
from delta_maintenance.table.commit.other_writers import DeclaredWriters
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import adds_for_commits

Reason = Literal["deleted-rows", "old-types"]


def _verb(reason: Reason) -> RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]:
    return RewriteVerb(
        options_type=RewriteOptions,
        plan_type=RewritePlan,
        result_type=RewriteResult,
        operation="REORG",
        parameters={"applyPurge": True},
        rules=lambda _, target: ChoiceRules(
            target_bytes=target,
            small_bytes=0,
            merge_small=False,
            deleted_share=0.0 if reason == "deleted-rows" else None,
            full=True,
        ),
        footer_reasons=lambda _: [OLD_TYPES] if reason == "old-types" else [],
        reason=lambda _: f"files are rewritten for the reason {reason}",
    )


_VERBS: Mapping[Reason, RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]] = {
    "deleted-rows": _verb("deleted-rows"),
    "old-types": _verb("old-types"),
}


def _verb_of(removal: FeatureRemoval) -> RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]:
    assert removal.rewrites in ("deleted-rows", "old-types")
    return _VERBS[removal.rewrites]


def planned_rewrite(
    snapshot: Snapshot, removal: FeatureRemoval, *, writers: DeclaredWriters, now: datetime
) -> RewritePlan:
    """Plans which files to rewrite. Reads their footers for `old-types`.

    Raises `RefusedError` or `UnsupportedFeatureError` for a table that must not be rewritten.
    """
    options = RewriteOptions(
        engine="local", other_writers=writers.other_writers, quiet=writers.quiet
    )
    plan = _verb_of(removal).plan(snapshot, options, RunContext.at(now))
    if any(count.reason == DOUBLED for count in plan.left_alone):
        raise doubled_files_error(snapshot)
    return plan


def rewrite_files(
    committer: Committer, removal: FeatureRemoval, *, progress: Progress | None
) -> tuple[int, ...]:
    """Rewrites files until none uses the feature; returns the versions of the commits.

    Raises `RefusedError` if a file cannot be rewritten, `CorruptTableError` if one is damaged, and
    `CommitConflictError` if other writers keep adding such files.
    """
    verb, versions, writer = _verb_of(removal), set[int](), committer.writer
    for _ in range(PASSES):
        planned = planned_rewrite(committer.snapshot(), removal, writers=writer, now=writer.now())
        if planned.is_noop:
            return tuple(sorted(versions))
        context = RunContext(
            now=writer.now, new_id=writer.new_id, sleep=writer.sleep, progress=progress
        )
        result = verb.apply(committer.table, planned, context)
        versions |= {bin_.version for bin_ in result.bins if bin_.version is not None}
        for refused in result.refused:
            raise left_out(removal.feature, refused.problem, damaged=refused.damaged)
        if result.status in ("failed", "partly"):
            raise left_out(removal.feature, str(result.problem), damaged=False)
    raise CommitConflictError(
        f"other writers keep adding files that use {removal.feature}",
        table=committer.table.uri,
        remedy="run again when fewer writers are at work",
    )


def left_out(feature: str, problem: str, *, damaged: bool) -> DeltaMaintenanceError:
    """The error for a data file that prevents the drop."""
    kind = CorruptTableError if damaged else RefusedError
    return kind(
        f"a data file that uses {feature} is not rewritten: {problem}",
        remedy="repair the file, or rewrite it with the engine that wrote it",
    )


def forget_type_changes(
    committer: Committer, removal: FeatureRemoval, footers: CheckedFooters
) -> int | None:
    """Commits the schema without the record of type changes.

    Returns the version, or None if there is no such record. Before the commit, the footers of all
    live files are read, to ensure that no file has an earlier type. Raises `CommitConflictError` if
    a file has one, and the error of a footer that cannot be read.
    """

    def stage(snapshot: Snapshot) -> Transaction | None:
        after = removal.rewritten(snapshot.metadata)
        if after == snapshot.metadata:
            return None
        files = file_traces(snapshot, removal, footers=footers)
        if files.count:
            raise CommitConflictError(
                "a live file has an earlier type of a column",
                table=snapshot.table,
                version=snapshot.version,
                file=files.first,
                remedy="run again",
            )
        transaction = committer.begin(snapshot, "DROP FEATURE", parameters={"columns": "[]"})
        transaction.stage_metadata(after)
        return transaction

    # The files of a later version would not have been checked.
    return committer.commit(stage, only_next=True)


@dataclass(slots=True, kw_only=True)
class FileStripping:
    """Removes the fields of a feature from all live files. Call `run` once."""

    committer: Committer
    removal: FeatureRemoval
    files_per_commit: int
    expected: int
    """The number of files before the first pass."""
    progress: Progress | None = None
    versions: list[int] = field(default_factory=list)
    """The versions that were committed."""
    _done: int = 0

    def run(self) -> int:
        """Returns a version in which no live file has any of the fields.

        Raises `CommitConflictError` if other writers keep adding such files or use the feature
        again.
        """
        table = self.committer.table
        for _ in range(PASSES):
            version = restart_reading(table, table.snapshot(), self._pass)
            if version is not None:
                return version
        raise self._conflict(
            f"writers keep adding files with {self.removal.file_fields[0]}",
            "stop the writer that still uses the disabled feature, and run again",
        )

    def _pass(self, snapshot: Snapshot) -> int | None:
        """Removes the fields from the files of the snapshot; its version if no file had them."""
        self.committer.require_feature(snapshot)
        beside = BesideWriters(snapshot, follow=self._require_dropping)
        version: int | None = snapshot.version
        files = adds_for_commits(snapshot, traced_files(snapshot, self.removal))
        for batch in in_batches(files, self.files_per_commit):
            version = None
            landed = beside.commit_files(batch, self._stage)
            if landed is not None:
                self._report_progress(landed)
        return version

    def _require_dropping(self, moved: Advance) -> None:
        self._require_off(self.committer.require_feature(moved.snapshot))

    def _stage(self, base: Snapshot, files: pa.Table) -> Transaction:
        parameters: dict[str, object] = {"batchId": str(len(self.versions))}
        transaction = self.committer.begin(base, UNBACKFILL, parameters=parameters)
        transaction.read_files(files)
        transaction.stage_adds(
            files.drop_columns([n for n in self.removal.file_fields if n in files.column_names])
        )
        return transaction

    def _require_off(self, snapshot: Snapshot) -> None:
        # While the feature is enabled, files without its fields would be assigned new ones.
        trace = self.removal.metadata_trace(snapshot.metadata)
        if trace is not None:
            raise self._conflict(
                f"{trace} uses {self.committer.feature} again, although it was disabled",
                "plan again after other writers have stopped changing this",
            )

    def _conflict(self, problem: str, remedy: str) -> CommitConflictError:
        return CommitConflictError(problem, table=self.committer.table.uri, remedy=remedy)

    def _report_progress(self, landed: Landed) -> None:
        self.versions.append(landed.version)
        self._done += landed.num_adds
        if self.progress is not None:
            self.progress("strip-files", min(self._done, self.expected), self.expected)

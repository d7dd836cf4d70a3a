"""Deletes the log files that the retention of the table no longer needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.flags import option
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.holds.models import HeldBack, Holders, LastRead, Streams

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log.operation import apply, plan
    from delta_maintenance.operations.clean_staged import CleanStagedPlan, CleanStagedResult


LEAST_RETENTION = timedelta(hours=24)
"""A writer that stalled for longer than the log retention could write an existing version again."""

GroupKind = Literal[
    "compactions",
    "commits",
    "checksums",
    "checkpoints",
    "staged-commits",
    "rejected-commits",
    "hadoop-checksums",
    "temporary-files",
    "guarded-commits",
    "sidecars",
]
"""In the order of deletion: a file is deleted after all files that depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup(Record):
    """Files of one kind to delete."""

    kind: GroupKind
    count: int
    bytes: int
    first: str
    """The first and the last file to be deleted; names are relative to `_delta_log`."""
    last: str
    because: str
    kept: str | None
    """The file after the last one, which is kept."""
    kept_because: str | None
    names: tuple[str, ...]
    """All names, in the order of deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogOptions(Record):
    """How much history is kept."""

    log_retention: timedelta | None = option(
        None,
        "how long history is kept, such as '60 days'; by default the table's "
        "`delta.logRetentionDuration`. A shorter time than that, or than a day, requires "
        "`allow_short_retention` and `no_other_writers`",
        group="common",
    )
    allow_short_retention: bool = option(
        False,
        "allow deleting history within the table's own retention or of the last day",
        group="safety",
    )
    no_other_writers: bool = option(
        False,
        "confirm that no client writes to the table or reads its history during the run",
        group="safety",
    )
    as_of: Instant | None = None
    """The instant as of which ages are computed: files whose retention ended later are kept. Used
    to apply a plan that was approved some time ago.
    """
    streams: Streams = ()
    last_read: LastRead = ()
    holders: Holders = Holders()
    """What else holds versions: kept versions and readers. The kept versions in the log always
    count."""
    to_the_minute: bool = False
    """Whether the log retention boundary is rounded to the minute instead of to midnight, for
    callers that wait for history to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogPlan(Plan):
    """The files to delete, the reason, and the files that are kept."""

    planned_at: datetime
    options: CleanLogOptions
    cut_off_instant: datetime | None
    """Midnight UTC, or the full minute if requested. The version that was current then and all
    later versions are kept."""
    cut_off_commit: int | None
    """The newest commit that is not newer than that instant."""
    oldest_version: int | None
    """The oldest version that can be opened afterwards: that of the cut-off checkpoint."""
    cut_off_checkpoint: str | None
    """The first file of the checkpoint, relative to `_delta_log`."""
    held: tuple[HeldBack, ...] = ()
    """The files of the log that would be deleted if their holders did not need their versions."""
    groups: tuple[FileGroup, ...]
    """Empty if there is nothing to do."""
    needs_classic_name: bool = False
    """Whether the cut-off checkpoint is first copied to a name that clients without V2 can see."""
    stale_hint: int | None = None
    """The version in `_last_checkpoint` if its checkpoint will be deleted; the hint is then
    replaced.
    """

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup(Record):
    """The result for one group."""

    kind: GroupKind
    planned: int
    deleted: int
    """Deleted files, including those that another process deleted first."""
    bytes: int = 0
    """Their bytes; 0 if some of the planned files are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLogResult(Result):
    """The deleted files."""

    status: Literal["cleaned", "partly", "nothing-to-do"]
    """`partly`: a file could not be deleted, and later files were not touched. Every retained
    version can be opened; run again."""
    oldest_version: int | None = None
    """The oldest version that can be opened."""
    held: tuple[HeldBack, ...] = ()
    """The files that would have been deleted if their holders did not need their versions."""
    groups: tuple[CleanedGroup, ...] = ()
    failures: tuple[str, ...] = ()
    """The first files that may still exist, with reasons."""
    failed: int = 0
    """The number of files that may still exist."""
    compatible_checkpoint: str | None = None
    """The classic-named copy of the cut-off checkpoint, if one was written."""
    hint_updated: bool = False


def plan_facts(plan: CleanLogPlan) -> Facts:
    """The groups of files to delete, and the files that are kept."""
    facts: dict[str, object] = {"oldest version": plan.oldest_version, "reason": plan.reason}
    facts["held by"] = [str(holder) for holder in plan.held]
    facts |= group_facts(plan.groups)
    if plan.needs_classic_name:
        facts["first"] = (
            "the cut-off checkpoint is also written under a classic name, for clients without V2"
        )
    return facts


def group_facts(groups: Iterable[FileGroup]) -> Facts:
    """The files of each group, and the reason why the next file is kept."""
    return {
        group.kind: [
            f"{count_text(group.count, 'file')} ({size_text(group.bytes)}): {group.because}",
            group.first if group.count == 1 else f"{group.first} to {group.last}",
            *([f"{group.kept} stays: {group.kept_because}"] if group.kept else ()),
        ]
        for group in groups
    }


def result_facts(result: CleanLogResult) -> Facts:
    """The deleted files of each group."""
    facts: dict[str, object] = {"oldest version": result.oldest_version}
    facts["held by"] = [str(holder) for holder in result.held]
    for group in result.groups:
        facts[group.kind] = f"{group.deleted:,} of {group.planned:,} deleted"
    facts["compatible checkpoint"] = result.compatible_checkpoint
    facts["_last_checkpoint updated"] = result.hint_updated or None
    facts["failures"] = result.failures
    return facts


def planned_amounts(plan: CleanLogPlan | CleanStagedPlan) -> Amounts:
    """The files to delete."""
    return Amounts(
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def done_amounts(result: CleanLogResult | CleanStagedResult) -> Amounts:
    """The deleted files."""
    return Amounts(
        deleted_files=sum(group.deleted for group in result.groups),
        deleted_bytes=sum(group.bytes for group in result.groups),
    )


def conclusion(result: CleanLogResult | CleanStagedResult, outcome: Outcome) -> Conclusion:
    """Names the first file that could not be deleted."""
    if not result.failed:
        return Conclusion(outcome=outcome)
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(result.failed, 'file')} could not be deleted, first "
        f"{result.failures[0]}; no later file was touched",
        remedy="see the Result, and run again",
    )


RECORD = OperationRecord(
    name="clean-log",
    title="Clean up the log",
    purpose="log",
    summary="delete history beyond the retention",
    description=(
        "Delete the files of the log that are older than the newest checkpoint at or before the "
        "log retention boundary: commits, checkpoints of every kind, checksums, compactions, "
        "unreferenced sidecars, and leftovers of failed writers. That checkpoint is read before "
        "anything is deleted, and the remaining log is complete whenever the command stops."
    ),
    options=CleanLogOptions,
    plan=CleanLogPlan,
    result=CleanLogResult,
    code="delta_maintenance.operations.clean_log.operation",
    outcomes={
        "cleaned": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(deletes=True),
    requires=("clean-log",),
    policy=PolicyPart(
        key="clean_log",
        rule="delta_maintenance.operations.clean_log.policy:CleanLogRule",
        description="Deletion of history.",
        due="delta_maintenance.operations.clean_log.policy:due",
    ),
    report="every file to delete",
    decisive=("cut_off_instant", "oldest_version", "groups"),
    asks_for_approval=lambda plan: bool(plan.groups),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")

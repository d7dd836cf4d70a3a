"""Removes a table feature from a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.clean_log import CleanLogResult, FileGroup
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, instant_text, size_text
from delta_maintenance.operations.core.flags import Flag, option
from delta_maintenance.operations.core.operation import Amounts, Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Instant, Positive, Record
from delta_maintenance.operations.holds.models import HeldBack, Holders
from delta_maintenance.operations.table_change.documents import (
    CutOff,
    ProtocolVersions,
    cut_off_text,
    protocol_text,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.drop_feature.operation import apply, plan


Way = Literal["direct", "protect-history", "truncate-history"]
"""The treatment of older versions. `direct`: clients without the feature may read them."""
Status = Literal["dropped", "waiting", "nothing-to-do"]
"""`waiting`: the feature is disabled, but the history that used it is not old enough to be deleted.
"""
StepKind = Literal[
    "remove-domains",
    "switch-off",
    "rewrite-files",
    "forget-type-changes",
    "remove-mapping",
    "strip-files",
    "keep-vector-files",
    "barrier-checkpoints",
    "cut-off-checkpoint",
    "truncate-history",
    "drop",
    "checkpoint",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeatureOptions(Record):
    """The feature to drop, and how."""

    feature: Annotated[
        str,
        Flag(
            "the table feature, by its name in the protocol",
            metavar="NAME",
            example="deletionVectors",
        ),
    ]
    truncate_history: bool = option(
        False,
        "delete the versions that used the feature, instead of protecting them with "
        "checkpointProtection. This takes a second run, once they are older than the table's "
        "delta.dropFeatureTruncateHistory.retentionDuration, by default a day",
        group="common",
    )
    other_writers: flags.OtherWritersField = None
    """A retention of history below a day requires `none`."""
    quiet: flags.QuietField = None
    operation_id: flags.OperationId = None
    """By default the plan's ID."""
    operation_since: flags.OperationSince = None
    files_per_commit: Positive = option(
        22_000,
        "files that one commit adds again without row IDs, by default {default}",
        group="commits and other writers",
    )
    as_of: Instant | None = None
    """For `truncate_history`: the instant at which ages are measured, so that history whose
    retention ended later is kept. Set for a plan that was approved some time ago.
    """
    holders: Holders = Holders()
    """For `truncate_history`: whose versions are kept. The kept versions in the log of the table
    always count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep(Record):
    """One step of a plan."""

    kind: StepKind
    detail: str
    """One clause: the step and its reason."""
    commits: int = 0
    """The number of versions that the step adds if there are no conflicts."""
    memory_bytes: int = 0
    """The maximum memory of a step that writes data files in bytes, 0 for any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeaturePlan(Plan):
    """The steps of `apply`, and the steps that are not possible yet."""

    planned_at: Instant
    options: DropFeatureOptions
    operation_id: str
    way: Way | None
    """None if there is nothing to do."""
    steps: tuple[DropStep, ...]
    """The steps in the order of execution."""
    ends: Status
    """The status of the result if there are no conflicts."""
    ready_at: Instant | None = None
    """For `waiting`: the instant from which another run can drop the feature; None if unknown."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    """The protocol without the feature."""
    opened_to: tuple[str, ...] = ()
    """Clients that can read or write the table afterwards, but certainly or possibly not now."""
    cut_off: tuple[CutOff, ...] = ()
    """Clients that certainly or possibly lose access."""
    history_traces: tuple[str, ...] = ()
    """The first files of the log that use the feature, each with its trace, if that matters."""
    num_history_traces: int = 0
    """The number of all such files."""
    oldest_version: int | None = None
    """If history is truncated: the oldest version that can be opened afterwards."""
    groups: tuple[FileGroup, ...] = ()
    """The files of the log that the truncation deletes."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return self.ends == "nothing-to-do"

    @property
    def num_commits(self) -> int:
        """The number of versions that `apply` adds if there are no conflicts."""
        return sum(step.commits for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCommit(Record):
    """A version that was committed."""

    kind: StepKind
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeatureResult(Result):
    """The completed steps."""

    table: str
    feature: str
    version: int
    """The version that dropped the feature; otherwise the latest version that was read."""
    status: Status
    way: Way | None = None
    commits: tuple[DropCommit, ...] = ()
    """The commits in the order of their versions."""
    checkpoints: tuple[int, ...] = ()
    """The versions for which this run wrote a checkpoint."""
    cleaned: CleanLogResult | None = None
    """The result of the log clean-up, if history was truncated."""
    protocol: ProtocolVersions | None = None
    """The protocol without the feature, if it was dropped."""
    ready_at: Instant | None = None
    """For `waiting`: the instant from which another run can drop the feature; None if unknown."""
    held: tuple[HeldBack, ...] = ()
    """For `waiting`: the holders of versions that use the feature, which wait for no instant."""


def plan_facts(plan: DropFeaturePlan) -> Facts:
    """Returns the facts of a plan: the steps, their effects, and the affected clients."""
    before, after = plan.protocol_before, plan.protocol_after
    memory = max((step.memory_bytes for step in plan.steps), default=0)
    return {
        "ends": plan.ends,
        "ready at": instant_text(plan.ready_at),
        "reason": plan.reason,
        "protocol": protocol_text(before),
        "becomes": None if after == before else protocol_text(after),
        "steps": [f"{step.kind}: {step.detail}" for step in plan.steps],
        "memory": f"at most {size_text(memory)}" if memory else None,
        "in the way": plan.history_traces,
        "opened to": plan.opened_to,
        "cut off": [cut_off_text(cut) for cut in plan.cut_off],
    }


def result_facts(result: DropFeatureResult) -> Facts:
    """Returns the facts of a result: the commits and the completed steps."""
    return {
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "ready at": instant_text(result.ready_at),
        "commits": [f"{commit.version}: {commit.kind}" for commit in result.commits],
        "checkpoints": ", ".join(map(str, result.checkpoints)),
        "oldest version": result.cleaned.oldest_version if result.cleaned else None,
    }


def planned_amounts(plan: DropFeaturePlan) -> Amounts:
    """Returns the number of commits of all steps, and of log files to be deleted."""
    return Amounts(
        commits=plan.num_commits,
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def done_amounts(result: DropFeatureResult) -> Amounts:
    """Returns the numbers of commits and of deleted log files."""
    cleaned = result.cleaned.groups if result.cleaned is not None else ()
    return Amounts(
        commits=len(result.commits),
        deleted_files=sum(group.deleted for group in cleaned),
        deleted_bytes=sum(group.bytes for group in cleaned),
    )


def conclusion(result: DropFeatureResult, outcome: Outcome) -> Conclusion:
    """Returns the conclusion of a result, and from when another run can drop the feature."""
    if outcome is not Outcome.WAITING:
        return Conclusion(outcome=outcome)
    ready = instant_text(result.ready_at)
    when = "once the notes no longer name a reason" if ready is None else f"at {ready} or later"
    if result.held:
        when = (
            f"{when if ready else ''} once nothing holds these versions, of which keep-version "
            f"--release ends kept ones: {', '.join(map(str, result.held))}"
        ).strip()
    return Conclusion(
        outcome=outcome,
        problem=f"{result.feature} is switched off, but not dropped yet",
        remedy=f"run again {when}",
    )


RECORD = OperationRecord(
    name="drop-feature",
    title="Drop a table feature",
    purpose="table",
    summary="remove a table feature, for more clients",
    description=(
        "Disable a table feature, remove its traces from the table, verify in the log that none is "
        "left, and drop the feature from the protocol. Older versions are kept and protected from "
        "clients that would misread them, or are deleted. Another run completes an interrupted one."
    ),
    options=DropFeatureOptions,
    plan=DropFeaturePlan,
    result=DropFeatureResult,
    code="delta_maintenance.operations.drop_feature.operation",
    outcomes={
        "dropped": Outcome.DONE,
        "waiting": Outcome.WAITING,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("feature",),
    # Without the steps, because an interrupted run leaves fewer steps.
    decisive=("ends", "protocol_before", "protocol_after", "oldest_version", "groups"),
    asks_for_approval=lambda plan: plan.ends != "nothing-to-do",
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")

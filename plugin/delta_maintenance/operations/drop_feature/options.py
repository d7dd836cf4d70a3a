"""Options, Plan and Result of `drop-feature`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.clean_log.options import CleanLogResult, FileGroup
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record
from delta_maintenance.operations.table_change.options import (
    CutOff,
    ProtocolVersions,
)

Way = Literal["direct", "protect-history", "truncate-history"]
"""The treatment of older versions. `direct`: clients without the feature may read them."""
Status = Literal["dropped", "waiting", "nothing-to-do"]
"""`waiting`: the feature is switched off, but history that used it is not old enough to go."""
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
            metavar="NAME",
            help="the table feature, by its name in the protocol",
            example="deletionVectors",
        ),
    ]
    """Its name, exactly as the protocol of the table has it."""
    truncate_history: Annotated[
        bool,
        Flag(
            help="delete the versions that used the feature, instead of protecting them with "
            "checkpointProtection. This takes a second run, once they are older than the table's "
            "delta.dropFeatureTruncateHistory.retentionDuration, by default a day"
        ),
    ] = False
    """Whether versions that used the feature are deleted, in two runs, instead of being protected
    by `checkpointProtection`, which writers must support from then on."""
    other_writers: flags.OtherWritersField = None
    """The other writers of a table on S3. A retention of history below a day requires `none`."""
    operation_id: flags.OperationId = None
    """Names the request, so that a retried task performs it once; by default the plan's own ID."""
    operation_since: flags.OperationSince = None
    """The first start of the task: with an `operation_id`, older commits are not searched."""
    files_per_commit: Annotated[
        int,
        AtLeast(1),
        Flag(help="files that one commit adds again without row IDs, by default {default}"),
    ] = 22_000
    """The number of files that one commit adds again without fields of the feature."""
    as_of: Instant | None = None
    """For `truncate_history`: the instant at which ages are measured, so that history whose
    retention ended later is kept. For a plan that was approved some time ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep(Record):
    """One thing to be done."""

    kind: StepKind
    detail: str
    """One clause: the step and its reason."""
    commits: int = 0
    """The number of versions that it adds without conflicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeaturePlan(Record):
    """The steps of `apply`, and the steps that are not possible yet."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: Instant
    options: DropFeatureOptions
    operation_id: str
    way: Way | None
    """None where there is nothing to do."""
    steps: tuple[DropStep, ...]
    """In their order."""
    ends: Status
    """The status that the result will have without conflicts."""
    ready_at: Instant | None = None
    """For `waiting`: the instant from which another run can drop the feature; None if unknown."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    """Once the feature is gone."""
    opened_to: tuple[str, ...] = ()
    """Clients that can read or write the table then, and cannot, or may not, now."""
    cut_off: tuple[CutOff, ...] = ()
    """Clients that can do less then, or may."""
    history_traces: tuple[str, ...] = ()
    """The first files of the log that use the feature, each with its trace, if that matters."""
    num_history_traces: int = 0
    """How many there are."""
    oldest_version: int | None = None
    """Where history is truncated: the oldest version that opens afterwards."""
    groups: tuple[FileGroup, ...] = ()
    """The files of the log that go then."""
    reason: str
    """One sentence: why this way, or why there is nothing to do."""
    notes: tuple[str, ...] = ()
    """Remaining parts, and the new requirements of clients."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return self.ends == "nothing-to-do"

    @property
    def num_commits(self) -> int:
        """The number of versions that `apply` adds without conflicts."""
        return sum(step.commits for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCommit(Record):
    """A version that was committed."""

    kind: StepKind
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeatureResult(Record):
    """The completed steps."""

    table: str
    feature: str
    version: int
    """That of the commit that dropped the feature, else the latest one seen."""
    status: Status
    way: Way | None = None
    commits: tuple[DropCommit, ...] = ()
    """In their order."""
    checkpoints: tuple[int, ...] = ()
    """Versions that have a checkpoint now because of this run."""
    cleaned: CleanLogResult | None = None
    """The result of the log clean-up, if history was truncated."""
    protocol: ProtocolVersions | None = None
    """The protocol without the feature, if it was dropped."""
    ready_at: Instant | None = None
    """For `waiting`: the instant from which another run can drop the feature; None if unknown."""
    notes: tuple[str, ...] = ()

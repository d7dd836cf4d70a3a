"""Options, Plan and Result of `drop-feature`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.clean_log.options import CleanLogResult, FileGroup
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record
from delta_maintenance.operations.holds.held_back import HeldBack
from delta_maintenance.operations.holds.options import Holders
from delta_maintenance.operations.table_change.options import CutOff, ProtocolVersions

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
    truncate_history: Annotated[
        bool,
        Flag(
            "delete the versions that used the feature, instead of protecting them with "
            "checkpointProtection. This takes a second run, once they are older than the table's "
            "delta.dropFeatureTruncateHistory.retentionDuration, by default a day"
        ),
    ] = False
    other_writers: flags.OtherWritersField = None
    """A retention of history below a day requires `none`."""
    operation_id: flags.OperationId = None
    """By default the plan's ID."""
    operation_since: flags.OperationSince = None
    files_per_commit: Annotated[
        int,
        AtLeast(1),
        Flag("files that one commit adds again without row IDs, by default {default}"),
    ] = 22_000
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
class DropFeaturePlan(Document):
    """The steps of `apply`, and the steps that are not possible yet."""

    table: str
    version: int
    """The latest version when the plan was made."""
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
    reason: str
    """One sentence: the reason for `way`, or why there is nothing to do."""
    notes: tuple[str, ...] = ()
    """The parts that remain, and the new requirements for clients."""

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
class DropFeatureResult(Document):
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
    notes: tuple[str, ...] = ()

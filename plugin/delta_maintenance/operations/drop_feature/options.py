"""What goes into the `drop-feature` operation and what comes out of it."""

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
"""What becomes of older versions. `direct`: clients without the feature may read them as they are.
"""
Status = Literal["dropped", "waiting", "nothing-to-do"]
"""`waiting`: the feature is switched off, but history that used it is not old enough to go."""
StepKind = Literal[
    "remove-domains",
    "switch-off",
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
    """Which feature is to go, and how."""

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
            help="clean versions that used the feature away, instead of protecting them by "
            "checkpointProtection. That takes a second run, once they are older than the table's "
            "delta.dropFeatureTruncateHistory.retentionDuration, by default a day"
        ),
    ] = False
    """Whether versions that used it are cleaned away, in two runs, instead of being protected by
    `checkpointProtection`, which writers have to know from then on."""
    other_writers: flags.OtherWritersField = None
    """Who else commits to a table on S3. A retention of history below a day takes `none`."""
    operation_id: flags.OperationId = None
    """Names what is asked for, so that the same task does it once; by default the plan's own."""
    operation_since: flags.OperationSince = None
    """When the task first began: with an `operation_id`, older commits are not looked at."""
    files_per_commit: Annotated[
        int,
        AtLeast(1),
        Flag(help="files that one commit adds again without row IDs, by default {default}"),
    ] = 22_000
    """How many files one commit adds again without what they have of the feature."""
    as_of: Instant | None = None
    """Of `truncate_history`: an instant at which everything was as old as it counts, so that what
    has outlived the retention since then stays. For a plan that was approved a while ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStep(Record):
    """One thing to be done."""

    kind: StepKind
    detail: str
    """One clause: what it does, and why."""
    commits: int = 0
    """Versions that it adds, if nobody interferes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeaturePlan(Record):
    """What `apply` will do, and what it cannot do yet."""

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
    """What comes of it if nobody interferes."""
    ready_at: Instant | None = None
    """Where it ends in `waiting`: from when on another run can drop the feature; None where
    nobody can tell."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    """Once the feature is gone."""
    opened_to: tuple[str, ...] = ()
    """Clients that can read or write the table then, and cannot, or may not, now."""
    cut_off: tuple[CutOff, ...] = ()
    """Clients that can do less then, or may."""
    history_traces: tuple[str, ...] = ()
    """The first files of the log that use the feature, with what of them does, as far as that
    matters."""
    num_history_traces: int = 0
    """How many there are."""
    oldest_version: int | None = None
    """Where history is truncated: the oldest version that opens afterwards."""
    groups: tuple[FileGroup, ...] = ()
    """The files of the log that go then."""
    reason: str
    """One sentence: why this way, or why there is nothing to do."""
    notes: tuple[str, ...] = ()
    """What stays, and who needs what from now on."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return self.ends == "nothing-to-do"

    @property
    def num_commits(self) -> int:
        """Versions that `apply` adds, if nobody interferes."""
        return sum(step.commits for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCommit(Record):
    """A version that was committed."""

    kind: StepKind
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFeatureResult(Record):
    """What was done."""

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
    """What became of the history, where it was truncated."""
    protocol: ProtocolVersions | None = None
    """The one without the feature, once that is dropped."""
    ready_at: Instant | None = None
    """Of `waiting`: from when on another run can drop the feature; None where nobody can tell."""
    notes: tuple[str, ...] = ()

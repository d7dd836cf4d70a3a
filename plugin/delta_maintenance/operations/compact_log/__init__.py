"""Writes log compactions: one file in place of many commits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Bounds, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.compact_log.operation import apply, plan


Version = Annotated[int, Bounds(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogOptions(Record):
    """Options of a log compaction."""

    commits_per_file: Annotated[int, Bounds(2)] = policy_option(
        10, "the number of commits per compaction, by default {default}", group="common"
    )
    """A reader opens one file per full window and every commit after the last window. Between two
    checkpoints that are n commits apart, that number is smallest for windows of about the square
    root of n commits, and most tables get a checkpoint every ten to a hundred commits."""
    first_version: Version | None = option(
        None,
        "the first version to cover, by default the one after the newest checkpoint",
        name="--from",
        group="common",
    )
    last_version: Version | None = option(
        None,
        "the last version that may be covered, by default the latest",
        name="--to",
        group="common",
    )
    partial: bool = option(
        False,
        "let the last compaction cover fewer commits; otherwise, the last commits wait "
        "until there are enough of them",
        group="common",
    )
    """The next run begins after it, because compactions never overlap."""
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 8 << 30
    """With `engine="auto"`: the bytes of commits in one window from which on Spark is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWindow(Record):
    """Adjacent commits for one compaction."""

    first_version: int
    last_version: int
    """Inclusive."""
    log_bytes: int
    """The size of its commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogPlan(Plan):
    """The planned compactions, and the reason."""

    planned_at: datetime
    windows: tuple[CompactionWindow, ...]
    """Empty if there is nothing to do."""
    reason: str
    """One sentence: the reason for these windows, or why there are none."""
    log_bytes: int
    """The size of all commits to be read."""
    engine: Literal["local", "spark"] = "local"

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.windows


WindowStatus = Literal["written", "already-there", "empty", "gone", "refused", "differs"]
"""`empty`: no action remains after reconciliation, and an empty file would look like damage.
`gone`: a commit was deleted in the meantime. `refused`: the commits cannot be reconciled with
certainty, see `reason`. `differs`: another writer's compaction exists and contradicts its commits;
it was not touched, but readers that use it see a wrong table."""


FAILED: tuple[WindowStatus, ...] = ("refused", "differs")
"""Statuses that need the attention of a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedWindow(Record):
    """The result for one window."""

    first_version: int
    last_version: int
    status: WindowStatus
    path: str | None = None
    """The compaction, relative to the table root."""
    bytes_written: int = 0
    num_adds: int = 0
    num_removes: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLogResult(Result):
    """The written compactions."""

    status: Literal["written", "already-there", "nothing-to-do", "failed"]
    """`failed`: at least one window is refused or differs; see each window for its own status."""
    windows: tuple[CompactedWindow, ...] = ()
    bytes_written: int = 0
    engine: Literal["local", "spark"] = "local"

    @property
    def failures(self) -> tuple[CompactedWindow, ...]:
        """The windows that need the attention of a person."""
        return tuple(window for window in self.windows if window.status in FAILED)


def plan_facts(plan: CompactLogPlan) -> Facts:
    """The windows, and the reason for them."""
    return {
        "windows": [f"{w.first_version} to {w.last_version}" for w in plan.windows],
        "reason": plan.reason,
        "to read": size_text(plan.log_bytes),
        "engine": plan.engine,
    }


def result_facts(result: CompactLogResult) -> Facts:
    """The result for each window."""
    return {
        "windows": [
            f"{w.first_version} to {w.last_version}: {w.status}"
            + (f", {w.reason}" if w.reason else "")
            for w in result.windows
        ],
        "written": size_text(result.bytes_written),
    }


def conclusion(result: CompactLogResult, outcome: Outcome) -> Conclusion:
    """Names the first window that was not compacted."""
    if not result.failures:
        return Conclusion(outcome=outcome)
    failure = result.failures[0]
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(len(result.failures), 'window')} could not be compacted, the first "
        f"from version {failure.first_version} to {failure.last_version}: {failure.reason}",
        file=failure.path,
        remedy="see the Result for each of them",
    )


RECORD = OperationRecord(
    name="compact-log",
    title="Compact the log",
    purpose="log",
    summary="combine the commits after a checkpoint",
    description=(
        "Write log compactions, which readers may read in place of the commits they cover. Adds "
        "no version and deletes nothing. Each compaction is read back and compared before "
        "readers can see it."
    ),
    options=CompactLogOptions,
    plan=CompactLogPlan,
    result=CompactLogResult,
    code="delta_maintenance.operations.compact_log.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
        "failed": Outcome.FAILED,
    },
    effects=Effects(adds_files=True),
    requires=("compact-log",),
    spark=SparkPart(engine="delta_maintenance.spark.compact_log:SparkRange", pins_version=True),
    policy=PolicyPart(
        key="compact_log",
        rule="delta_maintenance.operations.compact_log.policy:CompactLogRule",
        description="Log compactions.",
        due="delta_maintenance.operations.compact_log.policy:due",
    ),
    reuses_snapshot=True,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda result: result.status in ("written", "failed"),
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")

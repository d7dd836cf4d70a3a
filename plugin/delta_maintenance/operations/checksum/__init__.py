"""Writes version checksums, so that readers can skip the log for protocol, metadata and counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.flags import option
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Record

if TYPE_CHECKING:
    from delta_maintenance.operations.checksum.operation import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumOptions(Record):
    """Options of version checksums."""

    checkpoints: bool = option(
        True,
        "also write the checksum of each version with a checkpoint, which is the default; "
        "otherwise only that of the latest version",
        group="common",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumPlan(Plan):
    """The planned checksums, and their reason."""

    planned_at: datetime
    versions: tuple[int, ...]
    """The versions that get a checksum, ascending; empty if there is nothing to do."""
    reason: str
    """One sentence: the reason for the versions, or why there is nothing to do."""
    log_bytes: int
    """The size of the log files of the latest version in bytes. Each checksum reads them."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return not self.versions


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOutcome(Record):
    """The outcome for one version."""

    version: int
    status: Literal["written", "already-there", "gone"]
    """`gone`: the log of the version was cleaned up in the meantime."""
    path: str | None = None
    """The path of the checksum, relative to the table root."""
    bytes_written: int = 0
    num_files: int = 0
    total_size: int = 0
    """The size of the live data files in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumResult(Result):
    """The written checksums."""

    status: Literal["written", "already-there", "nothing-to-do"]
    """`already-there`: other writers wrote all of them first."""
    versions: tuple[VersionOutcome, ...] = ()
    bytes_written: int = 0


def plan_facts(plan: ChecksumPlan) -> Facts:
    """The versions that get a checksum."""
    return {
        "versions": ", ".join(f"{version:,}" for version in plan.versions),
        "reason": plan.reason,
        "log": f"{size_text(plan.log_bytes)}, read once for each checksum",
    }


def result_facts(result: ChecksumResult) -> Facts:
    """The written checksums, with what they count."""
    return {
        "checksums": Grid(
            ("version", "status", "live files", "size"),
            [
                (outcome.version, outcome.status, outcome.num_files, size_text(outcome.total_size))
                if outcome.path is not None
                else (outcome.version, outcome.status, "", "")
                for outcome in result.versions
            ],
        )
    }


RECORD = OperationRecord(
    name="checksum",
    title="Write version checksums",
    purpose="log",
    summary="write missing version checksums",
    description=(
        "Write the version checksum of the latest version and of each version with a checkpoint "
        "that has none. Adds no version, deletes nothing, and never changes an existing checksum."
    ),
    options=ChecksumOptions,
    plan=ChecksumPlan,
    result=ChecksumResult,
    code="delta_maintenance.operations.checksum.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    requires=("checkpoint",),
    policy=PolicyPart(
        key="checksum",
        rule="bool",
        description="Version checksums for readers, if writers write none.",
        due="delta_maintenance.operations.checksum.operation:due",
    ),
    plan_facts=plan_facts,
    result_facts=result_facts,
    reuses_snapshot=True,
    wrote=lambda result: result.status == "written",
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")

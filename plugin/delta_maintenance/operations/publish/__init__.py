"""Publishes the ratified commits of a catalog-managed table, and reports them to its catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta_maintenance.catalogs.catalog import RatifiedCommit
from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.publish.operation import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions(Record):
    """Options of a publication; there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan(Plan):
    """The commits to publish and to report."""

    planned_at: Instant
    table_id: str
    """The ID of the table in its catalog; a report for another table is refused."""
    commits: tuple[RatifiedCommit, ...]
    """Ascending and contiguous; empty if there is nothing to do."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write and report nothing."""
        return not self.commits


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCommit(Record):
    """A commit whose published file was read and has the right content."""

    version: int
    size: int
    """Bytes."""
    status: Literal["published", "already-there"]
    """`already-there`: another client published it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult(Result):
    """The published commits."""

    status: Literal["published", "reported", "nothing-to-do"]
    """`reported`: other clients had published all of them."""
    commits: tuple[PublishedCommit, ...] = ()
    reported_version: int | None = None
    """The catalog knows that all commits up to this version are published."""
    bytes_written: int = 0


def plan_facts(plan: PublishPlan) -> Facts:
    """The commits to publish."""
    return {
        "reason": plan.reason,
        "commits": Grid(
            ("version", "staged file"),
            [(commit.version, commit.file_name) for commit in plan.commits],
        ),
    }


def result_facts(result: PublishResult) -> Facts:
    """The published commits, and what the catalog knows of them."""
    return {
        "reported up to version": result.reported_version,
        "commits": Grid(
            ("version", "size", "status"),
            [(commit.version, size_text(commit.size), commit.status) for commit in result.commits],
        ),
    }


RECORD = OperationRecord(
    name="publish",
    title="Publish commits",
    purpose="log",
    summary="publish the commits that a catalog has ratified",
    description=(
        "Publish each commit that the catalog of the table lists, in order, as a copy of its "
        "staged file; read it back; and report the last one, so that the catalog permits further "
        "commits. An existing file is compared and never changed. Adds no version and deletes "
        "nothing."
    ),
    options=PublishOptions,
    plan=PublishPlan,
    result=PublishResult,
    code="delta_maintenance.operations.publish.operation",
    outcomes={
        "published": Outcome.DONE,
        "reported": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    takes="table",
    example_table="uc://main.sales.orders",
    policy=PolicyPart(
        key="publish",
        rule="delta_maintenance.operations.publish.policy:PublishRule",
        description="Publication of the commits of catalog-managed tables.",
        due="delta_maintenance.operations.publish.policy:due",
    ),
    plan_facts=plan_facts,
    result_facts=result_facts,
    wrote=lambda result: result.status == "published",
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")

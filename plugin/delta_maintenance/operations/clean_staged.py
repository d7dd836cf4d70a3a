"""Deletes the staged files that a catalog-managed table no longer needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.clean_log import (
    CleanedGroup,
    FileGroup,
    conclusion,
    done_amounts,
    group_facts,
    planned_amounts,
)
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.operation import Effects, OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.clean_log.staged_files import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStagedOptions(Record):
    """The ages are fixed: a day, and the log retention of the table."""

    as_of: Instant | None = None
    """The instant as of which ages are computed: files that became old later are kept. Used to
    apply a plan that was approved some time ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStagedPlan(Plan):
    """The staged files to delete, and the reason."""

    planned_at: Instant
    options: CleanStagedOptions
    groups: tuple[FileGroup, ...]
    """`staged-commits` have the size of their published commits, and are compared with them before
    they are deleted. Empty if there is nothing to do."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would delete nothing."""
        return not self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStagedResult(Result):
    """The deleted files."""

    status: Literal["cleaned", "partly", "nothing-to-do"]
    """`partly`: a file could not be deleted, and later files were not touched. Run again."""
    groups: tuple[CleanedGroup, ...] = ()
    failures: tuple[str, ...] = ()
    """The first files that may still exist, with reasons."""
    failed: int = 0
    """The number of files that may still exist."""


def plan_facts(plan: CleanStagedPlan) -> Facts:
    """The files to delete."""
    return {"reason": plan.reason, **group_facts(plan.groups)}


def result_facts(result: CleanStagedResult) -> Facts:
    """The deleted files."""
    facts: dict[str, object] = {
        group.kind: f"{group.deleted:,} of {group.planned:,} deleted" for group in result.groups
    }
    return {**facts, "failures": result.failures}


RECORD = OperationRecord(
    name="clean-staged",
    title="Clean up staged commits",
    purpose="log",
    summary="delete staged files of published commits",
    description=(
        "Delete staged files of a catalog-managed table: copies of commits that were published "
        "and reported to the catalog more than a day ago; and those of rejected commits that are "
        "older than the log retention, up to the newest checkpoint. A copy is compared with its "
        "published commit first. The files of the newest ten versions stay. The catalog must "
        "permit METADATA_CLEANUP."
    ),
    options=CleanStagedOptions,
    plan=CleanStagedPlan,
    result=CleanStagedResult,
    code="delta_maintenance.operations.clean_log.staged_files",
    outcomes={
        "cleaned": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(deletes=True),
    requires=("clean-staged",),
    example_table="uc://main.sales.orders",
    policy=PolicyPart(
        key="clean_staged",
        rule="delta_maintenance.operations.clean_log.staged_policy:CleanStagedRule",
        description="Deletion of the staged files of catalog-managed tables.",
        due="delta_maintenance.operations.clean_log.staged_policy:due",
    ),
    decisive=("groups",),
    asks_for_approval=lambda plan: bool(plan.groups),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)

__getattr__, __dir__ = lazy_names(__name__, f"{__package__}.clean_log", staged_files="apply plan")

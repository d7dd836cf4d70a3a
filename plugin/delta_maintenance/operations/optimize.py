"""Merges small data files, and rewrites files with many deleted rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.core.record import Bounds, Percent
from delta_maintenance.operations.rewriting.models import NewFileOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.record import rewrite_record

if TYPE_CHECKING:
    from delta_maintenance.operations.rewriting.optimize import apply, plan, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions(NewFileOptions):
    """Options that select the files to merge or rewrite."""

    min_files: Annotated[int, Bounds(2)] = policy_option(
        2,
        "the number of small files in a partition from which they are merged, by default {default}",
        group="common",
    )
    deleted_percent: Percent = policy_option(
        5,
        "rewrite files with a larger percentage of deleted rows, by default {default}",
        group="common",
    )
    int96: bool = option(
        False, "rewrite files with timestamps of the old type INT96; reads all footers"
    )
    other_codecs: bool = option(
        False, "rewrite files with another codec than the table's; reads all footers"
    )
    full: bool = option(False, "also rewrite files of a clustering, which loses their clustering")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizePlan(RewritePlan):
    """The files that `apply` would rewrite, in numbers, and why."""

    options: OptimizeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult(RewriteResult):
    """The result of an `optimize`."""


RECORD = rewrite_record(
    "optimize",
    title="Optimize: merge small data files",
    summary="merge small files; rewrite those with deleted rows",
    description=(
        "Merge small data files of each partition and rewrite files with many deleted rows, "
        "without changing any row: new files are read back and compared before each commit. "
        "Other writers may commit at the same time. The old files stay until a vacuum."
    ),
    options=OptimizeOptions,
    plan=OptimizePlan,
    result=OptimizeResult,
    policy=PolicyPart(
        key="optimize",
        rule="delta_maintenance.operations.rewriting.policy:OptimizeRule",
        description="Merging of small data files.",
        due="delta_maintenance.operations.rewriting.policy:due_optimize",
    ),
)

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.rewriting", optimize="apply plan prepare"
)

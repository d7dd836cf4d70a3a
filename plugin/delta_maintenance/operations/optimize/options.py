"""Options, Plan and Result of `optimize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast
from delta_maintenance.operations.rewriting.models import NewFileOptions, RewritePlan, RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions(NewFileOptions):
    """Options that select the files to merge or rewrite."""

    min_files: Annotated[
        int,
        AtLeast(2),
        Flag("the small files that a partition needs for merging them, by default 2"),
    ] = 2
    deleted_percent: Annotated[
        int,
        AtLeast(0),
        Flag("rewrite files with a larger percentage of deleted rows, by default {default}"),
    ] = 5
    int96: Annotated[
        bool, Flag("rewrite files with timestamps of the old type INT96; reads all footers")
    ] = False
    other_codecs: Annotated[
        bool, Flag("rewrite files with another codec than the table's; reads all footers")
    ] = False
    full: Annotated[
        bool, Flag("also rewrite files of a clustering, which loses their clustering")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizePlan(RewritePlan):
    """The files that `apply` would rewrite, in numbers, and why."""

    options: OptimizeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult(RewriteResult):
    """The result of an `optimize`."""

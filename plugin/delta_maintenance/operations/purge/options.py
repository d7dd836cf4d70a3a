"""Options, Plan and Result of `purge`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast
from delta_maintenance.operations.rewriting.models import (
    RewriteOptions,
    RewritePlan,
    RewriteResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions(RewriteOptions):
    """Which files are rewritten without their deleted rows."""

    above_percent: Annotated[
        int,
        AtLeast(0),
        Flag(
            help="only files of which more rows are deleted than this percentage; by default every "
            "file with deleted rows"
        ),
    ] = 0
    """Only files of which a larger percentage of rows is deleted."""
    dropped_columns: Annotated[
        bool,
        Flag(help="leave files alone that hold values of dropped columns, and read no footers"),
    ] = True
    """Whether files that hold values of dropped columns are rewritten. Their footers are read if
    the table's schema shows that columns were dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan(RewritePlan):
    """The files that `apply` would rewrite, in numbers, and why."""

    options: PurgeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult(RewriteResult):
    """The result of a `purge`."""

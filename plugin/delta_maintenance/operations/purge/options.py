"""Options, Plan and Result of `purge`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast
from delta_maintenance.operations.holds.options import Holders
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions(RewriteOptions):
    """Options that select the files to rewrite without their deleted rows."""

    above_percent: Annotated[
        int,
        AtLeast(0),
        Flag(
            "rewrite only files with a larger percentage of deleted rows; by default, all "
            "files with deleted rows"
        ),
    ] = 0
    dropped_columns: Annotated[
        bool, Flag("do not rewrite files only for values of dropped columns, and read no footers")
    ] = True
    """Whether files with values of dropped columns are rewritten. Footers are read if the table's
    schema shows that columns were dropped."""
    holders: Holders = Holders()
    """What keeps older versions, which still have the deleted rows. The kept versions in the log of
    the table always count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan(RewritePlan):
    """The files that `apply` would rewrite, in numbers, and why."""

    options: PurgeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult(RewriteResult):
    """The result of a `purge`."""

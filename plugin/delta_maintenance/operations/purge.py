"""Rewrites data files without deleted rows and dropped columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.flags import policy_option
from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.core.record import Percent
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.record import rewrite_record

if TYPE_CHECKING:
    from delta_maintenance.operations.rewriting.purge import apply, plan, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions(RewriteOptions):
    """Options that select the files to rewrite without their deleted rows."""

    above_percent: Percent = policy_option(
        0,
        "rewrite only files with a larger percentage of deleted rows; by default, all "
        "files with deleted rows",
        group="common",
    )
    dropped_columns: bool = policy_option(
        True,
        "also rewrite files with values of dropped columns, which is the default; footers are read "
        "if the table's schema shows that columns were dropped",
        group="common",
    )
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


RECORD = rewrite_record(
    "purge",
    title="Purge deleted rows from data files",
    summary="rewrite files without deleted rows, dropped columns",
    description=(
        "Rewrite each data file that holds deleted rows, or values of dropped columns, without "
        "them. No live row changes: new files are read back and compared before each commit. "
        "Older versions keep the old files until a vacuum."
    ),
    options=PurgeOptions,
    plan=PurgePlan,
    result=PurgeResult,
    policy=PolicyPart(
        key="purge",
        rule="delta_maintenance.operations.rewriting.policy:PurgeRule",
        description="Removal of deleted rows from data files.",
        due="delta_maintenance.operations.rewriting.policy:due_purge",
    ),
)

__getattr__, __dir__ = lazy_names(__name__, f"{__package__}.rewriting", purge="apply plan prepare")

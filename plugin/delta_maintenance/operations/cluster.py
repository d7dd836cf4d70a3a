"""Orders the rows of data files by several columns, so that readers skip more files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import PolicyPart
from delta_maintenance.operations.rewriting.models import NewFileOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.record import rewrite_record

if TYPE_CHECKING:
    from delta_maintenance.operations.rewriting.cluster import apply, plan, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(NewFileOptions):
    """Options that select the files to cluster, and the order of their rows."""

    by: tuple[str, ...] = policy_option(
        (),
        "the columns to order by, for a table without clustering columns, such as country or "
        "address.city",
        metavar="COLUMN",
        group="common",
    )
    """Dots separate the names of nested columns; names with dots are in backticks."""
    curve: Literal["hilbert", "z-order", "linear"] = policy_option(
        "hilbert",
        "the order by several columns: `hilbert`, the default, and `z-order` serve all columns "
        "alike, `linear` the first one best",
        group="common",
    )
    full: bool = option(False, "also cluster files of other clustering columns or providers again")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan(RewritePlan):
    """The files that `apply` would cluster, in numbers, and why."""

    options: ClusterOptions
    columns: tuple[str, ...] = ()
    """The columns by which rows are ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult(RewriteResult):
    """The result of a `cluster`."""


_RECORD = rewrite_record(
    "cluster",
    title="Cluster: order rows so that readers skip files",
    summary="order rows by columns, so that readers skip files",
    description=(
        "Sort the rows of new data files by the clustering columns of the table, or by named "
        "columns, without changing any row: new files are read back and compared before each "
        "commit. Each run sorts what arrived, and earlier files only if they have at most eight "
        "times its bytes. Other writers may commit at the same time. The old files stay until a "
        "vacuum."
    ),
    options=ClusterOptions,
    plan=ClusterPlan,
    result=ClusterResult,
    policy=PolicyPart(
        key="cluster",
        rule="delta_maintenance.operations.rewriting.policy:ClusterRule",
        description="Sorting of the rows of data files by the clustering columns.",
        due="delta_maintenance.operations.rewriting.policy:due_cluster",
    ),
)
RECORD = replace(_RECORD, decisive=(*_RECORD.decisive, "columns"))

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.rewriting", cluster="apply plan prepare"
)

"""Options, Plan and Result of `cluster`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.rewriting.models import NewFileOptions, RewritePlan, RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(NewFileOptions):
    """Options that select the files to cluster, and the order of their rows."""

    by: Annotated[
        tuple[str, ...],
        Flag(
            "a column by which to order the rows of a table without clustering columns, such "
            "as country or address.city; repeatable",
            name="--by",
            metavar="COLUMN",
        ),
    ] = ()
    """Dots separate the names of nested columns; names with dots are in backticks."""
    curve: Annotated[
        Literal["hilbert", "z-order", "linear"],
        Flag(
            "the order of rows by several columns: hilbert, the default, serves all columns "
            "alike; linear serves the first column best"
        ),
    ] = "hilbert"
    """`z-order` serves all columns alike, too."""
    full: Annotated[
        bool, Flag("also cluster files of other clustering columns or providers again")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan(RewritePlan):
    """The files that `apply` would cluster, in numbers, and why."""

    options: ClusterOptions
    columns: tuple[str, ...] = ()
    """The columns by which rows are ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult(RewriteResult):
    """The result of a `cluster`."""

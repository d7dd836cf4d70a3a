"""Options, Plan and Result of `set-clustering`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.table_change.options import (
    ChangeOptions,
    ChangePlan,
    ChangeResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringOptions(ChangeOptions):
    """The clustering columns to set."""

    by: Annotated[
        tuple[str, ...],
        Flag(
            "a clustering column, such as country or address.city; repeatable, at most 4",
            name="--by",
            metavar="COLUMN",
        ),
    ] = ()
    """They replace the current ones. Dots separate the names of nested columns; names with dots are
    in backticks."""
    none: Annotated[
        bool, Flag("remove all clustering columns; files keep the order of their rows")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringPlan(ChangePlan):
    """The planned change, and the clients that lose access."""

    options: SetClusteringOptions
    columns_before: tuple[str, ...] = ()
    """The current clustering columns, by logical names."""
    columns_after: tuple[str, ...] = ()
    joins: bool = False
    """Whether there are new clustering columns, of which every file must have statistics."""
    files_to_recompute: int = 0
    """Files whose statistics are computed first, because those of a new column are missing."""
    bytes_to_open: int = 0
    """The size of these files. Far fewer bytes are read if footers are sufficient."""
    statistics_commits: int = 0
    """The estimated number of commits with statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringResult(ChangeResult):
    """The change that was made."""

    columns: tuple[str, ...] = ()
    """The new clustering columns; empty if nothing was committed."""
    files_recomputed: int = 0
    """Files with new statistics, which stay if the change is not made."""

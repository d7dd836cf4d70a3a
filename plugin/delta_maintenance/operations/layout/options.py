"""Options, Plan and Result of `layout`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions(Record):
    """The filters to measure, and the share of bytes that they must skip."""

    where: Annotated[
        tuple[str, ...],
        Flag("a condition of your queries, in SQL; repeatable", metavar="CONDITION"),
    ] = ()
    queries: Annotated[
        str | None,
        Flag(
            "a file with conditions or statements in SQL, or an event log of Spark", metavar="FILE"
        ),
    ] = None
    fail_under: Annotated[
        Annotated[int, AtLeast(0)] | None,
        Flag(
            "fail if all conditions together skip less than this percentage of the bytes",
            metavar="PERCENT",
        ),
    ] = None
    columns: Annotated[
        tuple[str, ...],
        Flag(
            "a column to measure; repeatable; by default the first 32 with statistics",
            name="--column",
            metavar="NAME",
        ),
    ] = ()
    """By default also those of the conditions."""
    target_bytes: Annotated[
        Annotated[int, AtLeast(1)] | None,
        Flag(
            "the size in bytes of the files after clustering; by default that of the new "
            "files of optimize"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths(Record):
    """The files of a range of depths."""

    up_to: int
    """The greatest depth: 1, 2, 3 … 16, 32, 64 …"""
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Record):
    """Mean shares of the table, from 0 to 1, that a filter reads."""

    files: float
    bytes: float
    bytes_after: float
    """After clustering by the one column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout(Record):
    """How well the files of the table are laid out for filters on one column."""

    name: str
    type: str
    files_without_bounds: int
    """Every filter on the column reads them."""
    files_of_nulls: int
    files_of_one_value: int
    average_overlap: float
    """The mean number of other files of the partition that have a value in common with a file."""
    average_depth: float
    """The mean of the greatest number of files of a partition that share a value of a file; 1 is
    the best, 0 means that no file has bounds.
    """
    depths: tuple[Depths, ...]
    """The histogram of the depth of files."""
    point: Reading
    """For a filter on one value."""
    range: Reading
    """For a filter on a range with 1% of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionReading(Record):
    """What a reader of one condition reads."""

    condition: str
    runs: int = 1
    """How often the queries contain the condition."""
    files: int
    bytes: int
    files_skipped: float
    """The share of the files that the bounds exclude, from 0 to 1."""
    bytes_skipped: float
    bytes_skipped_after: float
    """After clustering by the new keys of the first proposal."""
    not_understood: tuple[str, ...] = ()
    """The parts of the condition that skip nothing here, although a reader may use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProposal(Record):
    """Keys to cluster by, and what they would gain and cost."""

    old_keys: tuple[str, ...]
    new_keys: tuple[str, ...]
    changed: bool
    """Whether the new keys should replace the old ones."""
    pays: bool
    """Whether clustering by the new keys is worth its cost."""
    reason: str
    bytes_read: float
    """The mean share of bytes that a filter reads now."""
    bytes_read_after: float
    bytes_to_rewrite: int

    @property
    def gain(self) -> float:
        """The share of the table's bytes that a filter would no longer read."""
        return self.bytes_read - self.bytes_read_after


Status = Literal["pays", "does-not-pay", "below"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReport(Document):
    """The fields that Plan and Result share."""

    table: str
    version: int
    files: int
    bytes: int
    partitions: int
    target_bytes: int
    clustering_columns: tuple[str, ...] | None
    """The logical names; None if they cannot be determined."""
    clustering_depth: float | None = None
    """The mean number of files that may contain a combination of values of all clustering columns;
    None for an unclustered table.
    """
    columns: tuple[ColumnLayout, ...]
    """The measured columns, those with the greatest gain first."""
    conditions: tuple[ConditionReading, ...] = ()
    """Those that read the most bytes first."""
    bytes_skipped: float | None = None
    """The share of bytes that the conditions skip, over all their runs; None without conditions."""
    proposals: tuple[KeyProposal, ...]
    """The best first."""
    status: Status
    """`below` if the conditions skip less than `fail_under`."""
    reason: str
    """One sentence: whether clustering pays, and why."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan(LayoutReport):
    """The report of a dry run."""

    planned_at: Instant
    options: LayoutOptions

    @property
    def is_noop(self) -> bool:
        """Always true, because the operation only reads."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutResult(LayoutReport):
    """The report."""

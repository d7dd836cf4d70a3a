"""Reports whether clustering pays, for each column and for the user's own queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta_maintenance.errors import shorten
from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Document, Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Count, Instant, Percent, Positive, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.layout.operation import apply, plan, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions(Record):
    """The filters to measure, and the share of bytes that they must skip."""

    where: tuple[str, ...] = policy_option(
        (), "conditions of your queries, in SQL", metavar="CONDITION", group="common"
    )
    queries: str | None = policy_option(
        None,
        "the address of a file with conditions or statements in SQL, or of an event log of Spark",
        metavar="FILE",
        group="common",
    )
    fail_under: Percent | None = option(
        None,
        "fail if all conditions together skip less than this percentage of the bytes",
        metavar="PERCENT",
        group="common",
    )
    columns: tuple[str, ...] = option(
        (),
        "the columns to measure; by default those of the conditions, and the first 32 with "
        "statistics",
        name="--column",
        metavar="NAME",
        group="common",
    )
    target_bytes: Positive | None = option(
        None,
        "the size in bytes of the files after clustering; by default that of the new "
        "files of optimize",
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan(LayoutReport, Plan):
    """The report of a dry run."""

    planned_at: Instant
    options: LayoutOptions

    @property
    def is_noop(self) -> bool:
        """Always true, because the operation only reads."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutResult(LayoutReport, Result):
    """The report."""


_MOST_SHOWN = 400
"""The bytes of a condition that people see; --json has all of it."""


def facts(document: LayoutReport) -> Facts:
    """The verdict, the proposals, the conditions and the columns."""
    keys = document.clustering_columns
    return {
        "files": f"{document.files:,} with {size_text(document.bytes)}",
        "partitions": document.partitions if document.partitions > 1 else None,
        "clustered by": "cannot be determined" if keys is None else ", ".join(keys) or "nothing",
        "depth": document.clustering_depth,
        "verdict": document.reason,
        "status": None,
        "bytes skipped": None
        if document.bytes_skipped is None
        else _percent(document.bytes_skipped),
        "notes": document.notes,
        "proposals": Grid(
            ("new keys", "changed", "read now", "after", "rewrite"),
            [
                (
                    ", ".join(proposal.new_keys),
                    "yes" if proposal.changed else "no",
                    _percent(proposal.bytes_read),
                    _percent(proposal.bytes_read_after),
                    size_text(proposal.bytes_to_rewrite),
                )
                for proposal in document.proposals
            ],
        ),
        "conditions": Grid(
            ("skips", "after", "files", "runs", "condition"),
            [_condition_row(proposal) for proposal in document.conditions],
        ),
        "columns": Grid(
            ("column", "depth", "overlap", "no bounds", "1 value", "1% range", "after"),
            [_column_row(proposal) for proposal in document.columns],
        ),
    }


def conclusion(result: LayoutReport, outcome: Outcome) -> Conclusion:
    """Conditions that skip too little fail the operation, for a gate in continuous integration."""
    if outcome is not Outcome.FAILED or result.bytes_skipped is None:
        return Conclusion(outcome=outcome)
    worst = result.conditions[0]
    return Conclusion(
        outcome=outcome,
        problem=f"the conditions skip {_percent(result.bytes_skipped)} of the bytes, less than "
        f"required; most is read by: {shorten(worst.condition, _MOST_SHOWN)}",
        remedy="cluster the table by the columns of the first proposal, or change the conditions",
    )


def conclusion_of_plan(plan: LayoutPlan) -> Conclusion:
    """The gate also closes for a dry run, because the report is the same."""
    outcome = Outcome.FAILED if plan.status == "below" else Outcome.PLANNED
    return conclusion(plan, outcome)


def _condition_row(reading: ConditionReading) -> tuple[object, ...]:
    return (
        _percent(reading.bytes_skipped),
        _percent(reading.bytes_skipped_after),
        f"{reading.files:,}",
        reading.runs,
        shorten(reading.condition, _MOST_SHOWN),
    )


def _column_row(column: ColumnLayout) -> tuple[object, ...]:
    return (
        column.name,
        f"{column.average_depth:,.1f}",
        f"{column.average_overlap:,.1f}",
        f"{column.files_without_bounds:,}",
        f"{column.files_of_one_value:,}",
        _percent(column.range.bytes),
        _percent(column.range.bytes_after),
    )


def _percent(share: float) -> str:
    return f"{share:.1%}"


RECORD = OperationRecord(
    name="layout",
    title="Report whether clustering pays",
    purpose="look",
    summary="whether clustering pays, by column and by query",
    description=(
        "Measure from the log how well data files are laid out for filters: overlap and depth for "
        "each column, the share of bytes that filters read now and would read after clustering, "
        "and keys to cluster by, with gain and cost. Reads only the log."
    ),
    prints=(
        "Prints the report; the exit status is 1 if the conditions skip less than --fail-under."
    ),
    options=LayoutOptions,
    plan=LayoutPlan,
    result=LayoutResult,
    code="delta_maintenance.operations.layout.operation",
    outcomes={"pays": Outcome.DONE, "does-not-pay": Outcome.DONE, "below": Outcome.FAILED},
    policy=PolicyPart(
        key="layout",
        rule="delta_maintenance.operations.layout.policy:LayoutRule",
        description="Reports whether clustering would pay.",
        due="delta_maintenance.operations.layout.policy:due",
    ),
    takes_version=True,
    plan_facts=facts,
    result_facts=facts,
    conclusion_of_plan=conclusion_of_plan,
    conclusion_of_result=conclusion,
    wrote=lambda _: False,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan prepare")

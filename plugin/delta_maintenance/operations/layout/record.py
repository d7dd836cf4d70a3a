"""The record of the operation `layout`."""

from __future__ import annotations

from delta_maintenance.errors import shortened
from delta_maintenance.operations.core.facts import Facts, Grid, size_text
from delta_maintenance.operations.core.operation import OperationRecord, PolicyPart
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.layout.options import (
    ColumnLayout,
    ConditionReading,
    LayoutOptions,
    LayoutPlan,
    LayoutReport,
    LayoutResult,
)

_MOST_SHOWN = 400
"""The bytes of a condition that people see; --json has all of it."""


def facts(document: LayoutReport) -> Facts:
    """The verdict, the proposals, the conditions and the columns."""
    keys = document.clustering_columns
    return {
        "table": document.table,
        "version": document.version,
        "files": f"{document.files:,} with {size_text(document.bytes)}",
        "partitions": document.partitions if document.partitions > 1 else None,
        "clustered by": "cannot be determined" if keys is None else ", ".join(keys) or "nothing",
        "depth": document.clustering_depth,
        "verdict": document.reason,
        "bytes skipped": None
        if document.bytes_skipped is None
        else _percent(document.bytes_skipped),
        "notes": document.notes,
        "proposals": Grid(
            ("new keys", "changed", "read now", "after", "rewrite"),
            [
                (
                    ", ".join(each.new_keys),
                    "yes" if each.changed else "no",
                    _percent(each.bytes_read),
                    _percent(each.bytes_read_after),
                    size_text(each.bytes_to_rewrite),
                )
                for each in document.proposals
            ],
        ),
        "conditions": Grid(
            ("skips", "after", "files", "runs", "condition"),
            [_condition_row(each) for each in document.conditions],
        ),
        "columns": Grid(
            ("column", "depth", "overlap", "no bounds", "1 value", "1% range", "after"),
            [_column_row(each) for each in document.columns],
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
        f"required; most is read by: {shortened(worst.condition, _MOST_SHOWN)}",
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
        shortened(reading.condition, _MOST_SHOWN),
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
    summary="report whether clustering pays, for each column and for your own queries",
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
    outcomes={
        "pays": Outcome.DONE,
        "does-not-pay": Outcome.DONE,
        "below": Outcome.FAILED,
    },
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

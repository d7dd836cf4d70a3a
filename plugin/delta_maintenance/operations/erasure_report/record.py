"""The record of the operation `erasure-report`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, Grid, count_text, size_text
from delta_maintenance.operations.core.operation import OperationRecord
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.erasure_report.options import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
    PlaceTotal,
)

_STATUS = {
    "erased": "erased: no file that exists has such rows, and no statistics a value of them",
    "remains": "not erased: rows, or values of them in the log, remain",
    "uncertain": "no rows were found, but not everything could be examined",
}


def plan_facts(plan: ErasureReportPlan) -> Facts:
    """The files to read."""
    return {
        "table": plan.table,
        "version": plan.version,
        "rows": plan.options.where,
        "files to read": f"{plan.files:,} ({size_text(plan.bytes)})",
        "reason": plan.reason,
        "notes": plan.notes,
    }


def result_facts(result: ErasureReportResult) -> Facts:
    """Whether the rows are erased, and the files that still have them."""
    return {
        "table": result.table,
        "version": result.version,
        "rows": result.where,
        "status": _STATUS[result.status],
        "files read": f"{result.files_read:,} ({size_text(result.bytes_read)})",
        "digest": result.digest,
        "places": [
            f"{each.place}: {_rows_of(each)} in {count_text(each.files, 'file')}, "
            + (
                f"until {each.last_end:%Y-%m-%dT%H:%M:%SZ}"
                if each.last_end is not None
                else "without an end"
            )
            for each in result.places
        ],
        "not examined": result.not_examined,
        "notes": result.notes,
        "found": Grid(
            ("place", "rows", "ends", "path", "ended by"),
            [
                (
                    each.place,
                    f"{each.rows:,}",
                    "never" if each.ends is None else f"{each.ends:%Y-%m-%d}",
                    each.path if each.clone is None else f"{each.clone}: {each.path}",
                    each.ends_by,
                )
                for each in result.found
            ],
        ),
    }


def _rows_of(total: PlaceTotal) -> str:
    return count_text(total.rows, "file action" if total.place == "log" else "row")


def conclusion(result: ErasureReportResult, outcome: Outcome) -> Conclusion:
    """Rows that remain are an error, so that a script can wait for the erasure."""
    if result.status == "erased":
        return Conclusion(outcome=outcome)
    if result.status == "uncertain":
        return Conclusion(
            outcome=outcome,
            problem=f"no rows were found, but {len(result.not_examined)} places could not be "
            f"examined, first {result.not_examined[0]}",
            remedy="examine them otherwise",
        )
    return Conclusion(
        outcome=outcome,
        problem="rows or values of them remain: "
        + ", ".join(f"{_rows_of(each)} ({each.place})" for each in result.places),
        remedy="see the report for the end of each file",
    )


RECORD = OperationRecord(
    name="erasure-report",
    title="Report where rows still exist",
    summary="report where rows that should be gone still exist, and when they end",
    description=(
        "Read every data file in the folders of the table and of its clones, also those of older "
        "versions and those that no version knows, and the contents of deleted files that the "
        "store keeps, and count the rows that match a condition, as each version that has a file "
        "reads it. Search the log for values of such rows. The report has the checksum of every "
        "data file, so that others can repeat it. Changes nothing."
    ),
    prints="Prints the report; the exit status is 1 unless all rows are erased.",
    options=ErasureReportOptions,
    plan=ErasureReportPlan,
    result=ErasureReportResult,
    code="delta_maintenance.operations.erasure_report.operation",
    outcomes={
        "erased": Outcome.DONE,
        "remains": Outcome.FAILED,
        "uncertain": Outcome.FAILED,
    },
    subjects=("where",),
    report="every file that was read, with its checksum and its matching rows",
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda _: False,
)

"""The record of the operation `fsck`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, Grid, count_text
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.fsck.options import FsckOptions, FsckPlan, FsckResult


def facts(document: FsckPlan | FsckResult) -> Facts:
    """The findings, their numbers and the repairs."""
    return {
        "table": document.table,
        "version": document.version,
        "status": document.status,
        "checked": document.checked,
        "findings": [f"{c.kind}: {c.count:,} ({c.severity})" for c in document.counts],
        "repairs": [str(repair) for repair in document.repairs],
        "report": document.report,
        "notes": document.notes,
        "remedies": list(dict.fromkeys(f"{f.kind}: {f.remedy}" for f in document.findings)),
        "details": Grid(
            ("kind", "version", "path", "problem"),
            [(f.kind, f.version, f.path, f.problem) for f in document.findings],
        ),
    }


def conclusion_of_plan(plan: FsckPlan) -> Conclusion:
    """A corrupt table is an error even if only a plan was requested."""
    return conclusion(plan, Outcome.CORRUPT if plan.num_corrupt else Outcome.PLANNED)


def conclusion(document: FsckPlan | FsckResult, outcome: Outcome) -> Conclusion:
    """Counts the findings of corruption."""
    if not document.num_corrupt:
        return Conclusion(outcome=outcome)
    counts = ", ".join(f"{c.count} {c.kind}" for c in document.counts if c.severity == "corrupt")
    # Findings are ordered by severity. Documents of other writers may have only their numbers.
    first = next(iter(document.findings), None)
    others = "; the other findings have theirs" if document.num_corrupt > 1 else ""
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(document.num_corrupt, 'finding')} of corruption: {counts}",
        file=None if first is None else first.path,
        remedy=None if first is None else f"{first.remedy}{others}",
    )


RECORD = OperationRecord(
    name="fsck",
    title="Examine the table",
    summary="check a table, and report its problems",
    description=(
        "Compare commits with the rules of the protocol; checkpoints, compactions and checksums "
        "with the commits; and the log with the existing files. Changes nothing unless a repair "
        "is requested."
    ),
    prints=(
        "Prints every finding with its remedy; the exit status is 5 if the table is corrupt, "
        "also after the repairs."
    ),
    options=FsckOptions,
    plan=FsckPlan,
    result=FsckResult,
    code="delta_maintenance.operations.fsck.operation",
    outcomes={"sound": Outcome.DONE, "warnings": Outcome.DONE, "corrupt": Outcome.CORRUPT},
    effects=Effects(commits=True, adds_files=True),
    runs_on_corrupt=True,
    only_reads=lambda options: (
        not (options.repair or options.remove_missing_files or options.remove_doubled_files)
    ),
    spark=SparkPart(
        engine="delta_maintenance.spark.fsck:SparkContents.of_job",
        # A plan in this process would read the log twice.
        skips_plan=lambda options: options.deep,
        # Also if no repair is planned, because the files have not been opened yet.
        needs_job=lambda plan: plan.engine == "spark",
    ),
    policy=PolicyPart(
        key="fsck",
        rule="delta_maintenance.operations.fsck.policy:FsckRule",
        description="Integrity checks of the table.",
        due="delta_maintenance.operations.fsck.policy:due",
    ),
    takes="table",
    report="every finding",
    decisive=("repairs",),
    asks_for_approval=lambda plan: bool(plan.repairs),
    plan_facts=facts,
    result_facts=facts,
    totals=lambda document: {"num_corrupt": document.num_corrupt},
    conclusion_of_plan=conclusion_of_plan,
    conclusion_of_result=conclusion,
    wrote=lambda result: any(repair.status == "done" for repair in result.repairs),
)

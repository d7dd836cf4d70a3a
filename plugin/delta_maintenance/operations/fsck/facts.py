"""Facts about an integrity check, for people."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, Grid, count_text
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.fsck.options import FsckPlan, FsckResult


def facts(document: FsckPlan | FsckResult) -> Facts:
    """The findings, their numbers and the repairs."""
    return {
        "table": document.table,
        "version": document.version,
        "status": document.status,
        "findings": [f"{c.kind}: {c.count:,} ({c.severity})" for c in document.counts],
        "repairs": [str(repair) for repair in document.repairs],
        "report": document.report,
        "notes": document.notes,
        "details": Grid(
            ("severity", "kind", "version", "path", "problem", "remedy"),
            [
                (f.severity, f.kind, f.version, f.path, f.problem, f.remedy)
                for f in document.findings
            ],
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
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(document.num_corrupt, 'finding')} of corruption: {counts}",
        remedy="follow the remedy of each finding",
    )

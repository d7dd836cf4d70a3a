"""Facts about log compactions, for people."""

from __future__ import annotations

from delta_maintenance.operations.compact_log.options import CompactLogPlan, CompactLogResult
from delta_maintenance.operations.core.facts import Facts, count_text
from delta_maintenance.operations.core.outcome import Conclusion, Outcome


def plan_facts(plan: CompactLogPlan) -> Facts:
    """The windows, and the reason for them."""
    return {
        "table": plan.table,
        "version": plan.version,
        "windows": [f"{w.first_version} to {w.last_version}" for w in plan.windows],
        "reason": plan.reason,
        "log bytes": plan.log_bytes,
        "engine": plan.engine,
        "notes": plan.notes,
    }


def result_facts(result: CompactLogResult) -> Facts:
    """The result for each window."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "windows": [
            f"{w.first_version} to {w.last_version}: {w.status}"
            + (f", {w.reason}" if w.reason else "")
            for w in result.windows
        ],
        "bytes written": result.bytes_written,
        "notes": result.notes,
    }


def conclusion(result: CompactLogResult, outcome: Outcome) -> Conclusion:
    """Names the first window that was not compacted."""
    if not result.failures:
        return Conclusion(outcome=outcome)
    first = result.failures[0]
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(len(result.failures), 'window')} could not be compacted, the first "
        f"from version {first.first_version} to {first.last_version}: {first.reason}",
        file=first.path,
        remedy="see the Result for each of them",
    )

"""The new failures of a run, each reported once.

A failure is new until a report with it was delivered, and again when it changes. The state folder
stores the reported failures in one file. A process that is killed between the two reports the same
once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.acknowledgements import Failure
from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.state_files import REPORTED_FILE, StateFile

RUN = "run"
"""The step of a failure of the run itself, which is about no table."""
_MAX_NAMES = 10
_MAX_PROBLEM_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFailures(Record):
    """The failures that were reported and have not ended."""

    form: Literal[1] = 1
    """The version of this format."""
    failures: dict[str, Failure] = field(default_factory=dict)
    """By the name of the table, or of the part of the run."""


_REPORTED = StateFile(ReportedFailures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The current state of a table, or of a part of the run."""

    failure: Failure | None
    """None if it is well."""
    problem: str = ""
    is_acknowledged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureChanges:
    """What has changed since the last report, and the reported failures afterwards."""

    new: Mapping[str, str]
    """The problems by the names of the tables."""
    recovered: tuple[str, ...]
    reported: ReportedFailures

    def text(self, title: str) -> str:
        """Returns the report."""
        lines = []
        if self.new:
            lines.append(f"{title}: {count_text(len(self.new), 'new failure')}")
            problems = [*self.new.items()][:_MAX_NAMES]
            lines += [f"• {name}: {problem[:_MAX_PROBLEM_LENGTH]}" for name, problem in problems]
            if len(self.new) > _MAX_NAMES:
                lines.append(f"and {len(self.new) - _MAX_NAMES:,} more")
        if self.recovered:
            names = ", ".join(self.recovered[:_MAX_NAMES])
            ending = ", …" if len(self.recovered) > _MAX_NAMES else ""
            lines.append(f"{'' if self.new else f'{title}: '}well again: {names}{ending}")
        return "\n".join(lines)


def changes_since(
    reported: ReportedFailures, conditions: Mapping[str, Condition]
) -> FailureChanges:
    """Compares the reported failures with the current conditions.

    Acknowledged failures are not reported, and are new once the acknowledgement has ended. A name
    without a condition stays as it was reported.
    """
    new_problems, recovered, failures = {}, [], dict(reported.failures)
    for name, condition in conditions.items():
        before = failures.pop(name, None)
        if condition.failure is None:
            if before is not None:
                recovered.append(name)
        elif not condition.is_acknowledged:
            failures[name] = condition.failure
            if before is None or not before.is_same(condition.failure):
                new_problems[name] = condition.problem
    return FailureChanges(
        new=new_problems, recovered=tuple(recovered), reported=ReportedFailures(failures=failures)
    )


def report_new_failures(
    state: AssessmentStore,
    failed: Iterable[str],
    deliver: Callable[[str], object],
    *,
    title: str,
    now: datetime,
    problems_of_run: Mapping[str, str],
) -> None:
    """Delivers what is new after a run, and stores what was reported.

    `failed` are the names of the tables and patterns whose failures are stored; `problems_of_run`
    the problems of the run itself, by the names of its parts. If `deliver` raises an error, the
    next run reports the same.
    """
    # Without a readable file, failures are reported twice, and none is lost.
    reported = _REPORTED.read(state.store, REPORTED_FILE) or ReportedFailures()
    conditions = _conditions(state, {*failed, *reported.failures}, now=now)
    reported_parts = {name for name, failure in reported.failures.items() if failure.step == RUN}
    for name in reported_parts | problems_of_run.keys():
        problem = problems_of_run.get(name)
        failure = Failure.of(RUN, problem) if problem is not None else None
        conditions[name] = Condition(failure=failure, problem=problem or "")
    changes = changes_since(reported, conditions)
    if changes.new or changes.recovered:
        deliver(changes.text(title))
    if changes.reported != reported:
        _REPORTED.write(state.store, REPORTED_FILE, changes.reported)


def _conditions(state: AssessmentStore, names: set[str], *, now: datetime) -> dict[str, Condition]:
    conditions = {}
    for entry in state.load_all() if names else ():
        if isinstance(entry, AssessmentEntry) and entry.name in names:
            run_problem = entry.run.problem if entry.run is not None else None
            conditions[entry.name] = Condition(
                failure=entry.failure,
                problem=entry.assessment.problem or run_problem or "",
                is_acknowledged=entry.acknowledgement_at(now=now) is not None,
            )
    return conditions

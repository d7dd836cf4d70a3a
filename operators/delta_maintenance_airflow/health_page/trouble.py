"""Why a table is broken: the problem, what fsck has found, and the steps to take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.fsck import Finding, FsckPlan, FsckResult
from delta_maintenance.policies.assessments import AssessmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The line of an error, divided into its parts."""

    text: str
    """The problem without the table, which the page names already."""
    remedy: str | None = None
    version: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckSummary:
    """What the last fsck has found."""

    at: datetime
    findings: tuple[Finding, ...]
    """The first findings of each kind, the worst ones first."""
    total: int
    repairs: int
    """The number of repairs that fsck has planned and not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyStep:
    """One thing to do."""

    text: str
    examines: bool = False
    """Whether it is to run fsck."""


_WHERE = re.compile(r"(?:, )?(?:version (?P<version>\d+))?(?:, )?(?:file (?P<file>.+?))?: ")
_CORRUPT = 5
"""The exit status of `CorruptTableError` and `NotADeltaTableError`."""


def problem_of(text: str, *, name: str, uri: str | None) -> Problem:
    """Divides the line of an error about a table."""
    message = text
    for table in (f"{uri} ({name})", uri, name):
        # Another table may have a longer address that begins like this one.
        if table is not None and message.startswith((f"table {table},", f"table {table}:")):
            message = message.removeprefix(f"table {table}")
            break
    where = _WHERE.match(message)
    version, file = where.groups() if where is not None else (None, None)
    message = message[where.end() :] if where is not None else message
    text, _, remedy = message.partition("; ")
    return Problem(
        text=text,
        remedy=remedy or None,
        version=int(version) if version is not None else None,
        file=file if file is not None and file not in text else None,
    )


def examination_of(entry: AssessmentEntry) -> FsckSummary | None:
    """What the last fsck has found; None if none is known, or only one of another release."""
    outcome = next((report for report in entry.reports if report.operation == "fsck"), None)
    if outcome is None or outcome.result is None:
        return None
    planned = outcome.status == "planned"
    try:
        read = (FsckPlan if planned else FsckResult).from_json(outcome.result)
    except InvalidRequestError:
        return None
    return FsckSummary(
        at=outcome.started_at,
        findings=read.findings,
        total=sum(report.count for report in read.counts),
        repairs=len(read.repairs) if planned else 0,
    )


def steps_for(
    entry: AssessmentEntry, problem: Problem, examination: FsckSummary | None
) -> tuple[RemedyStep, ...]:
    """What to do about a table that cannot be read, in order."""
    assessment = entry.assessment
    remedy = _sentence(problem.remedy or "Correct what the problem names")
    if assessment.retryable:
        return (
            RemedyStep(text="Wait for the next run: it may pass, and the run tries again."),
            RemedyStep(text=f"If it lasts: {remedy[:1].lower()}{remedy[1:]}"),
        )
    damaged = assessment.exit_status == _CORRUPT and (problem.version, problem.file) != (None, None)
    if not damaged and examination is None:
        again = "lists it" if assessment.subject == "pattern" else "assesses the table"
        return (RemedyStep(text=remedy), RemedyStep(text=f"The next run {again} again."))
    stop = (
        "Pause every vacuum and every clean-up of this table, also those of other tools. The "
        "policy deletes nothing from a table that cannot be read."
    )
    again = "Examine it again. Resume deletions only when it is sound."
    return (
        RemedyStep(text=stop),
        *(
            [RemedyStep(text="Find out what is wrong.", examines=True)]
            if examination is None
            else []
        ),
        RemedyStep(text=_correction(remedy, examination), examines=_repairs(examination)),
        RemedyStep(text=again, examines=examination is not None and not _repairs(examination)),
    )


def _correction(remedy: str, examination: FsckSummary | None) -> str:
    if examination is None or not examination.findings:
        return remedy
    if _repairs(examination):
        return (
            "Let fsck repair what it can without losing data: run it with Repair. Then follow the "
            "remedy of each other finding."
        )
    return "Follow the remedy of each finding, in the order of the list."


def _repairs(examination: FsckSummary | None) -> bool:
    return examination is not None and examination.repairs > 0


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."

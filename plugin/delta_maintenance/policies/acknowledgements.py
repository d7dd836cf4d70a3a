"""Failures of tables that people know of: the failure, why it may stay, and for how long.

An acknowledgement is about one failure. Another failure of the table is new, and so is the same one
after the table was well. It is stored in the entry of the table (`policies.assessments`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance import clock
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.models import Assessment, RunResult
from delta_maintenance.quantities import parse_duration, parse_instant

ASSESSMENT = "assessment"
"""The step of a failure to read the table at all."""
MOST_REASON = 500
"""The maximum number of characters of a reason."""
_MOST_KIND = 400
_MOST_FILES = 5
_FILE = re.compile(r"[^\s,;:'\"]+\.(?:json|parquet|crc|bin)\b|\S*_last_checkpoint\b")
_VERSION = re.compile(r"\bversions? (\d+)")
_VARIABLE = re.compile(
    # IDs of requests and of commits, and numbers, durations and times.
    r"\b(?=[\w+/=-]*\d)[\w+/=-]{12,}|\b[0-9a-f]{8,}\b|\d[\d.,:T+-]*",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Record):
    """A failure, in a form in which those of two runs can be compared."""

    step: str
    """`assessment`, or the operation that failed."""
    kind: str
    """The problem without numbers, IDs and names of files, which can differ between two runs."""
    version: int | None = None
    files: tuple[str, ...] = ()
    """The files that the problem names, at most `_MOST_FILES`."""

    @classmethod
    def of(cls, step: str, problem: str | None) -> Failure:
        """The failure of which a line tells."""
        text = problem or ""
        version = _VERSION.search(text)
        files = dict.fromkeys(_FILE.findall(text))
        return cls(
            step=step,
            kind=_shorten_kind(_VARIABLE.sub("N", _FILE.sub("FILE", text))),
            version=int(version[1]) if version is not None else None,
            files=tuple(files)[:_MOST_FILES],
        )

    def is_same(self, other: Failure, *, version: bool = False) -> bool:
        """Whether both are the same failure; with `version`, also of the same version."""
        return (self.step, self.kind, self.files) == (other.step, other.kind, other.files) and (
            not version or self.version == other.version
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement(Record):
    """The statement of a person that a failure is known."""

    failure: Failure
    reason: str
    by: str | None = None
    """The name of the person, if known."""
    at: Instant
    until: Instant | None = None
    """The end; None for as long as the failure stays as it is."""
    until_changed: bool = False
    """Whether the same failure of another version of the table is another failure."""

    def covers(self, failure: Failure | None, *, now: datetime) -> bool:
        """Whether the acknowledgement is about this failure and has not ended."""
        return (
            failure is not None
            and (self.until is None or now < self.until)
            and self.failure.is_same(failure, version=self.until_changed)
        )

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        ends = [f"until {clock.minute_text(self.until)}"] if self.until else []
        ends += ["until it changes"] if self.until_changed or not ends else []
        return f"acknowledged{by} {' or '.join(ends)}: {self.reason}"


def current_failure(assessment: Assessment, run: RunResult | None) -> Failure | None:
    """Returns the failure of a table by its newest assessment and its last run; None if it is well.

    A failed operation that is no longer due counts as repaired.
    """
    if assessment.status == "failed":
        return Failure.of(ASSESSMENT, assessment.problem)
    if run is None or not run.exit_status or not run.outcomes:
        return None
    step = run.outcomes[-1].operation
    return Failure.of(step, run.problem) if _is_wanted(assessment, step) else None


def still_acknowledged(
    acknowledgement: Acknowledgement | None, assessment: Assessment, run: RunResult | None
) -> Acknowledgement | None:
    """Returns an acknowledgement for the next entry of a table; None once it has ended, or the
    table is well.

    Another failure does not end it: while the store is down, nobody knows about the table.
    """
    if acknowledgement is None or (
        acknowledgement.until is not None and acknowledgement.until <= assessment.assessed_at
    ):
        return None
    if assessment.status == "failed":
        return acknowledgement
    step = acknowledgement.failure.step
    outcomes = run.outcomes if run is not None else ()
    done = any(e.operation == step and e.status in ("done", "nothing-to-do") for e in outcomes)
    return None if done or not _is_wanted(assessment, step) else acknowledgement


def acknowledge_failure(
    failure: Failure | None,
    *,
    name: str,
    reason: str,
    by: str | None,
    until: str | None,
    until_changed: bool,
    now: datetime,
) -> Acknowledgement:
    """Returns a new acknowledgement of the failure of a table.

    `until` is a date, a time, or a duration from now. Raises `InvalidRequestError` if there is
    nothing to acknowledge, or no reason or no end is given.
    """
    if failure is None:
        raise InvalidRequestError(
            f"{name} has not failed, as far as its last assessment and run tell",
            remedy="assess it first, or see its name in the list of failed tables",
        )
    reason = " ".join(reason.split())
    if not reason or len(reason) > MOST_REASON:
        raise InvalidRequestError(
            "an acknowledgement needs a reason", remedy=f"give one of 1 to {MOST_REASON} characters"
        )
    end = end_of(until, now=now) if until is not None else None
    if end is None and not until_changed:
        raise InvalidRequestError(
            "an acknowledgement needs an end",
            remedy="give a date or a duration, or let it hold until the failure changes",
        )
    return Acknowledgement(
        failure=failure, reason=reason, by=by, at=now, until=end, until_changed=until_changed
    )


def end_of(text: str, *, now: datetime) -> datetime:
    """Returns the instant that `2027-01-31`, `2027-01-31T12:00:00Z` or `7d` means.

    A date means its first instant in UTC. Raises `InvalidRequestError` for any other text, and for
    an instant that is over.
    """
    try:
        end = parse_instant(text) if _DATE.match(text.strip()) else now + parse_duration(text)
    except (InvalidRequestError, OverflowError):
        end = now
    if end <= now:
        raise InvalidRequestError(
            f"{text[:80]!r} is not a date or a duration that ends later than now",
            remedy="write it like '2027-01-31', '2027-01-31T12:00:00Z' or '7d'",
        )
    return end


def _shorten_kind(kind: str) -> str:
    """Shortens a text that begins with a long address, and keeps it different from others."""
    if len(kind) <= _MOST_KIND:
        return kind
    return (
        f"{kind[:_MOST_KIND]}… {hashlib.sha256(kind.encode('utf-8', 'surrogatepass')).hexdigest()}"
    )


def _is_wanted(assessment: Assessment, step: str) -> bool:
    return any(e.operation == step and e.status != "not-due" for e in assessment.operations)

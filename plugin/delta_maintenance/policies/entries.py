"""The stored state of one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from delta_maintenance import clock
from delta_maintenance.address import is_catalog_name
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.freed import Freed, freed_bytes
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known as registered
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.policies.acknowledgements import Acknowledgement, Failure, current_failure
from delta_maintenance.policies.approval import PendingPlan, PutOff
from delta_maintenance.policies.models import (
    Assessment,
    LastRun,
    MaintainedVersion,
    OperationOutcome,
    RunResult,
)
from delta_maintenance.protocol.delta_log.last_checkpoint import refuse_constant

HISTORY = 20
"""The number of runs that are kept for a table."""
MAX_BYTES = 512 << 10
"""The maximum size of an entry in bytes: longer ones are shortened when written, and not read."""
MAX_LIST_BYTES = 16 << 20
"""The maximum size of the list of files of one plan."""
_COMMITS = b'"commits":[{'


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter(Record):
    """A number before and after a run, which other writers may have changed too."""

    before: int
    after: int

    @property
    def less(self) -> int:
        """By how much it is less; 0 if it is not."""
        return max(0, self.before - self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun(Record):
    """A summary of one run on a table."""

    at: Instant
    """The start of the run."""
    seconds: float
    status: str
    """The status of the `RunResult`; `needs-approval` if it only waits for approvals."""
    operations: tuple[str, ...] = ()
    """The operations and their outcomes in order, such as `checkpoint: done`."""
    problem: str | None = None
    """At most 300 characters."""
    link: str | None = None
    """The address of the task or log of the run."""
    reclaimed_bytes: int = 0
    """Bytes of files that were deleted."""
    freed: tuple[Freed, ...] = ()
    """What became of them."""
    spared_bytes: int = 0
    """The bytes of log that readers no longer need to read."""
    data_files: BeforeAfter | None = None
    """The data files of the table; None if they were not counted before and after the run."""
    files_to_open: BeforeAfter | None = None
    """The files of the log that a reader opens."""
    bytes_to_open: BeforeAfter | None = None
    """Their bytes."""

    @classmethod
    def of(cls, run: RunResult, link: str | None) -> PastRun:
        """The short form of a result."""
        freed = tuple(outcome.freed for outcome in run.outcomes if outcome.freed is not None)
        before = run.before.health if run.before is not None else None
        after = run.after.health if run.after is not None else None
        healths = (before, after) if before is not None and after is not None else None
        opened = _before_and_after(healths, lambda health: health.bytes_to_open)
        return cls(
            at=run.started_at,
            seconds=round((run.ended_at - run.started_at).total_seconds(), 3),
            status=run.shown_status,
            operations=tuple(f"{outcome.operation}: {outcome.status}" for outcome in run.outcomes),
            problem=run.problem[:300] if run.problem is not None else None,
            link=link,
            reclaimed_bytes=sum(files.deleted_bytes for files in freed),
            freed=freed,
            spared_bytes=opened.less if opened is not None else 0,
            data_files=_before_and_after(healths, lambda health: health.num_files),
            files_to_open=_before_and_after(healths, lambda health: health.files_to_open),
            bytes_to_open=opened,
        )


def gain_texts(runs: Sequence[PastRun], *, now: datetime) -> tuple[str, ...]:
    """What runs on tables brought, as clauses for people; empty if they brought nothing."""
    counted = [count for run in runs if (count := run.data_files) is not None and count.less > 0]
    files, files_after = (
        sum(count.before for count in counted),
        sum(count.after for count in counted),
    )
    freed = freed_bytes([files for run in runs for files in run.freed], now)
    spared = sum(run.spared_bytes for run in runs)
    opening = "opening the table" if len(runs) == 1 else "opening the tables"
    clauses = (
        f"{files:,} data files became {files_after:,}" if counted else None,
        f"{size_text(freed)} of files were deleted" if freed else None,
        f"{opening} takes {size_text(spared)} less" if spared else None,
    )
    return tuple(clause for clause in clauses if clause is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessmentEntry(Record):
    """The stored state of one table."""

    form: Literal[1] = 1
    """The version of this format."""
    assessment: Assessment
    run: RunResult | None = None
    """The last run, without its assessments; None if nothing was run yet."""
    last_runs: tuple[LastRun, ...] = ()
    """The `last_runs` for the next assessment."""
    link: str | None = None
    """The address of further information about the run."""
    last_health: TableHealth | None = None
    """The health from an earlier assessment, if this assessment has none."""
    failing_since: Instant | None = None
    """The time of the first failed assessment since the last good one."""
    assessed_link: str | None = None
    """The address of the task or log of the assessment."""
    history: tuple[PastRun, ...] = ()
    """The last runs that did something or failed, newest first; at most `HISTORY`."""
    pending: tuple[PendingPlan, ...] = ()
    """Plans that wait for an approval."""
    put_off: tuple[PutOff, ...] = ()
    """Snoozed operations; at most one entry for each."""
    reports: tuple[OperationOutcome, ...] = ()
    """The newest outcome of each operation that reports something, such as `layout` or `fsck`."""
    acknowledgement: Acknowledgement | None = None
    """The acknowledgement of a failure, which may be another one than the current failure."""
    maintained: MaintainedVersion | None = None
    """With which version the last run by the policy has dealt, however it ended."""
    identity: str | None = None
    """The digest of the address, which is part of the name of the file; None for a pattern."""

    @property
    def name(self) -> str:
        """The name of the table in its policy."""
        return self.assessment.name

    @property
    def health(self) -> TableHealth | None:
        """The newest known health."""
        return self.assessment.health or self.last_health

    @property
    def failure(self) -> Failure | None:
        """The current failure; None if the table is well."""
        return current_failure(self.assessment, self.run)

    def acknowledgement_at(self, *, now: datetime) -> Acknowledgement | None:
        """The acknowledgement that covers the current failure."""
        acknowledgement = self.acknowledgement
        return (
            acknowledgement
            if acknowledgement is not None and acknowledgement.covers(self.failure, now=now)
            else None
        )

    def is_of_another(self, assessment: Assessment) -> bool:
        """Whether an assessment found another table at the address: its metadata has another ID."""
        known_health, now = self.health, assessment.health
        return (
            known_health is not None and now is not None and known_health.table_id != now.table_id
        )


def acknowledgement_text(entry: AssessmentEntry | None) -> str | None:
    """Returns the acknowledgement of the current failure of a table as one line."""
    acknowledgement = entry.acknowledgement_at(now=clock.now()) if entry is not None else None
    return str(acknowledgement) if acknowledgement is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles(Record):
    """The files of a plan that needs an approval: the first ones, for people."""

    planned_at: Instant
    """Tells the plans of a table apart."""
    lines: tuple[str, ...]
    """Tab-separated, as the operation lists them."""
    is_complete: bool

    @classmethod
    def of(cls, planned_at: datetime, lines: Iterable[str]) -> Self:
        """The lines that fit into `MAX_LIST_BYTES`."""
        first: list[str] = []
        size = 0
        for line in lines:
            size += len(line.encode(errors="replace")) + 4
            if size > MAX_LIST_BYTES:
                return cls(planned_at=planned_at, lines=tuple(first), is_complete=False)
            first.append(line)
        return cls(planned_at=planned_at, lines=tuple(first), is_complete=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableEntry(Record):
    """A file that should be an entry and is not."""

    file: str
    """Its name in the folder."""
    problem: str
    """One line, with the remedy."""


def newest_by_name(
    entries: Iterable[AssessmentEntry | UnreadableEntry],
) -> list[AssessmentEntry | UnreadableEntry]:
    """Returns one entry for each table: of a table that moved, that of its newest address."""
    tables: list[AssessmentEntry] = []
    other_entries: list[AssessmentEntry | UnreadableEntry] = []
    for entry in entries:
        if isinstance(entry, AssessmentEntry) and entry.assessment.subject != "pattern":
            tables.append(entry)
        else:
            other_entries.append(entry)
    tables.sort(key=lambda entry: entry.assessment.assessed_at)
    return [*other_entries, *{entry.name: entry for entry in tables}.values()]


def is_address(name: str) -> bool:
    """Whether the name of a table is its address, because its policy gives no other."""
    return (":/" in name or name.startswith("/")) and not is_catalog_name(name)


def newest_reports(
    reports: tuple[OperationOutcome, ...], run: RunResult
) -> tuple[OperationOutcome, ...]:
    """The newest outcome of each operation that reports something, after a run."""
    newest = {outcome.operation: outcome for outcome in reports}
    for outcome in run.outcomes:
        record = registered(outcome.operation)
        if record is None or outcome.result is None:
            continue
        # An operation on the table itself, fsck, reports findings before it repairs anything.
        if record.effects.only_reads or record.takes == "table":
            newest[outcome.operation] = outcome
    return tuple(newest.values())


def _before_and_after(
    healths: tuple[TableHealth, TableHealth] | None, number: Callable[[TableHealth], int]
) -> BeforeAfter | None:
    if healths is None:
        return None
    before, after = map(number, healths)
    return BeforeAfter(before=before, after=after)


def still_waiting(
    pending: tuple[PendingPlan, ...], assessment: Assessment
) -> tuple[PendingPlan, ...]:
    """The plans that still wait after an assessment."""
    if assessment.status == "failed":
        return pending
    waiting = {
        operation.operation
        for operation in assessment.operations
        if operation.needs_approval and operation.status != "not-due"
    }
    return tuple(
        plan
        for plan in pending
        if (plan.is_open(assessment.assessed_at) if plan.requested else plan.operation in waiting)
    )


def parse_entry(data: bytes, *, brief: bool) -> AssessmentEntry:
    """Returns the entry in a file; if it is to be brief, without the commits of the health.

    `ValueError` and `RecursionError` if it is not JSON, `InvalidRequestError` for another form.
    """
    return AssessmentEntry.from_json(_without_commits(data) if brief else _parse_json(data))


def _parse_json(data: bytes) -> Any:
    return json.loads(data, parse_constant=refuse_constant)


def _without_commits(data: bytes) -> Any:
    """The JSON of an entry without commits, which are most of its bytes and of the work."""
    pieces, at = [], 0
    while (start := data.find(_COMMITS, at)) >= 0 and (end := data.find(b"}]", start)) >= 0:
        pieces.append(data[at : start + len(_COMMITS) - 1])
        at = end + 1
    try:
        value = _parse_json(b"".join([*pieces, data[at:]]))
    except ValueError:
        # An operation with this end in its name: quotes in texts are escaped, so nothing that is
        # cut within a text remains JSON.
        value = _parse_json(data)
    _drop_commits(value)
    return value


def entry_bytes(entry: AssessmentEntry) -> bytes:
    """The JSON of an entry, without its least important parts if it would be too long."""
    value = entry.to_json()
    for shorten in (None, *_SHORTER):
        if shorten is not None:
            shorten(value)
        data = json.dumps(value, separators=(",", ":")).encode()
        if len(data) <= MAX_BYTES:
            return data
    raise InvalidRequestError(
        f"the assessment of {entry.name[:200]!r} is longer than {MAX_BYTES:,} bytes",
        remedy="give the table a shorter name and a shorter address",
    )


def _drop_results(value: dict[str, Any]) -> None:
    for outcome in (value["run"] or {}).get("outcomes", ()):
        outcome["result"] = None
    value["reports"] = []


def _drop_commits(value: Any) -> None:
    for health in _healths(value):
        health["commits"] = []


def _drop_health(value: dict[str, Any]) -> None:
    value["assessment"]["health"] = value["last_health"] = None


def _drop_texts(value: dict[str, Any]) -> None:
    assessment = value["assessment"]
    assessment["notes"] = assessment["held"] = []
    for run in (*value["last_runs"], *(value["run"] or {}).get("last_runs", ())):
        run["held"] = []
    assessment["problem"] = assessment["problem"] and assessment["problem"][:2_000]
    for operation in assessment["operations"]:
        operation["reason"] = operation["reason"][:2_000]
        operation["options"] = {}
    if value["run"] is not None:
        value["run"]["problem"] = value["run"]["problem"] and value["run"]["problem"][:2_000]
        for outcome in value["run"]["outcomes"]:
            outcome["reason"] = outcome["reason"][:2_000]


_SHORTER = (_drop_results, _drop_commits, _drop_health, _drop_texts)


def _healths(value: Any) -> list[dict[str, Any]]:
    """The values in a document that may not be an entry."""
    entry = value if isinstance(value, dict) else {}
    assessment = entry.get("assessment")
    values = (
        assessment.get("health") if isinstance(assessment, dict) else None,
        entry.get("last_health"),
    )
    return [health for health in values if isinstance(health, dict)]

"""The last assessment of each table and the last run on it, in a folder of any store.

Pages and later runs read these instead of opening tables. There is one small JSON file per table,
which is replaced as a whole, so that processes on many hosts can read while others write.
Concurrent writes for the same table do no harm: the last one wins.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known as registered
from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.policies.approval import PendingPlan, PutOff, pending_of
from delta_maintenance.policies.models import Assessment, LastRun, OperationOutcome, RunResult
from delta_maintenance.storage import FileStatus, Store, open_store

MAX_BYTES = 512 << 10
"""The maximum size of an entry in bytes: longer ones are shortened when written, and not read."""
HISTORY = 20
"""The number of runs that are kept for a table."""


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
    spared_bytes: int = 0
    """The bytes of log that readers no longer need to read."""
    data_files: BeforeAfter | None = None
    """The data files of the table; None if they were not counted before and after the run, as in
    entries of earlier releases."""
    files_to_open: BeforeAfter | None = None
    """The files of the log that a reader opens."""
    bytes_to_open: BeforeAfter | None = None
    """Their bytes."""

    @classmethod
    def of(cls, run: RunResult, link: str | None) -> PastRun:
        """The short form of a result."""
        deleted = [
            each.result.get("bytes")
            for each in run.outcomes
            if each.result is not None and each.status in ("done", "incomplete", "failed")
        ]
        before = run.before.health if run.before is not None else None
        after = run.after.health if run.after is not None else None
        both = (before, after) if before is not None and after is not None else None
        opened = _changed(both, lambda health: health.bytes_to_open)
        return cls(
            at=run.started_at,
            seconds=round((run.ended_at - run.started_at).total_seconds(), 3),
            status="needs-approval" if run.waits_for_approval else run.status,
            operations=tuple(f"{each.operation}: {each.status}" for each in run.outcomes),
            problem=run.problem[:300] if run.problem is not None else None,
            link=link,
            reclaimed_bytes=sum(size for size in deleted if isinstance(size, int)),
            spared_bytes=opened.less if opened is not None else 0,
            data_files=_changed(both, lambda health: health.num_files),
            files_to_open=_changed(both, lambda health: health.files_to_open),
            bytes_to_open=opened,
        )


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

    @property
    def name(self) -> str:
        """The name of the table in its policy."""
        return self.assessment.name

    @property
    def health(self) -> TableHealth | None:
        """The newest known health."""
        return self.assessment.health or self.last_health


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableEntry(Record):
    """A file that should be an entry and is not."""

    file: str
    """Its name in the folder."""
    problem: str
    """One line, with the remedy."""


class AssessmentStore:
    """The entries below one address. Safe to share between threads.

    `uri` is a dedicated folder on any store (docs/stores.md), which all hosts must be able to
    reach.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.store: Store = open_store(uri, storage_options)
        self._lock = threading.Lock()
        self._known: dict[FileStatus, AssessmentEntry | UnreadableEntry] = {}

    def save(
        self,
        assessment: Assessment,
        run: RunResult | None = None,
        *,
        link: str | None = None,
    ) -> None:
        """Replaces the entry of a table. Without a `run`, the last run is kept.

        `link` is the address of the task that made the run, or else the assessment.
        """
        known = self._entry(assessment.name)
        entry = AssessmentEntry(assessment=assessment) if known is None else known
        if run is not None:
            entry = replace(
                entry,
                run=replace(run, before=None, after=None),
                last_runs=run.last_runs,
                link=link,
                pending=pending_of(run, entry.pending),
                reports=_newest_reports(entry.reports, run),
            )
            if run.outcomes or run.status == "failed":
                entry = replace(entry, history=(PastRun.of(run, link), *entry.history)[:HISTORY])
        failing = assessment.status == "failed"
        entry = replace(
            entry,
            assessment=assessment,
            last_health=known.health if known is not None and assessment.health is None else None,
            failing_since=(entry.failing_since or assessment.assessed_at) if failing else None,
            assessed_link=link,
            pending=_still_waiting(entry.pending, assessment),
            put_off=tuple(e for e in entry.put_off if e.until > assessment.assessed_at),
        )
        self.store.put(_file_name(assessment.name), _bounded(entry))

    def link_pending(self, name: str, operations: Collection[str], link: str | None) -> None:
        """Stores the address of the open question about pending plans; None once it is closed."""
        entry = self._entry(name)
        if entry is not None:
            linked = tuple(
                replace(each, link=link) if each.operation in operations else each
                for each in entry.pending
            )
            self.store.put(_file_name(name), _bounded(replace(entry, pending=linked)))

    def put_off(self, name: str, *answers: PutOff) -> None:
        """Stores snoozed operations."""
        entry = self._entry(name)
        if entry is not None:
            kept = {each.operation: each for each in (*entry.put_off, *answers)}
            put_off = replace(entry, put_off=tuple(kept.values()))
            self.store.put(_file_name(name), _bounded(put_off))

    def _entry(self, name: str) -> AssessmentEntry | None:
        found = self.load(name)
        return found if isinstance(found, AssessmentEntry) else None

    def forget(self, name: str) -> None:
        """Removes the entry of a name, if there is one."""
        self.store.delete(_file_name(name))

    def saved_at(self) -> Callable[[str], datetime | None]:
        """A function that returns when the entry of a name was last saved; None if there is none.

        Reads only the listing, so the cost does not depend on the size of the entries.
        """
        listed = {
            status.path: datetime.fromtimestamp(status.modified_ms / 1000, UTC)
            for status in self._entries()
        }
        return lambda name: listed.get(_file_name(name))

    def load(self, name: str) -> AssessmentEntry | UnreadableEntry | None:
        """The state of a table; None if it was never assessed. Raises errors of the store."""
        file = _file_name(name)
        status = self.store.stat(file)
        return None if status is None else self._read(status)

    def load_all(self) -> tuple[AssessmentEntry | UnreadableEntry, ...]:
        """All entries by table name; unreadable entries come last.

        Entries omit the commits of the health, so that thousands of tables fit into memory. Reads
        the listing and the files that changed since the last call. Raises the errors of the store.
        """
        with self._lock:
            listed = self._entries()
            new = [status for status in listed if status not in self._known]
            read = dict(zip(new, self._read_all(new), strict=True))
            found = {status: self._known.get(status) or read[status] for status in listed}
            # A file that was deleted after the listing is skipped.
            self._known = {status: entry for status, entry in found.items() if entry is not None}
            return tuple(sorted(self._known.values(), key=_order))

    def _read_all(
        self, files: Sequence[FileStatus]
    ) -> list[AssessmentEntry | UnreadableEntry | None]:
        # Parsing takes longer than reading from a disk, and threads parse no faster.
        if self.store.is_near:
            return [self._brief(status) for status in files]
        with ThreadPoolExecutor(max_workers=self.store.parallel_reads) as pool:
            return list(pool.map(self._brief, files))

    def _entries(self) -> list[FileStatus]:
        return [
            status
            for status in self.store.list_from("")
            if status.path.endswith(_SUFFIX) and not status.path.startswith(".")
        ]

    def close(self) -> None:
        """Closes connections."""
        self.store.close()

    def _brief(self, status: FileStatus) -> AssessmentEntry | UnreadableEntry | None:
        return self._read(status, brief=True)

    def _read(
        self, status: FileStatus, *, brief: bool = False
    ) -> AssessmentEntry | UnreadableEntry | None:
        if status.size > MAX_BYTES:
            return _unreadable(status, f"it is longer than {MAX_BYTES:,} bytes")
        try:
            data = self.store.read(status.path)
            value = _parsed_briefly(data) if brief else _parsed(data)
            entry = AssessmentEntry.from_json(value)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return _unreadable(status, "it is not JSON")
        except InvalidRequestError as error:
            return _unreadable(status, error.problem)
        if _file_name(entry.name) != status.path:
            return _unreadable(status, f"it is about another table, {entry.name!r}")
        return entry


def _changed(
    both: tuple[TableHealth, TableHealth] | None, number: Callable[[TableHealth], int]
) -> BeforeAfter | None:
    if both is None:
        return None
    before, after = map(number, both)
    return BeforeAfter(before=before, after=after)


def _newest_reports(
    known: tuple[OperationOutcome, ...], run: RunResult
) -> tuple[OperationOutcome, ...]:
    newest = {each.operation: each for each in known}
    for outcome in run.outcomes:
        record = registered(outcome.operation)
        if record is None or outcome.result is None:
            continue
        # An operation on the table itself, fsck, reports findings before it repairs anything.
        if record.effects.only_reads or record.takes == "table":
            newest[outcome.operation] = outcome
    return tuple(newest.values())


def _still_waiting(
    pending: tuple[PendingPlan, ...], assessment: Assessment
) -> tuple[PendingPlan, ...]:
    if assessment.status == "failed":
        return pending
    waiting = {
        each.operation
        for each in assessment.operations
        if each.needs_approval and each.status != "not-due"
    }
    return tuple(each for each in pending if each.operation in waiting)


def _parsed(data: bytes) -> Any:
    return json.loads(data, parse_constant=_no_constant)


def _parsed_briefly(data: bytes) -> Any:
    """The JSON of an entry without commits, which are most of its bytes and of the work."""
    parts, at = [], 0
    while (start := data.find(_COMMITS, at)) >= 0 and (end := data.find(b"}]", start)) >= 0:
        parts.append(data[at : start + len(_COMMITS) - 1])
        at = end + 1
    try:
        value = _parsed(b"".join([*parts, data[at:]]))
    except ValueError:
        # An operation with this end in its name: quotes in texts are escaped, so nothing that is
        # cut within a text remains JSON.
        value = _parsed(data)
    _drop_commits(value)
    return value


_COMMITS = b'"commits":[{'


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unreadable(status: FileStatus, problem: str) -> UnreadableEntry:
    return UnreadableEntry(
        file=status.path,
        problem=f"{problem[:500]}; delete it, or let the next assessment replace it",
    )


def _order(entry: AssessmentEntry | UnreadableEntry) -> tuple[bool, str]:
    readable = isinstance(entry, AssessmentEntry)
    return not readable, entry.name if isinstance(entry, AssessmentEntry) else entry.file


_SUFFIX = ".json"


def _file_name(name: str) -> str:
    """Converts any text to a name that every store accepts and that people can recognise."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[-80:] or "table"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}.{digest[:32]}{_SUFFIX}"


def _bounded(entry: AssessmentEntry) -> bytes:
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
    found = (
        assessment.get("health") if isinstance(assessment, dict) else None,
        entry.get("last_health"),
    )
    return [health for health in found if isinstance(health, dict)]

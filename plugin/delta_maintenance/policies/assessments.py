"""The last assessment of each table and the last run on it, in a folder of any store.

Pages and later runs read these instead of opening tables. There is one small JSON file per table,
named after its address, so that a table has one entry however it was named. It is replaced as a
whole, so that processes on many hosts can read while others write. Concurrent writes for the same
table do no harm: the last one wins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from delta_maintenance import clock
from delta_maintenance.address import identity_of
from delta_maintenance.errors import IncompleteError, InvalidRequestError, StorageError
from delta_maintenance.operations.core.context import FileListing
from delta_maintenance.operations.core.documents import Plan
from delta_maintenance.policies.acknowledgements import Acknowledgement, still_acknowledged
from delta_maintenance.policies.approval import PendingPlan, PutOff, pending_of
from delta_maintenance.policies.entries import (
    HISTORY,
    MAX_BYTES,
    AssessmentEntry,
    PastRun,
    PlannedFiles,
    UnreadableEntry,
    entry_bytes,
    is_address,
    newest_by_name,
    newest_reports,
    parse_entry,
    still_waiting,
)
from delta_maintenance.policies.models import Assessment, RunResult, with_due_since
from delta_maintenance.policies.state_files import (
    ENTRY_SUFFIX,
    StateFile,
    pattern_file,
    plan_file,
    table_file,
)
from delta_maintenance.storage import FileStatus, Store, open_store

__all__ = ["HISTORY", "AssessmentEntry", "PastRun", "UnreadableEntry"]

_TURNS = 5
_FILES = StateFile(PlannedFiles)
_logger = logging.getLogger(__name__)


class AssessmentStore:
    """The entries below one address. Safe to share between threads.

    `uri` is a dedicated folder on any store (docs/integrations/stores.md), which all hosts must
    be able to reach.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.store: Store = open_store(uri, storage_options)
        self._lock = threading.Lock()
        self._known: dict[FileStatus, AssessmentEntry | UnreadableEntry] = {}

    def save(
        self, assessment: Assessment, run: RunResult | None = None, *, link: str | None = None
    ) -> AssessmentEntry:
        """Replaces the entry of a table, and returns it. Without a `run`, the last run is kept.

        `link` is the address of the task that made the run, or else the assessment. The state of
        another table that was at the address before is dropped.
        """
        previous = self.entry_of(assessment.uri, assessment.name)
        if previous is not None and previous.is_of_another(assessment):
            previous = None
        if previous is not None and is_address(assessment.name) and not is_address(previous.name):
            # A run by address does not know the name in a catalog.
            assessment = replace(assessment, name=previous.name)
        done = () if run is None else [each.operation for each in run.outcomes if each.was_done]
        earlier = None if previous is None else previous.assessment
        assessment = with_due_since(assessment, earlier, done=done)
        entry = AssessmentEntry(assessment=assessment) if previous is None else previous
        if run is not None:
            entry = replace(
                entry,
                run=replace(run, before=None, after=None),
                maintained=run.maintained or entry.maintained,
                last_runs=run.last_runs,
                link=link,
                pending=pending_of(run, entry.pending),
                reports=newest_reports(entry.reports, run),
            )
            if run.outcomes or run.status == "failed":
                entry = replace(entry, history=(PastRun.of(run, link), *entry.history)[:HISTORY])
        failing = assessment.status == "failed"
        entry = replace(
            entry,
            assessment=assessment,
            last_health=previous.health
            if previous is not None and assessment.health is None
            else None,
            failing_since=(entry.failing_since or assessment.assessed_at) if failing else None,
            assessed_link=link,
            pending=still_waiting(entry.pending, assessment),
            put_off=tuple(e for e in entry.put_off if e.until > assessment.assessed_at),
            acknowledgement=still_acknowledged(entry.acknowledgement, assessment, entry.run),
        )
        self._put(entry)
        return entry

    def keep(
        self, assessment: Assessment, run: RunResult | None = None, *, link: str | None = None
    ) -> AssessmentEntry | None:
        """Like `save`, for work that a folder on a full disk must not hold up: it is a warning."""
        try:
            return self.save(assessment, run, link=link)
        except StorageError as error:
            _logger.warning("%s: the outcome cannot be stored: %s", assessment.name, error)
            return None

    def revise(self, uri: str, name: str, change: Callable[[Assessment], Assessment]) -> None:
        """Replaces the assessment of a table, if there is one, by what `change` makes of it. A full
        disk is a warning, as with `keep`.
        """
        entry = self.entry_of(uri, name)
        if entry is not None:
            try:
                self._put(replace(entry, assessment=change(entry.assessment)))
            except StorageError as error:
                _logger.warning("%s: its assessment cannot be stored: %s", name, error)

    def open_question(self, plan: PendingPlan) -> None:
        """Stores a plan about which a question was opened, in place of the same plan before."""
        entry = self.entry_of(plan.uri, plan.name)
        if entry is not None:
            other_plans = (waiting for waiting in entry.pending if waiting.key != plan.key)
            self._put(replace(entry, pending=(*other_plans, plan)))

    def close_question(self, plan: PendingPlan, *, approved_at: datetime | None = None) -> None:
        """Stores that the question about a plan is closed: a plan that was requested is no longer
        kept; another one waits for its run, or else for the next question.
        """
        entry = self.entry_of(plan.uri, plan.name)
        if entry is not None:
            pending = (
                waiting.without_question(approved_at) if waiting.key == plan.key else waiting
                for waiting in entry.pending
            )
            plans = tuple(waiting for waiting in pending if waiting is not None)
            self._put(replace(entry, pending=plans))

    def put_off(self, plan: PendingPlan, *answers: PutOff) -> None:
        """Stores snoozed operations on the table of a plan."""
        entry = self.entry_of(plan.uri, plan.name)
        if entry is not None:
            answer_of_operation = {
                answer.operation: answer for answer in (*entry.put_off, *answers)
            }
            self._put(replace(entry, put_off=tuple(answer_of_operation.values())))

    def acknowledge(
        self, name: str, make: Callable[[AssessmentEntry], Acknowledgement | None]
    ) -> AssessmentEntry:
        """Stores the acknowledgement that `make` returns for the entry of a name, or removes it.

        The entry is read again afterwards, and the acknowledgement stored once more if an
        assessment has replaced it in the meantime. Raises `InvalidRequestError` without an entry,
        and the errors of `make`.
        """
        named_entry = self.find_by_name(name)
        uri = named_entry.assessment.uri if isinstance(named_entry, AssessmentEntry) else name
        for _ in range(_TURNS):
            entry = self.entry_of(uri, name)
            if entry is None:
                raise InvalidRequestError(
                    f"{name[:200]!r} was never assessed in {self.uri}",
                    remedy="give the name of a table or a pattern as `assess` shows it",
                )
            entry = replace(entry, acknowledgement=make(entry))
            self._put(entry)
            stored = self.entry_of(uri, name)
            if stored is not None and stored.acknowledgement == entry.acknowledgement:
                return stored
        raise IncompleteError(f"the entry of {name[:200]!r} is replaced all the time")

    def entry_of(self, uri: str, name: str) -> AssessmentEntry | None:
        """The state of a table or of the pattern with a name; None if it is missing or unreadable.
        Raises errors of the store.
        """
        entry = self.load(uri, name=name)
        return entry if isinstance(entry, AssessmentEntry) else None

    def save_files(self, uri: str, plan: Plan, listing: FileListing, operation: str) -> None:
        """Stores the files of a plan of a table that needs an approval."""
        files = PlannedFiles.of(
            getattr(plan, "planned_at", clock.now()), listing.lines(reported=False)
        )
        _FILES.write(self.store, plan_file(uri, operation), files)

    def files_of(self, plan: PendingPlan) -> PlannedFiles | None:
        """The files of a plan that waits; None if they are not known."""
        files = _FILES.read(self.store, plan_file(plan.uri, plan.operation))
        return files if files is not None and files.planned_at == plan.plan.planned_at else None

    def _put(self, entry: AssessmentEntry) -> None:
        assessed = entry.assessment
        if assessed.subject == "pattern":
            self.store.put(pattern_file(assessed.name), entry_bytes(entry))
            return
        entry = replace(entry, identity=identity_of(assessed.uri))
        self.store.put(table_file(assessed.uri), entry_bytes(entry))

    def forget(self, pattern: str) -> None:
        """Removes the entry of a pattern, if there is one."""
        self.store.delete(pattern_file(pattern))

    def saved_at(self) -> Callable[[str, str], datetime | None]:
        """A function that returns when the entry of a table, given its address and its name, was
        last saved; None if there is none.

        Reads only the listing, so the cost does not depend on the size of the entries.
        """
        listed = {
            status.path: datetime.fromtimestamp(status.modified_ms / 1000, UTC)
            for status in self._entries()
        }

        def at(uri: str, name: str) -> datetime | None:
            return listed.get(table_file(uri)) or listed.get(pattern_file(name))

        return at

    def last_written_at(self) -> datetime | None:
        """Returns when a task last wrote to the folder, such as an entry or a lease; None as long
        as there is no entry.
        """
        files = list(self.store.list_from(""))
        if not any(file.path.endswith(ENTRY_SUFFIX) for file in files):
            return None
        return datetime.fromtimestamp(max(file.modified_ms for file in files) / 1000, UTC)

    def load(
        self, uri: str, *, name: str | None = None
    ) -> AssessmentEntry | UnreadableEntry | None:
        """The state of the table at an address in any form, or of the pattern with a name. None if
        it was never assessed. Raises errors of the store.
        """
        status = self.store.stat(table_file(uri))
        if status is None:
            status = self.store.stat(pattern_file(uri if name is None else name))
        return self._read(status) if status is not None else None

    def find_by_name(self, name: str) -> AssessmentEntry | UnreadableEntry | None:
        """The state of the table with a name, found among all entries. Raises errors of the
        store.
        """
        entries = [entry for entry in self.load_all() if isinstance(entry, AssessmentEntry)]
        entry_with_name = next((entry for entry in entries if entry.name == name), None)
        return (
            None
            if entry_with_name is None
            else self.load(entry_with_name.assessment.uri, name=name)
        )

    def load_all(self) -> tuple[AssessmentEntry | UnreadableEntry, ...]:
        """All entries by table name; unreadable entries come last.

        Entries omit the commits of the health, so that thousands of tables fit into memory. Reads
        the listing and the files that changed since the last call. Raises the errors of the store.
        """
        with self._lock:
            listed = self._entries()
            new_files = [status for status in listed if status not in self._known]
            read = dict(zip(new_files, self._read_all(new_files), strict=True))
            entry_of_file = {status: self._known.get(status) or read[status] for status in listed}
            # A file that was deleted after the listing is skipped.
            self._known = {
                status: entry for status, entry in entry_of_file.items() if entry is not None
            }
            return tuple(sorted(newest_by_name(self._known.values()), key=_order))

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
            if status.path.endswith(ENTRY_SUFFIX) and not status.path.startswith(".")
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
            entry = parse_entry(self.store.read(status.path), brief=brief)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return _unreadable(status, "it is not JSON")
        except InvalidRequestError as error:
            return _unreadable(status, error.problem)
        if status.path not in (
            pattern_file(entry.name),
            f"{_stem(status)}.{entry.identity}{ENTRY_SUFFIX}",
        ):
            return _unreadable(status, f"it is about another table, {entry.name!r}")
        return entry


def _stem(status: FileStatus) -> str:
    return status.path.partition(".")[0]


def _unreadable(status: FileStatus, problem: str) -> UnreadableEntry:
    return UnreadableEntry(
        file=status.path,
        problem=f"{problem[:500]}; delete it, or let the next assessment replace it",
    )


def _order(entry: AssessmentEntry | UnreadableEntry) -> tuple[bool, str]:
    readable = isinstance(entry, AssessmentEntry)
    return not readable, entry.name if isinstance(entry, AssessmentEntry) else entry.file

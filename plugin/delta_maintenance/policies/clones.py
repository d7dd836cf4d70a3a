"""Shallow clones among the tables of a policy: which tables refer to files of which others.

The log of a table knows nothing of its clones, so the logs of all tables of the policy are searched
for absolute paths, and the folders of these paths are remembered between runs. A folder only
decides which clones a vacuum reads. The vacuum itself reads the files that they need.

A table that cannot be read is a clone if a readable file of its log, or an earlier run, shows a
folder of the vacuumed table, or if its catalog calls it one. Otherwise it does not hold up the
others. A table whose store does not answer is waited for once. One whose store is slow is waited
for every 15 minutes: until then, what its last look has shown counts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind, place_of
from delta_maintenance.errors import (
    DeltaMaintenanceError,
    NotADeltaTableError,
    RefusedError,
    failure_of,
)
from delta_maintenance.operations.holds.references import (
    Folders,
    References,
    mark_of,
    references_in_readable_files,
    references_of,
    refers_to,
)
from delta_maintenance.policies.catalogs import OptionsAt
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery
from delta_maintenance.policies.lanes import Job, start_jobs, wait_for
from delta_maintenance.policies.state_files import REFERENCES_FILE, StateFile
from delta_maintenance.protocol.actions.paths import location_of_root
from delta_maintenance.storage import Store
from delta_maintenance.table.read.log_file import relisting
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table, open_table

_logger = logging.getLogger(__name__)

_FRESH = timedelta(minutes=5)
"""Plans look at logs again after this time, and what deletes at those that could not be read. A
clone that is made meanwhile may be one of an old version, whose files are not live any more: what
deletes looks at all others first."""
_PATIENCE, _BRIEFLY = 120.0, 5.0
"""The seconds for which a table is waited for, and one that could not be read before or is slow. A
look at an ordinary table takes less than both, also while the machine is busy."""
_SLOW = 20.0
"""The seconds from which a look that reads only what is new is one at a slow table."""
_OLDEST = timedelta(minutes=15)
"""The age from which what a look at a slow table has shown does not count without a new one: a
process may end before its look does."""
_HEAD = 64 << 10
_LINKED = (StoreKind.LOCAL, StoreKind.HDFS)
"""The stores in which a folder can have several paths. In others, only the bucket can."""
_MAY_BE = "may be a shallow clone of this one"
_LATE = "its log is still being read"
_LISTED = "listed:"
"""Followed by a pattern or a part of a catalog: an entry of the memory that says that its tables
are remembered."""
_NAMED = 5
_MEMORY = StateFile(dict[str, References])


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the log of a table, which may be under way."""

    job: Job[References]
    folders: Folders
    """Those that it has read until now."""
    known: References
    """What was known before."""


@dataclass
class PolicyClones:
    """Finds the shallow clones of tables among all tables of a policy.

    Safe to share between threads. Memory: the addresses and the folders of all tables, and a batch
    of actions for each of a few tables at once.
    """

    discover: Callable[[], Discovery]
    """Returns all tables of the policy. Called when a clone is asked for, and again before
    deletions."""
    options_at: OptionsAt
    policies: Sequence[Policy] = ()
    """The policies, whose entries may name one table twice."""
    tables: Sequence[PolicyTable] = ()
    """Tables that are known without a search."""
    discovered: Discovery | None = None
    """The tables of the policy, if they were discovered just now."""
    state: Store | None = None
    """Where folders are remembered between runs."""
    writes: bool = True
    """Whether they are remembered; a dry run only reads what others remember."""
    now: clock.Clock = field(default_factory=lambda: clock.now)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _looks: dict[str, _Look] = field(default_factory=dict, repr=False)
    """Those under way."""
    _looked_at: datetime | None = None
    _looks_anew: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0}, repr=False)
    """The number of all looks for deletions, and of those that waited for slow tables."""
    _tables: Mapping[str, PolicyTable] = field(default_factory=dict, repr=False)
    _places: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _known: dict[str, References] = field(default_factory=dict, repr=False)
    """What the last look found, and what is remembered from earlier runs."""
    _listed: set[str] = field(default_factory=set, repr=False)
    """The patterns that earlier runs could list, while one cannot be listed."""
    _state_problem: DeltaMaintenanceError | None = None
    """Why it is unknown what earlier runs have read."""
    _warned: set[str] = field(default_factory=set, repr=False)
    _unreached: dict[str, tuple[datetime, str]] = field(default_factory=dict, repr=False)
    """When and why entries could not be compared with a table."""

    def of(self, table: Table, policy_table: PolicyTable, *, anew: bool = False) -> tuple[str, ...]:
        """Returns the addresses of the tables that may need files of a table.

        With `anew`, those count that were made until now. A table that cannot be read counts by
        what is known of it: from the readable files of its log, and from earlier runs. Raises
        `RefusedError` for one of which not everything is known only if the rules of the table ask
        for that, or if the memory of earlier runs cannot be read; likewise for a pattern of the
        policy that no earlier run could list.
        """
        unreadable = policy_table.rules.clones.unreadable
        is_strict = unreadable == "block"
        before = self._looks_anew[is_strict]
        with self._lock:
            # A look serves every thread that waited for it to begin.
            if not anew or before == self._looks_anew[is_strict]:
                self._look_again(anew=anew, wait_for_slow=is_strict)
            unexamined: dict[str, str] = {}
            for failed in self._found.unread:
                if not self._was_listed(failed.pattern):
                    unexamined[f"the tables at {failed.pattern}"] = failed.error.problem
            here = place_of(table.uri)
            roots = [
                location_of_root(root).decode(errors="replace") for root in table.store.addresses
            ]
            clones = []
            for uri, references in self._known.items():
                if self._places.get(uri) == here:
                    continue
                is_former = uri not in self._tables
                if is_former or references.problem is not None:
                    if unreadable == "ignore":
                        continue
                    if not is_former and not references.is_whole:
                        unexamined[f"the table {uri}"] = str(references.problem)
                # Text alone does not show what a damaged commit has lost.
                was_opened = references.problem is None or references.commit is not None
                if refers_to(references, roots):
                    clones.append(uri)
                    unexamined.pop(f"the table {uri}", None)
                elif not (was_opened or is_former) and self._tables[uri].is_shallow_clone:
                    raise RefusedError(
                        f"its catalog calls the table {uri} a shallow clone, perhaps of this one, "
                        f"and it cannot be examined: {references.problem}",
                        table=table.uri,
                        remedy="repair it, or set clones: {unreadable: ignore} in the policy, for "
                        "this table or in the defaults, if it needs no file of this one",
                    )
            if unreadable != "ignore":
                self._require_known(unexamined, table.uri, all_of_them=unreadable == "block")
            return tuple(clones)

    def storage_options(self, address: str) -> Mapping[str, str] | None:
        """Returns the storage options of a table of the policy; None for other addresses."""
        table = self._tables.get(address)
        return None if table is None else self.options_at(table.rules.storage, table.uri)

    def same_tables(self, snapshot: Snapshot, own: PolicyTable) -> Iterator[PolicyTable]:
        """Yields what else the policy says of a table: by a link, by another address of its store,
        or by a name in a catalog.

        An entry is of the same table if the newest file of the log is there, too, which takes a
        request if its address leaves that open. Raises `RefusedError` if an entry cannot be
        examined, unless the rules of the table say that such tables are ignored.
        """
        here, segment = place_of(own.uri), snapshot.log.segment
        newest = segment.last_commit
        if newest is None:
            assert segment.checkpoint is not None
            newest = segment.checkpoint.entries[-1]
        for entry in self._entries(own):
            place = place_of(entry.uri)
            may_be = place[0] == here[0] and (place[0] in _LINKED or place[2] == here[2])
            if entry.rules == own.rules or not may_be:
                continue
            if place == here:
                yield entry
                continue
            problem = self._lately_unreached(entry)
            if problem is None:
                try:
                    if self._has(entry, snapshot.log.store, newest.path):
                        yield entry
                    continue
                except Exception as error:
                    problem = _problem_of(error, entry)
                    self._unreached[entry.uri] = self.now(), problem
            unreadable = own.rules.clones.unreadable
            if unreadable == "block" or (unreadable == "suspected" and place[2] == here[2]):
                raise _unknown(f"{entry.uri} may be this table", problem, snapshot.table)

    def _lately_unreached(self, entry: PolicyTable) -> str | None:
        """Returns why an entry could not be reached a short while ago; None if it was."""
        at, problem = self._unreached.get(entry.uri, (None, None))
        return problem if at is not None and self.now() - at < _FRESH else None

    def _entries(self, policy_table: PolicyTable) -> Iterator[PolicyTable]:
        """Yields the entries of the policy that may be of the same table as another one."""
        yield from self.tables
        catalogs = 0
        for policy in self.policies:
            yield from policy.named_tables
            catalogs += sum(map(bool, policy.names.values()))
            address = Address.parse(policy_table.uri)
            real = os.path.realpath(address.path) if address.is_local else policy_table.uri
            if policy.has_table_at(real):
                # A pattern does not follow links.
                yield policy.table_at(real)
        if catalogs > (policy_table.catalog_name is not None):
            with self._lock:
                self.discovered = self.discovered or self.discover()
            yield from (*self.discovered.tables, *self.discovered.aliases)

    def _has(self, entry: PolicyTable, store: Store, path: str) -> bool:
        """Whether a table has the same file as a store: its copies are of another time."""
        options = self.options_at(entry.rules.storage, entry.uri)
        with closing(open_table(entry.uri, options).store) as other_store:
            own_status, its = store.stat(path), other_store.stat(path)
            if own_status is None or its is None or mark_of(own_status) != mark_of(its):
                return False
            return other_store.read_head(path, _HEAD) == store.read_head(path, _HEAD)

    @property
    def _found(self) -> Discovery:
        assert self.discovered is not None
        return self.discovered

    def _look_again(self, *, anew: bool, wait_for_slow: bool) -> None:
        now, looked_at = self.now(), self._looked_at
        if not anew and looked_at is not None and timedelta() <= now - looked_at < _FRESH:
            return
        self._looks_anew[False] += anew
        self._looks_anew[True] += anew and wait_for_slow
        if anew or self.discovered is None:
            self.discovered = self.discover()
        # A ledger is nobody's clone, and one that is down must not keep others from a vacuum.
        self._tables = {table.uri: table for table in self._found.tables if not table.is_ledger}
        self._places = {uri: place_of(uri) for uri in self._tables}
        remembered = {**self._load_memory(), **self._known}
        remembered |= self._ended_looks()
        self._begin_looks(remembered, now, anew=anew)

        def is_waited_for(look: _Look) -> bool:
            if look.known.is_slow:
                return wait_for_slow or not _is_recent(look.known, now)
            return look.known.problem is None

        for look in self._looks.values():
            wait_for(look.job, patience=_PATIENCE if is_waited_for(look) else _BRIEFLY)
        late = {}
        for uri, look in self._looks.items():
            references = look.known.or_failed(_LATE, look.folders.sorted_folders(), now=now)
            # A store that did not answer for so long is not only slow.
            late[uri] = replace(references, is_slow=references.is_slow and not is_waited_for(look))
        references_by_uri = {**remembered, **late, **self._ended_looks()}
        references_by_uri = {
            uri: references for uri, references in references_by_uri.items() if uri in self._tables
        }
        self._looked_at = now
        # Tables of a pattern that could not be listed stay remembered.
        former = remembered if self._found.unread else {}
        listed = References(read_at=now, seen_at=now)
        failed = [pattern.pattern for pattern in self._found.unread]
        # A catalog is listed even if one of its schemas is not.
        listed_parts = [
            p
            for p in self._found.listed
            if not any(_is_part(failed_part, p) for failed_part in failed)
        ]
        self._listed = {key.removeprefix(_LISTED) for key in former if key.startswith(_LISTED)}
        self._known = {
            **former,
            **references_by_uri,
            **{_LISTED + part: listed for part in listed_parts},
        }
        self._remember(self._known)

    def _ended_looks(self) -> dict[str, References]:
        """Takes out the looks that are no longer under way."""
        ended = [uri for uri, look in self._looks.items() if look.job.done()]
        return {uri: self._looks.pop(uri).job.result() for uri in ended}

    def _begin_looks(
        self, remembered: Mapping[str, References], now: datetime, *, anew: bool
    ) -> None:
        """Looks at the tables, except those that were seen lately, or whose look is under way."""
        nothing = References(read_at=now, seen_at=now - _FRESH, is_whole=False)
        tables = []
        for table in self._tables.values():
            references = remembered.get(table.uri, nothing)
            is_fresh = timedelta() <= now - references.seen_at < _FRESH
            # Other processes may have failed before a table was repaired.
            failed_here = references.problem is not None and table.uri in self._known
            if table.uri not in self._looks and not (is_fresh and (failed_here or not anew)):
                tables.append((table, references, Folders()))
        jobs = start_jobs(partial(self._look, now), tables)
        for (table, references, folders), job in zip(tables, jobs, strict=True):
            self._looks[table.uri] = _Look(job, folders, references)

    def _look(
        self, now: datetime, look_arguments: tuple[PolicyTable, References, Folders]
    ) -> References:
        began, (_, last_references, _) = time.monotonic(), look_arguments
        references = self._look_at(now, *look_arguments)
        if references.problem is not None:
            return replace(references, is_slow=False)
        # The first look reads the whole log, which takes long where no store is slow.
        is_slow = last_references.commit is not None and time.monotonic() - began >= _SLOW
        return replace(references, is_slow=is_slow, known_until=now)

    def _look_at(
        self, now: datetime, table: PolicyTable, last_references: References, folders: Folders
    ) -> References:
        try:
            options = self.options_at(table.rules.storage, table.uri)
            opened = open_table(table.uri, options)
        except Exception as error:
            return last_references.or_failed(_problem_of(error, table), (), now=now)
        folders.exclude(opened.store.addresses)
        with closing(opened.store):
            try:
                return relisting(
                    lambda: references_of(opened, last_references, now=now, folders=folders)
                )
            except NotADeltaTableError as error:
                if last_references.folders:
                    return last_references.or_failed(_problem_of(error, table), (), now=now)
                # A table that never was a clone, and is gone, needs nothing.
                return References(read_at=now, seen_at=now)
            except Exception as error:
                problem = _problem_of(error, table)
            with suppress(Exception):
                return references_in_readable_files(
                    opened, last_references, problem, now=now, folders=folders
                )
            return last_references.or_failed(problem, folders.sorted_folders(), now=now)

    def _was_listed(self, pattern: str) -> bool:
        """Whether an earlier run could list a pattern, or a part of a catalog."""
        return any(_is_part(pattern, listed) for listed in self._listed)

    def _require_known(
        self, unexamined: Mapping[str, str], table: str, *, all_of_them: bool
    ) -> None:
        """Names what could not be examined, once for a run; or refuses to go on without it."""
        for subject, problem in unexamined.items():
            if all_of_them or self._state_problem is not None:
                raise _unknown(f"{subject} {_MAY_BE}", problem, table, self._state_problem)
        new_problems = [
            f"{subject} ({reason})"
            for subject, reason in unexamined.items()
            if subject not in self._warned
        ]
        self._warned.update(unexamined)
        if new_problems:
            others_text = (
                f", and {len(new_problems) - _NAMED} more" if len(new_problems) > _NAMED else ""
            )
            _logger.warning(
                "%s%s could not be examined for shallow clones: vacuums of other tables run "
                "nevertheless, because no record says that these tables need their files; set "
                "clones: {unreadable: block} in the defaults of the policy to stop them",
                ", ".join(new_problems[:_NAMED]),
                others_text,
            )

    def _load_memory(self) -> dict[str, References]:
        if self.state is None or self._state_problem is not None:
            return {}
        try:
            return _MEMORY.read(self.state, REFERENCES_FILE) or {}
        except DeltaMaintenanceError as error:
            self._state_problem = error
            return {}

    def _remember(self, references: dict[str, References]) -> None:
        if self.state is None or not self.writes or self._state_problem is not None:
            return
        try:
            _MEMORY.write(self.state, REFERENCES_FILE, references)
        except DeltaMaintenanceError as error:
            if REFERENCES_FILE not in self._warned:
                _logger.warning("what refers to which tables cannot be remembered: %s", error)
            self._warned.add(REFERENCES_FILE)


def _is_recent(references: References, now: datetime) -> bool:
    """Whether what the last look has shown counts without a new one."""
    return (
        references.known_until is not None and timedelta() <= now - references.known_until < _OLDEST
    )


def _is_part(pattern: str, wider_pattern: str) -> bool:
    """Whether a part of a catalog, or a pattern, belongs to another or is the same."""
    return f"{pattern}.".startswith(f"{wider_pattern}.")


def _problem_of(error: Exception, table: PolicyTable) -> str:
    failure = failure_of(error, where=table.name)
    return failure.problem if failure.file is None else f"{failure.problem}: {failure.file}"


def _unknown(
    subject: str, problem: str, table: str, state_problem: DeltaMaintenanceError | None = None
) -> RefusedError:
    if state_problem is not None:
        return RefusedError(
            f"{subject}, and cannot be examined ({problem}), and what earlier runs have read of it "
            f"is unknown: {state_problem.problem}",
            table=table,
            remedy="repair the folder of assessments, or the table",
        )
    return RefusedError(
        f"{subject}, and cannot be examined: {problem}",
        table=table,
        remedy="repair it, or set clones: {unreadable: suspected} in the policy, for this table or "
        "in the defaults",
    )

"""Shallow clones among the tables of a policy: which tables refer to files of which others.

The log of a table knows nothing of its clones, so the logs of all tables of the policy are searched
for absolute paths, and the folders of these paths are remembered between runs. A folder only
decides which clones a vacuum reads. The vacuum itself reads the files that they need.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind, place_of
from delta_maintenance.errors import (
    DeltaMaintenanceError,
    NotADeltaTableError,
    RefusedError,
    failure_of,
)
from delta_maintenance.operations.holds.clones import take_committed, take_foreign_paths
from delta_maintenance.policies.catalogs import OptionsAt
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery
from delta_maintenance.protocol.actions.paths import location_of_root, written_locations
from delta_maintenance.storage import FileStatus, Store
from delta_maintenance.table.read.log_file import LogEntry, relisting
from delta_maintenance.table.read.segment import LogListing, list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table, open_table

_PARALLEL = 8
_FRESH = timedelta(minutes=5)
"""Plans look at logs again after this time. A clone that is made meanwhile may be one of an old
version, whose files are not live any more: what deletes looks again first."""
_STALE = timedelta(days=1)
"""A table with references is read in full after this time, so that former ones are forgotten."""
_MOST_FOLDERS = 64
_MOST_TEXT_BYTES = 64 << 20
_MOST_FILE_BYTES = 64 << 20
_HEAD = 64 << 10
_LINKED = (StoreKind.LOCAL, StoreKind.HDFS)
"""The stores in which a folder can have several paths. In others, only the bucket can."""
_MAY_BE = "may be a shallow clone of this one"
_MEMORY = "clones.references"
"""Not the suffix of assessments, with which the folder is shared."""
_LISTED = "listed:"
"""Followed by a pattern or a part of a catalog: an entry of the memory that says that its tables
are remembered."""
_PARTITIONS = r"(/[^/]*=[^/]*)+$"
_WRITTEN = re.compile(
    rb'"(?:path|pathOrInlineDv)"\s*:\s*("(?:\\?/|[A-Za-z][A-Za-z0-9+.-]*:)(?:[^"\\]|\\.)*")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The folders outside a table to which its log refers, as of one version."""

    version: int
    commit: tuple[int, int] | None = None
    """The size and the time of the commit of that version."""
    folders: tuple[str, ...] = ()
    """Normalised locations, without the folders of partitions. Of many, folders above them."""
    read_at: datetime
    """When the whole log was read."""
    seen_at: datetime
    """When the log was last looked at."""


_REMEMBERED = TypeAdapter(dict[str, References])


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is known of a table. Without `references`, the table may refer to anything."""

    references: References | None
    problem: DeltaMaintenanceError | None = None
    """Why its log cannot be read."""


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
    _looked: dict[str, _Looked] = field(default_factory=dict, repr=False)
    _looked_at: datetime | None = None
    _looks_anew: int = 0
    _tables: Mapping[str, PolicyTable] = field(default_factory=dict, repr=False)
    _places: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _known: dict[str, References] = field(default_factory=dict, repr=False)
    """What the last look found."""
    _former: Mapping[str, References] = field(default_factory=dict, repr=False)
    """The tables of earlier runs, while a pattern cannot be listed."""
    _listed: set[str] = field(default_factory=set, repr=False)
    """The patterns that earlier runs could list, while one cannot be listed."""

    def of(self, table: Table, policy_table: PolicyTable, *, anew: bool = False) -> tuple[str, ...]:
        """Returns the addresses of the tables that may need files of a table.

        With `anew`, those count that were made until now. Raises `RefusedError` if a table or a
        pattern of the policy cannot be examined, and no earlier run could do so, unless the rules
        of the table say that such tables are ignored.
        """
        rule = policy_table.rules.clones
        ignores = rule.unreadable == "ignore"
        before = self._looks_anew
        with self._lock:
            # A look serves every thread that waited for it to begin.
            if not anew or before == self._looks_anew:
                self._look_again(anew=anew)
            for failed in self._found.unread:
                if not ignores and not self._was_listed(failed.pattern):
                    what = f"the tables at {failed.pattern} {_MAY_BE}"
                    raise _unknown(what, failed.error, table.uri)
            here = place_of(table.uri)
            roots = [
                location_of_root(root).decode(errors="replace") for root in table.store.addresses
            ]
            former = {} if ignores else self._former
            clones = [uri for uri, each in former.items() if _refers_to(each, roots)]
            for uri, looked in self._looked.items():
                if self._places[uri] == here:
                    continue
                if looked.references is None:
                    if not ignores and looked.problem is not None:
                        raise _unknown(f"the table {uri} {_MAY_BE}", looked.problem, table.uri)
                elif not (ignores and looked.problem is not None) and _refers_to(
                    looked.references, roots
                ):
                    clones.append(uri)
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
            try:
                is_same = place == here or self._has(entry, snapshot.log.store, newest.path)
            except Exception as error:
                if own.rules.clones.unreadable == "ignore":
                    continue
                problem = failure_of(error, where=entry.name)
                raise _unknown(f"{entry.uri} may be this table", problem, snapshot.table) from error
            if is_same:
                yield entry

    def _entries(self, own: PolicyTable) -> Iterator[PolicyTable]:
        """Yields the entries of the policy that may be of the same table as another one."""
        yield from self.tables
        catalogs = 0
        for policy in self.policies:
            yield from policy.named_tables
            catalogs += sum(map(bool, policy.names.values()))
            address = Address.parse(own.uri)
            real = os.path.realpath(address.path) if address.is_local else own.uri
            if policy.has_table_at(real):
                # A pattern does not follow links.
                yield policy.table_at(real)
        if catalogs > (own.catalog_name is not None):
            with self._lock:
                self.discovered = self.discovered or self.discover()
            yield from (*self.discovered.tables, *self.discovered.aliases)

    def _has(self, entry: PolicyTable, store: Store, path: str) -> bool:
        """Whether a table has the same file as a store: its copies are of another time."""
        options = self.options_at(entry.rules.storage, entry.uri)
        with closing(open_table(entry.uri, options).store) as other:
            own, its = store.stat(path), other.stat(path)
            if own is None or its is None or _mark(own) != _mark(its):
                return False
            return other.read_head(path, _HEAD) == store.read_head(path, _HEAD)

    @property
    def _found(self) -> Discovery:
        assert self.discovered is not None
        return self.discovered

    def _look_again(self, *, anew: bool) -> None:
        now, last = self.now(), self._looked_at
        if not anew and last is not None and timedelta() <= now - last < _FRESH:
            return
        self._looks_anew += anew
        if anew or self.discovered is None:
            self.discovered = self.discover()
        # A ledger is nobody's clone, and one that is down must not keep others from a vacuum.
        self._tables = {table.uri: table for table in self._found.tables if not table.is_ledger}
        self._places = {uri: place_of(uri) for uri in self._tables}
        remembered = {**self._remembered(), **self._known}
        look = partial(self._look, remembered, now, anew)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            self._looked = dict(
                zip(self._tables, pool.map(look, self._tables.values()), strict=True)
            )
        self._looked_at = now
        # Tables of a pattern that could not be listed stay remembered.
        kept = remembered if self._found.unread else {}
        known = {uri: each.references for uri, each in self._looked.items() if each.references}
        listed = References(version=-1, read_at=now, seen_at=now)
        failed = [each.pattern for each in self._found.unread]
        # A catalog is listed even if one of its schemas is not.
        whole = [p for p in self._found.listed if not any(_is_part(each, p) for each in failed)]
        parts = {_LISTED + part: listed for part in whole}
        self._former = {
            uri: each
            for uri, each in kept.items()
            if uri not in self._tables and not uri.startswith(_LISTED)
        }
        self._listed = {key.removeprefix(_LISTED) for key in kept if key.startswith(_LISTED)}
        self._known = {**kept, **known, **parts}
        self._remember(self._known)

    def _look(
        self, remembered: Mapping[str, References], now: datetime, anew: bool, table: PolicyTable
    ) -> _Looked:
        known = remembered.get(table.uri)
        if known is not None and not anew and timedelta() <= now - known.seen_at < _FRESH:
            return _Looked(known)
        try:
            options = self.options_at(table.rules.storage, table.uri)
            opened = open_table(table.uri, options)
        except Exception as error:
            return _Looked(known, failure_of(error, where=table.name))
        with closing(opened.store):
            try:
                return _Looked(relisting(lambda: references_of(opened, known, now=now)))
            except NotADeltaTableError as error:
                # A table that never was a clone, and is gone, needs nothing.
                nothing = References(version=-1, read_at=now, seen_at=now)
                return _Looked(known, error) if known and known.folders else _Looked(nothing)
            except Exception as error:
                problem = failure_of(error, where=table.name)
            try:
                return _Looked(_from_texts(opened, known, now=now), problem)
            except Exception:
                return _Looked(known, problem)

    def _was_listed(self, part: str) -> bool:
        """Whether an earlier run could list a pattern, or a part of a catalog."""
        return any(_is_part(part, each) for each in self._listed)

    def _remembered(self) -> dict[str, References]:
        if self.state is None:
            return {}
        try:
            return _REMEMBERED.validate_json(self.state.read_head(_MEMORY, _MOST_FILE_BYTES))
        except (FileNotFoundError, ValidationError):
            return {}

    def _remember(self, known: dict[str, References]) -> None:
        if self.state is not None and self.writes:
            self.state.put(_MEMORY, _REMEMBERED.dump_json(known))


def references_of(table: Table, known: References | None, *, now: datetime) -> References:
    """Returns the folders outside a table to which its log refers.

    If the log continues what is `known`, only its newer commits are read. `FileNotFoundError` if a
    file of the log was deleted meanwhile; otherwise the errors of `Table.snapshot`.
    """
    if known is not None and known.commit is not None:
        listing = list_log(table.store, first_version=known.version)
        stale = bool(known.folders) and now - known.read_at >= _STALE
        if not stale and _continues(listing, known):
            return _with_newer(table, listing, known, now=now)
    snapshot = table.snapshot()
    last = snapshot.log.segment.last_commit
    return References(
        version=snapshot.version,
        commit=_mark(None if last is None else last.status),
        folders=tuple(sorted(folders_of(snapshot, now=now))),
        read_at=now,
        seen_at=now,
    )


def folders_of(snapshot: Snapshot, *, now: datetime) -> set[str]:
    """Returns the folders outside a table to which the log of its latest version refers, as
    normalised locations without the folders of partitions; of many, folders above them.
    """
    folders = _Folders(snapshot.log.store.addresses)
    take_foreign_paths(snapshot, now=now, take=folders.take)
    return folders.found


def _continues(listing: LogListing, known: References) -> bool:
    """Whether a listing has all commits since the known one, which is unchanged."""
    newest = max(listing.commits, default=-1)
    entry = listing.commits.get(known.version)
    return (
        entry is not None
        and _mark(entry.status) == known.commit
        and all(version in listing.commits for version in range(known.version, newest))
        and all(each.version <= newest for each in listing.checkpoints)
    )


def _with_newer(
    table: Table, listing: LogListing, known: References, *, now: datetime
) -> References:
    new = [listing.commits[v] for v in sorted(listing.commits) if v > known.version]
    folders = _Folders(table.store.addresses, set(known.folders))
    take_committed(table, new, take=folders.take)
    last = new[-1].status if new else None
    return replace(
        known,
        version=max(listing.commits),
        commit=known.commit if last is None else _mark(last),
        folders=tuple(sorted(folders.found)),
        seen_at=now,
    )


def _from_texts(table: Table, known: References | None, *, now: datetime) -> References:
    """Searches the text of commits for absolute paths, whatever else they contain.

    Raises `RefusedError` if that is not the whole log. `known` is completed by newer commits.
    """
    listing = list_log(table.store)
    first = 0 if known is None else known.version + 1
    newest = max([*listing.commits, *(each.version for each in listing.checkpoints)], default=-1)
    entries = [listing.commits.get(version) for version in range(first, newest + 1)]
    there: list[LogEntry] = [entry for entry in entries if entry is not None]
    if len(there) < len(entries) or sum(e.status.size for e in there) > _MOST_TEXT_BYTES:
        raise RefusedError("the log is not there as text", table=table.uri)
    folders = _Folders(table.store.addresses, set(known.folders if known is not None else ()))
    for entry in there:
        written = _WRITTEN.findall(table.store.read(entry.path))
        if written:
            texts = [json.loads(text) for text in written]
            folders.take(pa.array(texts, pa.string()))
    return References(
        # Read in full as soon as that is possible.
        version=newest,
        folders=tuple(sorted(folders.found)),
        read_at=now,
        seen_at=now - _FRESH,
    )


class _Folders:
    """The folders of paths, outside some roots."""

    def __init__(self, roots: Iterable[str], found: set[str] | None = None) -> None:
        self._own = [location_of_root(root).decode(errors="replace") for root in roots]
        self.found = found or set()

    def take(self, paths: pa.StringArray) -> None:
        """Adds the folders of absolute paths, as written."""
        try:
            locations = written_locations(paths).cast(pa.string())
        except pa.ArrowInvalid:
            texts = (each.decode(errors="replace") for each in written_locations(paths).to_pylist())
            locations = pa.array(texts, pa.string())
        folders = pc.unique(pc.replace_substring_regex(locations, r"(?s)/[^/]*$", ""))
        folders = pc.unique(pc.replace_substring_regex(folders, _PARTITIONS, ""))
        self.found.update(
            folder
            for folder in folders.to_pylist()
            if not any(f"{folder}/".startswith(f"{own}/") for own in self._own)
        )
        while len(self.found) > _MOST_FOLDERS:
            deepest = max(folder.count("/") for folder in self.found)
            if not deepest:
                break
            self.found = {
                folder.rpartition("/")[0] if folder.count("/") == deepest else folder
                for folder in self.found
            }


def _is_part(part: str, whole: str) -> bool:
    """Whether a part of a catalog, or a pattern, belongs to another or is the same."""
    return f"{part}.".startswith(f"{whole}.")


def _refers_to(references: References, roots: Iterable[str]) -> bool:
    return any(_may_be_of(folder, root) for folder in references.folders for root in roots)


def _may_be_of(folder: str, root: str) -> bool:
    """Whether files in a folder may be those of the table at a root, both as locations.

    A store can have several addresses, but the name of the table's folder is usually the same.
    """
    return overlap(folder, root) or folder.rpartition("/")[2] == root.rpartition("/")[2]


def overlap(folder: str, root: str) -> bool:
    """Whether one of two locations is, or contains, the other."""
    return f"{folder}/".startswith(f"{root}/") or f"{root}/".startswith(f"{folder}/")


def _mark(status: FileStatus | None) -> tuple[int, int] | None:
    return None if status is None else (status.size, status.modified_ms)


def _unknown(what: str, problem: DeltaMaintenanceError, table: str) -> RefusedError:
    return RefusedError(
        f"{what}, and cannot be examined: {problem.problem}",
        table=table,
        file=problem.file,
        remedy="repair it, or set clones: {unreadable: ignore} in the policy",
    )

"""Tables that nobody knows: logs in a store that belong to no catalog and no policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind, place_of
from delta_maintenance.errors import (
    CatalogError,
    DeltaMaintenanceError,
    NotADeltaTableError,
    failure_of,
)
from delta_maintenance.operations.holds.references import folders_of, overlap
from delta_maintenance.policies.catalogs import OptionsAt
from delta_maintenance.policies.definition.patterns import Pattern
from delta_maintenance.policies.definition.policy import Policy, PolicyTable, TableEntry
from delta_maintenance.policies.discovery import (
    Discovery,
    discover,
    environment_options,
    open_policy_table,
)
from delta_maintenance.policies.tree_search import OF_VERSION, tables_in
from delta_maintenance.protocol.actions.paths import location_of_root
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import EntryKind

_PARALLEL = 8
_SAME_HOSTS = (StoreKind.AZURE, StoreKind.HDFS)
"""Stores that have several names, so that addresses with different hosts can be one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A folder with a log that belongs to no table of a catalog or a policy."""

    uri: str
    size: int | None = None
    """The bytes of all files below it, also of those that no version refers to. None if it could
    not be listed."""
    files: int | None = None
    version: int | None = None
    """The newest version whose commit or checkpoint exists."""
    last_commit: datetime | None = None
    """The time of that file, in UTC."""
    contains: tuple[str, ...] = ()
    """Known tables that lie below the folder."""
    problem: str | None = None
    """Why it could not be examined, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Referenced:
    """An unknown folder with files that known tables use: the source of shallow clones."""

    uri: str
    by: tuple[str, ...]
    """The names of those tables, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPart:
    """A part of the search that failed."""

    where: str
    error: DeltaMaintenanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """The outcome of a search below some folders."""

    under: tuple[str, ...]
    assessed_at: datetime
    orphans: tuple[Orphan, ...]
    """The largest first."""
    referenced: tuple[Referenced, ...]
    known: int
    """The number of tables below the folders that a catalog or the policy names."""
    excluded: int
    """The number of tables below the folders that a pattern of the policy excludes."""
    failures: tuple[FailedPart, ...] = ()
    """Parts of the search that failed: a catalog, a pattern, a folder, or a table whose references
    are not known. Tables of these parts can be among the orphans."""

    @property
    def size(self) -> int:
        """The bytes of all orphans."""
        return sum(orphan.size or 0 for orphan in self.orphans)


def find_orphans(
    policy: Policy,
    under: Sequence[str],
    *,
    storage_options: OptionsAt = environment_options,
    now: datetime | None = None,
) -> Orphans:
    """Searches folders for tables that neither a catalog of the policy nor the policy names.

    Every table of every catalog counts as known, whether or not the policy asks for it. A table
    that a pattern of the policy excludes is no orphan, and neither is one with files that a known
    table refers to. Reads the logs of known tables only if there are unknown ones. Nothing is
    written.
    """
    discovery = discover(_asking_for_everything(policy), storage_options=storage_options)
    failures = [FailedPart(where=part.pattern, error=part.error) for part in discovery.unread]
    # A caller without rights gets an empty list, and every table would seem to be an orphan.
    no_rights = CatalogError("the catalog lists no table", remedy="grant the right to list tables")
    failures += (
        FailedPart(where=f"catalogs.{key}", error=no_rights)
        for key in policy.catalogs
        if f"{key}.**" in discovery.empty
    )
    known_places = _Places(discovery)
    candidates: dict[tuple[str, ...], _Candidate] = {}
    num_known = excluded = 0
    for folder in dict.fromkeys(address.rstrip("/") or address for address in under):
        options = partial(_options_at, policy, folder, storage_options)
        try:
            paths = _tables_below(folder, options())
        except Exception as error:
            failures.append(FailedPart(where=folder, error=failure_of(error, where=folder)))
            continue
        for path in paths:
            uri = str(Address.parse(folder).join(path)) if path else folder
            if known_places.has(uri):
                num_known += 1
            elif any(
                Pattern(entry.pattern or "").matches(uri) and entry.excludes(uri)
                for entry in policy.patterns
            ):
                excluded += 1
            else:
                candidates.setdefault(place_of(uri), _Candidate(uri, folder, path))
    uris = [candidate.uri for candidate in candidates.values()]
    now = now or clock.now()
    by, unread = _references(discovery.tables, uris, storage_options, now=now) if uris else ({}, [])
    with ThreadPoolExecutor(_PARALLEL) as pool:
        measured = pool.map(
            lambda orphan: _measure(orphan, _options_at(policy, orphan.folder, storage_options)),
            [candidate for candidate in candidates.values() if candidate.uri not in by],
        )
        orphans = [replace(orphan, contains=known_places.below(orphan.uri)) for orphan in measured]
    return Orphans(
        under=tuple(under),
        assessed_at=now,
        orphans=tuple(sorted(orphans, key=lambda each: (-(each.size or 0), each.uri))),
        referenced=tuple(Referenced(uri=uri, by=tuple(sorted(by[uri]))) for uri in sorted(by)),
        known=num_known,
        excluded=excluded,
        failures=(*failures, *unread),
    )


def _asking_for_everything(policy: Policy) -> Policy:
    """Returns the policy with every table of its catalogs."""
    everything = (TableEntry(catalog=f"{key}.**") for key in policy.catalogs)
    return Policy(
        version=policy.version,
        defaults=policy.defaults,
        catalogs=policy.catalogs,
        tables=(*policy.tables, *everything),
        ledger=policy.ledger,
    )


def _options_at(policy: Policy, folder: str, storage_options: OptionsAt) -> Mapping[str, str]:
    return storage_options(policy.table_at(folder).rules.storage, folder)


def _tables_below(folder: str, options: Mapping[str, str]) -> list[str]:
    store = open_store(folder, options)
    try:
        return sorted(tables_in(store))
    finally:
        store.close()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A folder with a log that is not known."""

    uri: str
    folder: str
    """The folder that was searched."""
    path: str
    """The path below it."""


class _Places:
    """Where the known tables are."""

    def __init__(self, discovery: Discovery) -> None:
        self._names = {_place(table.uri): table.name for table in discovery.tables}
        self._names |= {_place(duplicate.uri): duplicate.name for duplicate in discovery.duplicates}

    def has(self, uri: str) -> bool:
        return _place(uri) in self._names

    def below(self, uri: str) -> tuple[str, ...]:
        kind, authority, path = _place(uri)
        return tuple(
            sorted(
                name
                for place, name in self._names.items()
                if place[:2] == (kind, authority) and place[2].startswith(f"{path}/")
            )
        )


def _place(uri: str) -> tuple[str, ...]:
    kind, authority, path = place_of(uri)
    return kind, "" if kind in _SAME_HOSTS else authority, path


def _references(
    tables: Sequence[PolicyTable],
    roots: Sequence[str],
    storage_options: OptionsAt,
    *,
    now: datetime,
) -> tuple[dict[str, set[str]], list[FailedPart]]:
    """Returns the roots that contain files of other tables, with the names of these tables."""
    at = {location_of_root(root).decode(errors="replace"): root for root in roots}

    def look(table: PolicyTable) -> tuple[str, set[str] | DeltaMaintenanceError]:
        try:
            opened = open_policy_table(table, storage_options)
            try:
                folders = folders_of(opened.snapshot(), now=now)
                return table.name, {
                    root
                    for location, root in at.items()
                    if any(overlap(folder, location) for folder in folders)
                }
            finally:
                opened.store.close()
        except NotADeltaTableError:
            # A name of a table that is gone refers to nothing.
            return table.name, set()
        except Exception as error:
            return table.name, failure_of(error, where=table.name)

    by: dict[str, set[str]] = {}
    failures = []
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for name, used in pool.map(look, tables):
            if isinstance(used, DeltaMaintenanceError):
                failures.append(FailedPart(where=name, error=used))
                continue
            for root in used:
                by.setdefault(root, set()).add(name)
    return by, failures


def _measure(candidate: _Candidate, options: Mapping[str, str]) -> Orphan:
    try:
        store = open_store(candidate.folder, options)
        try:
            return _list_files(store, candidate)
        finally:
            store.close()
    except Exception as error:
        problem = failure_of(error, where=candidate.uri)
        return Orphan(uri=candidate.uri, problem=str(problem))


def _list_files(store: Store, candidate: _Candidate) -> Orphan:
    size = files = 0
    newest: tuple[int, int | None] | None = None
    # The listing has paths from the store's root on.
    log = f"^{_escape(f'{candidate.path}/' if candidate.path else '')}{OF_VERSION}"
    for batch in store.list_tree(candidate.path):
        there = batch.filter(pc.equal(batch["kind"], int(EntryKind.FILE)))
        if there["size"].null_count:
            there = store.statuses(there["path"])
        files += there.num_rows
        size += pc.sum(there["size"]).as_py() or 0
        versions = pc.struct_field(pc.extract_regex(there["path"], log).combine_chunks(), "version")
        commits = pa.table({"version": versions, "ms": there["modified_ms"]}).filter(
            pc.is_valid(versions)
        )
        if commits.num_rows:
            last_commit = commits.take(pc.sort_indices(commits, [("version", "descending")])[:1])
            here = int(last_commit["version"][0].as_py()), last_commit["ms"][0].as_py()
            newest = max(newest or (-1, None), here, key=lambda each: each[0])
    version, ms = newest or (None, None)
    return Orphan(
        uri=candidate.uri,
        size=size,
        files=files,
        version=version,
        last_commit=clock.instant(ms) if ms is not None else None,
    )


def _escape(text: str) -> str:
    """Quotes a text for the regular expressions of Arrow."""
    return r"\Q" + text.replace(r"\E", r"\E\\E\Q") + r"\E" if text else ""

"""Finding the tables that match the patterns of a policy, and opening them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from delta_maintenance.address import place_of
from delta_maintenance.catalogs.catalog import PassedOver
from delta_maintenance.errors import (
    AbsentTableError,
    DeltaMaintenanceError,
    EmptyPatternError,
    InvalidRequestError,
    failure_of,
    remember_name,
)
from delta_maintenance.operations.core.policy_values import StorageRule, resolve
from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.policies.catalogs import (
    CatalogFound,
    CatalogMemory,
    CatalogSearch,
    OptionsAt,
)
from delta_maintenance.policies.definition.patterns import Pattern
from delta_maintenance.policies.definition.policy import Policy, PolicyTable, TableEntry
from delta_maintenance.policies.models import Assessment
from delta_maintenance.policies.tree_search import PARALLEL, tables_in
from delta_maintenance.storage import open_store
from delta_maintenance.table.read.table import Table, open_table

_logger = logging.getLogger(__name__)

_PATTERNS_AT_ONCE = 8
_LONG, _WHILE = 30.0, 300.0
"""The seconds after which a failure is that of a store that does not answer, and for which it is
not asked again."""
_SHOWN = 20
"""The duplicates that are named; more are counted."""


def environment_options(rule: StorageRule, address: str | None = None) -> dict[str, str]:
    """Returns the options of a rule, with references to the environment resolved, for the store at
    any address.

    Raises `InvalidRequestError` for an unset variable, and for a connection, because only
    orchestrators have connections.
    """
    connection = rule.connection or rule.catalog_connection
    if connection is not None:
        raise InvalidRequestError(
            f"only an orchestrator can resolve the connection {connection!r}",
            remedy="run the policy in an orchestrator, or give storage options in the policy",
        )
    return resolved_options(rule)


def resolved_options(rule: StorageRule) -> dict[str, str]:
    """Returns only the options of a rule, for callers that resolve its connection."""
    return {name: resolve(value, os.environ) for name, value in rule.options.items()}


@dataclass(frozen=True, slots=True)
class UnlistedPattern:
    """A pattern of a policy, or a part of a catalog, whose tables could not be listed."""

    pattern: str
    error: DeltaMaintenanceError

    def assessment(self, *, now: datetime) -> Assessment:
        """The failure as an assessment, named after the pattern."""
        return Assessment(
            subject="pattern",
            name=self.pattern,
            uri=self.pattern,
            assessed_at=now,
            status="failed",
            problem=str(self.error),
            exit_status=self.error.exit_status,
            retryable=self.error.retryable,
        )


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A table that is listed twice and looked after once."""

    name: str
    """The name that is passed over."""
    kept: str
    """The name under which the table is looked after."""
    uri: str

    def __str__(self) -> str:
        return f"{self.name} and {self.kept} are one table, which is looked after as {self.kept}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """The tables of a policy, and the patterns that could not be listed."""

    tables: tuple[PolicyTable, ...]
    """The tables with an address in the policy, in its order; then those of catalogs by name, then
    those of patterns by path, then the ledger.
    """
    unlisted: tuple[UnlistedPattern, ...] = ()
    listed: tuple[str, ...] = ()
    """The patterns and the parts of catalogs that could be listed."""
    duplicates: tuple[Duplicate, ...] = ()
    aliases: tuple[PolicyTable, ...] = ()
    """What the policy says of the duplicates: what they hold is held."""
    passed_over: Mapping[str, Mapping[PassedOver, int]] = field(default_factory=dict)
    """The entries of each catalog that are not looked after, by reason."""
    empty: tuple[str, ...] = ()
    """The patterns without a table, unless it is known that they had one before."""
    notes: tuple[str, ...] = ()
    """Conditions that hold for no table, one line each."""

    def without_tables_of(self, patterns: Collection[str]) -> Discovery:
        """Returns the same with a failure for each of the patterns that matches no table now."""
        gone = [pattern for pattern in self.empty if pattern in patterns]
        failures = (
            UnlistedPattern(pattern, EmptyPatternError(f"no table matches {pattern} any more"))
            for pattern in gone
        )
        return replace(
            self,
            unlisted=(*self.unlisted, *failures),
            listed=tuple(
                pattern_or_part for pattern_or_part in self.listed if pattern_or_part not in gone
            ),
            empty=tuple(pattern for pattern in self.empty if pattern not in gone),
        )

    @property
    def unread(self) -> tuple[UnlistedPattern, ...]:
        """What could not be listed, without the tables that their catalog does not have."""
        return tuple(e for e in self.unlisted if not isinstance(e.error, AbsentTableError))

    def warnings(self) -> Iterator[str]:
        """The patterns and conditions without a table, and the tables that are listed twice, one
        line each; of many tables, only the first.
        """
        yield from (f"no table matches {pattern}" for pattern in self.empty)
        yield from self.notes
        yield from map(str, self.duplicates[:_SHOWN])
        if len(self.duplicates) > _SHOWN:
            yield f"{len(self.duplicates) - _SHOWN:,} more tables are listed twice"

    def counts(self) -> Iterator[str]:
        """The numbers of entries that each catalog has besides, one line each."""
        for catalog, counts in self.passed_over.items():
            text = ", ".join(f"{count:,} ({reason})" for reason, count in sorted(counts.items()))
            if text:
                yield f"{catalog}: passed over {text}"

    def keep_failures(self, store: AssessmentStore, *, now: datetime) -> tuple[Assessment, ...]:
        """Saves an entry for each pattern that failed, and removes those of all others."""
        failures = tuple(failed.assessment(now=now) for failed in self.unlisted)
        for failure in failures:
            store.keep(failure)
        for pattern in self.listed:
            store.forget(pattern)
        return failures

    def complete(self) -> tuple[PolicyTable, ...]:
        """The tables; raises the first error if a pattern could not be listed."""
        for failed in self.unlisted:
            raise failed.error
        return self.tables


def discover(
    policy: Policy,
    *,
    storage_options: OptionsAt = environment_options,
    memory: CatalogMemory | None = None,
    parallel: int = PARALLEL,
    pauses: Sequence[float] = (2.0, 8.0),
    sleep: Callable[[float], object] = time.sleep,
    failures: FailedSearches | None = None,
) -> Discovery:
    """Finds all tables of the policy.

    Lists each catalog for which there are names, and the folders below the fixed beginning of each
    pattern, level by level. The search does not enter tables, links, or folders whose names begin
    with `.` or `_`. A listing is either complete or an error, because an incomplete list cannot be
    recognised as such; the schemas and tables of a catalog fail one by one. So does a pattern that
    matches no table and did according to the `memory`, because catalogs answer a caller without
    rights with empty lists.

    A pattern that cannot be listed does not affect the others. Temporary errors are retried after
    each of the `pauses`, in seconds, unless they took long; all others are final. What is among the
    `failures` of a short while ago fails again without a request. If two tables have the same name,
    the second pattern fails. A table that is listed twice, by its address or by its ID in a
    catalog, is looked after as it is listed first: in the order of `Discovery.tables`.
    """
    searches: list[CatalogSearch | _Search] = [
        CatalogSearch(policy, key, memory) for key, entries in policy.names.items() if entries
    ]
    searches += [_Search(policy, entry, parallel) for entry in policy.patterns]
    failures = FailedSearches() if failures is None else failures
    results = [failures.lately(search.pattern) for search in searches]
    again = [number for number, outcome in enumerate(results) if outcome is None]
    for pause in (0.0, *pauses):
        if not again:
            break
        if pause:
            sleep(pause)
        began = time.monotonic()
        repeated = _run_searches([searches[number] for number in again], storage_options)
        for number, outcome in zip(again, repeated, strict=True):
            results[number] = outcome
            failures.note(searches[number].pattern, outcome)
        again = [
            number
            for number in again
            if isinstance(outcome := results[number], DeltaMaintenanceError) and outcome.retryable
        ]
        if time.monotonic() - began > _LONG:
            # A store that does not answer.
            break
    merged = _Merged(policy)
    for search, outcome in zip(searches, results, strict=True):
        if isinstance(outcome, DeltaMaintenanceError):
            merged.unlisted.append(UnlistedPattern(search.pattern, outcome))
        elif isinstance(outcome, CatalogFound):
            merged.add_catalog(search.pattern, outcome)
        else:
            assert isinstance(search, _Search)
            merged.add_pattern(search, outcome)
    if policy.ledger_table is not None:
        merged.add_ledger(policy.ledger_table)
    return (
        merged.discovery() if memory is None else _compare_with_memory(merged.discovery(), memory)
    )


def _compare_with_memory(discovery: Discovery, memory: CatalogMemory) -> Discovery:
    """Compares the patterns with those that matched tables before, and remembers those that do."""
    before: frozenset[str] = frozenset()
    try:
        before = memory.patterns()
        if new_patterns := frozenset(discovery.listed).difference(before, discovery.empty):
            memory.save_patterns(before | new_patterns)
    except DeltaMaintenanceError as error:
        _logger.warning("the patterns that match tables cannot be remembered: %s", error)
    return discovery.without_tables_of(before)


class FailedSearches:
    """Patterns and catalogs that could not be listed, which are not listed again for a while."""

    def __init__(self, failed: Sequence[UnlistedPattern] = ()) -> None:
        now = time.monotonic()
        self._failed = {pattern.pattern: (now, pattern.error) for pattern in failed}

    def lately(self, pattern: str) -> Any:
        """Returns the error of a search that failed a short while ago; else None."""
        at, error = self._failed.get(pattern, (0.0, None))
        return error if time.monotonic() - at < _WHILE else None

    def note(self, pattern: str, outcome: object) -> None:
        """Remembers the error that a search returned."""
        if isinstance(outcome, DeltaMaintenanceError):
            self._failed[pattern] = time.monotonic(), outcome
        else:
            self._failed.pop(pattern, None)


class _Merged:
    """The tables that all searches found, each of them once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tables = {table.uri: table for table in policy.named_tables}
        self._names = {table.name: table.uri for table in policy.named_tables}
        self._known: dict[tuple[str, ...], str] = {}
        self._listed: list[str] = []
        self._duplicates: list[Duplicate] = []
        self._aliases: list[PolicyTable] = []
        self._passed_over: dict[str, Mapping[PassedOver, int]] = {}
        self._empty: list[str] = []
        self._notes: list[str] = []
        self.unlisted: list[UnlistedPattern] = []
        for table in policy.named_tables:
            if (kept_name := self._known.setdefault(place_of(table.uri), table.name)) != table.name:
                self._duplicates.append(Duplicate(table.name, kept_name, table.uri))
                self._aliases.append(self._tables.pop(table.uri))

    def add_catalog(self, catalog: str, listing: CatalogFound) -> None:
        for table in listing.tables:
            try:
                places: list[tuple[str, ...]] = [place_of(table.uri)]
            except InvalidRequestError as error:
                self.unlisted.append(UnlistedPattern(table.name, error))
                continue
            if (table_id := listing.table_ids.get(table.name)) is not None:
                places.append(("id", table_id))
            kept_name = next((self._known[place] for place in places if place in self._known), None)
            if kept_name is not None:
                self._duplicates.append(Duplicate(table.name, kept_name, table.uri))
                self._aliases.append(table)
                continue
            remember_name(table.uri, table.name)
            self._known |= dict.fromkeys(places, table.name)
            self._tables[table.uri] = table
            self._names[table.name] = table.uri
        self.unlisted += (
            UnlistedPattern(failure.where, failure.error) for failure in listing.failures
        )
        self._listed += (catalog, *listing.mended, *listing.matched)
        self._empty += listing.empty
        self._notes += listing.notes
        self._passed_over[catalog] = listing.passed_over

    def add_pattern(self, search: _Search, table_paths: Sequence[str]) -> None:
        # A table that matches several patterns has the rules of the first one.
        paths = {uri: path for path in table_paths if (uri := search.uri(path)) not in self._tables}
        name_of_uri = {uri: search.name_of(path) for uri, path in paths.items()}
        clash = next(
            (uri for uri, name in name_of_uri.items() if self._names.get(name, uri) != uri), None
        )
        if clash is not None:
            error = _same_name(name_of_uri[clash], self._names[name_of_uri[clash]], clash)
            self.unlisted.append(UnlistedPattern(search.pattern, error))
            return
        self._listed.append(search.pattern)
        if not table_paths:
            self._empty.append(search.pattern)
        for uri, name in name_of_uri.items():
            if (kept_name := self._known.setdefault(place_of(uri), name)) != name:
                self._duplicates.append(Duplicate(name, kept_name, uri))
                continue
            self._names[name] = uri
            self._tables[uri] = self._policy.table_at(uri, name=name)

    def add_ledger(self, ledger: PolicyTable) -> None:
        if place_of(ledger.uri) in self._known:
            return
        if self._names.get(ledger.name, ledger.uri) != ledger.uri:
            ledger = ledger.model_copy(update={"name": ledger.uri})
        self._tables[ledger.uri] = ledger

    def discovery(self) -> Discovery:
        failed = {pattern.pattern for pattern in self.unlisted}
        return Discovery(
            tuple(self._tables.values()),
            tuple(self.unlisted),
            tuple(
                listed_pattern for listed_pattern in self._listed if listed_pattern not in failed
            ),
            tuple(self._duplicates),
            tuple(self._aliases),
            self._passed_over,
            tuple(self._empty),
            tuple(self._notes),
        )


def _run_searches(
    searches: Sequence[CatalogSearch | _Search], storage_options: OptionsAt
) -> list[CatalogFound | list[str] | DeltaMaintenanceError]:
    """What each search finds, or the error that ended it."""
    if not searches:
        return []
    with ThreadPoolExecutor(min(len(searches), _PATTERNS_AT_ONCE)) as pool:
        return list(pool.map(lambda search: search.attempt(storage_options), searches))


def _same_name(name: str, first_uri: str, second: str) -> DeltaMaintenanceError:
    return InvalidRequestError(
        f"the tables {first_uri} and {second} are both named {name}",
        remedy="give the patterns names, which go before those of their tables",
    )


class _Search:
    """The tables below the root of one pattern."""

    def __init__(self, policy: Policy, entry: TableEntry, parallel: int) -> None:
        assert entry.pattern is not None
        self._policy = policy
        self._entry = entry
        self._pattern = Pattern(entry.pattern)
        self._parallel = parallel
        self.pattern = entry.pattern
        self.root = self._pattern.root

    def uri(self, path: str) -> str:
        """The address of the table at a path below the root."""
        return self._entry.uri_of(path)

    def name_of(self, path: str) -> str:
        """The name of that table."""
        return self._entry.name_of(path)

    def attempt(self, storage_options: OptionsAt) -> list[str] | DeltaMaintenanceError:
        """The paths of its tables, relative to the root, sorted; or the error."""
        try:
            # The storage rule of the pattern configures access to its root.
            rule = self._policy.table_of(self._entry, self.root).rules.storage
            return self._tables(storage_options(rule, self.root))
        except Exception as error:
            return failure_of(error, where=self.pattern).locate(table=self.root)

    def _tables(self, storage_options: Mapping[str, str]) -> list[str]:
        store = open_store(self.root, storage_options)
        try:
            paths = tables_in(store, leads_on=self._leads_on, parallel=self._parallel)
            return sorted(path for path in paths if self._entry.covers(self.uri(path)))
        finally:
            store.close()

    def _leads_on(self, folder: str) -> bool:
        return self._pattern.leads_on(folder) and not self._entry.excludes(self.uri(folder))


def open_policy_table(
    table: PolicyTable, storage_options: OptionsAt = environment_options
) -> Table:
    """Opens the table at its address. Nothing is read yet."""
    return open_table(table.uri, storage_options(table.rules.storage, table.uri))

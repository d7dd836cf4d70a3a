"""The tables that the catalogs of a policy name, and what is remembered of them between runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Self

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from delta_maintenance import clock
from delta_maintenance.address import CatalogName, encode_part, is_in, parts_of
from delta_maintenance.catalogs.catalog import (
    Aspect,
    Catalog,
    CatalogFailure,
    CatalogListing,
    CatalogTable,
    PassedOver,
    open_catalog,
)
from delta_maintenance.catalogs.settings import settings_of
from delta_maintenance.errors import (
    AbsentTableError,
    CatalogError,
    DeltaMaintenanceError,
    InvalidRequestError,
    failure_of,
    remember_name,
)
from delta_maintenance.operations.core.policy_values import StorageRule
from delta_maintenance.policies.definition.catalogs import Where
from delta_maintenance.policies.definition.patterns import NamePattern
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.state_files import PATTERNS_FILE, StateFile, listing_file
from delta_maintenance.storage import Store

_logger = logging.getLogger(__name__)

OptionsAt = Callable[[StorageRule, str], Mapping[str, str]]
"""Returns the storage options that a rule refers to, for the store at an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The last listing of a catalog."""

    tables: tuple[CatalogTable, ...] = ()
    failed: tuple[str, ...] = ()
    """The parts that could not be listed."""

    @property
    def by_name(self) -> dict[CatalogName, CatalogTable]:
        """The tables by name."""
        return {table.name: table for table in self.tables}


_DESCRIBED_FOR = timedelta(hours=1)
"""How long owners and tags count that a catalog states only on a further request. They change
without the entity tag of the table."""
_LISTING = StateFile(Remembered, max_bytes=1 << 30)
_PATTERNS = StateFile(frozenset[str])
_ANY: TypeAdapter[object] = TypeAdapter(object)


class CatalogMemory:
    """The last listing of each catalog of a policy, and the patterns that have matched tables, in
    the folder of the assessments.

    Catalogs that must be asked for each table are asked only for those whose entity tag is new. For
    a dry run, it does not write.
    """

    def __init__(self, store: Store, *, writes: bool = True) -> None:
        self._store = store
        self._writes = writes

    @classmethod
    def in_process(cls) -> Self:
        """Returns a memory that lasts as long as this object."""
        # Imported here because only watchers need it.
        from delta_maintenance.storage.memory import MemoryStore

        return cls(MemoryStore())

    def load(self, key: str) -> Remembered:
        """Returns the last listing of a catalog; empty if there is none that can be read."""
        return _LISTING.read(self._store, listing_file(key)) or Remembered()

    def patterns(self) -> frozenset[str]:
        """Returns the patterns that have matched tables."""
        return _PATTERNS.read(self._store, PATTERNS_FILE) or frozenset()

    def save_patterns(self, patterns: frozenset[str]) -> None:
        """Replaces the patterns that have matched tables."""
        if self._writes:
            _PATTERNS.write(self._store, PATTERNS_FILE, patterns)

    def save(self, key: str, listing: Remembered) -> None:
        """Replaces the listing of a catalog. Tables whose texts are no Unicode are left out. A
        folder that cannot be written is a warning.
        """
        if not self._writes:
            return
        writable = replace(
            listing,
            tables=tuple(filter(_is_text, listing.tables)),
            failed=tuple(filter(_is_text, listing.failed)),
        )
        try:
            _LISTING.write(self._store, listing_file(key), writable)
        except DeltaMaintenanceError as error:
            _logger.warning("the listing of the catalog %s cannot be remembered: %s", key, error)


def _is_text(value: CatalogTable | str) -> bool:
    """Whether UTF-8 can represent a value. Answers can contain unpaired surrogates."""
    try:
        _ANY.dump_json(value)
    except PydanticSerializationError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFound:
    """What one catalog contributes to the tables of a policy."""

    tables: tuple[PolicyTable, ...] = ()
    table_ids: Mapping[str, str] = field(default_factory=dict)
    """The IDs of tables in the catalog, by name."""
    passed_over: Mapping[PassedOver, int] = field(default_factory=dict)
    failures: tuple[CatalogFailure, ...] = ()
    mended: tuple[str, ...] = ()
    """The parts that failed in the last listing, and not in this one."""
    matched: tuple[str, ...] = ()
    """The patterns that match the name of a table."""
    empty: tuple[str, ...] = ()
    """The patterns that match none, although all their parts of the catalog were listed."""
    notes: tuple[str, ...] = ()
    """Conditions that hold for no table, one line each."""
    requests: int = 0


class CatalogSearch:
    """The tables that the patterns of a policy match in one catalog."""

    def __init__(self, policy: Policy, key: str, memory: CatalogMemory | None) -> None:
        self._policy = policy
        self._key = key
        self._memory = memory
        self._rule = policy.catalogs[key]
        self.pattern = f"catalogs.{key}"

    def attempt(self, storage_options: OptionsAt) -> CatalogFound | DeltaMaintenanceError:
        """Lists the catalog; returns the error if none of it can be listed."""
        try:
            with self._open(storage_options) as catalog:
                return self._list(catalog)
        except Exception as error:
            return failure_of(error, where=self.pattern)

    def table(self, name: CatalogName, storage_options: OptionsAt) -> PolicyTable | None:
        """Returns one table, or None if no entry of the policy asks for it.

        A remembered table costs no request, unless conditions need its tags and those that are
        remembered are old. Raises the errors of `Catalog.resolve` and of `Catalog.describe`.
        """
        catalog_table, now = self._listed_before.by_name.get(name), clock.now()
        if catalog_table is None or self._lacks(catalog_table, now, always=False):
            with self._open(storage_options) as catalog:
                catalog_table = catalog_table or catalog.resolve(name)
                described = self._describe(catalog, [catalog_table], now)
            for failure in described.failures:
                raise failure.error
            (catalog_table,) = described.tables
        return self._policy.table_in(self._key, catalog_table)

    @cached_property
    def _listed_before(self) -> Remembered:
        return self._memory.load(self._key) if self._memory is not None else Remembered()

    def _open(self, storage_options: OptionsAt) -> Catalog:
        kind, catalog = self._rule.catalog_kind, self._rule.server_catalog(self._key)
        options = storage_options(self._rule.reference(), f"{kind}://{catalog or self._key}")
        if catalog is not None:
            options = {**options, "catalog_name": catalog}
        return open_catalog(settings_of(kind, options, os.environ))

    def _list(self, catalog: Catalog) -> CatalogFound:
        entries = self._policy.names[self._key]
        before = self._listed_before

        def includes(name_parts: tuple[str, ...]) -> bool:
            below = self._rule.below(self._key, name_parts)
            return below is not None and any(entry.covers_name(below) for entry in entries)

        def leads_to(name_parts: tuple[str, ...]) -> bool:
            below = self._rule.below(self._key, name_parts)
            return below is not None and any(entry.leads_to(below) for entry in entries)

        listing = catalog.list(leads_to=leads_to, includes=includes, known_tables=before.by_name)
        now, remembered_tables = clock.now(), before.by_name
        described = self._describe(
            catalog,
            [
                _with_remembered(table, remembered_tables.get(table.name))
                for table in listing.tables
            ],
            now,
        )
        # A table without the tags that decide on its rules would be maintained by the wrong ones.
        tables, failures = [], [*listing.failures, *described.failures]
        for table in described.tables:
            try:
                tables.append(self._policy.table_in(self._key, table))
            except DeltaMaintenanceError as error:
                failures.append(CatalogFailure(where=str(table.name), error=error))
        policy_tables = tuple(table for table in tables if table is not None)
        num_others = (
            listing.passed_over.get(PassedOver.NOT_IN_POLICY, 0) + len(tables) - len(policy_tables)
        )
        failed = {failure.where for failure in failures}
        matched, empty, unmet = self._match(described.tables, failed)
        by_owner = any(
            entry.where is not None and entry.where.owner is not None for entry in entries
        )
        if by_owner and Aspect.OWNER in described.without:
            unmet.append(f"{self.pattern}: the server has no owners, so no condition on one holds")
        failures += self._absent(listing.tables, failed)
        if self._memory is not None:
            # A part that fails today keeps the tables that are known of it.
            remembered = (t for t in before.tables if any(is_in(t.name, where) for where in failed))
            current = {table.name: table for table in (*remembered, *described.tables)}
            failed |= {failure.where for failure in failures}
            self._memory.save(
                self._key, Remembered(tables=tuple(current.values()), failed=tuple(sorted(failed)))
            )
        return CatalogFound(
            tables=policy_tables,
            table_ids={str(t.name): t.table_id for t in listing.tables if t.table_id is not None},
            passed_over={
                reason: count
                for reason, count in {
                    **listing.passed_over,
                    PassedOver.NOT_IN_POLICY: num_others,
                }.items()
                if count
            },
            failures=tuple(failures),
            mended=tuple(failed_part for failed_part in before.failed if failed_part not in failed),
            matched=tuple(matched),
            empty=tuple(pattern for pattern in empty if pattern not in matched),
            notes=tuple(unmet),
            requests=listing.requests + described.requests,
        )

    def _match(
        self, tables: Sequence[CatalogTable], failed: Iterable[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Returns the patterns that match a name; those that match none, although all their parts
        of the catalog were listed; and a line for each whose condition holds for no table.
        """

        def below(name_parts: tuple[str, ...]) -> tuple[str, ...]:
            return self._rule.below(self._key, name_parts) or ()

        listed = [(table, below(table.name.parts)) for table in tables]
        unlisted = [below(parts_of(where)) for where in failed]
        matched: list[str] = []
        empty: list[str] = []
        unmet: list[str] = []
        for entry in self._policy.names[self._key]:
            if entry.catalog is None or entry.is_one:
                continue
            if any(entry.covers_name(parts) and entry.allows(table) for table, parts in listed):
                matched.append(entry.catalog)
            elif any(entry.leads_to(parts) or entry.covers_name(parts) for parts in unlisted):
                continue
            elif any(entry.covers_name(parts) for _, parts in listed):
                matched.append(entry.catalog)
                unmet.append(f"no table that matches {entry.catalog} meets its condition")
            else:
                empty.append(entry.catalog)
        return matched, empty, unmet

    def _absent(self, tables: Sequence[CatalogTable], failed: set[str]) -> Iterator[CatalogFailure]:
        """Yields a failure for each entry for one table that the catalog does not have.

        In silence, the rules of a misspelt entry would apply to no table.
        """
        names = {
            ".".join(map(encode_part, self._rule.below(self._key, table.name.parts) or ()))
            for table in tables
        }
        catalog = self._rule.server_catalog(self._key)
        for entry in self._policy.names[self._key]:
            below = NamePattern(entry.catalog or "").below
            if not entry.is_one or below in names:
                continue
            dotted = below if catalog is None else f"{encode_part(catalog)}.{below}"
            name = f"{self._rule.catalog_kind}://{dotted}"
            if not any(f"{name}.".startswith(f"{where}.") for where in failed):
                error = AbsentTableError(f"the catalog has no Delta table {name}")
                yield CatalogFailure(where=name, error=error)

    def _describe(
        self, catalog: Catalog, tables: Sequence[CatalogTable], now: datetime
    ) -> CatalogListing:
        """Completes tables by the owner and the tags that conditions need."""
        lacking: dict[frozenset[Aspect], list[CatalogTable]] = {}
        for table in tables:
            aspects = self._lacks(table, now, always=catalog.describes_all)
            lacking.setdefault(aspects, []).append(table)
        done, requests = lacking.pop(frozenset(), []), 0
        failures: list[CatalogFailure] = []
        without: frozenset[Aspect] = frozenset()
        hidden: frozenset[str] = frozenset()
        if any(Aspect.TAGS in aspects for aspects in lacking):
            wheres = (entry.where for entry in self._policy.names[self._key])
            hidden = catalog.hidden_tags({tag for where in wheres if where for tag in where.tags})
        undecided: dict[CatalogName, set[str]] = {}
        for aspects, tables_of_aspects in lacking.items():
            listing = catalog.describe(tables_of_aspects, aspects)
            without |= listing.without
            at = dict.fromkeys(aspects - without, now)
            for table in listing.tables:
                deciding = {tag for where in self._conditions(table) for tag in where.tags}
                if unseen := (deciding & hidden).difference(table.properties):
                    undecided[table.name] = unseen
                else:
                    done.append(replace(table, described={**table.described, **at}))
            failures += listing.failures
            requests += listing.requests
        if undecided:
            # Not by the rules for tables without the tag: it may be what keeps them as they are.
            some_name, tags = min(undecided), sorted(set().union(*undecided.values()))
            error = CatalogError(
                f"the catalog may hide tags that decide on the rules of {len(undecided):,} of its "
                f"tables, such as {some_name}: {', '.join(tags)}",
                remedy="create these tags, or grant APPLY_TAG on them",
            )
            where = str(replace(some_name, parts=some_name.parts[:1]))
            failures.append(CatalogFailure(where=where, error=error))
        return CatalogListing(
            tables=tuple(sorted(done, key=lambda table: table.name)),
            failures=tuple(failures),
            without=without,
            requests=requests,
        )

    def _lacks(self, table: CatalogTable, now: datetime, *, always: bool) -> frozenset[Aspect]:
        """The aspects of a table that are needed and not known well enough."""
        unknown = {
            aspect
            for aspect in table.further
            if not timedelta(0) <= now - table.described.get(aspect, _NEVER) < _DESCRIBED_FOR
        }
        if not unknown or always:
            return frozenset(unknown)
        conditions = self._conditions(table)
        needed = (
            {Aspect.OWNER}
            if any(condition.owner is not None for condition in conditions)
            else set()
        )
        needed |= {Aspect.TAGS} if any(condition.tags for condition in conditions) else set()
        return frozenset(unknown & needed)

    def _conditions(self, table: CatalogTable) -> list[Where]:
        below = self._rule.below(self._key, table.name.parts) or ()
        return [
            entry.where
            for entry in self._policy.names[self._key]
            if entry.where is not None and entry.covers_name(below)
        ]


def _with_remembered(table: CatalogTable, before: CatalogTable | None) -> CatalogTable:
    """Adds the owner and the tags that were requested for the same table before."""
    is_same = before is not None and (
        (before.table_id, before.location, before.further)
        == (table.table_id, table.location, table.further)
    )
    if before is None or not is_same:
        return table
    if Aspect.OWNER in before.described:
        table = replace(table, owner=before.owner)
    if Aspect.TAGS in before.described:
        table = replace(table, tags=before.tags)
    return replace(table, described=before.described)


_NEVER = datetime.min.replace(tzinfo=UTC)


def table_named(
    policy: Policy,
    name: CatalogName,
    *,
    storage_options: OptionsAt,
    memory: CatalogMemory | None = None,
) -> PolicyTable:
    """Returns the table of the policy with a name in a catalog, with its rules.

    Raises `InvalidRequestError` if the policy does not ask for it, and the errors of the catalog.
    """
    key = policy.catalog_of(name)
    table = CatalogSearch(policy, key, memory).table(name, storage_options) if key else None
    if table is None:
        raise InvalidRequestError(
            f"the policy does not ask for {name}",
            remedy="name it in `tables`, and its catalog in `catalogs`",
        )
    remember_name(table.uri, table.name)
    return table

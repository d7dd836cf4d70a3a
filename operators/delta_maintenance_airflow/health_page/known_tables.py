"""The tables that the policy names, found without access to a store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property

from delta_maintenance.address import CatalogName, identity_of, is_catalog_name
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.policies.definition.policy import Policy, TableEntry, load_policy


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of the policy."""

    name: str
    uri: str
    owner: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownTables:
    """The tables that the policy names by address."""

    policy: Policy | None = None
    problem: str | None = None
    """One line that says why the policy cannot be read; None if it can."""
    _found: dict[tuple[str, str], KnownTable | None] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        """Whether the policy is readable, so that tables can be compared with it."""
        return self.policy is not None

    @cached_property
    def tables(self) -> tuple[KnownTable, ...]:
        """The tables in the order of the policy, and its ledger."""
        if self.policy is None:
            return ()
        tables = tuple(
            self._known(entry.name or entry.uri, entry.uri, entry)
            for entry in self.policy.tables
            if entry.uri is not None
        )
        ledger = self.policy.ledger_table
        return tables if ledger is None else (*tables, KnownTable(ledger.name, ledger.uri))

    def find(self, name: str, uri: str) -> KnownTable | None:
        """A table by its name and address, or by a pattern that its address matches."""
        key = (name, uri)
        if key not in self._found:
            in_catalog = self._in_catalog(name, uri) if is_catalog_name(name) else None
            by_name = self._by_name.get(name) or self._by_identity.get(identity_of(uri))
            self._found[key] = in_catalog or by_name or self._by_pattern(name, uri)
        return self._found[key]

    def address_of(self, name: str) -> str | None:
        """The address of the table that the policy names, or names by a pattern."""
        return self.policy.address_of(name) if self.policy is not None else None

    def has_pattern(self, pattern: str) -> bool:
        """Whether the policy contains a pattern."""
        if self.policy is None:
            return False
        catalogs = {f"catalogs.{key}" for key, entries in self.policy.names.items() if entries}
        kinds = {str(catalog.catalog_kind) for catalog in self.policy.catalogs.values()}
        return (
            pattern in catalogs
            # The name of a schema or of a table, without which a catalog was listed.
            or (is_catalog_name(pattern) and pattern.partition("://")[0] in kinds)
            or any(entry.pattern == pattern for entry in self.policy.patterns)
        )

    @cached_property
    def _by_name(self) -> dict[str, KnownTable]:
        return {table.name: table for table in self.tables}

    @cached_property
    def _by_identity(self) -> dict[str, KnownTable]:
        return {identity_of(table.uri): table for table in self.tables}

    def _in_catalog(self, name: str, uri: str) -> KnownTable | None:
        """A table in a catalog, without what only the catalog knows of it."""
        parsed = CatalogName.parse(name)
        key = self.policy.catalog_of(parsed) if self.policy is not None else None
        if self.policy is None or key is None:
            return None
        below = self.policy.catalogs[key].below(key, parsed.parts) or ()
        entries = [entry for entry in self.policy.names[key] if entry.covers_name(below)]
        entries.sort(key=lambda entry: not entry.is_one)
        owner = next((entry.owner for entry in entries if entry.owner is not None), None)
        tags = next((entry.tags for entry in entries if entry.tags), ())
        return KnownTable(name, uri, owner, tags) if entries else None

    def _by_pattern(self, name: str, uri: str) -> KnownTable | None:
        entry = self._pattern(uri)
        return self._known(name, uri, entry) if entry is not None else None

    def _known(self, name: str, uri: str, entry: TableEntry) -> KnownTable:
        pattern = self._pattern(uri) or entry
        return KnownTable(
            name,
            uri,
            entry.owner if entry.owner is not None else pattern.owner,
            entry.tags or pattern.tags,
        )

    def _pattern(self, uri: str) -> TableEntry | None:
        patterns = self.policy.patterns if self.policy is not None else ()
        try:
            return next((entry for entry in patterns if entry.path_of(uri) is not None), None)
        except InvalidRequestError:
            # An address that was refused, such as one with credentials.
            return None


class PolicyFile:
    """A policy that is read again when its file has changed."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], KnownTables] | None = None

    def tables(self) -> KnownTables:
        """The tables of the current file. Without it, the page still shows all assessed tables."""
        if self._path is None:
            return KnownTables()
        try:
            status = os.stat(self._path)
            state = (status.st_mtime_ns, status.st_size)
            if self._read is None or self._read[0] != state:
                self._read = (state, KnownTables(load_policy(self._path)))
        except OSError as error:
            return KnownTables(problem=f"{self._path}: {error.strerror}")
        except DeltaMaintenanceError as error:
            return KnownTables(problem=str(error))
        return self._read[1]

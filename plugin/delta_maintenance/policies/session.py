"""One use of a policy: how its tables and their clones are found, with the access of the caller.

Callers that follow tables list one catalog at a time, and keep what was known before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from delta_maintenance.address import CatalogName, is_in, place_of
from delta_maintenance.policies.catalogs import CatalogMemory, OptionsAt, table_named
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery, FailedSearches, discover
from delta_maintenance.storage import Store


@dataclass(frozen=True, kw_only=True)
class PolicySession:
    """The tables of a policy for one command, task or step.

    Discovery and the search for clones remember what they read in the same folder.
    """

    policy: Policy
    storage_options: OptionsAt
    state: Store | None = None
    """The folder of the assessments; None to remember nothing between sessions."""
    writes: bool = True
    """Whether something is remembered; a dry run only reads what others remember."""

    @cached_property
    def memory(self) -> CatalogMemory | None:
        """The last listings of catalogs and patterns."""
        return None if self.state is None else CatalogMemory(self.state, writes=self.writes)

    def discover(self, failures: FailedSearches | None = None) -> Discovery:
        """Finds all tables of the policy, including those that its patterns match."""
        return discover(
            self.policy, storage_options=self.storage_options, memory=self.memory, failures=failures
        )

    def table_in_catalog(self, name: str) -> PolicyTable:
        """Returns the table with a name in a catalog, by one request. Raises the errors of
        `table_named`.
        """
        return table_named(
            self.policy,
            CatalogName.parse(name),
            storage_options=self.storage_options,
            memory=self.memory,
        )

    def clones(self, discovered: Discovery | None = None) -> PolicyClones:
        """Returns the search for clones among all tables of the policy; `discovered` are these
        tables, if they were found just now.
        """
        failures = FailedSearches(() if discovered is None else discovered.unlisted)
        return PolicyClones(
            discover=partial(self.discover, failures),
            options_at=self.storage_options,
            policies=(self.policy,),
            discovered=discovered,
            state=self.state,
            writes=self.writes,
        )


def tables_of_catalog(
    policy: Policy, catalog: str, *, storage_options: OptionsAt, memory: CatalogMemory
) -> Discovery:
    """Lists one catalog of a policy, once, without retries.

    The discovery also has the tables that the policy names by address, because the catalog does not
    contribute these again.
    """
    entries_with_address = tuple(entry for entry in policy.tables if entry.uri is not None)
    only = Policy(
        version=1,
        defaults=policy.defaults,
        catalogs=policy.catalogs,
        tables=(*entries_with_address, *policy.names[catalog]),
    )
    return discover(only, storage_options=storage_options, memory=memory, pauses=())


def kept_tables(
    policy: Policy, discovery: Discovery, before: Iterable[PolicyTable]
) -> Mapping[str, PolicyTable]:
    """Returns the tables of an earlier discovery whose part could not be listed now, each by its
    name, that the policy still asks for.

    They are as they were then: with their rules, and at their address. A part is a pattern of
    addresses, a catalog, or a schema or a table of one.
    """
    failed = {pattern.pattern for pattern in discovery.unread}
    names = {table.name for table in discovery.tables}
    places = {place_of(table.uri) for table in discovery.tables}
    return {
        table.name: table
        for table in (before if failed else ())
        if table.name not in names
        and place_of(table.uri) not in places
        and _is_in_part(policy, table, failed)
    }


def _is_in_part(policy: Policy, table: PolicyTable, failed: set[str]) -> bool:
    name = table.catalog_name
    if name is None:
        entry = next((entry for entry in policy.patterns if entry.covers(table.uri)), None)
        return entry is not None and entry.pattern in failed
    key = policy.catalog_of(name)
    if key is None or not _is_asked_for(policy, key, name):
        return False
    # Its rules are those of its catalog and of a pattern.
    return not failed.isdisjoint(table.rules_from) or any(is_in(name, where) for where in failed)


def _is_asked_for(policy: Policy, key: str, name: CatalogName) -> bool:
    below = policy.catalogs[key].below(key, name.parts) or ()
    return any(entry.covers_name(below) for entry in policy.names[key])

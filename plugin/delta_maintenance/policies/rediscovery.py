"""Discovery for callers that follow tables: of one catalog, and with what was known before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delta_maintenance.address import CatalogName, is_in, place_of
from delta_maintenance.policies.catalogs import CatalogMemory, OptionsAt
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery, discover


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

"""The tables of a policy that one trigger watches, as they are now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.hooks.delta import PolicyAccess, PolicyHook
from delta_maintenance_airflow.triggers.polling import TableAccess, store_root

if TYPE_CHECKING:
    from delta_maintenance.policies.catalogs import CatalogMemory
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable

_log = logging.getLogger(__name__)

_ANY_STORE = "uc://"
"""Stands for the name of a catalog, whose options do not depend on a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTable:
    """One table. Another value means that it has to be opened anew."""

    uri: str
    rule: Any = None
    """The `StorageRule` of a table of a catalog; None for that of the current policy file."""

    def access(self, policy: str) -> TableAccess:
        """Returns the access to the table."""
        return PolicyAccess(policy) if self.rule is None else PolicyHook(self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTables:
    """All tables to watch."""

    tables: Mapping[str, WatchedTable]
    """By the name in events: the address, or the name in the catalog."""
    problems: Mapping[str, DeltaMaintenanceError] = field(default_factory=dict)
    """Parts of a catalog that could not be listed; their known tables are among the tables."""


class PolicySource:
    """The tables that a policy names by address in one `store`, or those of one of its catalogs.

    The file is read again when it has changed. A catalog is then listed, and every `interval`
    seconds. Tables of parts that cannot be listed stay as they were. `elapsed` is a clock in
    seconds.
    """

    def __init__(
        self,
        path: str,
        *,
        store: str | None = None,
        catalog: str | None = None,
        interval: float = 0.0,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._store = store
        self._catalog = catalog
        self._interval = interval
        self._elapsed = elapsed
        self._policy: Policy | None = None
        self._known: Mapping[str, PolicyTable] = {}
        self._list_at = 0.0

    async def read_changes(self) -> WatchedTables | None:
        """Returns the tables; None if nothing has changed. Raises errors of the policy file."""
        policy = await asyncio.to_thread(self._read_policy)
        is_same, self._policy = policy is self._policy, policy
        if self._catalog is None:
            uris = (table.uri for table in policy.named_tables)
            tables = {uri: WatchedTable(uri=uri) for uri in uris if store_root(uri) == self._store}
            return None if is_same else WatchedTables(tables=tables)
        if is_same and self._elapsed() < self._list_at:
            return None
        self._list_at = self._elapsed() + self._interval
        if self._catalog not in policy.catalogs:
            self._known = {}
            return WatchedTables(tables={})
        try:
            # Airflow serves connections in its event loop, and not in threads of a listing.
            rule = policy.catalogs[self._catalog].reference()
            options = await PolicyHook(rule).astorage_options(_ANY_STORE)
        except (DeltaMaintenanceError, AirflowException) as error:
            wrong = InvalidRequestError(str(error), remedy="correct the connection of the catalog")
            return self._tables({f"catalogs.{self._catalog}": wrong})
        return await asyncio.to_thread(self._list_catalog, self._catalog, policy, options)

    def _read_policy(self) -> Policy:
        # Imported here because it loads pydantic models, which would block the event loop.
        from delta_maintenance.policies.definition.policy import current_policy

        return current_policy(self._path)

    def _list_catalog(
        self, catalog: str, policy: Policy, options: Mapping[str, str]
    ) -> WatchedTables:
        # Imported here because they load PyArrow, which would block the event loop.
        from delta_maintenance.policies.session import kept_tables, tables_of_catalog

        discovery = tables_of_catalog(
            policy, catalog, storage_options=lambda *_: options, memory=self._memory
        )
        for unlisted_part in discovery.unlisted:
            _log.warning("%s: %s", unlisted_part.pattern, unlisted_part.error)
        listed = {table.name: table for table in discovery.tables if table.catalog_name is not None}
        self._known = {**listed, **kept_tables(policy, discovery, self._known.values())}
        return self._tables(
            {unlisted_part.pattern: unlisted_part.error for unlisted_part in discovery.unlisted}
        )

    def _tables(self, problems: Mapping[str, DeltaMaintenanceError]) -> WatchedTables:
        tables = {
            name: WatchedTable(uri=table.uri, rule=table.rules.storage)
            for name, table in self._known.items()
        }
        return WatchedTables(tables=tables, problems=problems)

    @cached_property
    def _memory(self) -> CatalogMemory:
        """The last listing, so that few tables are described anew. In memory, because a triggerer
        need not reach the folder of the assessments."""
        from delta_maintenance.policies.catalogs import CatalogMemory

        return CatalogMemory.in_process()

"""Tables that catalogs have and the definitions do not, because they are new since the refresh."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.catalogs import CatalogMemory
    from delta_maintenance.policies.definition.policy import Policy

_EVERY = timedelta(minutes=5)


class NewTables:
    """Tells the commit sensor of them: it cannot watch tables that have no asset.

    The catalogs are listed at most every five minutes, in a thread, because ticks are short.
    """

    def __init__(
        self,
        tables: Sequence[DeltaTable],
        policy: "Policy",
        *,
        storage: Reference[DeltaStorageResource],
    ) -> None:
        self._tables = tables
        self._policy = policy
        self._storage = storage
        self._memory: CatalogMemory | None = None
        self._new: dict[str, set[str]] = {}
        """Names by the key of the catalog."""
        self._listed_at = datetime.min.replace(tzinfo=UTC)
        self.listing: Thread | None = None
        """The last listing, which may be at work."""

    def text(self) -> str | None:
        """Returns what the last listing found; None for nothing. Starts one that is due."""
        idle = self.listing is None or not self.listing.is_alive()
        if idle and any(self._policy.names.values()) and clock.now() - self._listed_at >= _EVERY:
            self._listed_at = clock.now()
            self.listing = Thread(target=self._list, daemon=True)
            self.listing.start()
        names = sorted(set().union(*self._new.copy().values()))
        if not names:
            return None
        return (
            f"not in the definitions yet: {count_text(len(names), 'table')} of catalogs, such as "
            f"{names[0]}; refresh the state of the component and reload the code location"
        )

    def _list(self) -> None:
        # Imported here because it loads PyArrow; definitions must load fast.
        from delta_maintenance.address import place_of
        from delta_maintenance.policies.catalogs import CatalogMemory
        from delta_maintenance.policies.session import tables_of_catalog

        storage = self._storage.here()
        self._memory = self._memory or CatalogMemory.in_process()
        # A table that two catalogs list has an asset under one of its names.
        places = {place_of(table.uri) for table in self._tables}
        for key in (key for key, entries in self._policy.names.items() if entries):
            discovery = tables_of_catalog(
                self._policy, key, storage_options=storage.storage_options, memory=self._memory
            )
            names = {table.name for table in discovery.tables if place_of(table.uri) not in places}
            # What cannot be listed now is as it was.
            self._new[key] = names | (self._new.get(key, set()) if discovery.unread else set())

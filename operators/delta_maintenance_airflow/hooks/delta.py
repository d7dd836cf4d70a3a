"""The connection type `delta`: access to the store of a table, and its other writers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from delta_maintenance.address import is_catalog_name
from delta_maintenance.errors import DeltaMaintenanceError, NotADeltaTableError
from delta_maintenance_airflow.compat import AirflowException, mask, mask_async
from delta_maintenance_airflow.hooks.storage_options import (
    extra_of,
    own_options,
    referred_options,
    secrets_in,
    store_of,
    without_credentials,
)

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.address import Located
    from delta_maintenance.operations.core.policy_values import StorageRule
    from delta_maintenance.storage import Store


class DeltaHook(BaseHook):
    """Opens tables with the storage options of an Airflow connection.

    Login and password are the access key of S3 and its secret; the form has fields for the other
    stores. Credentials may also come from a connection of another provider, whose ID is
    `storage_conn_id`: `aws`, `google_cloud_platform`, `wasb` or `adls`. Fields of this connection
    take precedence. Every other field of the extra is a storage option of the same name, such as
    `profile`. Secrets are masked in logs as soon as the connection is read.

    :param delta_conn_id: the connection; None for local tables, and if the environment of the
        worker provides everything (an instance role, variables).
    """

    conn_name_attr = "delta_conn_id"
    default_conn_name = "delta_default"
    conn_type = "delta"
    hook_name = "Delta Lake"

    def __init__(self, delta_conn_id: str | None = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id

    def storage_options(
        self, address: str | None = None, *, credentials: bool = True
    ) -> dict[str, str]:
        """Returns the storage options. Never log, render or store them: they contain credentials.

        With an address, the options for its store, and none for local disks. Without credentials,
        only options that are known not to be secret.
        """
        if not self.delta_conn_id or (address is not None and store_of(address) is None):
            return {}
        connection = self.get_connection(self.delta_conn_id)
        options = own_options(connection, address)
        if (reference := extra_of(connection).get("storage_conn_id")) and credentials:
            referred = referred_options(self.get_connection(reference), address)
            options = {**referred, **options}
        for secret in secrets_in(options):
            mask(secret)
        return options if credentials else without_credentials(options)

    def locate(self, table_uri: str, *, credentials: bool = True) -> Located:
        """Finds a table by its name, with the options of its store; an address stays as it is.

        The catalog is always asked with credentials. Without `credentials`, the options contain
        only what is known not to be secret.
        """
        # Imported here because it is seldom needed, and would slow down Dag parsing.
        from delta_maintenance.address import Located
        from delta_maintenance.catalogs.reference import locate

        if not is_catalog_name(table_uri):
            options = self.storage_options(table_uri, credentials=credentials)
            return Located(address=table_uri, storage_options=options)
        located = locate(table_uri, self.storage_options(table_uri))
        if not credentials:
            options = without_credentials(located.storage_options)
            located = replace(located, storage_options=options)
        return located

    def open_watched(self, table_uri: str) -> Store:
        """Opens the store of a table that is polled repeatedly: see `operations.watch`."""
        return _open_watched(table_uri, self.options_for(table_uri))

    async def astorage_options(self, address: str) -> dict[str, str]:
        """Returns the storage options for the store at an address, in an event loop."""
        if not self.delta_conn_id or store_of(address) is None:
            return {}
        connection = await self.aget_connection(self.delta_conn_id)
        options = own_options(connection, address)
        if reference := extra_of(connection).get("storage_conn_id"):
            referred = referred_options(await self.aget_connection(reference), address)
            options = {**referred, **options}
        for secret in secrets_in(options):
            await mask_async(secret)
        return options

    async def aopen_watched(self, table_uri: str) -> Store:
        """Like `open_watched`, in an event loop."""
        options = await self.astorage_options(table_uri)
        # In a thread, because opening the first store of a kind loads its client.
        return await asyncio.to_thread(_open_watched, table_uri, options or None)

    def options_for(self, address: str) -> dict[str, str] | None:
        """Returns the storage options for an address; None if there are none."""
        return self.storage_options(address) or None

    def open_table(self, table_uri: str) -> Table:
        """Opens the table at an address; nothing is read yet."""
        # Imported here because it loads PyArrow, which would slow down Dag parsing.
        from delta_maintenance import open_table

        return open_table(table_uri, self.options_for(table_uri))

    @property
    def other_writers(self) -> str | None:
        """The other writers of the tables: `conditional_put`, `spark`, `none`; None if not set."""
        return self._field("other_writers")

    @property
    def spark_conn_id(self) -> str | None:
        """The connection to which Spark jobs are submitted; None if not set."""
        return self._field("spark_conn_id")

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether the test address can be read, and a description of its content."""
        try:
            return self._try_connection()
        except (DeltaMaintenanceError, AirflowException) as error:
            return False, str(error)

    def _try_connection(self) -> tuple[bool, str]:
        from delta_maintenance.operations.watch import LogWatch

        address = self._field("test_address")
        if address is None:
            return False, "nothing was tested: enter a table or a folder as the test address"
        store = self.open_watched(address)
        try:
            return True, f"{address} is a table at version {LogWatch(store).poll().version}"
        except NotADeltaTableError:
            # The listing succeeded.
            return True, f"{address} can be listed; there is no table at this address"

    def _field(self, name: str) -> str | None:
        if not self.delta_conn_id:
            return None
        value = extra_of(self.get_connection(self.delta_conn_id)).get(name)
        return str(value) if value else None


_ANY_NAME = "uc://"
"""Stands for the name of a table in any catalog, which has all options."""


def _open_watched(table_uri: str, options: dict[str, str] | None) -> Store:
    # Imported here because it loads NumPy, which would slow down Dag parsing.
    from delta_maintenance.catalogs.reference import locate
    from delta_maintenance.operations.watch import open_watched

    located = locate(table_uri, options)
    return open_watched(located.address, located.storage_options or None)


class PolicyHook(DeltaHook):
    """The connection that the policy names, if any, with the storage options of the policy.

    For a table of a catalog, these may include the options of the catalog, or its connection.
    """

    def __init__(self, rule: StorageRule) -> None:
        super().__init__(rule.connection)
        self._rule = rule
        self._catalog = DeltaHook(rule.catalog_connection) if rule.catalog_connection else None

    def storage_options(
        self, address: str | None = None, *, credentials: bool = True
    ) -> dict[str, str]:
        # Imported here because it loads PyArrow, which would slow down Dag parsing.
        from delta_maintenance.storage.options import options_over

        options = self._own_options()
        for secret in secrets_in(options):
            mask(secret)
        connected = super().storage_options(address, credentials=credentials)
        if self._catalog is not None:
            catalog = self._catalog.storage_options(credentials=credentials)
            connected = {**catalog, **connected}
        return options_over(connected, options if credentials else without_credentials(options))

    async def astorage_options(self, address: str) -> dict[str, str]:
        # In a thread, because opening the first store of a kind loads PyArrow.
        options = await asyncio.to_thread(self._own_options)
        for secret in secrets_in(options):
            await mask_async(secret)
        from delta_maintenance.storage.options import options_over

        connected = await super().astorage_options(address)
        if self._catalog is not None:
            # The address decides between stores, and the options of a catalog are for all of them.
            catalog = await self._catalog.astorage_options(_ANY_NAME)
            connected = {**catalog, **connected}
        return options_over(connected, options)

    def _own_options(self) -> dict[str, str]:
        from delta_maintenance.policies.discovery import resolved_options

        return resolved_options(self._rule)


class PolicyAccess:
    """Access to tables as specified by the current policy file.

    For triggers, whose arguments Airflow stores in its database: they contain only the path of the
    file. Storage options, and the environment variables that they name, stay in the triggerer.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def aopen_watched(self, table_uri: str) -> Store:
        """Opens the store of a table that is polled repeatedly, in an event loop."""
        rule = await asyncio.to_thread(_storage_rule, self._path, table_uri)
        return await PolicyHook(rule).aopen_watched(table_uri)


def _storage_rule(path: str, table_uri: str) -> StorageRule:
    # Imported here because it loads pydantic models, which would slow down Dag parsing.
    from delta_maintenance.policies.definition.policy import current_policy

    return current_policy(path).table_at(table_uri).rules.storage

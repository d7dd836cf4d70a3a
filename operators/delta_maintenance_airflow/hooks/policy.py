"""Access to the store of a table as its policy specifies it: a connection and further options."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING

from delta_maintenance_airflow.compat import mask, mask_async
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.hooks.storage_options import secrets_in, without_credentials

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy
    from delta_maintenance.policies.definition.rules import StorageRule
    from delta_maintenance.storage import Store


class PolicyHook(DeltaHook):
    """The connection that the policy names, if any, with the storage options of the policy."""

    def __init__(self, rule: StorageRule) -> None:
        super().__init__(rule.connection)
        self._rule = rule

    def storage_options(
        self, address: str | None = None, *, credentials: bool = True
    ) -> dict[str, str]:
        # Imported here because it loads PyArrow, which would slow down Dag parsing.
        from delta_maintenance.storage.options import options_over

        own = self._own_options()
        for secret in secrets_in(own):
            mask(secret)
        connected = super().storage_options(address, credentials=credentials)
        return options_over(connected, own if credentials else without_credentials(own))

    async def astorage_options(self, address: str) -> dict[str, str]:
        # In a thread, because opening the first store of a kind loads PyArrow.
        own = await asyncio.to_thread(self._own_options)
        for secret in secrets_in(own):
            await mask_async(secret)
        from delta_maintenance.storage.options import options_over

        return options_over(await super().astorage_options(address), own)

    def _own_options(self) -> dict[str, str]:
        from delta_maintenance.policies.discovery import resolved_options

        return resolved_options(self._rule)


class WayByPolicy:
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
    from delta_maintenance.policies.definition.policy import load_policy

    try:
        status = os.stat(path)
    except OSError:
        # Raises an error that states the problem.
        policy = load_policy(path)
    else:
        with _ONE_AT_A_TIME:
            policy = _read(path, status.st_mtime_ns, status.st_size)
    return policy.table_at(table_uri).rules.storage


_ONE_AT_A_TIME = threading.Lock()
"""The first caller reads the file for all others."""


@lru_cache(maxsize=8)
def _read(path: str, modified_ns: int, size: int) -> Policy:
    """Returns the policy in a file of this age and size; cached, because hundreds of tables are
    opened.
    """
    from delta_maintenance.policies.definition.policy import load_policy

    return load_policy(path)

"""The tables near an address that is not that of a table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.policies.tree_search import tables_in, tables_in_first
from delta_maintenance.storage import open_store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

_LEVELS_ABOVE = 4
_FOLDERS_BELOW = 200
"""The number of folders that are searched on this machine."""
_PAGES_BELOW = 10
"""The number of pages of a listing that are searched elsewhere."""
_SHOWN = 5


def remedy_near(address: str, storage_options: Mapping[str, str]) -> str | None:
    """Returns what to do if the address is that of a folder within a table, or above tables.

    None if neither is found, or if the store cannot be searched.
    """
    try:
        absolute = Address.parse(address).absolute()
        return _within(absolute, storage_options) or _above(address, storage_options)
    except DeltaMaintenanceError:
        # The error that led here stays the one that is shown.
        return None


def _within(address: Address, storage_options: Mapping[str, str]) -> str | None:
    for _ in range(_LEVELS_ABOVE):
        if not address.path.strip("/"):
            return None
        address = address.parent
        store = open_store(str(address), storage_options)
        if next(store.list_from(LOG_DIRECTORY), None) is not None:
            return f"give the address of the table that this folder belongs to, {address}"
    return None


def _above(address: str, storage_options: Mapping[str, str]) -> str | None:
    store = open_store(address, storage_options)
    if store.is_near:
        budget = iter(range(_FOLDERS_BELOW))
        tables = tables_in(store, leads_on=lambda folder: next(budget, None) is not None)
    else:
        tables = tables_in_first(store, batches=_PAGES_BELOW)
    names = [*islice(filter(None, tables), _SHOWN + 1)]
    if not names:
        return None
    rest = " and others" if len(names) > _SHOWN else ""
    return f"give the address of a table; the folder contains {', '.join(names[:_SHOWN])}{rest}"

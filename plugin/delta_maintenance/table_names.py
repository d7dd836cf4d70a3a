"""The names that tables have in catalogs, for messages that know only the address.

A table is opened by its name in one place and named by its address in a hundred. So the name is
remembered for the address when it is opened, for this process, and errors and log lines look it up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

MOST = 50_000
"""The number of names that are remembered: some 15 MB."""


def remember_name(address: str, name: str) -> None:
    """Remembers the name of the table at an address. The one that was remembered last applies."""
    with _LOCK:
        _NAMES[_key(address)] = name
        _NAMES.move_to_end(_key(address))
        if len(_NAMES) > MOST:
            _NAMES.popitem(last=False)


def name_at(address: str) -> str | None:
    """Returns the name of the table at an address; None if it was not opened by a name."""
    # Without the lock, because nothing else is known of most tables.
    return _NAMES.get(_key(address)) if _NAMES else None


def table_text(address: str) -> str:
    """Returns an address with the name of its table, for people."""
    name = name_at(address)
    return address if name is None else f"{address} ({name})"


def _key(address: str) -> str:
    return address.removeprefix("file://").rstrip("/")


_NAMES: OrderedDict[str, str] = OrderedDict()
_LOCK = threading.Lock()

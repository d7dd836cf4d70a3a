"""The file to which a consumer writes the last version that it has read.

It contains the number alone, or JSON such as `{"version": 41, "table_id": "…"}`. With the ID of the
table, a file that was mistaken for that of another table is noticed.
"""

from __future__ import annotations

import json
from typing import Any

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.holds.streams import Position, StreamState
from delta_maintenance.protocol.actions.model import object_with_unique_keys
from delta_maintenance.storage.core.base import Store

_MOST_BYTES = 1 << 16
_MOST = (1 << 63) - 1


def read_last_read(store: Store, name: str, table_id: str, *, requires_id: bool) -> StreamState:
    """Reads the file with this name. Two requests.

    Raises `RefusedError` if it does not exist, or contains something else. `requires_id` if the
    reader may be that of another table.
    """
    try:
        status, data = store.stat(name), store.read_head(name, _MOST_BYTES + 1)
    except FileNotFoundError:
        status, data = None, b""
    if status is None:
        raise RefusedError("the file does not exist", file=name)
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError
        value: Any = json.loads(data, object_pairs_hook=object_with_unique_keys)
    except (ValueError, RecursionError):
        value = None
    version, table = (
        (value.get("version"), value.get("table_id")) if isinstance(value, dict) else (value, None)
    )
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= _MOST:
        raise RefusedError("the file does not contain a version, or contains two", file=name)
    if table is None and requires_id:
        raise RefusedError("the file does not say which table it is about (table_id)", file=name)
    if table is not None and table != table_id:
        return StreamState(position=None, is_of_others=True)
    position = Position(needs=version, unread=version + 1, changed_ms=status.modified_ms)
    return StreamState(position=position, is_of_others=False)

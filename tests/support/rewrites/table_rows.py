"""Reads the live rows of a table from its commits, line by line.

Shares no code with the tested operations, except the decoding of deletion vectors.
"""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, load
from delta_maintenance.storage.core import Store

Row = tuple[Any, ...]
Action = dict[str, Any]


def actions_of(store: Store, version: int) -> list[Action]:
    """Returns the actions of one commit."""
    text = store.read(f"_delta_log/{version:020d}.json").decode()
    return [json.loads(line) for line in text.rstrip("\n").split("\n")]


def latest(store: Store) -> int:
    """Returns the latest version."""
    names = [status.path.rsplit("/", 1)[-1] for status in store.list_from("_delta_log")]
    return max(int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit())


def live_adds(store: Store, version: int | None = None) -> dict[str, Action]:
    """Returns the adds of live files by path. Fails if a commit contradicts the state before it."""
    live: dict[str, Action] = {}
    for number in range((latest(store) if version is None else version) + 1):
        actions = actions_of(store, number)
        for remove in (action["remove"] for action in actions if "remove" in action):
            old = live.pop(remove["path"], None)
            assert old is not None, f"version {number} removes {remove['path']}, which is not live"
            assert old.get("deletionVector") == remove.get("deletionVector")
        for add in (action["add"] for action in actions if "add" in action):
            live[add["path"]] = add
    return live


def live_rows(
    store: Store,
    *,
    version: int | None = None,
    row_id: str | None = None,
    row_version: str | None = None,
) -> list[Row]:
    """Returns the values of every live row, followed by its partition values, sorted.

    With the names of the hidden columns, the row ID and the row commit version follow.
    """
    rows = []
    hidden = {row_id, row_version}
    for path, add in live_adds(store, version).items():
        file = pq.ParquetFile(
            io.BytesIO(store.read(unquote(path))), coerce_int96_timestamp_unit="us"
        )
        table = _instants(file.read())
        names = [name for name in table.column_names if name not in hidden]
        deleted = set()
        if add.get("deletionVector"):
            vector = DeletionVectorDescriptor.from_json(add["deletionVector"])
            deleted = set(load(vector, store.read))
            assert len(deleted) == vector.cardinality
        for at, row in enumerate(table.to_pylist()):
            if at in deleted:
                continue
            values = [(name, row[name]) for name in sorted(names) if row[name] is not None]
            identity: Row = ()
            if row_id is not None and row_version is not None:
                stored = row.get(row_id), row.get(row_version)
                identity = (
                    stored[0] if stored[0] is not None else add["baseRowId"] + at,
                    stored[1] if stored[1] is not None else add["defaultRowCommitVersion"],
                )
            partition = tuple(sorted(add["partitionValues"].items(), key=str))
            rows.append((tuple(values), partition, *identity))
    return sorted(rows, key=repr)


def _instants(table: pa.Table) -> pa.Table:
    """Removes the zone of timestamps, which depends on their physical type."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            plain = table.column(at).cast(pa.timestamp("us"))
            table = table.set_column(at, field.name, plain)
    return table

"""Writers that delete rows by deletion vectors, and update them, concurrently with others.

They support the log of one simple table and use only the library's encoding of vectors. Each commit
is made for the version after the one that they have read, so it either conflicts with nothing or is
not made.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, load
from tests.support.rewrites.data_files import inline_vector, removed
from tests.support.rewrites.race_ledgers import partition_of, text_of
from tests.support.rewrites.table_rows import Action


class VectorWriter:
    """Follows the log of a table, and adds commits to it."""

    def __init__(self, table: str) -> None:
        self._root = Path(table)
        self._version = -1
        self._live: dict[str, Action] = {}

    def delete(self, ids: Sequence[int]) -> bool:
        """Deletes existing rows. Returns whether that was committed: another writer may be
        first.
        """
        self._catch_up()
        return self._commit("DELETE", self._marked(ids, partition_of(ids[0])))

    def merge(self, old: Sequence[int], new: Sequence[int], value: int) -> bool:
        """Changes the value of existing rows, and inserts rows. Returns whether that was
        committed.
        """
        self._catch_up()
        part = partition_of(old[0])
        return self._commit(
            "MERGE", [*self._marked(old, part), self._file([*old, *new], value, part)]
        )

    def _catch_up(self) -> None:
        while (path := self._path(self._version + 1)).exists():
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            for remove in (action["remove"] for action in actions if "remove" in action):
                del self._live[remove["path"]]
            for add in (action["add"] for action in actions if "add" in action):
                self._live[add["path"]] = add
            self._version += 1

    def _marked(self, ids: Sequence[int], part: str) -> list[Action]:
        """Returns the actions that delete these rows by vectors."""
        left, actions = set(ids), []
        for path, add in list(self._live.items()):
            if add["partitionValues"]["p"] != part or not _may_hold(add, ids):
                continue
            data = (self._root / unquote(path)).read_bytes()
            column = pq.ParquetFile(io.BytesIO(data)).read(columns=["id"])["id"]
            found = pc.is_in(column, value_set=pa.array(ids, pa.int64())).to_numpy()
            gone = _deleted(add, self._root)
            fresh = {int(at) for at in found.nonzero()[0]} - gone
            if fresh:
                left -= {column[at].as_py() for at in fresh}
                vector = inline_vector(sorted(gone | fresh))
                actions += [{"remove": removed(add)}, {"add": _marked_add(add, vector)}]
        assert not left, f"rows {sorted(left)} are not in version {self._version}"
        return actions

    def _file(self, ids: Sequence[int], value: int, part: str) -> Action:
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "v": pa.array([value] * len(ids), pa.int64()),
                "text": [text_of(row) for row in ids],
            }
        )
        path = f"p={part}/merged-{uuid.uuid4()}.parquet"
        (self._root / path).parent.mkdir(exist_ok=True)
        pq.write_table(rows, self._root / path)
        bounds = {"numRecords": len(ids), "minValues": {"id": min(ids)}}
        add = {
            "path": path,
            "partitionValues": {"p": part},
            "size": (self._root / path).stat().st_size,
            "modificationTime": int((self._root / path).stat().st_mtime * 1000),
            "dataChange": True,
            "stats": json.dumps(bounds | {"maxValues": {"id": max(ids)}}),
        }
        return {"add": add}

    def _commit(self, operation: str, actions: Sequence[Action]) -> bool:
        info = {"commitInfo": {"operation": operation, "operationParameters": {}}}
        target = self._path(self._version + 1)
        temporary = target.with_name(f".{uuid.uuid4()}.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in [info, *actions]))
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _path(self, version: int) -> Path:
        return self._root / "_delta_log" / f"{version:020}.json"


def _may_hold(add: Action, ids: Sequence[int]) -> bool:
    stats = json.loads(add.get("stats") or "{}")
    least = stats.get("minValues", {}).get("id", min(ids))
    greatest = stats.get("maxValues", {}).get("id", max(ids))
    return any(least <= row <= greatest for row in ids)


def _deleted(add: Action, root: Path) -> set[int]:
    if not add.get("deletionVector"):
        return set()
    vector = DeletionVectorDescriptor.from_json(add["deletionVector"])
    return set(load(vector, lambda path: (root / path).read_bytes()))


def _marked_add(add: Action, vector: dict[str, Any]) -> Action:
    stats = json.loads(add.get("stats") or "{}") | {"tightBounds": False}
    return add | {"deletionVector": vector, "stats": json.dumps(stats), "dataChange": True}

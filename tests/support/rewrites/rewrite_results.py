"""The files that a rewrite leaves, and what its commit says of their rows."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq

from delta_maintenance.storage.core import Store
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.rewrites.table_rows import actions_of, latest


def files_of(store: Store) -> set[str]:
    """All files outside the log."""
    paths = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    return {path for path in paths if not path.startswith("_delta_log")}


def described(made: Rewritten) -> set[str]:
    """The sources of the newest commit whose removes say where their rows are, which is true. The
    others were touched meanwhile.
    """
    found = set()
    for action in actions_of(made.store, latest(made.store)):
        tags = action.get("remove", {}).get("tags") or {}
        if "compactedInto" in tags:
            path = action["remove"]["path"]
            [target] = json.loads(tags["compactedInto"])
            [run] = json.loads(tags["compactionInfo"])
            own, rows = (
                pq.read_table(io.BytesIO(made.store.read(each)), columns=["a"])["a"].to_pylist()
                for each in (path, target)
            )
            start = run["rowOffsetInTarget"]
            assert rows[start : start + len(own)] == own
            found.add(path)
    return found

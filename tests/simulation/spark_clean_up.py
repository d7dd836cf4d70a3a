"""The clean-up of Delta Spark on our stores, divided where other clients may come between."""

from __future__ import annotations

from collections.abc import Iterator

from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Checkpoint, list_log
from tests.support.tables.table_builder import LOG

DAY_MS = 86_400_000
SIDECARS = f"{LOG}/_sidecars"


def spark_clean_up(store: Store, *, now_ms: int, retention_days: int) -> Iterator[str]:
    """Steps 1 to 5 of "Metadata Cleanup", as MetadataCleanup of Delta Spark has them.

    Yields a word after the deletion of commits and checkpoints, when it is known which sidecars are
    in use, and another at the end. Yields nothing if no file has expired.
    """
    cut_off_ms = (now_ms - retention_days * DAY_MS) // DAY_MS * DAY_MS
    listing = list_log(store)
    old = [v for v, entry in listing.commits.items() if entry.status.modified_ms <= cut_off_ms]
    bases = [c for c in listing.checkpoints if c.version <= max(old, default=-1)]
    if not bases:
        return
    base = bases[-1].version
    doomed = [e.path for v, e in listing.commits.items() if v < base]
    doomed += [e.path for c in listing.checkpoints if c.version < base for e in c.entries]
    for path in doomed:
        store.delete(path)
    if not doomed:
        return
    used = {
        path
        for files in list_log(store).checkpoints
        for path in Checkpoint(store, files, open_sidecars=False).sidecar_paths
    }
    yield "looked"
    for status in store.list_from(SIDECARS):
        if status.path not in used and status.modified_ms < cut_off_ms:
            store.delete(status.path)
    yield "cleaned"

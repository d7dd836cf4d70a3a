"""Publication before work that only published versions of a catalog-managed table may have.

Implements "Maintenance Operations on Catalog-managed Tables": a version gets a checkpoint, and is
part of a log compaction, only if `_delta_log/<v>.json` exists.
"""

from __future__ import annotations

from dataclasses import replace

from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.registry import find
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table


def note_unpublished(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the note of a plan whose run publishes commits first. Takes one listing of the log,
    if the catalog lists commits.
    """
    store = snapshot.log.store
    published = store.newest_published() if isinstance(store, ManagedStore) else snapshot.version
    if published >= snapshot.version:
        return ()
    return (
        f"version {published} is the newest published one: the run first publishes the commits up "
        f"to version {snapshot.version}",
    )


def publish_up_to(table: Table, version: int, context: RunContext) -> None:
    """Publishes the commits that the catalog lists, unless the log has all up to this version.

    Raises the errors of `publish`.
    """
    store = table.store
    if not isinstance(store, ManagedStore) or store.newest_published() >= version:
        return
    record = find("publish")
    context = replace(context.without_engine(), version=None, newest=None, report=None)
    prepared = record.prepare(table, record.options(), context)
    assert prepared is not None
    prepared.apply()

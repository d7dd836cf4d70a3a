"""Whether a table has moved, asked as cheaply as a poll must be.

Only names are listed and at most the `_last_checkpoint` hint is read, so nothing here says that the
log is sound: a snapshot does.
"""

from __future__ import annotations

from dataclasses import dataclass

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.record import Record
from delta_maintenance.table import log_segment
from delta_maintenance.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLag(Record):
    """How far the newest checkpoint of a table is behind its newest version."""

    table: str
    version: int
    """The newest one."""
    checkpoint_version: int | None
    """Of the newest checkpoint that is complete by name and size; None without one."""

    @property
    def commits(self) -> int:
        """Commits that a reader has to replay on top of the checkpoint."""
        return self.version - (-1 if self.checkpoint_version is None else self.checkpoint_version)


def latest_version(table: Table, *, known: int | None = None) -> int:
    """The newest version, by one listing from the version `known` on.

    Without `known` the listing starts at the checkpoint that `_last_checkpoint` names, which is one
    read more. `NotADeltaTableError` where there is no log.
    """
    try:
        first = log_segment.hinted_version(table.store) if known is None else known
        listing = log_segment.list_log(table.store, first_version=first or 0)
    except DeltaMaintenanceError as error:
        raise error.located(table=table.uri) from error.__cause__
    version = log_segment.latest_version(listing)
    # Nothing at or after `first`: it was wrong, or there is no table at all.
    return table.latest_version() if version is None else version


def checkpoint_lag(table: Table) -> CheckpointLag:
    """The newest version and the newest checkpoint, by one read and one listing.

    Where `_last_checkpoint` is absent the whole log is listed; where it names a checkpoint that is
    not there, the whole log is listed as well. `NotADeltaTableError` where there is no log.
    """
    try:
        hint = log_segment.hinted_version(table.store)
        listing = log_segment.list_log(table.store, first_version=hint or 0)
        if hint and not listing.checkpoints:
            listing = log_segment.list_log(table.store)
    except DeltaMaintenanceError as error:
        raise error.located(table=table.uri) from error.__cause__
    version = log_segment.latest_version(listing)
    return CheckpointLag(
        table=table.uri,
        version=table.latest_version() if version is None else version,
        checkpoint_version=listing.checkpoints[-1].version if listing.checkpoints else None,
    )

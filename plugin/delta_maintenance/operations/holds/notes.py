"""What holders keep of rows that an operation removes from the newest version, for its Plan."""

from __future__ import annotations

from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import duration_text, instant_text
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.operations.holds.options import Holders
from delta_maintenance.table.read.snapshot import Snapshot


def kept_rows(
    snapshot: Snapshot, holders: Holders, context: RunContext, *, rows: str
) -> tuple[str, ...]:
    """Says who can still read rows that an operation is about to remove, such as `deleted rows`.

    Deletes nothing, so a holder that cannot be examined is named and stops nothing.
    """
    retention = duration_text(snapshot.properties.deleted_file_retention)
    notes = [
        f"older versions have the {rows} until a vacuum deletes their files, at the earliest "
        f"{retention} after this run (delta.deletedFileRetentionDuration)"
    ]
    try:
        holds = find_holds(
            snapshot, holders, now=context.started, storage_options=context.storage_options
        )
    except (RefusedError, StorageError) as error:
        return (*notes, f"what keeps older versions is not known: {error.problem}")
    for hold in holds.holds:
        until = "" if hold.until is None else f" until {instant_text(hold.until)}"
        notes.append(
            f"held by {hold.holder}: the files of version {hold.first} stay{until}, with {rows}"
        )
    return tuple(notes)

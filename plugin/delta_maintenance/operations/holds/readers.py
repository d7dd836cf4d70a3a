"""The holds of readers: from the version that a reader needs next on, everything stays."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    StorageError,
    VersionNotFoundError,
)
from delta_maintenance.operations.holds.hold import Hold, StorageOptions
from delta_maintenance.operations.holds.models import Reader
from delta_maintenance.operations.holds.streams import (
    StreamPosition,
    StreamState,
    read_last_read,
    read_stream,
)
from delta_maintenance.quantities import duration_text
from delta_maintenance.storage import open_store
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table


@dataclass(frozen=True, slots=True)
class ReaderHolds:
    """The hold of a reader, if it holds anything, and notes."""

    hold: Hold | None = None
    notes: tuple[str, ...] = ()


def reader_holds(
    snapshot: Snapshot, reader: Reader, *, now: datetime, storage_options: StorageOptions
) -> ReaderHolds:
    """Returns the hold of one reader on a table, whose latest version is `snapshot`.

    Raises an error that names the reader and the file if its position cannot be read: that of its
    store, or else `RefusedError`. Raises `InvalidRequestError` for a reader that is described
    wrongly.
    """
    holder = f"{reader.kind} {reader.name}"
    if reader.kind in ("stream", "last-read"):
        return _read_recorded(snapshot, reader, holder, now, storage_options)
    if reader.max_lag is None or reader.address is not None:
        raise InvalidRequestError(
            f"{holder} needs a maximum lag, and no address", remedy="give how far it may lag behind"
        )
    try:
        since = now - reader.max_lag
    except OverflowError:
        since = datetime.min.replace(tzinfo=now.tzinfo)
    state_text = f"may lag behind by {duration_text(reader.max_lag)}"
    if snapshot.timestamp is not None and since >= snapshot.timestamp:
        return ReaderHolds(_held(snapshot, holder, snapshot.version, state_text)[0])
    try:
        wanted = Table(snapshot.log.store).snapshot(timestamp=since).version
    except VersionNotFoundError:
        hold, _ = _held(snapshot, holder, None, state_text)
        lag = duration_text(reader.max_lag)
        return ReaderHolds(
            hold, (f"{holder}: the log begins at version {hold.first}, less than {lag} ago",)
        )
    except CorruptTableError as error:
        raise _unusable(snapshot, holder, error) from error
    return ReaderHolds(_held(snapshot, holder, wanted, state_text)[0])


def _read_recorded(
    snapshot: Snapshot, reader: Reader, holder: str, now: datetime, storage_options: StorageOptions
) -> ReaderHolds:
    if reader.address is None or reader.max_lag is not None:
        raise InvalidRequestError(
            f"{holder} needs an address, and no maximum lag",
            remedy="give the address of its checkpoint folder or file",
        )
    state = _state_of(snapshot, reader, holder, reader.address, storage_options)
    position = state.position
    if position is None:
        if state.is_of_others and reader.must_match:
            raise RefusedError(
                f"the {holder} is that of another table",
                table=snapshot.table,
                file=reader.address,
                remedy="correct its address, or remove the reader",
            )
        if state.is_of_others:
            return ReaderHolds()
        return ReaderHolds(notes=(f"{holder} has read nothing yet, and holds nothing",))
    notes: list[str] = []
    silent = _silent_since(snapshot, reader, position, now)
    if silent is not None and reader.silent_after is not None:
        note = (
            f"{holder} {position.text} and is silent since {clock.text(silent)}, for longer than "
            f"{duration_text(reader.silent_after)}"
        )
        if reader.release_silent:
            return ReaderHolds(notes=(f"{note}; it is no longer waited for",))
        notes.append(f"{note}; it is waited for nevertheless")
    needs, doubt = position.needs, position.doubt
    if _is_ahead(snapshot, position):
        needs, doubt = None, "the table does not have that version"
    state_text = f"{position.text}, last progress {clock.text(clock.instant(position.changed_ms))}"
    if doubt is not None:
        state_text += f"; {doubt}"
        notes.append(
            f"{holder} {position.text}, and {doubt}: all versions are kept; correct its files, or "
            "remove the reader"
        )
    elif needs is None:
        state_text += "; the version with which it began is not recorded"
    hold, complete = _held(snapshot, holder, needs, state_text)
    if not complete and needs is not None:
        notes.append(
            f"{holder} {position.text}, and the log begins at version {hold.first}: it cannot "
            "read everything any more"
        )
    return ReaderHolds(hold, tuple(notes))


def _is_ahead(snapshot: Snapshot, position: StreamPosition) -> bool:
    """Returns whether a reader has read a version that the table does not have, as after the table
    was restored. Writers may have committed since the snapshot was opened.
    """
    newest = snapshot.version
    if position.newest <= newest:
        return False
    return position.newest > Table(snapshot.log.store).latest_version(known=newest)


def _state_of(
    snapshot: Snapshot, reader: Reader, holder: str, text: str, storage_options: StorageOptions
) -> StreamState:
    address = Address.parse(text)
    alone = reader.kind == "last-read"
    table_id = snapshot.metadata.id
    if table_id is None:
        raise RefusedError(
            f"the table has no ID, by which the {holder} could name it",
            table=snapshot.table,
            version=snapshot.version,
            remedy="remove the reader",
        )
    try:
        folder = address.parent if alone else address
        with closing(open_store(folder, storage_options(text))) as store:
            if alone:
                return read_last_read(
                    store, address.name, table_id, requires_id=not reader.must_match
                )
            return read_stream(store, table_id)
    except DeltaMaintenanceError as error:
        kind: type[DeltaMaintenanceError] = RefusedError
        remedy = "restore it, or remove the reader"
        if isinstance(error, StorageError):
            # Its store may answer again, unlike a folder that is damaged.
            kind, remedy = type(error), error.remedy or remedy
        raise kind(
            f"the position of the {holder} cannot be read: {error.problem}",
            table=snapshot.table,
            file=f"{folder}/{error.file}" if error.file is not None else str(address),
            remedy=f"{remedy}; nothing is deleted until then",
        ) from error


def _held(snapshot: Snapshot, holder: str, wanted: int | None, why: str) -> tuple[Hold, bool]:
    """Returns a hold from a version on, or from the oldest one that is left. Also returns whether
    that version, or at least each commit after it, is left.
    """
    store = snapshot.log.store
    first_version = min(wanted, snapshot.version) if wanted is not None else 0
    opened, complete = snapshot, True
    try:
        if first_version < snapshot.version:
            opened = Table(store).snapshot(version=first_version)
    except VersionNotFoundError:
        listing = list_log(store)
        opened = _oldest_after(snapshot, first_version)
        complete = all(v in listing.commits for v in range(first_version + 1, opened.version + 1))
        first_version = first_version if complete else opened.version
    except CorruptTableError as error:
        raise _unusable(snapshot, holder, error) from error
    return Hold(holder=holder, first=first_version, last=None, why=why, snapshot=opened), complete


def _oldest_after(snapshot: Snapshot, version: int) -> Snapshot:
    """Returns the oldest version after a version that can be opened."""
    store = snapshot.log.store
    checkpoints = {files.version for files in list_log(store).checkpoints}
    for checkpoint in sorted(
        checkpoint for checkpoint in checkpoints if version < checkpoint < snapshot.version
    ):
        try:
            return Table(store).snapshot(version=checkpoint)
        except (CorruptTableError, VersionNotFoundError):
            continue
    return snapshot


def _silent_since(
    snapshot: Snapshot, reader: Reader, position: StreamPosition, now: datetime
) -> datetime | None:
    """Returns since when a reader has had something to read and recorded no progress; None if that
    is not too long ago.
    """
    if reader.silent_after is None or position.unread > snapshot.version:
        return None
    since = clock.instant(position.changed_ms)
    if now - since <= reader.silent_after:
        return None
    try:
        opened = Table(snapshot.log.store).snapshot(version=position.unread)
    except (CorruptTableError, VersionNotFoundError):
        return since
    if opened.timestamp is not None and not position.in_snapshot:
        since = max(since, opened.timestamp)
    return since if now - since > reader.silent_after else None


def _unusable(snapshot: Snapshot, holder: str, error: DeltaMaintenanceError) -> RefusedError:
    return RefusedError(
        f"a version that the {holder} needs cannot be opened: {error.problem}",
        table=snapshot.table,
        version=error.version,
        file=error.file,
        remedy="restore the file, or remove the reader",
    )

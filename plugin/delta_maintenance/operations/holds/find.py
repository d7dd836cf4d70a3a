"""Finds the holds of a table: its kept versions, and its readers, those of Iceberg included."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from delta_maintenance import clock
from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    NotADeltaTableError,
    RefusedError,
    StorageError,
    VersionNotFoundError,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import instant_text
from delta_maintenance.operations.holds.hold import Hold, Holds, StorageOptions, iceberg_hold
from delta_maintenance.operations.holds.kept_versions import read_kept_versions
from delta_maintenance.operations.holds.models import (
    HeldVersions,
    Holders,
    KeptVersion,
    Reader,
    checked_name,
)
from delta_maintenance.operations.holds.readers import reader_holds
from delta_maintenance.quantities import duration_text
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_UNREADABLE = (CorruptTableError, NotADeltaTableError, VersionNotFoundError)


def find_holds(
    snapshot: Snapshot, holders: Holders, *, now: datetime, storage_options: StorageOptions
) -> Holds:
    """Returns the holds of a table, whose latest version is `snapshot`.

    Raises `RefusedError`, which names the holder, if a held version cannot be opened, if two
    holders contradict each other, or if a holder cannot be examined; `StorageError` if the store of
    a reader fails. Nothing may be deleted then.
    """
    stored = read_kept_versions(snapshot.log.store)
    holds = [*iceberg_hold(snapshot)]
    notes: list[str] = []
    for kept_version in _unite(snapshot, (*stored, *holders.keep)):
        if kept_version.until is not None and kept_version.until <= now:
            notes.append(
                f"kept version {kept_version.name} ended at {clock.text(kept_version.until)}"
            )
        else:
            holds.append(_kept(snapshot, kept_version))
    for reader in _distinct(holders.readers):
        reader_hold = reader_holds(snapshot, reader, now=now, storage_options=storage_options)
        holds += [reader_hold.hold] if reader_hold.hold is not None else []
        notes += reader_hold.notes
    held = {(hold.first, hold.last) for hold in holds}
    holds += [
        _as_planned(snapshot, kept_version)
        for kept_version in holders.planned
        if (kept_version.first, kept_version.last) not in held
    ]
    return Holds(
        tuple(holds), tuple(notes), frozenset(kept_version.name for kept_version in stored)
    )


def version_hold(snapshot: Snapshot, version: int, *, holder: str) -> Hold:
    """Returns the hold of one version of the table, without an end."""
    opened = Table(snapshot.log.store).snapshot(version=version)
    return Hold(holder=holder, first=version, last=version, snapshot=opened)


def _as_planned(snapshot: Snapshot, held: HeldVersions) -> Hold:
    later = "" if held.last == held.first else " and all later ones"
    holder = f"version {held.first}{later}, as planned"
    try:
        opened = Table(snapshot.log.store).snapshot(version=held.first)
    except _UNREADABLE as error:
        raise RefusedError(
            f"version {held.first}, which was held when the plan was made, cannot be opened: "
            f"{error.problem}",
            table=snapshot.table,
            version=held.first,
            file=error.file,
            remedy="plan again",
        ) from error
    return Hold(holder=holder, first=held.first, last=held.last, snapshot=opened)


def _distinct(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """Returns each reader once. Plans name a holder by its kind and its name."""
    distinct = dict.fromkeys(readers)
    named = {(reader.kind, reader.name): reader for reader in distinct}
    other = next((reader for reader in distinct if named[reader.kind, reader.name] != reader), None)
    if other is not None:
        raise InvalidRequestError(
            f"there are two readers {other.kind} {other.name}", remedy="give one another name"
        )
    return tuple(distinct)


def _unite(snapshot: Snapshot, keeps: tuple[KeptVersion, ...]) -> Iterator[KeptVersion]:
    """Yields each name once. The later end counts if it is the same version."""
    united: dict[str, KeptVersion] = {}
    for kept_version in keeps:
        checked_name(kept_version.name)
        if (kept_version.version is None) == (kept_version.timestamp is None):
            raise InvalidRequestError(
                f"the kept version {kept_version.name} has "
                + ("neither a version nor a time" if kept_version.version is None else "both"),
                remedy="give its version or its time",
            )
        other = united.setdefault(kept_version.name, kept_version)
        if (other.version, other.timestamp) != (kept_version.version, kept_version.timestamp):
            raise RefusedError(
                f"{_stands_for(kept_version)} and {_stands_for(other)} are both kept as "
                f"{kept_version.name}",
                table=snapshot.table,
                remedy="give one of them another name, or release it",
            )
        if other.until is not None and (
            kept_version.until is None or kept_version.until > other.until
        ):
            united[kept_version.name] = kept_version
    yield from united.values()


def _stands_for(kept: KeptVersion) -> str:
    return f"version {kept.version}" if kept.version is not None else f"{kept.timestamp}"


def _kept(snapshot: Snapshot, kept: KeptVersion) -> Hold:
    table = Table(snapshot.log.store)
    try:
        opened = table.snapshot(version=kept.version, timestamp=kept.timestamp)
    except _UNREADABLE as error:
        raise RefusedError(
            f"the kept version {kept.name} cannot be opened: {error.problem}",
            table=snapshot.table,
            version=kept.version,
            file=error.file,
            remedy="restore it, or release it with keep-version --release",
        ) from error
    return Hold(
        holder=f"kept version {kept.name}",
        first=opened.version,
        last=opened.version,
        until=kept.until,
        why=kept.why,
        snapshot=opened,
    )


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

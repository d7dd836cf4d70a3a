"""Holds: ranges of versions that must stay, each with its holder; and that of Iceberg's readers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.table.read.log_file import read_text, relisting
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

StorageOptions = Callable[[str], Mapping[str, str] | None]
"""Returns the storage options for an address other than the table's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Versions of a table that must stay readable."""

    holder: str
    """The holder, such as `kept version audit-2026`. Unique among the holds of a table."""
    first: int
    """The first held version. It can be opened, and so can all later ones."""
    last: int | None
    """The last held version; None for a reader that needs all later versions, with the files that
    their commits removed and their change data files."""
    until: datetime | None = None
    """The end of the hold, if it is known."""
    why: str | None = None
    """The purpose of a kept version, or the state of a reader."""
    snapshot: Snapshot = field(compare=False, repr=False)
    """The first held version."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a table at one moment."""

    holds: tuple[Hold, ...] = ()
    notes: tuple[str, ...] = ()
    """Holds that have ended, and readers that hold nothing."""
    stored: frozenset[str] = frozenset()
    """The names of the kept versions in the log, including those that have ended."""


HOLDER = "Iceberg metadata (UniForm)"
_METADATA = "metadata"
_NAME = re.compile(r"(?:v(\d{1,18})|(\d{1,18})-.+)\.metadata\.json")
_VERSION = "delta-version"
_INVALID = (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError)


def commit_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the notes of each plan that commits files: the warnings about the snapshot, and what
    a commit of this library leaves stale if the table has UniForm.
    """
    if not _is_for_iceberg(snapshot):
        return snapshot.warnings
    return (
        *snapshot.warnings,
        "readers of Iceberg see these changes after the next commit of Delta Spark, which alone "
        "writes the metadata of Iceberg (UniForm); until then, vacuum keeps the files they need",
    )


def iceberg_hold(snapshot: Snapshot) -> tuple[Hold, ...]:
    """Returns the hold of the version that the metadata of Iceberg describes, and of later ones.

    The older of the two newest metadata files counts, because the catalog may still name it. Raises
    `RefusedError` if a metadata file cannot be understood or its version cannot be opened.
    """
    if not _is_for_iceberg(snapshot):
        return ()
    path = _METADATA
    try:
        versions = []
        for path in relisting(lambda: _newest_metadata(snapshot)):
            properties = json.loads(read_text(snapshot.log.store, path)).get("properties") or {}
            if _VERSION in properties:
                versions.append(int(properties[_VERSION]))
        if not versions:
            return ()
        opened = Table(snapshot.log.store).snapshot(version=min(versions))
    except (DeltaMaintenanceError, *_INVALID) as error:
        raise RefusedError(
            f"the version that readers of Iceberg see (UniForm) cannot be opened: {error}",
            table=snapshot.table,
            file=path,
            remedy="commit to the table with Delta Spark, which writes the metadata of Iceberg "
            "again, or unset delta.universalFormat.enabledFormats with set-properties",
        ) from error
    return (Hold(holder=HOLDER, first=opened.version, last=None, snapshot=opened),)


def _is_for_iceberg(snapshot: Snapshot) -> bool:
    return "iceberg" in snapshot.properties.universal_formats.lower()


def _newest_metadata(snapshot: Snapshot) -> list[str]:
    numbered = [
        (int(match[1] or match[2]), status.path)
        for status in snapshot.log.store.list_from(_METADATA)
        if (match := _NAME.fullmatch(status.path.rpartition("/")[2]))
    ]
    newest = sorted({number for number, _ in numbered})[-2:]
    return [path for number, path in numbered if number in newest]

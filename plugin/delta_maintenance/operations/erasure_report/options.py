"""Options, Plan and Result of `erasure-report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.holds.options import Holders

Place = Literal[
    "live",
    "deletion-vector",
    "removed",
    "held",
    "change-data",
    "unreferenced",
    "old-version",
    "log",
]
"""Where a file with matching rows is. `live`: the latest version has the file, and it or an older
one returns the rows. `deletion-vector`: the latest version has the file, and a deletion vector
marks the rows. `removed`: a retained version or its tombstone needs the file. `held`: a kept
version, a reader or a clone needs it. `change-data`: a file of the change data feed.
`unreferenced`: no retained version knows the file, such as one that a failed writer left.
`old-version`: the store keeps the content of a deleted or replaced file. `log`: statistics or
partition values in a file of the log repeat values of rows that no file has, or that remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportOptions(Record):
    """The rows to look for."""

    where: Annotated[
        str,
        Flag(
            'the rows that should be gone, in SQL, such as "customer = 4711"',
            positional=True,
            metavar="CONDITION",
            example="id = 4711",
        ),
    ]
    clones: Annotated[
        tuple[str, ...],
        Flag(
            "a shallow clone of this table, which is searched too; repeatable",
            name="--clone",
            metavar="URI",
        ),
    ] = ()
    """In addition to those of `holders`. The files of this table that they need have no end."""
    holders: Holders = Holders()
    """What holds versions and files besides the retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportPlan(Document):
    """The files to read."""

    table: str
    version: int
    planned_at: Instant
    options: ErasureReportOptions
    files: int
    """The number of files in the folders of the table and of its clones that can contain rows,
    without old versions."""
    bytes: int
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether no file would be read."""
        return not self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile(Record):
    """A file with matching rows."""

    place: Place
    clone: str | None = None
    """The address of the clone in whose folder the file is; None for the table itself."""
    path: str
    """Relative to the root of the table or clone, as the store names it."""
    version_id: str | None
    """The ID of an old version in the store."""
    rows: int
    """Matching rows in the file, whether or not they are deleted; in a file of the log, the file
    actions with such values."""
    size: int
    """The size in bytes."""
    sha256: str
    """Empty for a file of the log."""
    ends: Instant | None
    """When the file can be deleted by today's rules; None if no rule ends it."""
    ends_by: str
    """What deletes it then, or what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTotal(Record):
    """The files with matching rows in one place."""

    place: Place
    files: int
    rows: int
    last_end: Instant | None
    """When the last of these files can be deleted; None if a file has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportResult(Document):
    """The files with matching rows, and whether the rows are erased."""

    table: str
    version: int
    status: Literal["erased", "remains", "uncertain"]
    """`erased`: no examined place has matching rows, and all places were examined. `uncertain`: no
    matching rows were found, and some places could not be examined."""
    examined_at: Instant
    where: str
    files_read: int
    bytes_read: int
    digest: str
    """The SHA-256 of the paths, sizes and checksums of all files that were read, in order."""
    places: tuple[PlaceTotal, ...] = ()
    found: tuple[FoundFile, ...] = ()
    """The first files with matching rows. The report of the command contains all files."""
    not_examined: tuple[str, ...] = ()
    """What could not be examined, with reasons."""
    notes: tuple[str, ...] = ()

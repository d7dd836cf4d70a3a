"""Options, Plan and Result of `keep-version`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.core.documents import Document
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record
from delta_maintenance.operations.holds.options import KeptVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionOptions(Record):
    """The version to keep, or the name to release."""

    name: Annotated[
        str,
        Flag(
            "a name for the version, such as audit-2026: letters, digits, dots, underscores "
            "and hyphens",
            positional=True,
            example="audit-2026",
        ),
    ]
    """At most 64 characters, beginning with a letter."""
    keep: Annotated[
        Annotated[int, AtLeast(0)] | None,
        Flag("the version to keep, by default the latest", name="--version", metavar="N"),
    ] = None
    at: Annotated[
        Instant | None,
        Flag(
            "keep the version that was current at this time (ISO 8601, with a time zone)",
            metavar="TIME",
        ),
    ] = None
    until: Annotated[
        Instant | None,
        Flag(
            "keep it until this time (ISO 8601, with a time zone), by default until it is released",
            metavar="TIME",
        ),
    ] = None
    why: Annotated[str | None, Flag("the purpose, for plans and reports", metavar="TEXT")] = None
    release: Annotated[
        bool, Flag("no longer keep the version with this name; deletes no file of the table")
    ] = False


Action = Literal["keep", "change", "release", "none"]
Status = Literal["kept", "released", "nothing-to-do"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionPlan(Document):
    """The kept version to add, to change or to release."""

    table: str
    version: int
    """The latest version when the plan was made."""
    planned_at: Instant
    options: KeepVersionOptions
    action: Action
    kept: KeptVersion
    """The kept version as it will be, or the one to release."""
    others: tuple[KeptVersion, ...]
    """The other kept versions in the log."""
    only_here: int
    """The data files of the version that the latest version does not need."""
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would change nothing."""
        return self.action == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepVersionResult(Document):
    """The kept or released version."""

    table: str
    version: int
    status: Status
    kept: KeptVersion
    notes: tuple[str, ...] = ()

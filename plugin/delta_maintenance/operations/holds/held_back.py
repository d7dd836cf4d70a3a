"""The record of the files that an operation keeps for one holder, for its Plan and for pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.holds.options import HeldVersions, KeptVersion

if TYPE_CHECKING:
    from delta_maintenance.operations.holds.hold import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack(Record):
    """Files that an operation keeps for one holder and would otherwise delete.

    Files of several holders are counted for each of them.
    """

    holder: str
    first_version: int | None
    """The first held version; None for a clone or manifests, which hold files, and if it is not
    known yet."""
    last_version: int | None
    """The last held version; None if all later versions are held."""
    until: Instant | None
    why: str | None
    files: int
    """0 for a kept version whose files no operation has counted yet."""
    bytes: int

    @classmethod
    def by(cls, hold: Hold, *, files: int, size: int) -> HeldBack:
        """Returns the files that a hold keeps."""
        return cls(
            holder=hold.holder,
            first_version=hold.first,
            last_version=hold.last,
            until=hold.until,
            why=hold.why,
            files=files,
            bytes=size,
        )

    @classmethod
    def by_files(cls, holder: str, *, files: int, size: int) -> HeldBack:
        """Returns the files that a holder of files, such as a clone, keeps."""
        return cls(
            holder=holder,
            first_version=None,
            last_version=None,
            until=None,
            why=None,
            files=files,
            bytes=size,
        )

    @classmethod
    def of_version(cls, kept: KeptVersion) -> HeldBack:
        """Returns a kept version of which nobody has counted the files."""
        return cls(
            holder=f"kept version {kept.name}",
            first_version=kept.version,
            last_version=kept.version,
            until=kept.until,
            why=kept.why,
            files=0,
            bytes=0,
        )

    @staticmethod
    def versions(held: Iterable[HeldBack]) -> tuple[HeldVersions, ...]:
        """Returns the versions that are held, without the holders of files."""
        return tuple(
            HeldVersions(first=each.first_version, last=each.last_version)
            for each in held
            if each.first_version is not None
        )

    def and_files_of(self, other: HeldBack) -> HeldBack:
        """Adds the files that another operation keeps for the same holder."""
        return replace(self, files=self.files + other.files, bytes=self.bytes + other.bytes)

    def __str__(self) -> str:
        """One line, such as `kept version audit: 3 files (1.2 MB), version 7, until 2027-01-01`."""
        parts = []
        if self.files:
            parts.append(f"{count_text(self.files, 'file')} ({size_text(self.bytes)})")
        if self.first_version is not None:
            one = self.last_version == self.first_version
            parts.append(f"version {self.first_version}{'' if one else ' and all later ones'}")
        if self.until is not None:
            parts.append(f"until {self.until:%Y-%m-%dT%H:%M:%SZ}")
        if self.why:
            parts.append(self.why)
        return f"{self.holder}: {', '.join(parts)}" if parts else self.holder

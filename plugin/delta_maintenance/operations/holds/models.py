"""Documents of holds: what a caller keeps, who reads, and the files that a holder keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance import clock
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import Bounds, Instant, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.holds.hold import Hold


ReaderKind = Literal["stream", "change-feed", "share", "last-read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVersion(Record):
    """A version that stays readable, with its name."""

    name: str
    version: Annotated[int, Bounds(0)] | None = None
    """Give this or `timestamp`."""
    timestamp: Instant | None = None
    """The version that was current at this instant is kept."""
    until: Instant | None = None
    """The version is kept until this instant; None keeps it until it is released."""
    why: str | None = None
    """The purpose, for people."""

    def __str__(self) -> str:
        """One line: name, version, end and purpose."""
        clauses = [self.name]
        if self.version is not None:
            until = clock.text(self.until) if self.until is not None else "released"
            clauses += [f"version {self.version}", f"until {until}"]
        return ", ".join([*clauses, *([self.why] if self.why else ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Record):
    """A reader that has not read all versions yet."""

    kind: ReaderKind
    """`stream` is a checkpoint folder of Structured Streaming. `change-feed` and `share` may lag
    behind by `max_lag`. `last-read` is a file to which a consumer writes the last version that it
    has read."""
    name: str
    """Names the reader in plans and messages."""
    address: str | None = None
    """For `stream` the address of the checkpoint folder, for `last-read` that of the file."""
    must_match: bool = True
    """Whether it is an error if the folder or the file is that of another table. Otherwise such a
    reader holds nothing."""
    max_lag: timedelta | None = None
    """For `change-feed` and `share`: versions that were current within this time are held."""
    silent_after: timedelta | None = None
    """A reader whose folder or file did not change for this long is reported as silent."""
    release_silent: bool = False
    """Whether a silent reader holds nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersions(Record):
    """Versions that a holder held when a plan was made."""

    first: int
    last: int | None
    """None if all later versions were held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders(Record):
    """What holds versions and files of a table, besides its retention."""

    keep: tuple[KeptVersion, ...] = ()
    """Kept versions, in addition to those in the log of the table."""
    readers: tuple[Reader, ...] = ()
    clones: tuple[str, ...] = ()
    """Addresses of shallow clones, which refer to data files of this table."""
    planned: tuple[HeldVersions, ...] = ()
    """Versions that were held when the plan was made that is applied now. They are held still, so
    that no more is deleted than was planned, however far readers have come since."""

    def and_those(self, others: Iterable[Holders]) -> Holders:
        """Adds what others hold. Nothing is ever taken away."""
        every = (self, *others)
        named = {
            field.name: [getattr(holders, field.name) for holders in every]
            for field in fields(self)
        }
        return Holders(**{name: tuple(dict.fromkeys(chain(*held))) for name, held in named.items()})

    def as_planned(self, held: Iterable[HeldVersions]) -> Holders:
        """Adds what was held when a plan was made."""
        return replace(self, planned=tuple(dict.fromkeys((*self.planned, *held))))

    def and_reading(self, streams: tuple[str, ...], last_read: tuple[str, ...]) -> Holders:
        """Adds the readers at the addresses of two flags."""
        added = [
            *(Reader(kind="stream", name=address, address=address) for address in streams),
            *(Reader(kind="last-read", name=address, address=address) for address in last_read),
        ]
        return replace(self, readers=(*self.readers, *added))


Streams = Annotated[
    tuple[str, ...],
    Flag(
        "checkpoint folders of Structured Streaming queries that read the table; what they have "
        "not read is kept",
        name="--stream",
        metavar="ADDRESS",
        group="safety",
    ),
]
"""Addresses of checkpoint folders, as a field of Options."""

LastRead = Annotated[
    tuple[str, ...],
    Flag(
        "files with the last version that a consumer has read, such as 41; what it has not read "
        "is kept",
        name="--last-read",
        metavar="ADDRESS",
        group="safety",
    ),
]
"""Addresses of such files, as a field of Options."""


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
    def of_version(cls, kept_version: KeptVersion) -> HeldBack:
        """Returns a kept version of which nobody has counted the files."""
        return cls(
            holder=f"kept version {kept_version.name}",
            first_version=kept_version.version,
            last_version=kept_version.version,
            until=kept_version.until,
            why=kept_version.why,
            files=0,
            bytes=0,
        )

    @staticmethod
    def versions(held: Iterable[HeldBack]) -> tuple[HeldVersions, ...]:
        """Returns the versions that are held, without the holders of files."""
        return tuple(
            HeldVersions(first=holder_files.first_version, last=holder_files.last_version)
            for holder_files in held
            if holder_files.first_version is not None
        )

    def and_files_of(self, other: HeldBack) -> HeldBack:
        """Adds the files that another operation keeps for the same holder."""
        return replace(self, files=self.files + other.files, bytes=self.bytes + other.bytes)

    def __str__(self) -> str:
        """One line, such as `kept version audit: 3 files (1.2 MiB), until 2027-01-01`."""
        clauses = []
        if self.files:
            clauses.append(f"{count_text(self.files, 'file')} ({size_text(self.bytes)})")
        if self.first_version is not None:
            one = self.last_version == self.first_version
            clauses.append(f"version {self.first_version}{'' if one else ' and all later ones'}")
        if self.until is not None:
            clauses.append(f"until {clock.text(self.until)}")
        if self.why:
            clauses.append(self.why)
        return f"{self.holder}: {', '.join(clauses)}" if clauses else self.holder


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def checked_name(name: str) -> str:
    """Returns the name. Raises `InvalidRequestError` if it cannot be that of a kept version."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name!r} is not the name of a kept version",
            remedy="use at most 64 letters, digits, dots, underscores and hyphens, and begin with "
            "a letter",
        )
    return name

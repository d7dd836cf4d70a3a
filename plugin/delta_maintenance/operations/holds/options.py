"""The holders of versions and files, as options of operations that delete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import chain
from typing import Annotated, Literal

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record

ReaderKind = Literal["stream", "change-feed", "share", "last-read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVersion(Record):
    """A version that stays readable, with its name."""

    name: str
    version: Annotated[int, AtLeast(0)] | None = None
    """Give this or `timestamp`."""
    timestamp: Instant | None = None
    """The version that was current at this instant is kept."""
    until: Instant | None = None
    """The version is kept until this instant; None keeps it until it is released."""
    why: str | None = None
    """The purpose, for people."""

    def __str__(self) -> str:
        """One line: name, version, end and purpose."""
        parts = [self.name]
        if self.version is not None:
            until = f"{self.until:%Y-%m-%dT%H:%M:%SZ}" if self.until is not None else "released"
            parts += [f"version {self.version}", f"until {until}"]
        return ", ".join([*parts, *([self.why] if self.why else ())])


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
            each.name: [getattr(holders, each.name) for holders in every] for each in fields(self)
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
        "the checkpoint folder of a Structured Streaming query that reads the table; what it "
        "has not read is kept; repeatable",
        name="--stream",
        metavar="ADDRESS",
    ),
]
"""Addresses of checkpoint folders, as a field of Options."""

LastRead = Annotated[
    tuple[str, ...],
    Flag(
        "a file with the last version that a consumer has read, such as 41; what it has not "
        "read is kept; repeatable",
        name="--last-read",
        metavar="ADDRESS",
    ),
]
"""Addresses of such files, as a field of Options."""

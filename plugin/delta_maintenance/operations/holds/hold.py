"""Holds: ranges of versions that must stay, each with its holder."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from delta_maintenance.table.read.snapshot import Snapshot


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

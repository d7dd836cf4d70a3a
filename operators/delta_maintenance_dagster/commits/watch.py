"""The position of a sensor in the log of each table, and the poll that advances it.

A poll makes at most two requests to the store: a listing that starts at the newest known version,
and a read of the first bytes of one commit. The newest of several new commits is read first, and
the others only if it is maintenance, one per poll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from delta_maintenance.operations.watch import LogWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The known state of the log of one table."""

    version: int
    """The newest listed version."""
    requested: int = -1
    """The version for which a run was requested last; -1 for none."""
    unread: tuple[tuple[int, int], ...] = ()
    """Ranges of commits, ends included, that may have changed data and were not read yet."""
    half_read: int | None = None
    """A commit among these whose first bytes did not decide."""

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Self:
        """Parses the result of `asdict`, in which JSON replaced the tuples by lists."""
        ranges = value.get("unread") or ()
        assert isinstance(ranges, list | tuple)
        unread = tuple((int(low), int(high)) for low, high in ranges)
        return cls(**{**value, "unread": unread})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a poll."""

    position: Position
    data_version: int | None = None
    """The newest commit that changed data, if one is new."""


def look(watch: LogWatch, before: Position | None) -> Look:
    """Polls a log once, starting from the state `before`.

    A table that was never polled counts as changed. Raises the errors of `LogWatch.look`.
    """
    seen = watch.look()
    # A log that does not continue at the known version is another log.
    if before is None or seen.since != before.version:
        return Look(position=Position(version=seen.version), data_version=seen.version)
    unread = before.unread
    if seen.version > before.version:
        unread = (*unread, (before.version + 1, seen.version))
    position = replace(before, version=seen.version, unread=unread)
    return _read_one(watch, position) if unread else Look(position=position)


def _read_one(watch: LogWatch, position: Position) -> Look:
    version = position.half_read
    half_read = version is not None
    if version is None:
        version = position.unread[-1][1]
    digest = watch.whole(version) if half_read else watch.digest(version)
    # A commit that was deleted before it could be read may have changed data.
    maintenance = digest.is_maintenance if digest is not None else False
    if maintenance is None and not half_read:
        return Look(position=replace(position, half_read=version))
    if maintenance:
        unread = _without(position.unread, version)
        return Look(position=replace(position, unread=unread, half_read=None))
    return Look(position=replace(position, unread=(), half_read=None), data_version=version)


def _without(ranges: tuple[tuple[int, int], ...], version: int) -> tuple[tuple[int, int], ...]:
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        if low <= version <= high:
            left += [
                part for part in ((low, version - 1), (version + 1, high)) if part[0] <= part[1]
            ]
        else:
            left.append((low, high))
    return tuple(left)


class Positions:
    """The cursor of a sensor: a position for each table, by its address."""

    def __init__(self, cursor: str | None) -> None:
        known = json.loads(cursor) if cursor else {}
        self._known = {uri: Position.from_json(value) for uri, value in known.items()}

    def __getitem__(self, uri: str) -> Position | None:
        return self._known.get(uri)

    def __setitem__(self, uri: str, position: Position) -> None:
        self._known[uri] = position

    def to_cursor(self, uris: set[str]) -> str:
        """Returns the cursor as text, without the tables that are no longer watched."""
        return json.dumps(
            {uri: asdict(each) for uri, each in self._known.items() if uri in uris},
            separators=(",", ":"),
        )

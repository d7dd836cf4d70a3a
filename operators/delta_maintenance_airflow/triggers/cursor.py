"""The position of a watcher, stored so that it survives the triggerer."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from delta_maintenance.operations.position import Position

_log = logging.getLogger(__name__)

_NAMES = {"version": "version", "told": "announced", "counted": "counted"}
_NAMES |= {name: name for name in ("trouble", "maintained")}
"""The fields of a position by their names in the state of an asset. A position with unread commits
is never stored.
"""


class Cursor:
    """The position of one watcher, in the state of its assets, under its name."""

    def __init__(self, states: Sequence[Any], name: str) -> None:
        self._states = states
        self._name = name
        self._saved: Position | None = None

    async def load(self) -> Position | None:
        """The position that was saved last; the oldest one if assets differ."""
        positions = [_position(await state.aget(self._name)) for state in self._states]
        self._saved = min(
            (position for position in positions if position is not None),
            key=lambda position: position.version,
            default=None,
        )
        return self._saved

    async def save(self, position: Position) -> None:
        """Saves the position. A failure is logged: at worst, an event is sent twice."""
        if position == self._saved:
            return
        try:
            for state in self._states:
                await state.aset(
                    self._name, {name: getattr(position, field) for name, field in _NAMES.items()}
                )
        # An error of the state store must not cause a missed commit.
        except Exception as error:
            _log.warning("the position of a watcher could not be saved: %s", error)
        else:
            self._saved = position


class CursorBoard:
    """The positions of many watchers, in the state of their assets.

    They are stored in a fixed number of values, so that one write stores many positions, and each
    value is smaller than the 64 KiB that Airflow accepts, up to about 12,000 tables.
    """

    PARTS = 16

    def __init__(
        self, states: Sequence[Any], name: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._states = states
        self._name = name
        self._now = now
        self._parts: list[dict[str, list[Any]]] = [{} for _ in range(self.PARTS)]
        self._waiting: dict[str, tuple[float, Position]] = {}

    async def load(self) -> None:
        """Reads all positions; if assets differ, the oldest position counts."""
        for number in range(self.PARTS):
            for state in self._states:
                value = await state.aget(self._key(number))
                for key, row in (value if isinstance(value, Mapping) else {}).items():
                    stored = self._parts[number].get(key)
                    if _row_position(row) and (stored is None or row[0] < stored[0]):
                        self._parts[number][key] = list(row)

    def get(self, table_uri: str) -> Position | None:
        """Returns the position of a table that was loaded, or written since."""
        number, key = self._slot(table_uri)
        return _row_position(self._parts[number].get(key))

    def put(self, table_uri: str, position: Position, *, after: float = 0.0) -> None:
        """Schedules a position for the next `save` at least `after` seconds later.

        If an earlier position of the table is still waiting, a later one waits with it: stored too
        soon, it would cover an event that is not certain to be in the database.
        """
        before, _ = self._waiting.get(table_uri, (0.0, position))
        self._waiting[table_uri] = (max(before, self._now() + after), position)

    async def save(self) -> None:
        """Writes the positions that are ready. A failure is logged: an event may be sent twice."""
        now = self._now()
        ready = {uri: pos for uri, (at, pos) in self._waiting.items() if at <= now}
        changed: dict[int, dict[str, list[Any]]] = {}
        for uri, position in ready.items():
            number, key = self._slot(uri)
            row = [position.version, position.announced, position.counted, position.trouble]
            # Left out if possible: the length of a value is limited.
            row += [] if position.maintained is None else [position.maintained]
            if self._parts[number].get(key) != row:
                changed.setdefault(number, {})[key] = row
            else:
                del self._waiting[uri]
        try:
            for number, rows in changed.items():
                value = {**self._parts[number], **rows}
                for state in self._states:
                    await state.aset(self._key(number), value)
                self._parts[number] = value
        # An error of the state store must not cause a missed commit.
        except Exception as error:
            _log.warning("the positions of watchers could not be saved: %s", error)
            return
        for uri, position in ready.items():
            if uri in self._waiting and self._waiting[uri][1] is position:
                del self._waiting[uri]

    def forget_others(self, table_uris: Collection[str]) -> None:
        """Deletes the positions of all other tables with the next write of their part."""
        slots = {self._slot(uri) for uri in table_uris}
        for number, rows in enumerate(self._parts):
            self._parts[number] = {key: row for key, row in rows.items() if (number, key) in slots}

    def _key(self, number: int) -> str:
        return f"{self._name}_{number}"

    def _slot(self, table_uri: str) -> tuple[int, str]:
        digest = hashlib.sha256(table_uri.encode()).hexdigest()
        return int(digest[:8], 16) % self.PARTS, digest[:16]


def _row_position(row: Any) -> Position | None:
    match row:
        case [int(), int(), int(), None | str(), *others]:
            fields = dict(zip(_NAMES.values(), row, strict=False))
            if others and not isinstance(others[0], int):
                del fields["maintained"]
            return Position(**fields)
        case _:
            return None


def _position(value: Any) -> Position | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("version"), int):
        return None
    fields = {field: value[name] for name, field in _NAMES.items() if name in value}
    return Position(**{"announced": value["version"], **fields})

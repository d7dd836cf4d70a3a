"""The position of a watcher, stored so that it survives the triggerer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a watcher stands in the log of its table."""

    version: int
    """Commits up to this one are taken into account."""
    told: int
    """The version of the last event."""
    counted: int = 0
    """Commits since then that count."""
    trouble: str | None = None
    """The error that was told of and has not passed."""


class Cursor:
    """The position of one watcher, in the state of the assets that it is for, under its name."""

    def __init__(self, states: Sequence[Any], name: str) -> None:
        self._states = states
        self._name = name
        self._saved: Position | None = None

    async def load(self) -> Position | None:
        """The position that was saved last; the oldest one where assets differ."""
        found = [_position(await state.aget(self._name)) for state in self._states]
        self._saved = min(
            (position for position in found if position is not None),
            key=lambda position: position.version,
            default=None,
        )
        return self._saved

    async def save(self, position: Position) -> None:
        """Keeps the position. A failure is logged: the worst of it is an event told twice."""
        if position == self._saved:
            return
        try:
            for state in self._states:
                await state.aset(self._name, asdict(position))
        # Whatever the state is kept in, none of its errors is worth a missed commit.
        except Exception as error:
            _log.warning("the position of a watcher could not be saved: %s", error)
        else:
            self._saved = position


def _position(value: Any) -> Position | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("version"), int):
        return None
    known = {name: value[name] for name in Position.__slots__ if name in value}
    return Position(**{"told": value["version"], **known})

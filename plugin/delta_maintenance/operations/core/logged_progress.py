"""Progress of an operation in the log of an orchestrator."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from delta_maintenance import clock

_EVERY = timedelta(seconds=10)


class Log(Protocol):
    """A logger, or the equivalent of an orchestrator."""

    def info(self, message: str, /, *arguments: object) -> object: ...


class LoggedProgress:
    """Logs the beginning of each stage, and its progress at most every 10 seconds."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stage: str | None = None
        self._last: datetime | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = clock.now()
        if stage == self._stage and self._last is not None and now - self._last < _EVERY:
            return
        self._stage, self._last = stage, now
        self._log.info("%s: %d%s", stage, done, "" if total is None else f" of {total}")

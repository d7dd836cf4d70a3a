"""Reports the progress of an operation in the log of its run."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from delta_maintenance import clock

_EVERY = timedelta(seconds=10)


class LoggedProgress:
    """A line per stage, and one every few seconds within it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._stage: str | None = None
        self._last: datetime | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = clock.now()
        if stage == self._stage and self._last is not None and now - self._last < _EVERY:
            return
        self._stage, self._last = stage, now
        self._log.info("%s: %d%s", stage, done, "" if total is None else f" of {total}")

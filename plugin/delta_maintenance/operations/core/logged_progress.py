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
        # Parsing a Dag loads this module, and needs no text.
        from delta_maintenance.operations.core.progress_text import ProgressText

        self._log = log
        self._text = ProgressText()
        self._last: dict[str, datetime] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        line, now = self._text(stage, done, total), clock.now()
        if stage not in self._last or now - self._last[stage] >= _EVERY:
            self._last[stage] = now
            self._log.info("%s", line)

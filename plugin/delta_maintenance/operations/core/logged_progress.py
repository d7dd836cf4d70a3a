"""Progress of an operation in a log: that of an orchestrator, or the output of a Spark job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, Self

from delta_maintenance import clock

if TYPE_CHECKING:
    from delta_maintenance.table.progress import Unit

_EVERY = timedelta(seconds=10)


class Log(Protocol):
    """A logger, or the equivalent of an orchestrator."""

    def info(self, message: str, /, *arguments: object) -> object: ...


class LoggedProgress:
    """Logs the beginning and the end of each stage, and its progress at most every 10 seconds.

    A stage ends when its total is reached. As a context manager, it also logs the last state of
    the other stages.
    """

    def __init__(self, log: Log) -> None:
        # Parsing a Dag loads this module, and needs no text.
        from delta_maintenance.operations.core.progress_text import ProgressText

        self._log = log
        self._text = ProgressText()
        self._logged: dict[str, tuple[datetime, str]] = {}
        self._ended: set[str] = set()
        self._waiting: dict[str, str] = {}
        """The newest line of each stage, if it is not logged yet."""

    def __call__(
        self, stage: str, done: int, total: int | None, /, *, unit: Unit = "count"
    ) -> None:
        line, now = self._text(stage, done, total, unit=unit), clock.now()
        is_end = total is not None and done >= total
        at, before = self._logged.get(stage, (None, ""))
        if at is None or now - at >= _EVERY or (is_end and stage not in self._ended):
            self._logged[stage] = now, line
            self._waiting.pop(stage, None)
            self._log.info("%s", line)
        elif line != before:
            self._waiting[stage] = line
        if is_end:
            self._ended.add(stage)
        else:
            self._ended.discard(stage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._waiting.values():
            self._log.info("%s", line)
        self._waiting.clear()

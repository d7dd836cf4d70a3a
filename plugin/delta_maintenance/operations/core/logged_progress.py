"""Progress of long work as lines of text, and in the log of an orchestrator or a Spark job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, Self

from delta_maintenance import clock

if TYPE_CHECKING:
    from delta_maintenance.table.progress import Unit


_LEAST = timedelta(seconds=5)
"""The time after which the pace of a stage is known well enough."""
_UNITS = tuple(timedelta(seconds=size) for size in (86_400, 3_600, 60, 1))


class ProgressText:
    """Formats the reports of one run. Called like `table.progress.Progress`.

    The pace of a stage is measured from its first report on.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[datetime, int]] = {}

    def __call__(self, stage: str, done: int, total: int | None, /, *, unit: Unit = "count") -> str:
        """Returns a line such as `bytes rewritten: 1.2 GiB of 9.9 GiB, about 3 minutes left`."""
        now = clock.now()
        started, before = self._first.setdefault(stage, (now, done))
        line = f"{stage}: {amount_text(done, unit)}"
        if total is None:
            return line
        line += f" of {amount_text(total, unit)}"
        elapsed = now - started
        if elapsed < _LEAST or not before < done < total:
            return line
        # Parsing a Dag loads this module, and needs no text.
        from delta_maintenance.quantities import duration_text

        time_left = elapsed * ((total - done) / (done - before))
        return f"{line}, about {duration_text(_round(time_left))} left"


def amount_text(amount: int, unit: Unit) -> str:
    """Formats an amount of a stage. The name of the stage is the unit of a count."""
    from delta_maintenance.operations.core.facts import size_text

    return size_text(amount) if unit == "bytes" else f"{amount:,}"


def _round(length: timedelta) -> timedelta:
    """Rounds to the largest unit that the length has, and at least to one second."""
    unit = next((unit for unit in _UNITS if length >= unit), _UNITS[-1])
    return max(1, round(length / unit)) * unit


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

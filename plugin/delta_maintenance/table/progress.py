"""Progress reports of long work."""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["count", "bytes"]
"""The unit of the amounts of a stage: the number of the things that its name states, or bytes."""


class Progress(Protocol):
    """A function that is called with the progress of each stage of the work."""

    def __call__(
        self, stage: str, done: int, total: int | None, /, *, unit: Unit = "count"
    ) -> object:
        """Takes the name of the stage, the completed amount, and the total amount if known."""


def ignore_progress(stage: str, done: int, total: int | None, /, *, unit: Unit = "count") -> None:
    """A `Progress` that nobody sees."""

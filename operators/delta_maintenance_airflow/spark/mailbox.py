"""The files through which a deferred task and its driver communicate.

They are stored beside the report of the job, in a folder that worker and triggerer can reach. The
waiter on the worker writes the state; the trigger writes the request to end the job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.storage import Store

SECONDS_BETWEEN_BEATS = 20.0
"""The longest time between two states of a running job."""
SECONDS_UNTIL_LOST = 180.0
"""A job without a new state for this time has lost its worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of the driver, as known to the waiter."""

    beat: int
    """Increases with each state, so that a reader does not depend on the clock of the worker."""
    ended: bool = False
    exit_status: int | None = None
    """The exit status of `spark-submit`; negative for a signal."""
    interface: str | None = None
    """The address of the user interface of the application."""
    progress: str | None = None
    """The last line of the job that is meant for people."""
    log: tuple[str, ...] = ()
    """The end of the output of `spark-submit`, after the job has ended."""


class Mailbox:
    """The files of one job. `name` is the name of its report, without the ending."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self._state = f"{name}.state"
        self._kill = f"{name}.kill"

    def write(self, state: JobState) -> None:
        """Replaces the state."""
        self.store.put(self._state, json.dumps(asdict(state)).encode())

    def read(self) -> JobState | None:
        """The newest state; None before the first, and after the last."""
        try:
            content = self.store.read(self._state)
        except FileNotFoundError:
            return None
        fields = json.loads(content)
        return JobState(**{**fields, "log": tuple(fields["log"])})

    def request_end(self) -> None:
        """Asks the waiter to end the job."""
        self.store.put(self._kill, b"")

    def is_end_requested(self) -> bool:
        """Whether the job is to be ended."""
        return self.store.stat(self._kill) is not None

    def clear(self) -> None:
        """Deletes the files."""
        self.store.delete_many([self._state, self._kill])

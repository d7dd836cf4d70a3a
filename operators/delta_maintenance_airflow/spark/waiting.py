"""The process that waits on a worker for the driver of a deferred task, and the files of its job.

The files are stored beside the report of the job, in a folder that worker and triggerer can reach.
The waiter on the worker writes the state; the trigger writes the request to end the job.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.storage import Store

SECONDS_BETWEEN_STATES = 20.0
"""The longest time between two states of a running job."""
SECONDS_UNTIL_LOST = 180.0
"""A job without a new state for this time has lost its worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of the driver, as known to the waiter."""

    number: int
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


_WAITER = "delta_maintenance_airflow.spark.waiter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The job that a waiter starts."""

    command: tuple[str, ...]
    """The words of `spark-submit`."""
    key: str
    """The key of the folder of the task on this worker."""
    lock: int
    """The descriptor that holds the lock of this folder."""
    report_folder: str
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    name: str
    """The name of the job in the report folder."""


class WaiterProcess:
    """A waiter that this task has started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(cls, order: Order, environment: Mapping[str, str]) -> WaiterProcess:
        """Starts a waiter, and returns when it has started `spark-submit`.

        Raises `FileNotFoundError` if there is no such program on this worker.
        """
        # Not the log of the task, because Airflow waits for every process that has it open.
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", _WAITER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(order.lock,),
            )
            assert process.stdin is not None and process.stdout is not None
            with process.stdin, process.stdout:
                with suppress(BrokenPipeError):
                    process.stdin.write(json.dumps(asdict(order)))
                    process.stdin.close()
                answer = process.stdout.readline()
            errors.seek(0)
            lines = errors.read().splitlines()
        told = json.loads(answer) if answer else {"problem": lines[-1] if lines else "no message"}
        if "missing" in told:
            process.wait()
            raise FileNotFoundError(2, "No such file or directory", told["missing"])
        if "problem" in told:
            process.wait()
            raise RuntimeError(f"the Spark job could not be started: {told['problem']}")
        return cls(process)

    def on_kill(self) -> None:
        """Ends the waiter, which ends the driver."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def forget(self) -> None:
        """Detaches the process, because this one ends."""
        # Otherwise Python warns that the process was not waited for.
        self._process.returncode = 0

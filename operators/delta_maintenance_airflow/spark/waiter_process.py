"""Starts the process that waits on a worker for the driver of a deferred task."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

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

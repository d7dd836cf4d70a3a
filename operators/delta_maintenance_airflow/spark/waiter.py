"""Waits on a worker for the driver of a deferred task: `python -m` this module.

The task starts this process and ends; it then holds no slot. The process starts `spark-submit`,
writes the state of the job into the mailbox, and ends the driver on request. Its standard input is
the order as JSON, which has credentials; it answers with one line on its standard output, once
`spark-submit` has started or could not be started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from delta_maintenance.errors import StorageError
from delta_maintenance.redaction import redact
from delta_maintenance.storage import open_store
from delta_maintenance.submission.job_report import (
    APPLICATION_LINE,
    OWN_LINE,
    REPORT_LINE,
    interface_of,
)
from delta_maintenance_airflow.spark.folder import JobFolder, end_group
from delta_maintenance_airflow.spark.waiting import SECONDS_BETWEEN_STATES, JobState, Mailbox, Order

_SECONDS_BETWEEN_POLLS = 2.0
"""The interval in which requests to end the job are noticed."""
_LINES = 200
_LONGEST_LINE = 500
_ATTEMPTS_AT_LAST_STATE = 20


class Waiter:
    """Starts the driver of an order and waits for its end."""

    def __init__(self, order: Order, mailbox: Mailbox) -> None:
        self._order = order
        self._mailbox = mailbox
        self._folder = JobFolder(order.key)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._state = JobState(number=0)
        self._is_told_to_end = False

    def run(self) -> None:
        """Waits for the end of the driver, and leaves its last state in the mailbox."""
        self._mailbox.write(self._state)
        try:
            driver = self._started(self._order.command)
        except OSError as error:
            self._mailbox.clear()
            missing = {"missing": error.filename} if isinstance(error, FileNotFoundError) else {}
            _answer(missing or {"problem": str(error)})
            return
        signal.signal(signal.SIGTERM, self._be_told)
        self._folder.note_driver(driver.pid)
        _answer({"driver": driver.pid})
        assert driver.stdout is not None
        reader = threading.Thread(target=self._read, args=(driver.stdout,), daemon=True)
        reader.start()
        self._wait(driver)
        reader.join(timeout=_SECONDS_BETWEEN_POLLS)
        self._leave(driver.returncode)

    def _started(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            # The driver holds the lock of the folder, even if this process is killed.
            pass_fds=(self._order.lock,),
        )

    def _be_told(self, *_: Any) -> None:
        self._is_told_to_end = True

    def _read(self, output: Any) -> None:
        for line in output:
            text = line.strip()[:_LONGEST_LINE]
            if text.startswith(OWN_LINE):
                self._state = replace(self._state, progress=redact(text.removeprefix(OWN_LINE)))
            elif text.startswith(APPLICATION_LINE):
                self._state = replace(self._state, interface=interface_of(text))
            elif not text.startswith(REPORT_LINE):
                self._lines.append(redact(text))

    def _wait(self, driver: subprocess.Popen[str]) -> None:
        written, written_at = self._state, time.monotonic()
        while driver.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                driver.wait(timeout=_SECONDS_BETWEEN_POLLS)
                return
            # A temporary failure of the store must not end the job.
            with suppress(StorageError, OSError):
                self._is_told_to_end = self._is_told_to_end or self._mailbox.is_end_requested()
                is_due = time.monotonic() - written_at >= SECONDS_BETWEEN_STATES
                if is_due or self._state != written:
                    written, written_at = self._write_state(), time.monotonic()
            if self._is_told_to_end:
                end_group(driver.pid, driver.poll)

    def _write_state(self, **changes: Any) -> JobState:
        # The reading thread may replace the state concurrently; the number is only changed here.
        self._state = replace(self._state, number=self._state.number + 1, **changes)
        self._mailbox.write(self._state)
        return self._state

    def _leave(self, status: int) -> None:
        for _ in range(_ATTEMPTS_AT_LAST_STATE):
            with suppress(StorageError, OSError):
                if self._is_told_to_end:
                    # A killed task is not resumed.
                    self._mailbox.clear()
                else:
                    self._write_state(ended=True, exit_status=status, log=tuple(self._lines))
                break
            time.sleep(_SECONDS_BETWEEN_POLLS)
        self._folder.remove()


def _answer(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)
    # The task reads up to this line and ends.
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)


def main() -> None:
    """Reads the order and waits for its job."""
    try:
        order = Order(**json.load(sys.stdin))
        store = open_store(order.report_folder, order.storage_options or None)
        Waiter(order, Mailbox(store, order.name)).run()
    except Exception as error:
        _answer({"problem": redact(f"{type(error).__name__}: {error}")})
        raise


if __name__ == "__main__":
    main()

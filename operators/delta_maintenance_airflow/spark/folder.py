"""What all tries of a task share: a folder on the worker with the files of their jobs and a lock,
and the reports of the jobs.

A task that is killed with SIGKILL leaves its driver running. The driver holds the lock of the
folder as long as it runs, so the next try detects it and waits for its end.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException

_log = logging.getLogger(__name__)
_STATUS = re.compile(r"Error code is: (-?\d+)")
"""The exit status of `spark-submit` in the error of the provider."""
_SECONDS_BETWEEN_POLLS = 1.0
_SECONDS_BETWEEN_LINES = 60
_SECONDS_BETWEEN_CHECKS = 0.05
_SECONDS_TO_END = 3.0
"""Airflow gives a task five seconds between SIGTERM and SIGKILL."""


class JobFolder:
    """The folder of one task, private to this user. `key` is the same in every try."""

    def __init__(self, key: str) -> None:
        self._common = Path(tempfile.gettempdir(), f"delta-maintenance-{os.getuid()}")
        self.path = self._common / key
        self._is_waiting = False
        self._is_killed = False

    @contextmanager
    def held(self) -> Iterator[int]:
        """Waits until no driver of an earlier try is left; yields the descriptor of the lock.

        A process that inherits the descriptor also holds the lock, as long as it runs. The folder
        is removed at the end of the block.
        """
        descriptor = self._lock()
        try:
            yield descriptor
        finally:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(descriptor)

    def note_driver(self, process_group: int) -> None:
        """Stores the process group to end if the task is killed while it waits for this driver."""
        (self.path / "driver").write_text(str(process_group))

    def kill(self) -> None:
        """Ends the driver that this task waits for, and stops waiting."""
        self._is_killed = True
        if not self._is_waiting:
            return
        with suppress(OSError, ValueError):
            end_group(int((self.path / "driver").read_text()))

    def _lock(self) -> int:
        waited = 0.0
        while not self._is_killed:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same(descriptor, self.path / "lock") and not self._is_killed:
                    self._is_waiting = False
                    return descriptor
            except BlockingIOError:
                self._is_waiting = True
                if waited % _SECONDS_BETWEEN_LINES == 0:
                    _log.info(
                        "the driver of an earlier try of this task is still running; waiting for "
                        "its end"
                    )
            os.close(descriptor)
            time.sleep(_SECONDS_BETWEEN_POLLS)
            waited += _SECONDS_BETWEEN_POLLS
        raise AirflowException("killed before its Spark job was submitted")

    def _open(self) -> int:
        self._common.mkdir(mode=0o700, exist_ok=True)
        folder_status = self._common.lstat()
        if (
            not stat.S_ISDIR(folder_status.st_mode)
            or folder_status.st_uid != os.getuid()
            or folder_status.st_mode & 0o077
        ):
            raise AirflowFailException(
                f"{self._common} is not private to this user: remove it, or set TMPDIR"
            )
        self.path.mkdir(mode=0o700, exist_ok=True)
        return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def end_group(process_group: int, reap: Callable[[], object] = lambda: None) -> None:
    """Ends the processes of a group: first with SIGTERM, then with SIGKILL.

    `reap` collects a child of this process, which would otherwise stay in the group as a zombie.
    """
    with suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGTERM)
        # Counts checks instead of measuring time, because the clock also advances while the machine
        # is suspended and no process can end.
        for _ in range(round(_SECONDS_TO_END / _SECONDS_BETWEEN_CHECKS)):
            time.sleep(_SECONDS_BETWEEN_CHECKS)
            reap()
            os.killpg(process_group, 0)
        os.killpg(process_group, signal.SIGKILL)


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the file still has that name, and was not removed by its last holder."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


if TYPE_CHECKING:
    from delta_maintenance.storage import Store
    from delta_maintenance.submission.job_report import JobReport


class Reports:
    """The reports of the tries of one task, each with a unique name."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._read: set[str] = set()

    def new_name(self) -> str:
        """Returns the name of a new job: that of its report, without the extension."""
        return f"{self._key}.{clock.new_id()}"

    def unread(self) -> Iterator[JobReport]:
        """Yields the reports that are new since the last call, the newest first."""
        from delta_maintenance.submission.job_report import JobReport

        listed = []
        for status in self._store.list_from("", f"{self._key}."):
            if not status.path.startswith(f"{self._key}."):
                break
            if status.path.endswith(".json") and status.path not in self._read:
                listed.append((status.modified_ms, status.path))
        for _, path in sorted(listed, reverse=True):
            self._read.add(path)
            yield JobReport.from_json(json.loads(self._store.read(path)))


def report_address(folder: str, name: str) -> str:
    """Returns the address of the report of a job."""
    return str(Address.parse(folder).join(f"{name}.json"))


def without_report(failure: Exception | None) -> str:
    """Explains why a job left no report. The first line is for people; that of the provider
    follows.
    """
    if failure is None:
        return "the Spark job succeeded, but without a report"
    exit_status = _STATUS.search(str(failure))
    if exit_status is None:
        return str(failure)
    return f"{how_driver_ended(int(exit_status[1]))}\n{failure}"


def how_driver_ended(status: int) -> str:
    """Describes a driver that ended with this exit status and without a report."""
    killed = -status if status < 0 else status - 128
    if killed == signal.SIGKILL:
        return (
            "the Spark driver was killed (SIGKILL), perhaps because the worker ran out of memory: "
            "give the worker more, or lower spark.driver.memory in spark_conf; another try is safe"
        )
    if killed == signal.SIGTERM:
        return "the Spark driver was terminated (SIGTERM) before its end; another try is safe"
    return f"the Spark job ended with exit status {status} and without a report"

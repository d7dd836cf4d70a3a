"""The folder that all tries of a task share on a worker: files of their jobs, and a lock.

A task that is killed with SIGKILL leaves its driver running. The driver holds the lock of the
folder as long as it runs, so the next try detects it and waits for its end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from delta_maintenance_airflow.compat import AirflowException, AirflowFailException

_log = logging.getLogger(__name__)
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
        found = self._common.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
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

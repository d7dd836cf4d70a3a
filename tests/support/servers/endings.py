"""Ends the processes that fixtures start, within a time limit.

A fixture of the session ends after the last test. One that waits for ever there would take the
whole run with it.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 30.0


def end_process(process: subprocess.Popen[Any], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Ask a process to end, and kill it if it has not ended after `seconds`."""
    process.terminate()
    _wait_or_kill(process, seconds)


def end_gateway(
    gateway: Any, *, stop: Callable[[], object], seconds: float = PATIENCE_SECONDS
) -> None:
    """Stop the Spark behind a gateway of PySpark, and kill its JVM if that takes over `seconds`."""
    stopping = threading.Thread(target=_stop, args=(gateway, stop), daemon=True)
    stopping.start()
    stopping.join(seconds)
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    _wait_or_kill(gateway.proc, seconds)
    stopping.join(seconds)


def _stop(gateway: Any, stop: Callable[[], object]) -> None:
    stop()
    gateway.shutdown()


def _wait_or_kill(process: subprocess.Popen[Any], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

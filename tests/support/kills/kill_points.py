"""Processes that `kill -9` ends in the middle of their work, at a chosen call or time.

Simulated crashes let a process run to the end of its `with` blocks; `kill -9` does not. A fork
server is a process that has imported all modules. It forks a child for each piece of work, which
makes hundreds of kills affordable. In the child, every call that changes the disk is counted as two
moments, before and after it. So is every call of a function that the work names by `watching`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_CALLS = ("link", "replace", "unlink", "rmdir", "mkdir", "fsync")
"""The functions of `os` that change the disk, in addition to `open`."""
_REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a piece of work."""

    killed: bool
    moments: int = 0
    """The number of moments, if the work was not killed."""
    seconds: float = 0.0
    """Its duration."""


ForkServer = Callable[..., Ended]
"""Runs the work on the table with the given root.

`at` is the moment of the kill, counted from 1; `after` is its time in seconds. Without either, or
if the work ends earlier, it is not killed.
"""


def watching(module: ModuleType, *names: str) -> Callable[[Any], Any]:
    """Lets the calls of some functions of a module be moments of the decorated work."""

    def decorate(work: Any) -> Any:
        work.watched = (module, names)
        return work

    return decorate


@contextmanager
def fork_server(work: str, folder: Path) -> Iterator[ForkServer]:
    """Starts a fork server for `work`, which is `module:function` and gets the root of a table."""
    report = folder / "report.json"
    with subprocess.Popen(
        [sys.executable, "-m", __name__, work, str(report)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), *sys.path])},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def run(root: Path, *, at: int = 0, after: float = 0.0) -> Ended:
            print(json.dumps({"root": str(root), "at": at, "after": after}), file=lines, flush=True)
            status = int(answers.readline())
            assert status in (0, -signal.SIGKILL), f"the work ended with status {status}"
            if status:
                return Ended(True)
            found = json.loads(report.read_text())
            return Ended(False, found["moments"], found["seconds"])

        yield run
        lines.close()


def _serve(work: str, report: Path) -> None:
    # The answers have the standard output to themselves: Airflow logs to it.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = work.partition(":")
    function = getattr(import_module(module), name)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _work(function, order, report)
        timer = None
        if order["after"]:
            timer = threading.Timer(order["after"], os.kill, [child, signal.SIGKILL])
            timer.start()
        # The child is reaped after the timer is stopped, so that its PID is not reused.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        if timer is not None:
            timer.cancel()
            timer.join()
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _work(function: Callable[[str], object], order: Mapping[str, Any], report: Path) -> None:
    moments = _Moments(order["at"])
    moments.watch(*getattr(function, "watched", (os, ())))
    began = time.perf_counter()
    try:
        function(order["root"])
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    seconds = time.perf_counter() - began
    report.write_text(json.dumps({"moments": moments.count, "seconds": seconds}))
    os._exit(0)


class _Moments:
    """Counts moments, and kills the process at one of them."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self._at = at
        self._lock = threading.Lock()

    def watch(self, module: ModuleType, names: Sequence[str]) -> None:
        for place, name in [*((os, call) for call in _CALLS), *((module, name) for name in names)]:
            setattr(place, name, self._watched(getattr(place, name)))
        create, watched = os.open, self._watched(os.open)

        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            call = watched if flags & os.O_CREAT else create
            found: int = call(path, flags, *arguments, **options)
            return found

        os.open = opened

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._pass()
            try:
                return call(*arguments, **options)
            finally:
                # Also counted after a failed call, such as the removal of a missing file.
                self._pass()

        return run

    def _pass(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))

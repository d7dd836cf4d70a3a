"""A process of a divided run ends if one of its tests does not end at its timeout.

At the timeout, an exception is raised in the main thread. It ends no test that waits for native
code or, in the `finally` of an executor, for a thread. Then the process prints the stacks of its
threads and exits; the run reports the test as failed, and goes on in another process.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from typing import IO

import pytest

GRACE_SECONDS = 120.0
"""From the timeout of a test to the end of the process: what the fixtures of a session may need."""
_STDERR = pytest.StashKey[IO[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # Tests run with another file as stderr.
        config.stash[_STDERR] = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    if (stderr := config.stash.get(_STDERR, None)) is not None:
        stderr.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    stderr = item.config.stash.get(_STDERR, None)
    if stderr is None:
        return (yield)
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()

"""Measures the peak memory and the CPU time of a block.

CPU time depends less on other processes than elapsed time does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass
class Taken:
    """Filled in at the end of the block."""

    memory: int = 0
    """Bytes in addition to those that the process had at the start."""
    seconds: float = 0


@contextmanager
def measured() -> Iterator[Taken]:
    """Measures a block, including all threads of this process."""
    # 5 resets the peak memory.
    _CLEAR.write_text("5")
    before, begun = _kilobytes("VmRSS"), time.process_time()
    taken = Taken()
    try:
        yield taken
    finally:
        taken.seconds = time.process_time() - begun
        taken.memory = max(0, _kilobytes("VmHWM") - before) << 10


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])

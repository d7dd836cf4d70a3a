"""Whole processes, run in alternating pairs, with the time and the memory of each."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_COMPILED = ("delta_maintenance", "deltalake", "fsspec", "numpy", "pyarrow", "pydantic", "rich")


class ProcessFailed(Exception):
    """A measured process ended with a status other than 0; carries its last line on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process: how long it took, the largest process of its tree, what it reported.

    ``cpu_seconds`` are those of all cores together, children included.
    """

    seconds: float
    peak_mb: float
    cpu_seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of some measurements and how far they went."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=statistics.median(values), low=min(values), high=max(values))


def run_process(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Run:
    """Run ``argv`` to its end. A JSON document on its stdout becomes the report.

    Raises ProcessFailed where its status is not 0.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv, stdout=out, stderr=err, cwd=ROOT, env={**_environment(), **(env or {})}
        )
        # The usage that wait4 gives covers the children the process waited for, too. It begins at
        # the size of this process, so nothing large may be imported or built here.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            said = err.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise ProcessFailed(f"{' '.join(argv)}: status {process.returncode}: {said[-1]}")
        text = out.read().decode().strip()
    unit = 1 if sys.platform == "darwin" else 1024
    report = json.loads(text) if text.startswith("{") else {}
    return Run(
        seconds=seconds,
        peak_mb=usage.ru_maxrss * unit / 1e6,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        report=report,
    )


def compile_modules() -> None:
    """Compile the modules of both sides to bytecode, as their installation by pip does."""
    specs = [find_spec(name) for name in _COMPILED]
    locations_of = [spec.submodule_search_locations for spec in specs if spec is not None]
    folders = [locations[0] for locations in locations_of if locations]
    # A folder may be read-only: then each process compiles its modules again, on both sides.
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=False)


def run_pairs(
    ours: Callable[[], Run], peer: Callable[[], Run], *, runs: int, label: str
) -> tuple[list[Run], list[Run]]:
    """Run ours, peer, ours, peer ... so that a drift of the machine falls on both alike."""
    both: tuple[list[Run], list[Run]] = ([], [])
    for pair in range(1, runs + 1):
        for side, (name, one) in enumerate([("ours", ours), ("peer", peer)]):
            result = one()
            both[side].append(result)
            print(
                f"{label} {pair}/{runs} {name}: {result.seconds:.2f} s, {result.peak_mb:.0f} MB",
                file=sys.stderr,
                flush=True,
            )
    return both


def _environment() -> dict[str, str]:
    """The environment, in which modules are compiled once and not by each process."""
    return {name: of for name, of in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

"""Long runs of one test over a range of seeds, in forked processes.

A run continues after a finding, and after the death or silence of a process. A line after each 100
seeds shows the progress, so that a stopped run can continue with `--first`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path

Play = Callable[[int], Iterable[str]]
"""Plays a seed and returns one line per finding; the text before the first ` | ` is its kind."""
_SEEDS_PER_LINE = 100
_SEEDS_PER_PROCESS = 500
_SECONDS_PER_SEED = 3600.0
"""A limit of elapsed time, so that no seed waits forever; the tests limit CPU time themselves."""


def _nothing() -> None:
    pass


def main(
    name: str,
    prepare: Callable[[], Play],
    *,
    cases: int,
    end: Callable[[], None] = _nothing,
    arguments: list[str] | None = None,
) -> int:
    """Plays the seeds that the command line selects; returns the exit status.

    `prepare` and `end` are called once in each process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", type=int, default=cases, help="the number of seeds")
    parser.add_argument("--log", type=Path, help="a file to which progress is appended")
    asked = parser.parse_args(arguments)
    run = _Run(name, asked.log)
    seeds = range(asked.first, asked.first + asked.cases)
    while seeds:
        played = run.play(seeds[:_SEEDS_PER_PROCESS], prepare, end)
        seeds = seeds[played:]
    run.summarize(asked.first)
    return 1 if run.findings else 0


class _Run:
    def __init__(self, name: str, log: Path | None) -> None:
        self.findings = Counter[str]()
        self._name = name
        self._log = log
        self._played = 0
        self._began = time.monotonic()
        self._cpu = _cpu_seconds()

    def play(self, seeds: range, prepare: Callable[[], Play], end: Callable[[], None]) -> int:
        """Plays seeds in a separate process. Returns their number, up to a death."""
        forking = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(1, forking, _begin, (prepare, end)) as process:
            for number, seed in enumerate(seeds, start=1):
                waited = process.submit(_play_one, seed)
                try:
                    lines, cpu = waited.result(timeout=_SECONDS_PER_SEED)
                except BrokenProcessPool:
                    self._found(seed, "the process died")
                except TimeoutError:
                    self._found(seed, f"no end after {_SECONDS_PER_SEED:.0f} s")
                    for child in multiprocessing.active_children():
                        child.kill()
                else:
                    for line in lines:
                        self._found(seed, line)
                    self._count(seed, cpu)
                    continue
                self._count(seed, 0)
                return number
            process.submit(_end).result(timeout=_SECONDS_PER_SEED)
        return len(seeds)

    def summarize(self, first: int) -> None:
        cpu, seconds = _cpu_seconds() - self._cpu, time.monotonic() - self._began
        end = first + self._played
        self._tell(
            f"complete: seeds {first} to {end - 1}, {sum(self.findings.values())} findings, "
            f"{cpu:.0f} s of CPU ({cpu / max(1, self._played):.3f} s per seed), {seconds:.0f} s"
        )
        for kind, number in self.findings.most_common():
            self._tell(f"{number:6} {kind}")

    def _count(self, seed: int, cpu: float) -> None:
        self._played += 1
        if self._played % _SEEDS_PER_LINE == 0:
            self._tell(
                f"{self._played} played, next --first {seed + 1}, "
                f"{sum(self.findings.values())} findings, "
                f"{_cpu_seconds() - self._cpu + cpu:.0f} s of CPU"
            )

    def _found(self, seed: int, text: str) -> None:
        self.findings[text.partition(" | ")[0][:200]] += 1
        self._tell(f"FINDING seed {seed}: {text}")

    def _tell(self, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = f"{now} {self._name}: " + text.encode(errors="backslashreplace").decode()
        print(line, flush=True)
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(line + "\n")


_plays: list[Play] = []
_ends: list[Callable[[], None]] = []
"""In a forked process, the functions that play a seed and that end the process."""


def _begin(prepare: Callable[[], Play], end: Callable[[], None]) -> None:
    _plays.append(prepare())
    _ends.append(end)


def _end() -> None:
    _ends[-1]()


def _play_one(seed: int) -> tuple[list[str], float]:
    try:
        lines = list(_plays[-1](seed))
    except Exception as error:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
        lines = [f"{type(error).__name__} at {where} | {error}"[:2000]]
    return [line.replace("\n", " / ") for line in lines], sum(os.times()[:4])


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of its ended children."""
    return sum(os.times()[:4])

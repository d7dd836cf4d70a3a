"""Runs the series: ``python -m benchmarks.scale --files N --work FOLDER [--engine E] [STEP ...]``.

Each step is a process of its own on a copy of the generated table, and is measured ``--runs``
times; the medians go into the file of results, beside those of other steps that are there already.
So the series can be run in parts. A step that fails or takes too long is written down as that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.measure import ProcessFailed, Run, run_process

RESULTS = Path(__file__).parent / "results.json"
ENGINES = ("ours", "deltalake", "delta-spark")
STEPS = ("open", "list", "checkpoint-full", "checkpoint-incremental", "clean-log", "vacuum-lite")
_ONLY_OURS = "checkpoint-incremental"
_COMMITS, _REMOVES = 1000, 100
_OLD_SECONDS = 40 * 86_400
"""The age of a log that is cleaned up: beyond the usual retention of 30 days."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True, help="keeps the generated tables")
    parser.add_argument("--engine", choices=ENGINES, default="ours")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=220, help="seconds for one run of a step")
    parser.add_argument(
        "--memory", type=int, default=0, help="GB of addresses that a process may use"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    unknown = sorted(set(given.steps) - set(STEPS))
    if unknown:
        parser.error(f"no step {unknown[0]}: there are {', '.join(STEPS)}")
    given.work.mkdir(parents=True, exist_ok=True)
    table = tables.generated(
        given.work, by="generate_state", files=given.files, commits=_COMMITS, removes=_REMOVES
    )
    for step in given.steps or STEPS:
        if step == _ONLY_OURS and given.engine != "ours":
            continue
        limits = Limits(seconds=given.timeout, gigabytes=given.memory)
        found = _measured(table, given.engine, step, runs=given.runs, limits=limits)
        row = {"files": given.files, "engine": given.engine, "step": step, **found}
        print(json.dumps(row), flush=True)
        _keep(given.results, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run of a step may use."""

    seconds: int
    gigabytes: int
    """Of addresses, which includes memory that is reserved and never used; 0 for no limit."""

    def command(self) -> list[str]:
        """The beginning of a command that is ended at the limits."""
        memory = ["prlimit", f"--as={self.gigabytes * 10**9}"] if self.gigabytes else []
        return [*memory, "timeout", str(self.seconds)]

    def failure(self, message: str) -> str:
        """The failure of a process in a few words, without its command and paths."""
        if "status 124" in message:
            return f"not done after {self.seconds} s"
        if self.gigabytes:
            # Allocators end in too many ways to tell this from other failures.
            return f"not done with {self.gigabytes} GB"
        return message.rpartition(": ")[2][:200]


def _measured(table: Path, engine: str, step: str, *, runs: int, limits: Limits) -> dict[str, Any]:
    command = [*limits.command(), sys.executable, "-m", "benchmarks.scale.subjects"]
    found = []
    try:
        for _ in range(runs):
            with _prepared(table, step) as copy:
                tables.warm(copy)
                found.append(_figures(run_process([*command, engine, step, str(copy)])))
    except ProcessFailed as failure:
        return {"failure": limits.failure(str(failure))}
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _figures(run: Run) -> dict[str, float]:
    """In seconds, MB and requests; of Delta Spark without the start of its session.

    `result` is the number of live, listed, deleted or deletable files, where the step tells it.
    """
    report = run.report
    figures = {
        "seconds": report.get("jvm_seconds", run.seconds),
        "cpu_seconds": report.get("jvm_cpu", run.cpu_seconds),
        "peak_mb": report.get("jvm_mb", run.peak_mb),
        "read_mb": report["bytes_read"] / 1e6,
        "written_mb": report["bytes_written"] / 1e6,
    }
    for name in ("requests", "result"):
        if isinstance(report.get(name), int):
            figures[name] = report[name]
    return {name: round(value, 3) for name, value in figures.items()}


@contextmanager
def _prepared(table: Path, step: str) -> Iterator[Path]:
    if step != "clean-log":
        with tables.linked_whole(table) as copy:
            yield copy
        return
    copy = table.with_name(f"{table.name}.old")
    shutil.rmtree(copy, ignore_errors=True)
    try:
        # Not by links: the times of the files change.
        shutil.copytree(table, copy)
        run_process(
            [
                sys.executable,
                "-m",
                "benchmarks.scale.subjects",
                "ours",
                "checkpoint-incremental",
                str(copy),
            ]
        )
        _age(copy)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _age(table: Path) -> None:
    """Makes the log older than its retention, and adds a commit of today."""
    log = table / "_delta_log"
    # A commit is as young as the latest time in it.
    made = json.loads((log / f"{0:020}.json").read_text().splitlines()[0])["commitInfo"][
        "timestamp"
    ]
    for path in log.glob("*.json"):
        if path.stem.isdigit():
            text = path.read_text().replace(str(made), str(made - 1000 * _OLD_SECONDS))
            path.write_text(text)
    then = time.time() - _OLD_SECONDS
    for path in log.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))
    newest = max(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    add = {"path": "today", "partitionValues": {"event_date": None}, "size": 1}
    add |= {"modificationTime": 1, "dataChange": True}
    (log / f"{newest + 1:020}.json").write_text(json.dumps({"add": add}) + "\n")


def _keep(results: Path, row: dict[str, Any]) -> None:
    """Puts a row into the file of results, in place of an older one of the same step."""
    rows = json.loads(results.read_text()) if results.exists() else []
    key = ("files", "engine", "step")
    rows = [old for old in rows if any(old[name] != row[name] for name in key)]
    order = {name: at for at, name in enumerate((*ENGINES, *STEPS))}
    rows.append(row)
    rows.sort(key=lambda each: (order[each["step"]], order[each["engine"]], each["files"]))
    text = ",\n".join(json.dumps(each) for each in rows)
    results.write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()

"""A race of writers, each in its own process, and the resulting rows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from delta_maintenance.protocol.actions import DeletionVectorDescriptor, load
from delta_maintenance.storage.local import LocalStore
from tests.support.rewrites.race_ledgers import acts, compared, expected
from tests.support.rewrites.race_writers import ENDED
from tests.support.rewrites.table_rows import live_adds

APPENDERS = 8
LANDED = ("committed", "remapped", "written-again")
_REPOSITORY = Path(__file__).parents[3]
_DEADLINE = 240
"""The number of seconds that a writer may take to start, and for its last action."""


@contextmanager
def racing(
    table: Path, ledgers: Path, roles: Sequence[tuple[str, int]], seconds: float
) -> Iterator[None]:
    """Lets writers work concurrently with the block, starting when all of them are ready.

    Roles are those of `race_writers`.
    """
    ledgers.mkdir(parents=True, exist_ok=True)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.rewrites.race_writers"]
            + [role, str(table), str(ledgers), str(number), str(seconds)],
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        )
        for role, number in roles
    ]
    try:
        deadline = time.monotonic() + _DEADLINE
        while len(list(ledgers.glob("*.ready"))) < len(processes):
            assert time.monotonic() < deadline, "some writers do not begin"
            time.sleep(0.05)
        (ledgers / "go").touch()
        yield
        codes = [process.wait(timeout=seconds + _DEADLINE) for process in processes]
        assert not any(codes), list(zip(roles, codes, strict=True))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def until_landed(ledgers: Path, *, runs: int, bins: int, copied: int) -> None:
    """Waits for so many runs of the optimizer and so many committed bins, `copied` of them with
    copied row groups, and for an action of each writer, then ends the race. After `_DEADLINE`
    seconds, it ends the race anyway.
    """
    deadline = time.monotonic() + _DEADLINE
    while time.monotonic() < deadline:
        time.sleep(0.5)
        found = list(acts(ledgers))
        rewrites = [act for act in found if act.kind == "optimize"]
        landed = sum(act.fates.get(fate, 0) for act in rewrites for fate in LANDED)
        copies = sum(act.copied.get(fate, 0) for act in rewrites for fate in LANDED)
        writers = {act.writer for act in found}
        started = len(list(ledgers.glob("*.ready")))
        enough = len(rewrites) >= runs and landed >= bins and copies >= copied
        if enough and len(writers) == started:
            break
    (ledgers / ENDED).touch()


def appenders() -> list[tuple[str, int]]:
    """The roles of eight appenders."""
    return [("appender", number) for number in range(1, APPENDERS + 1)]


def figures(table: Path, ledgers: Path) -> dict[str, Any]:
    """Counts the actions by writer and outcome, the bins by fate, and the rows that differ from the
    ledgers.
    """
    outcomes: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    copied: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for act in acts(ledgers):
        writer = act.writer.rpartition("-")[0] if act.writer[-1].isdigit() else act.writer
        outcomes[f"{writer} {act.outcome}"] += 1
        fates.update(act.fates)
        copied.update(act.copied)
        if act.problem:
            problems[f"{writer}: {act.problem[:150]}"] += 1
    wrong = compared(expected(ledgers), rows_of(table))
    return {
        "acts": dict(sorted(outcomes.items())),
        "bins": dict(fates),
        "copied": dict(copied),
        "problems": problems.most_common(8),
        "rows": sum(1 for _ in rows_of(table)),
        "versions": len(list((table / "_delta_log").glob("*.json"))),
        "wrong": {name: rows for name, rows in asdict(wrong).items() if rows},
    }


def landed_share(found: dict[str, Any]) -> float:
    """The share of bins that were committed."""
    bins = Counter(found["bins"])
    return sum(bins[fate] for fate in LANDED) / bins.total()


def rows_of(table: Path) -> Iterator[tuple[int, int, str, str]]:
    """Yields ID, value, text and partition of each live row, by a replay of the commits alone."""
    store = LocalStore(str(table))
    for path, add in live_adds(store).items():
        data = io.BytesIO(store.read(unquote(path)))
        found = pq.ParquetFile(data).read(columns=["id", "v", "text"])
        gone: set[int] = set()
        if add.get("deletionVector"):
            vector = DeletionVectorDescriptor.from_json(add["deletionVector"])
            gone = set(load(vector, store.read))
        columns = [found[name].to_pylist() for name in ("id", "v", "text")]
        for at, row in enumerate(zip(*columns, strict=True)):
            if at not in gone:
                yield (*row, add["partitionValues"]["p"])

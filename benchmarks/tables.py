"""The tables of a run: generated once, kept in the work directory, handed out as hard links."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import run_process

_MAX_AGE_S = 86_400
"""A log older than this is generated anew, while its oldest tombstones are still unexpired."""

_V2_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["v2Checkpoint"],
    "writerFeatures": ["v2Checkpoint"],
}


def generated(work: Path, *, by: str = "generate", **shape: int) -> Path:
    """A table of that shape (see ``benchmarks.generate``, or ``by``), from ``work`` if it is there.

    It is made by another process: what generates a million files is large, and a process that
    measures others must stay small.
    """
    name = "-".join(f"{key.replace('_', '-')}-{value}" for key, value in shape.items())
    table, done = work / name, work / f"{name}.done"
    if not done.exists() or time.time() - done.stat().st_mtime > _MAX_AGE_S:
        print(f"generating {table}", file=sys.stderr, flush=True)
        done.unlink(missing_ok=True)
        shutil.rmtree(table, ignore_errors=True)
        options = [f"--{key.replace('_', '-')}={value}" for key, value in shape.items()]
        run_process([sys.executable, "-m", f"benchmarks.{by}", str(table), *options])
        done.touch()
    return table


@contextmanager
def linked(table: Path, *, v2: bool = False, versions: int | None = None) -> Iterator[Path]:
    """A copy of the table's commits that a process may write checkpoints beside.

    Commits are never written in place, so links to them will do. ``v2`` gives the copy the table
    feature that V2 checkpoints need; ``versions`` takes only that many commits.
    """
    copy = table.with_name(f"{table.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    link_commits(table, copy, versions=versions)
    if v2:
        first = copy / "_delta_log" / f"{0:020}.json"
        lines = first.read_text().splitlines()
        first.unlink()
        first.write_text(
            "".join(
                (json.dumps({"protocol": _V2_PROTOCOL}) if '{"protocol":' in line[:12] else line)
                + "\n"
                for line in lines
            )
        )
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


@contextmanager
def linked_whole(table: Path) -> Iterator[Path]:
    """A copy of the whole log, checkpoints and sidecars included, by hard links.

    Every file of a log is written under a temporary name, so that no link is written through.
    """
    copy = table.with_name(f"{table.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(table, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        # A JVM that outlives its process for a moment may still write to the copy.
        shutil.rmtree(copy, ignore_errors=True)


def link_commits(table: Path, copy: Path, *, versions: int | None = None) -> None:
    """Link the table's commits, or the first ``versions`` of them, into ``copy``."""
    log = copy / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for commit in sorted((table / "_delta_log").glob("*.json"))[:versions]:
        target = log / commit.name
        if not target.exists():
            os.link(commit, target)


def warm(table: Path) -> None:
    """Bring the log into the page cache, so that the first process has no harder a start."""
    for file in (table / "_delta_log").iterdir():
        if file.is_file():
            with file.open("rb", buffering=0) as log_file:
                while log_file.read(1 << 20):
                    pass


def checkpoint_mb(table: Path) -> float:
    """The size of everything that makes up the table's checkpoints, sidecars included."""
    log = table / "_delta_log"
    files = [*log.glob("*.checkpoint*"), *(log / "_sidecars").glob("*.parquet")]
    return sum(file.stat().st_size for file in files) / 1e6


def compaction_mb(table: Path) -> float:
    """The size of the table's log compactions."""
    return sum(f.stat().st_size for f in (table / "_delta_log").glob("*.compacted.json")) / 1e6


def checkpointed_adds(table: Path) -> int | None:
    """The number of files that the table's ``_last_checkpoint`` announces, where it says so."""
    hint = table / "_delta_log" / "_last_checkpoint"
    if not hint.exists():
        return None
    count: int | None = json.loads(hint.read_text()).get("numOfAddFiles")
    return count

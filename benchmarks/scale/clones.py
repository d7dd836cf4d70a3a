"""What it takes to find the clones of a table among many tables of a policy.

python -m benchmarks.scale.clones                     # 1,000 tables, of which 200 are clones
python -m benchmarks.scale.clones --tables 100 --commits 5 --files 10
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

MOST_SECONDS, MOST_MB = 30, 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.clones", description=__doc__)
    parser.add_argument("--tables", type=int, default=1000, help="a fifth of them are clones")
    parser.add_argument("--commits", type=int, default=20, help="of each table")
    parser.add_argument("--files", type=int, default=50, help="that each commit adds")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="delta-clones-") as folder:
        root = Path(folder)
        for number in range(given.tables):
            _make(root, number, given)
        return _measure(root, given)


def _make(root: Path, number: int, given: argparse.Namespace) -> None:
    """Writes the log of a table; every fifth is a clone of the table before it."""
    from tests.support.tables.actions import add, metadata, protocol

    log = root / f"t{number}" / "_delta_log"
    log.mkdir(parents=True)
    prefix = f"file:{root}/t{number - 1}/" if number % 5 == 4 else ""
    for version in range(given.commits):
        lines = [protocol(), metadata()] if version == 0 else []
        lines += [add(f"{prefix}day={version}/{n}.parquet") for n in range(given.files)]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (log / f"{version:020}.json").write_text(text)


def _measure(root: Path, given: argparse.Namespace) -> int:
    from delta_maintenance import open_table
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.definition.policy import Policy
    from delta_maintenance.policies.discovery import Discovery
    from delta_maintenance.storage import open_store

    entries = [{"uri": f"{root}/t{number}"} for number in range(given.tables)]
    tables = Policy.from_json({"version": 1, "tables": entries}).named_tables
    state = open_store(str(root / "state"))
    before = _peak_mb()
    missed = False
    for run in ("first", "second"):
        clones = PolicyClones(
            discover=lambda: Discovery(tables), options_at=lambda rule, uri: {}, state=state
        )
        began, cpu = time.monotonic(), time.process_time()
        found = clones.of(open_table(tables[3].uri), tables[3])
        seconds = time.monotonic() - began
        cpu = time.process_time() - cpu
        began = time.monotonic()
        total = sum(len(clones.of(open_table(each.uri), each)) for each in tables)
        others = time.monotonic() - began
        peak = _peak_mb()
        missed |= seconds > MOST_SECONDS or peak > MOST_MB or total != given.tables // 5
        print(
            f"{run} run: {seconds:.1f} s ({cpu:.1f} s of CPU) for the first table, with "
            f"{len(found)} clone, "
            f"{others:.1f} s for all others; {total} clones of {given.tables} tables with "
            f"{given.commits * given.files:,} files each; peak memory {peak:.0f} MB, of which "
            f"{before:.0f} MB before"
        )
        _expire(root / "state")
    return int(missed)


def _expire(state: Path) -> None:
    """Makes the next run look at each log again."""
    [file] = state.iterdir()
    known = json.loads(file.read_text())
    for references in known.values():
        references["seen_at"] = "2020-01-01T00:00:00Z"
    file.write_text(json.dumps(known))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())

"""Generates a Delta table with its files, of which many are dead.

The files are empty; a vacuum does not open them. All of it is a month old: the dead files were
added by one of many commits and removed by the last, longer ago than any retention.

Run it as ``python -m benchmarks.dead_files TABLE [--files N --dead M ...]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

_AGE_S = 30 * 86_400
_STATS = json.dumps(
    {"numRecords": 1000, "minValues": {"id": 1}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
)


def generate(
    table: Path, *, files: int, dead: int, partitions: int, commits: int, seed: int = 7
) -> None:
    """Writes the table. ``dead`` of its ``files`` go with the last commit."""
    rng = random.Random(seed)
    instant = time.time() - _AGE_S
    paths = [
        f"day={number % partitions}/part-{number:05}-{uuid.UUID(int=rng.getrandbits(128))}"
        ".c000.snappy.parquet"
        for number in range(files)
    ]
    for number in range(partitions):
        (table / f"day={number}").mkdir(parents=True)
    root = f"{table}/"
    for path in paths:
        # Nothing but system calls: there may be millions.
        file = os.open(root + path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        os.utime(file, (instant, instant))
        os.close(file)
    (table / "_delta_log").mkdir()
    first = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": _metadata(instant)},
    ]
    for version in range(commits):
        added = paths[version * files // commits : (version + 1) * files // commits]
        lines = [*(first if version == 0 else ()), *(_add(path, instant) for path in added)]
        _commit(table, version, lines, instant)
    gone = (paths[number] for number in sorted(rng.sample(range(files), dead)))
    _commit(table, commits, [_remove(path, instant) for path in gone], instant)


def _commit(table: Path, version: int, lines: Iterable[dict[str, object]], instant: float) -> None:
    file = table / "_delta_log" / f"{version:020}.json"
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    os.utime(file, (instant + version, instant + version))


def _metadata(instant: float) -> dict[str, object]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("day", "string"))
    ]
    return {
        "id": str(uuid.UUID(int=1)),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "configuration": {},
        "createdTime": int(instant * 1000),
    }


def _values(path: str) -> dict[str, str]:
    return {"day": path.partition("/")[0].removeprefix("day=")}


def _add(path: str, instant: float) -> dict[str, object]:
    return {
        "add": {
            "path": path,
            "partitionValues": _values(path),
            "size": 0,
            "modificationTime": int(instant * 1000),
            "dataChange": True,
            "stats": _STATS,
        }
    }


def _remove(path: str, instant: float) -> dict[str, object]:
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": int(instant * 1000),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": _values(path),
            "size": 0,
        }
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generate a Delta table with many dead files.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--files", type=int, default=120_000)
    parser.add_argument("--dead", type=int, default=29_900)
    parser.add_argument("--partitions", type=int, default=336)
    parser.add_argument("--commits", type=int, default=300)
    given = vars(parser.parse_args(arguments))
    generate(given.pop("table"), **given)


if __name__ == "__main__":
    main()

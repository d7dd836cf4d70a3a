"""A small table on disk with work for every operation."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from tests.support.rewrites.data_files import parquet
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.vacuum_tables import Folder

STATS = '{"numRecords":1}'
FEATURE = "vacuumProtocolCheck"


def overdue_table(path: Path, *, days: float = 40) -> Folder:
    """Sixteen commits, most of them so many days old, a checkpoint at version 4, one dead file."""
    table = Folder(path, now=datetime.now(UTC), first=[features(FEATURE), metadata()])
    for number in range(14):
        data = parquet(pa.table({"id": [number]}))
        table.log(add(f"{number}.parquet", stats=STATS, size=len(data)), days=days)
        table.file(f"{number}.parquet", data=data)
    table.log(remove("0.parquet"), days=days)
    table.checkpoint(4)
    return table


def fingerprint(path: Path) -> str:
    """A digest of the paths, modification times and contents of all files below a path."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            digest.update(f"{file} {file.stat().st_mtime_ns} ".encode() + file.read_bytes())
    return digest.hexdigest()

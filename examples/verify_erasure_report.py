"""Repeats an erasure report with DuckDB alone.

    delta-maintenance erasure-report TABLE --where "customer = 4711" --report report.parquet
    python verify_erasure_report.py report.parquet TABLE --where "customer = 4711"

Reads each file of the report again, and compares its checksum and the number of matching rows.
TABLE is a local folder, and so are the clones in the report. Old versions in the store, files of
the log, and files whose problem the report states, are not read. The exit status is 1 if something
differs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import duckdb


def main(report: str, table: str, where: str) -> int:
    """Compares a report with the files of the table."""
    files = duckdb.execute(
        "SELECT coalesce(clone, ?), path, sha256, rows FROM read_parquet(?) "
        "WHERE version_id IS NULL AND problem IS NULL AND place <> 'log' ORDER BY ALL",
        [table, report],
    ).fetchall()
    differences, found = 0, 0
    for folder, path, sha256, rows in files:
        file = Path(folder, path)
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            print(f"{path}: deleted or changed since the report")
            differences += 1
            continue
        (counted,) = duckdb.execute(
            f"SELECT count(*) FROM read_parquet(?, hive_partitioning = true) WHERE {where}",
            [str(file)],
        ).fetchone() or (0,)
        found += counted
        if counted != rows:
            print(f"{path}: {counted} matching rows, and the report says {rows}")
            differences += 1
    print(f"{found} rows in {len(files)} files, {'not ' if differences else ''}as reported")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

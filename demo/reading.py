"""Opens or reads a table in this process and prints the measurements as JSON.

    python demo/reading.py open-with-delta-maintenance TABLE
    python demo/reading.py open-with-deltalake TABLE
    python demo/reading.py rows TABLE

A process of its own for each, so that none finds what another one has loaded.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

TRIES = 5


def open_with_delta_maintenance(table: str) -> dict[str, Any]:
    """The newest version, its live files, and the median seconds of CPU time to open it."""
    from delta_maintenance import open_table

    def opened() -> tuple[int, int]:
        snapshot = open_table(table).snapshot()
        return snapshot.version, snapshot.live_files().num_rows

    return _measure(opened)


def open_with_deltalake(table: str) -> dict[str, Any]:
    """The same with deltalake."""
    from deltalake import DeltaTable

    def opened() -> tuple[int, int]:
        snapshot = DeltaTable(table)
        return snapshot.version(), len(snapshot.file_uris())

    return _measure(opened)


def _measure(opened: Callable[[], tuple[int, int]]) -> dict[str, Any]:
    # The first time, a process also loads what it needs of its libraries.
    version, files = opened()
    seconds = []
    for _ in range(TRIES):
        # CPU time of all threads, because other processes make the elapsed time longer.
        began = time.process_time()
        opened()
        seconds.append(time.process_time() - began)
    return {"seconds": statistics.median(seconds), "version": version, "files": files}


def rows(table: str) -> dict[str, Any]:
    """The number of rows that deltalake reads, and a checksum of all their values."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    opened = DeltaTable(table)
    order = ", ".join(f'"{field.name}"' for field in opened.schema().fields)
    query = QueryBuilder().register("t", opened)
    found = pa.table(query.execute(f"SELECT * FROM t ORDER BY {order}").read_all())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as stream:
        # One batch, so that the checksum does not depend on how the rows came.
        stream.write_table(found.combine_chunks())
    return {"rows": found.num_rows, "checksum": hashlib.sha256(sink.getvalue()).hexdigest()}


if __name__ == "__main__":
    what = {
        "open-with-delta-maintenance": open_with_delta_maintenance,
        "open-with-deltalake": open_with_deltalake,
        "rows": rows,
    }[sys.argv[1]]
    print(json.dumps(what(sys.argv[2])))

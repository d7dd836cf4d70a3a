"""Opens or reads a table in this process and prints what it found as JSON.

    python demo/reading.py open-with-delta-maintenance TABLE
    python demo/reading.py open-with-deltalake TABLE
    python demo/reading.py rows TABLE

A process of its own for each, so that none finds what another one has loaded.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any


def open_with_delta_maintenance(table: str) -> dict[str, Any]:
    """The newest version and its live files, with the seconds this took, imports left out."""
    import delta_maintenance

    open_table = delta_maintenance.open_table
    began = time.perf_counter()
    snapshot = open_table(table).snapshot()
    files = snapshot.live_files().num_rows
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "version": snapshot.version, "files": files}


def open_with_deltalake(table: str) -> dict[str, Any]:
    """The same with deltalake."""
    from deltalake import DeltaTable

    began = time.perf_counter()
    opened = DeltaTable(table)
    files = len(opened.file_uris())
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "version": opened.version(), "files": files}


def rows(table: str) -> dict[str, Any]:
    """The number of rows that deltalake reads, and a checksum of all their values."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("t", DeltaTable(table))
    found = pa.table(query.execute("SELECT * FROM t ORDER BY hour, device, at").read_all())
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

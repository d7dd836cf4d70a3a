"""Four processes that commit to one table concurrently, two of them with delta-rs.

`DELTA_MAINTENANCE_COMMITS` is the number of commits of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from delta_maintenance.table.read import open_table
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

COMMITS = int(os.environ.get("DELTA_MAINTENANCE_COMMITS", "40"))
LIMIT_SECONDS = 240 + 4 * COMMITS

OURS = """
import sys
from delta_maintenance import open_table
from delta_maintenance.errors import CommitUnknownError
from delta_maintenance.table.commit.transaction import Transaction

address, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    path = f"{name}-{number}.parquet"
    txn = Transaction(open_table(address).snapshot(), "WRITE", operation_id=path)
    txn.stage_adds([{
        "path": path, "partitionValues": {}, "size": 1, "modificationTime": 1,
        "dataChange": True, "stats": '{"numRecords":1}',
    }])
    outcome = txn.commit(max_attempts=1000)
    print(outcome.version, path, flush=True)
"""

DELTA_RS = """
import sys
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

address, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    mark = {"mark": f"{name}-{number}"}
    properties = CommitProperties(custom_metadata=mark, max_commit_retries=1000)
    write_deltalake(
        address, pa.table({"id": pa.array([number], pa.int64()), "part": [name]}),
        mode="append", commit_properties=properties,
    )
    print(f"{name}-{number}", flush=True)
"""


@pytest.mark.conformance("TXN-01", "LOG-09", "LOG-10")
@pytest.mark.process
def test_four_processes_lose_or_duplicate_no_commit(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    configuration = {"delta.checkpointInterval": "25", "delta.enableExpiredLogCleanup": "false"}
    table.commit([log.protocol(), log.metadata(configuration=configuration)])
    writers = {"a": OURS, "b": OURS, "c": DELTA_RS, "d": DELTA_RS}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), name, str(COMMITS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, script in writers.items()
    }
    try:
        output = {
            name: process.communicate(timeout=LIMIT_SECONDS) for name, process in running.items()
        }
    finally:
        for process in running.values():
            process.kill()
    for name, process in running.items():
        assert process.returncode == 0, f"{name}: {output[name][1][-2000:]}"

    names = [n for n in table.names() if n.endswith(".json") and not n.startswith((".", "_"))]
    assert names == [f"{version:020d}.json" for version in range(4 * COMMITS + 1)]
    marks: list[str] = []
    for version, name in enumerate(names[1:], start=1):
        lines = [json.loads(line) for line in table.read(name).splitlines()]
        info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
        (add,) = [line["add"] for line in lines if "add" in line]
        marks.append(info.get("operationId") or info["mark"])
        if "operationId" in info:
            assert f"{version} {add['path']}" in output[add["path"][0]][0].splitlines()
    assert len(set(marks)) == len(marks) == 4 * COMMITS
    assert open_table(str(tmp_path)).snapshot().live_files().num_rows == 4 * COMMITS

"""Delta Spark and this library write one table on HDFS, each with its own client."""

from __future__ import annotations

import json
import threading

import pytest

from delta_maintenance import open_table
from delta_maintenance.cli.main import main
from delta_maintenance.storage import Put, open_store
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.servers.hdfs_cluster import HdfsCluster

pytestmark = [pytest.mark.spark, pytest.mark.oracle]

SPARK_COMMITS = 8


@pytest.mark.conformance("LOG-09", "TXN-01")
def test_of_two_writers_neither_overwrites_a_commit_of_the_other(
    delta_spark: DeltaSpark, hdfs: HdfsCluster
) -> None:
    theirs, ours = (hdfs.address("/lake/t", scheme=scheme) for scheme in ("hdfs", "webhdfs"))
    delta_spark.sql(f"CREATE TABLE delta.`{theirs}` (id LONG) USING delta")
    store = open_store(ours)
    done = threading.Event()
    won: list[int] = []
    lost: list[int] = []

    def commit() -> None:
        version = 1
        while not done.is_set():
            lines = [
                {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "OURS"}},
                {"txn": {"appId": "ours", "version": version}},
            ]
            data = "".join(json.dumps(line) + "\n" for line in lines).encode()
            outcome = store.put_if_absent(f"_delta_log/{version:020}.json", data)
            (won if outcome is Put.DONE else lost).append(version)
            version += 1
            # Slower than Delta Spark, which gives up after many lost races.
            done.wait(0.3 if outcome is Put.DONE else 0)

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        for number in range(SPARK_COMMITS):
            delta_spark.sql(f"INSERT INTO delta.`{theirs}` VALUES ({number})")
    finally:
        done.set()
        writer.join()
    # Both lost races against the other.
    assert won and len(lost) >= SPARK_COMMITS // 2
    table = open_table(ours)
    history = {commit.version: commit.operation for commit in table.history()}
    assert sorted(history) == list(range(len(won) + SPARK_COMMITS + 1))
    assert {version for version, operation in history.items() if operation == "OURS"} == set(won)
    assert table.snapshot().txns == {"ours": max(won)}

    assert main(["checkpoint", ours]) == 0
    delta_spark.forget()
    rows = delta_spark.rows(f"SELECT id FROM delta.`{theirs}`")
    assert len(rows) == SPARK_COMMITS
    delta_spark.sql(f"INSERT INTO delta.`{theirs}` VALUES (99)")
    assert open_table(ours).snapshot().live_files().num_rows == SPARK_COMMITS + 1
    store.close()

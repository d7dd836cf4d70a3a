"""Jobs on a table in HDFS: executors reach it by the same address and options as the driver."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import open_table
from delta_maintenance.spark import job
from delta_maintenance.submission import JobSpec
from tests.support.servers.hdfs_cluster import HdfsCluster
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.spark


def options_of(scheme: str) -> dict[str, str]:
    # The environment of an executor is not the driver's: its options have to name the user.
    return {"user": "keeper"} if scheme == "webhdfs" else {"dfs.replication": "1"}


@pytest.mark.parametrize("scheme", ["webhdfs", "hdfs"])
def test_executors_write_the_sidecars_of_a_table_on_hdfs(
    hdfs: HdfsCluster, spark: SparkSession, scheme: str
) -> None:
    folder = f"/user/keeper/{uuid.uuid4()}/a b"
    address = hdfs.address(folder, scheme=scheme)
    if scheme == "webhdfs":
        hdfs.make_home("keeper")
    options = options_of(scheme)
    builder = TableBuilder(open_table(address, options).store)
    builder.commit([features("v2Checkpoint"), metadata()])
    builder.commit([add(f"part={n % 3}/{n}.parquet") for n in range(40)])
    builder.commit([remove(f"part={n % 3}/{n}.parquet") for n in range(10)])
    spec = JobSpec(
        operation="checkpoint",
        table=address,
        storage_options=options,
        options={"kind": "v2-json", "actions_per_sidecar": 20, "engine": "spark"},
    )
    result = job.run(spec, spark)
    assert result["status"] == "written" and result["num_files"] == 30
    store = builder.store
    sidecars = [status.path for status in store.list_from("_delta_log/_sidecars")]
    assert len(sidecars) >= 2 and not any(".tmp" in path for path in sidecars)
    snapshot = open_table(address, options).snapshot()
    assert snapshot.live_files().num_rows == 30
    assert snapshot.log.segment.checkpoint is not None
    store.close()

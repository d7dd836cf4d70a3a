"""A warm Spark session that rewrites tables: ``python -m benchmarks.spark_rewrites ours|delta``.

Reads commands from stdin, one JSON object a line, and answers each with one on stdout:
``{"optimize": TABLE}`` with the time of the job alone, ``{"digest": TABLE}`` with a digest of the
rows as Delta Spark reads them. Delta Spark also does ``cluster`` by the columns of the table,
``z-order``, and ``append`` of rows that differ in each append to a table. Both sessions run on
``local[2]``. Needs JAVA_HOME; Delta Spark comes from Maven.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TARGET_BYTES = 128 << 20
CLUSTERED_BYTES = 2 << 20
APPENDED_ROWS = 4_000
_DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
_JARS = Path(__file__).resolve().parent.parent / ".tools" / "ivy"
_OF_SPARK = "com.fasterxml.jackson.core:*,org.slf4j:*,commons-logging:*,org.roaringbitmap:*"
_COMMON = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
_OF_DELTA = {
    "spark.jars.packages": _DELTA,
    "spark.jars.ivy": str(_JARS),
    "spark.jars.excludes": _OF_SPARK,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The codec and the size of new files of ours.
    "spark.sql.parquet.compression.codec": "zstd",
    # As many as the machine has cores: more cost Delta Spark time.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}

_appends: dict[str, int] = {}


def optimize_ours(spark: Any, table: str) -> dict[str, Any]:
    """Rewrites the table by our job, in this session."""
    from delta_maintenance.spark import job
    from delta_maintenance.submission.job_spec import JobSpec

    spec = JobSpec(operation="optimize", table=table, options={"target_bytes": TARGET_BYTES})
    result = job.run(spec, spark)
    return {name: result[name] for name in ("status", "files_before", "files_after", "rows")}


def optimize_delta(spark: Any, table: str) -> dict[str, Any]:
    """Rewrites the table by the statement of Delta Spark."""
    return _optimized(spark, table, "", TARGET_BYTES)


def cluster_delta(spark: Any, table: str) -> dict[str, Any]:
    """Clusters the table along a Hilbert curve, by its own columns."""
    return _optimized(spark, table, "", CLUSTERED_BYTES)


def z_order_delta(spark: Any, table: str) -> dict[str, Any]:
    """Sorts the table, which has no clustering columns."""
    return _optimized(spark, table, "ZORDER BY (user, amount)", CLUSTERED_BYTES)


def append_delta(spark: Any, table: str) -> dict[str, Any]:
    """Appends one file."""
    import pyarrow.parquet as pq

    from benchmarks.data_files import rows

    number = _appends[table] = _appends.get(table, 1_000) + 1
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows(number, APPENDED_ROWS), f"{folder}/rows.parquet")
        spark.read.parquet(folder).coalesce(1).write.format("delta").mode("append").save(table)
    return {"rows": APPENDED_ROWS}


def _optimized(spark: Any, table: str, clause: str, target: int) -> dict[str, Any]:
    for name, size in (("max", target), ("min", target * 3 // 4)):
        spark.conf.set(f"spark.databricks.delta.optimize.{name}FileSize", str(size))
    [row] = spark.sql(f"OPTIMIZE delta.`{table}` {clause}").collect()
    metrics = row["metrics"]
    return {
        "status": "rewritten",
        "files_before": metrics["numFilesRemoved"],
        "files_after": metrics["numFilesAdded"],
    }


def digest(spark: Any, table: str) -> dict[str, Any]:
    """The number of rows, and two sums over digests of all values and of the hidden row IDs."""
    [found] = (
        spark.sql(f"SHOW TBLPROPERTIES delta.`{table}`")
        .filter("key = 'delta.enableRowTracking' AND value = 'true'")
        .selectExpr("count(*) AS tracks")
        .collect()
    )
    rows = spark.read.format("delta").load(table)
    hidden = "row_id", "row_commit_version"
    columns = [f"`{name}`" for name in rows.columns]
    columns += [f"_metadata.{name}" for name in hidden] if found.tracks else []
    value = f"xxhash64({', '.join(columns)})"
    [row] = rows.selectExpr(
        "count(*) AS rows", f"bit_xor({value}) AS one", f"sum(pmod({value}, 1000000007)) AS other"
    ).collect()
    return {"rows": row.rows, "digest": [row.one, int(row.other)], "row_ids": bool(found.tracks)}


def cpu_seconds() -> float:
    """The processor time of this process and of all that descend from it, ended ones included."""
    parents, times = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue
        fields = re.sub(r"^.*\) ", "", text, flags=re.DOTALL).split()
        parents[int(folder.name)] = int(fields[1])
        times[int(folder.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(times[process] for process in ours if process in times) / os.sysconf("SC_CLK_TCK")


def main(who: str) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What Spark prints is not for whoever reads the answers.
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            **_COMMON,
            **(_OF_DELTA if who == "delta" else {}),
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        }
        builder = SparkSession.builder.master("local[2]").appName("benchmark")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        commands: Mapping[str, Callable[[Any, str], dict[str, Any]]] = {
            "optimize": optimize_delta if who == "delta" else optimize_ours,
            "cluster": cluster_delta,
            "z-order": z_order_delta,
            "append": append_delta,
            "digest": digest,
        }
        for line in sys.stdin:
            [(command, table)] = json.loads(line).items()
            started, spent = time.perf_counter(), cpu_seconds()
            answer = commands[command](spark, table)
            answer["seconds"] = time.perf_counter() - started
            answer["cpu_seconds"] = cpu_seconds() - spent
            print(json.dumps(answer), file=answers)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

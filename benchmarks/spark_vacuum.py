"""The Spark vacuum of one table as a process that says how much its driver holds.

Run as ``python -m benchmarks.spark_vacuum TABLE [REPORT]``, with JAVA_HOME set. The cluster is a
standalone one with two workers, whose executors are processes of their own: what the driver holds
is its own. Its heap is fixed, so its resident size can be compared from run to run.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
from pathlib import Path

_HEAP_MB = 512
_CLUSTER = "local-cluster[2,1,1024]"
"""Two workers with one core and 1,024 MB each; master and workers live in the driver's JVM."""


def main(table: str, report: str | None = None) -> dict[str, object]:
    """Plans a vacuum of ``table``; the list goes to ``report``, if any. Returns counts, and MB."""
    import pyspark
    from pyspark.sql import SparkSession

    from delta_maintenance.spark import job
    from delta_maintenance.submission.job_spec import JobSpec

    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        collections = Path(scratch, "gc.log")
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": f"{_HEAP_MB}m",
            "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -Xlog:gc:file={collections}",
            "spark.executor.memory": "1g",
            "spark.local.dir": scratch,
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master(_CLUSTER).appName("benchmark")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        # Stdout is the document's.
        with open(os.devnull, "w") as quiet:
            told, sys.stdout = sys.stdout, quiet
            try:
                spec = JobSpec(operation="vacuum", table=table, report_uri=report, plan_only=True)
                plan = job.run(spec, spark)
            finally:
                sys.stdout = told
        java = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
        jvm = java.ProcessHandle.current().pid()
        # Collects all of it: what is left now is what the driver holds on to.
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        measured: dict[str, object] = {
            "files": plan["files"],
            "live_files": plan["live_files"],
            "python_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
            "jvm_mb": _peak_mb(jvm),
            "heap_mb": (runtime.totalMemory() - runtime.freeMemory()) / 1e6,
            "heap_peak_mb": _most_left_mb(collections.read_text()),
        }
        spark.stop()
    return measured


def _peak_mb(process: int) -> float:
    """The largest resident size so far, as Linux keeps it."""
    status = Path(f"/proc/{process}/status").read_text()
    [kb] = re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(kb) * 1024 / 1e6


def _most_left_mb(collections: str) -> float:
    """The most that any collection left in the heap."""
    return max((int(mb) * 1.048576 for mb in re.findall(r"->(\d+)M\(", collections)), default=0.0)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""The steps of the series by Delta Spark, in one JVM on this machine. Needs JAVA_HOME."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = os.environ.get("DELTA_MAINTENANCE_DELTA_SPARK", "io.delta:delta-spark_4.2_2.13:4.4.0")
MEMORY = os.environ.get("DELTA_MAINTENANCE_SPARK_MEMORY", "4g")
_JARS = Path(__file__).parents[2] / ".tools" / "ivy"


def run(step: str, table: str) -> dict[str, Any]:
    """Runs a step; its time begins when the session is there."""
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": MEMORY,
            "spark.jars.packages": PACKAGE,
            "spark.jars.ivy": str(_JARS),
            "spark.local.dir": scratch,
            "spark.log.level": "ERROR",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.databricks.delta.checkpoint.exceptionThrowing.enabled": "true",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master("local[2]").appName("benchmark")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        jvm: Any = spark._jvm
        process = jvm.java.lang.ProcessHandle.current().pid()
        before, cpu, started = _moved(process), _cpu_seconds(process), time.perf_counter()
        result = _step(step, spark, table)
        measured = {
            "result": result,
            "jvm_seconds": time.perf_counter() - started,
            "jvm_cpu": _cpu_seconds(process) - cpu,
            "jvm_mb": _peak_mb(process),
            **{name: number - before[name] for name, number in _moved(process).items()},
        }
        spark.stop()
    return measured


def _step(step: str, spark: Any, table: str) -> Any:
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    none = spark._jvm.scala.Option.empty()
    steps: Mapping[str, Callable[[Any], Any]] = {
        "open": lambda snapshot: snapshot.numOfFiles(),
        "list": lambda snapshot: _drained(snapshot.allFiles()),
        "checkpoint-full": lambda snapshot: log.checkpoint(snapshot, none),
        "clean-log": lambda snapshot: log.doLogCleanup(snapshot, none),
        "vacuum-lite": lambda _: len(spark.sql(f"VACUUM delta.`{table}` LITE DRY RUN").collect()),
    }
    return steps[step](log.unsafeVolatileSnapshot())


def _drained(files: Any) -> None:
    """Computes every row, and keeps none."""
    files.write().format("noop").mode("overwrite").save()


def _moved(process: int) -> dict[str, int]:
    told = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return {"bytes_read": int(told["rchar"]), "bytes_written": int(told["wchar"])}


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    [kb] = re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(kb) * 1024 / 1e6

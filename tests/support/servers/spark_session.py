"""A PySpark session on two cores of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.support.servers.endings import end_gateway

REPLACED_TASK = pytest.mark.skipif(
    pyspark.__version__.startswith("3."),
    reason="a subclass of a task, in its place in the module, does not survive the pickling of "
    "Spark 3.5, which sends the slots of its base class without their values",
)
LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@contextmanager
def local_session(warehouse: Path) -> Iterator[SparkSession]:
    """Opens a session whose tasks get a second and a third attempt, as on a cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("SPARK_HOME", raising=False)
        builder = SparkSession.builder.master("local[2, 3]").appName("tests")
        settings = {
            **LOOPBACK,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        end_gateway(session.sparkContext._gateway, stop=session.stop)

"""The log store on a Spark whose own Hadoop has no conditional put.

Part of `make nightly`, for each version of Spark.
"""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError

from tests.oracle.log_store.conftest import StartSparkOnS3
from tests.support.emulators.s3_server import S3Server
from tests.support.oracle.s3a import conditional_hadoop, spark_hadoop

pytestmark = [pytest.mark.oracle, pytest.mark.spark]


def test_it_is_refused_in_one_line(
    start_spark_on_s3: StartSparkOnS3, lake: str, s3_server: S3Server
) -> None:
    if spark_hadoop() == conditional_hadoop():
        pytest.skip("the Hadoop of this Spark has conditional puts")
    spark = start_spark_on_s3(spark_hadoop())
    with pytest.raises(Py4JJavaError, match=r"no conditional put; use S3A of Hadoop 3\.4\.2"):
        spark.write(f"s3a://{lake}", "SELECT 0 AS id")
    writes = [line for line in s3_server.requests if line.startswith(("PUT", "POST"))]
    assert not [line for line in writes if "_delta_log/" in line and ".json" in line]

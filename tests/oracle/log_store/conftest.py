"""Delta Spark on S3, with the log store of the wheel for `s3a:` and with its own for `s3:`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from delta_maintenance.submission.log_store import JAR
from tests.oracle.conftest import JARS
from tests.support.emulators.s3_server import S3Server
from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable
from tests.support.oracle.s3a import (
    LOG_STORE_OF_S3A,
    conditional_hadoop,
    hadoop_jars,
    s3a_jars,
    s3a_packages,
    s3a_settings,
)
from tests.support.servers.maven import JarUnavailable

StartSparkOnS3 = Callable[[str], DeltaSpark]


@pytest.fixture(scope="module")
def start_spark_on_s3(
    running_s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartSparkOnS3]:
    """Starts a session for the emulator with a version of Hadoop.

    A lack of jars fails loudly in the summary.
    """
    started: list[DeltaSpark] = []

    def start(hadoop: str) -> DeltaSpark:
        try:
            jars = ",".join(map(str, (*s3a_jars(JARS / "s3a", hadoop), JAR)))
            ahead = ":".join(map(str, hadoop_jars(JARS / "s3a", hadoop)))
            settings = {"spark.jars": jars, "spark.driver.extraClassPath": ahead}
            spark = DeltaSpark(
                jars=JARS,
                scratch=tmp_path_factory.mktemp("delta-spark-s3"),
                settings={**s3a_settings(running_s3_server), **LOG_STORE_OF_S3A, **settings},
                packages=s3a_packages(hadoop),
            )
        except (JarUnavailable, OracleUnavailable) as reason:
            pytest.skip(f"NO DELTA SPARK WITH S3A: {reason}")
        started.append(spark)
        return spark

    yield start
    for spark in started:
        spark.close()


@pytest.fixture(scope="module")
def delta_spark(start_spark_on_s3: StartSparkOnS3) -> DeltaSpark:
    """A session with the Hadoop of Spark, or with the first one that has conditional puts."""
    return start_spark_on_s3(conditional_hadoop())


@pytest.fixture
def lake(s3_server: S3Server, s3_bucket: str) -> str:
    """The address of a table, without its scheme."""
    return f"{s3_bucket}/table"

"""Delta Spark on S3, with the log store of the wheel for `s3a:` and with its own for `s3:`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delta_maintenance.submission.log_store import JAR, SETTINGS
from tests.oracle.conftest import JARS
from tests.support.emulators.s3_server import S3Server
from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable
from tests.support.oracle.s3a import s3a_jars, s3a_packages, s3a_settings
from tests.support.servers.maven import JarUnavailable


@pytest.fixture(scope="module")
def delta_spark(
    running_s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DeltaSpark]:
    """A session for the emulator; a lack of jars fails loudly in the summary."""
    try:
        jars = ",".join(map(str, (*s3a_jars(JARS / "s3a"), JAR)))
        spark = DeltaSpark(
            jars=JARS,
            scratch=tmp_path_factory.mktemp("delta-spark-s3"),
            settings={**s3a_settings(running_s3_server), **SETTINGS, "spark.jars": jars},
            packages=s3a_packages(),
        )
    except (JarUnavailable, OracleUnavailable) as reason:
        pytest.skip(f"NO DELTA SPARK WITH S3A: {reason}")
    yield spark
    spark.close()


@pytest.fixture
def lake(s3_server: S3Server, s3_bucket: str) -> str:
    """The address of a table, without its scheme."""
    return f"{s3_bucket}/table"

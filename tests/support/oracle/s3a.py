"""What Spark needs for `s3a:` and `s3:` addresses on the emulator of S3."""

from __future__ import annotations

from pathlib import Path

from delta_maintenance.submission.log_store import SETTINGS
from tests.support.emulators.s3_server import S3Server
from tests.support.servers.maven import SPARK_JARS, maven_jar

LOG_STORE_OF_S3A = {name: value for name, value in SETTINGS.items() if ".s3a." in name}
"""The settings without those of `s3:`, whose tables are committed with Delta Lake's own store."""
_FIRST_SDK = ("aws-java-sdk-s3", "aws-java-sdk-dynamodb", "aws-java-sdk-sts")
_SDK = ("s3-transfer-manager", "sts", "netty-nio-client", "apache-client", "url-connection-client")
_SDK_VERSIONS = {"3.3.4": "1.12.262", "3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
_READER_VERSIONS = {"3.4.2": "1.2.1", "3.5.0": "1.3.1"}


def spark_hadoop() -> str:
    """Returns the version of Hadoop in the installed Spark."""
    return next(SPARK_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]


def conditional_hadoop() -> str:
    """Returns that version, or the first one with conditional puts."""
    return max(spark_hadoop(), "3.4.2")


def s3a_jars(folder: Path, hadoop: str | None = None) -> list[Path]:
    """Returns the jars of S3A, by default of `conditional_hadoop()`. Raises `JarUnavailable`."""
    hadoop = hadoop or conditional_hadoop()
    jars = [f"org.apache.hadoop:hadoop-aws:{hadoop}"]
    if hadoop in _READER_VERSIONS:
        reader = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
        jars.append(f"{reader}:{_READER_VERSIONS[hadoop]}")
    return [maven_jar(folder, jar) for jar in jars]


def hadoop_jars(folder: Path, hadoop: str) -> list[Path]:
    """Returns the jars of another version of Hadoop than Spark's. Raises `JarUnavailable`."""
    artifacts = () if hadoop == spark_hadoop() else ("hadoop-client-api", "hadoop-client-runtime")
    return [maven_jar(folder, f"org.apache.hadoop:{name}:{hadoop}") for name in artifacts]


def s3a_packages(hadoop: str | None = None) -> list[str]:
    """The modules of the SDK that S3A uses: 15 MB instead of the bundle's 690 MB."""
    version = _SDK_VERSIONS[hadoop or conditional_hadoop()]
    first = version.startswith("1.")
    group, modules = ("com.amazonaws", _FIRST_SDK) if first else ("software.amazon.awssdk", _SDK)
    return [f"{group}:{module}:{version}" for module in modules]


def s3a_settings(server: S3Server) -> dict[str, str]:
    """The settings of a session; `s3:` is another name of the same store."""
    options = server.storage_options
    properties = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": server.url,
        "fs.s3a.endpoint.region": options["AWS_REGION"],
        "fs.s3a.access.key": options["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": options["AWS_SECRET_ACCESS_KEY"],
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.multipart.size": "5M",
        "fs.s3a.multipart.threshold": "5M",
        "fs.s3a.retry.limit": "2",
        "fs.s3a.retry.interval": "10ms",
        "fs.s3a.attempts.maximum": "3",
    }
    return {f"spark.hadoop.{name}": value for name, value in properties.items()}

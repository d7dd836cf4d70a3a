"""What Spark needs for `s3a:` and `s3:` addresses on the emulator of S3."""

from __future__ import annotations

from pathlib import Path

from tests.support.emulators.s3_server import S3Server
from tests.support.servers.maven import SPARK_JARS, maven_jar

_SDK = ("s3-transfer-manager", "sts", "netty-nio-client", "apache-client", "url-connection-client")
_SDK_VERSION = "2.35.4"


def s3a_jars(folder: Path) -> list[Path]:
    """Returns the jars of S3A, in the version of Spark's Hadoop. Raises `JarUnavailable`."""
    version = next(SPARK_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    return [
        maven_jar(folder, f"org.apache.hadoop:hadoop-aws:{version}"),
        maven_jar(folder, "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"),
    ]


def s3a_packages() -> list[str]:
    """The modules of the SDK that S3A uses: 15 MB instead of the bundle's 690 MB."""
    return [f"software.amazon.awssdk:{module}:{_SDK_VERSION}" for module in _SDK]


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

"""Spark Connect: sessions of a remote server, without a JVM in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from delta_maintenance.scratch import scratch_folder
from delta_maintenance.submission.library import library_zip


@contextmanager
def connected(address: str) -> Iterator[SparkSession]:
    """Opens a new session on the server at `sc://HOST:PORT` and ships this library to it."""
    spark = SparkSession.builder.remote(address).create()
    try:
        ship_library(spark)
        yield spark
    finally:
        spark.stop()


def is_connected(spark: SparkSession) -> bool:
    """Returns whether the session is a Spark Connect session."""
    return "connect" in type(spark).__module__.split(".")


def ship_library(spark: SparkSession) -> None:
    """Sends this library to the executors of the session.

    Its dependencies must be installed on the server: pyarrow, numpy, fsspec, pyroaring and
    pydantic.
    """
    with scratch_folder() as folder:
        file = folder / "delta_maintenance.zip"
        file.write_bytes(library_zip())
        spark.addArtifacts(str(file), pyfile=True)

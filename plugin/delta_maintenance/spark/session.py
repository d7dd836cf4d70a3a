"""The session of a Spark job, Spark Connect, and the access of executors to the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from delta_maintenance.address import CATALOG_TABLE, Address, StoreKind
from delta_maintenance.catalogs.reference import ACCESS, LOCATION, NO_ACCESS
from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError
from delta_maintenance.scratch import scratch_folder
from delta_maintenance.submission.spark_submit import write_library
from delta_maintenance.table.progress import Progress
from delta_maintenance.table_names import name_at

_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKEN = "AWS_SESSION_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSession:
    """A Spark session, and the table of the job."""

    spark: SparkSession
    table_uri: str
    """An address that the driver and every executor can reach."""
    storage_options: Mapping[str, str]
    new_id: NewId
    """Must be picklable, because engines may call it on executors."""
    progress: Progress
    """Called in the driver."""


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

    Its dependencies must be installed on the server: pyarrow, numpy, fsspec, pyroaring,
    pydantic and xxhash.
    """
    with scratch_folder() as folder:
        spark.addArtifacts(write_library(folder), pyfile=True)


def executor_options(
    uri: str,
    storage_options: Mapping[str, str] | None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the storage options, completed from the driver's environment.

    Executors have their own environment: on a cluster, that of the process that started the worker.
    Options take precedence over the environment; if they select credentials, no credentials are
    added. Roles and profiles are not resolved: executors need the same role or profile as the
    driver. Raises `RefusedError` for a table that executors cannot reach.
    """
    address = Address.parse(uri)
    if address.kind is StoreKind.MEMORY:
        raise RefusedError(
            "a table in the memory of this process cannot be reached by executors",
            remedy="copy it to a store that they reach, or use the local engine where there is one",
        )
    # Imported here, because a driver of local tables does not need the object store modules.
    from delta_maintenance.storage.options import parse_options, referred
    from delta_maintenance.storage.s3.client import S3Options

    # Executors renew vended credentials themselves, with the credentials of the catalog.
    reference, given = referred(address, storage_options, environment)
    refers = _name_of(address) if reference is None else reference.options()
    vends = reference is not None and reference.vends
    options = parse_options(address, given, None if vends else environment)
    if options is None:
        return given | refers
    if not isinstance(options, S3Options):
        # Their environment variables are also valid option names.
        secrets = {name: value for name, value in options.secrets().items() if value is not None}
        return options.public() | secrets | refers
    if not (options.has_credentials or vends) and all(environment.get(name) for name in _KEY):
        names = (*_KEY, _TOKEN)
        given |= {name: environment[name] for name in names if environment.get(name)}
    if options.endpoint_url is None and environment.get("AWS_ENDPOINT_URL"):
        given["AWS_ENDPOINT_URL"] = environment["AWS_ENDPOINT_URL"]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if options.region is None and region:
        given["AWS_REGION"] = region
    return given | refers


def _name_of(address: Address) -> dict[str, str]:
    """Returns the options that make executors name the table in messages, and nothing more."""
    name = name_at(str(address))
    return {} if name is None else {CATALOG_TABLE: name, LOCATION: str(address), ACCESS: NO_ACCESS}

"""The session of a Spark job: Spark Connect, threads, the time of its tasks, and the access of
executors to the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import pyspark
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from delta_maintenance import clock
from delta_maintenance.address import CATALOG_TABLE, Address, StoreKind
from delta_maintenance.catalogs.reference import ACCESS, LOCATION, NO_ACCESS
from delta_maintenance.clock import NewId
from delta_maintenance.errors import RefusedError, name_at
from delta_maintenance.scratch import scratch_folder
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.submission.spark_submit import write_library
from delta_maintenance.table.progress import Progress, ignore_progress

_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKEN = "AWS_SESSION_TOKEN"
_PATIENCE_MS = 10_000

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSession:
    """A Spark session, and the table of the job."""

    spark: SparkSession
    table_uri: str
    """An address that the driver and every executor can reach."""
    storage_options: Mapping[str, str] = field(default_factory=dict)
    new_id: NewId = clock.new_id
    """Must be picklable, because engines may call it on executors."""
    progress: Progress = ignore_progress
    """Called in the driver."""


@contextmanager
def open_connection(address: str) -> Iterator[SparkSession]:
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
    uri: str, storage_options: Mapping[str, str] | None, environment: Mapping[str, str] = os.environ
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
    from delta_maintenance.storage.options import parse_options, split_reference
    from delta_maintenance.storage.s3.client import S3Options

    # Executors renew vended credentials themselves, with the credentials of the catalog.
    reference, executor_storage = split_reference(address, storage_options, environment)
    refers = _name_of(address) if reference is None else reference.options()
    vends = reference is not None and reference.vends
    options = parse_options(address, executor_storage, None if vends else environment)
    if options is None:
        return executor_storage | refers
    if not isinstance(options, S3Options):
        # Their environment variables are also valid option names.
        secrets = {name: value for name, value in options.secrets().items() if value is not None}
        return options.public() | secrets | refers
    if not (options.has_credentials or vends) and all(environment.get(name) for name in _KEY):
        names = (*_KEY, _TOKEN)
        executor_storage |= {name: environment[name] for name in names if environment.get(name)}
    if options.endpoint_url is None and environment.get("AWS_ENDPOINT_URL"):
        executor_storage["AWS_ENDPOINT_URL"] = environment["AWS_ENDPOINT_URL"]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if options.region is None and region:
        executor_storage["AWS_REGION"] = region
    return executor_storage | refers


class SparkEngine:
    """Works on the table of a job. Executors open its store by `_address`."""

    def __init__(self, job: JobSession) -> None:
        """Raises `RefusedError` for a table that executors cannot reach."""
        options = executor_options(job.table_uri, job.storage_options)
        self._spark = job.spark
        self._address = TableAddress(uri=job.table_uri, storage_options=options)
        self._new_id = job.new_id
        self._progress = job.progress


def _name_of(address: Address) -> dict[str, str]:
    """Returns the options that make executors name the table in messages, and nothing more."""
    name = name_at(str(address))
    return {} if name is None else {CATALOG_TABLE: name, LOCATION: str(address), ACCESS: NO_ACCESS}


def for_thread(spark: SparkSession, target: Callable[P, R]) -> Callable[P, R]:
    """Returns a target for a thread that inherits the job group and the pool of this thread."""
    if pyspark.__version__.startswith("3."):
        # Its clients of Spark Connect have nothing to inherit but tags.
        return target if is_connected(spark) else inheritable_thread_target(target)
    # Without a session, tags are not inherited, and each call warns of that.
    wrapped: Callable[P, R] = inheritable_thread_target(spark)(target)
    return wrapped


def add_tag(spark: SparkSession, tag: str) -> None:
    """Tags the jobs that this thread starts from now on."""
    if is_connected(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def cancel_tagged(spark: SparkSession, tag: str) -> None:
    """Cancels the running jobs with the tag."""
    if is_connected(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


class TaskTime:
    """Measures the tasks of a session from now on, also those that others run in it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._before = _task_seconds(spark)

    @property
    def seconds(self) -> float | None:
        """The time until now; None if the platform does not tell it, as with Spark Connect."""
        after = None if self._before is None else _task_seconds(self._spark)
        if self._before is None or after is None:
            return None
        return max(round(after - self._before, 3), 0.0)


def _task_seconds(spark: SparkSession) -> float | None:
    """Returns the time of all tasks that have ended in the application.

    From the store behind Spark's user interface, which exists without the interface. PySpark has
    no interface of its own for it.
    """
    if is_connected(spark):
        return None
    try:
        context: Any = spark.sparkContext._jsc.sc()
        # Ends of tasks arrive through a queue.
        context.listenerBus().waitUntilEmpty(_PATIENCE_MS)
        store = context.statusStore()
        executors = store.executorList(False)
        names = [executors.apply(index).id() for index in range(executors.size())]
        # The list states the time since the start for the driver, which runs the tasks in local
        # mode; the single summary does not.
        return float(sum(store.executorSummary(name).totalDuration() for name in names)) / 1000
    except Exception:
        # Hidden by the platform, or changed in a later version of Spark.
        return None

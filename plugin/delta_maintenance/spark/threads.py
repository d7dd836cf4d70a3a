"""Spark jobs of several threads: what they inherit, and how they are cancelled together.

In Spark 3.5, the methods of a session for tags work with Spark Connect alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pyspark
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from delta_maintenance.spark.session import is_connected

P = ParamSpec("P")
R = TypeVar("R")


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

"""Executors obtain vended credentials from the catalog, and renew them in the middle of a job."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from delta_maintenance.catalogs.reference import locate
from delta_maintenance.spark import job
from delta_maintenance.storage import open_store
from delta_maintenance.submission import JobSpec
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.servers.unity_delta import UnityServer, UnityTable, serve_unity

pytestmark = pytest.mark.spark

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class _Watch:
    """What a slow store that accepts only valid vended keys has seen."""

    def __init__(self, unity: UnityServer) -> None:
        self.unity = unity
        self.refused: list[str] = []
        self.writers: set[str] = set()
        """The keys that wrote data files, which executors do."""

    def guarded(self, application: Application) -> Application:
        guarded = self.unity.guarded(application)

        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            # The latency of a store far away, so that the job outlives its keys.
            time.sleep(0.05)
            found = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
            is_data = environ["PATH_INFO"].endswith(".parquet")
            if found and is_data and environ["REQUEST_METHOD"] == "PUT":
                self.writers.add(found[1])

            def noting(status: str, *rest: Any) -> Any:
                self.refused += [status] if status[:3] in ("400", "403") else []
                return start(status, *rest)

            return guarded(environ, noting)

        return answer


def test_executors_renew_credentials_in_the_middle_of_a_job(
    spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    address = f"s3://{s3_bucket}/t"
    made = Rewritten(store=open_store(address, s3_server.storage_options), partitions="abcdefgh")
    before = made.rows()
    own = {name: v for name, v in s3_server.storage_options.items() if name not in _KEYS}
    with serve_unity() as unity:
        unity.add("main.s.t", UnityTable(location=address))
        unity.lifetime_ms = 1500
        watch = _Watch(unity)
        s3_server.intercept = watch.guarded
        located = locate("uc://main.s.t", {**own, **unity.options}, environment={})
        spec = JobSpec(
            operation="optimize",
            table=located.address,
            storage_options=located.storage_options,
            options={"other_writers": "none", "workers": 1},
        )
        document = job.run(spec, spark)
    s3_server.intercept = None
    assert document["status"] == "rewritten"
    assert made.rows() == before
    assert watch.refused == []
    assert len(watch.writers) > 1
    # No vended credential was passed on: the job knew none when it began.
    assert not any("canaryKey" in value for value in spec.storage_options.values())


def test_keys_that_end_before_their_time_are_replaced_on_executors(
    spark: SparkSession, s3_server: S3Server, s3_bucket: str
) -> None:
    """The store rejects the key of the first data file; the task asks for another one."""
    address = f"s3://{s3_bucket}/t"
    made = Rewritten(store=open_store(address, s3_server.storage_options), partitions="ab")
    before = made.rows()
    own = {name: v for name, v in s3_server.storage_options.items() if name not in _KEYS}
    with serve_unity() as unity:
        unity.add("main.s.t", UnityTable(location=address))
        rejected: list[str] = []

        def rejecting(application: Application) -> Application:
            guarded = unity.guarded(application)

            def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
                is_data = environ["PATH_INFO"].endswith(".parquet")
                if is_data and environ["REQUEST_METHOD"] == "PUT" and not rejected:
                    rejected.append("now")
                    unity.reject_keys()
                return guarded(environ, start)

            return answer

        s3_server.intercept = rejecting
        located = locate("uc://main.s.t", {**own, **unity.options}, environment={})
        spec = JobSpec(
            operation="optimize",
            table=located.address,
            storage_options=located.storage_options,
            options={"other_writers": "none", "workers": 1},
        )
        document = job.run(spec, spark)
    s3_server.intercept = None
    assert rejected
    assert document["status"] == "rewritten"
    assert made.rows() == before

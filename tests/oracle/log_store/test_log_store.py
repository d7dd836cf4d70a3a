"""Delta Spark with our log store on S3, behind a proxy that logs, loses answers and interferes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from delta_maintenance import DeltaTable
from delta_maintenance.storage import open_store
from delta_maintenance.table.commit.other_writers import LOG_STORE_MARK as MARK
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.faults.s3_faults import (
    APPLIED_THEN_503,
    APPLIED_THEN_DROPPED,
    CONFLICT,
    DENIED,
    LOST_500,
    LOST_503,
    Fault,
    Faults,
    passed,
)
from tests.support.oracle.delta_spark import DeltaSpark

ROOT = Path(__file__).parents[3]
NO_CHANGE = {"delta.appendOnly": "false"}
ONE_ROW = "SELECT CAST({0} AS LONG) AS id"


@dataclass(slots=True)
class Proxy:
    """Logs what is written to the log of a table, and lets a test act on each request."""

    server: S3Server
    headers: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """File name, condition and mark of each write."""
    act: Callable[[Application, Environ, StartResponse], Iterable[bytes]] | None = None
    """Answers the next put of a commit in place of the server."""

    def __call__(self, application: Application) -> Application:
        def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            folder, _, name = environ["PATH_INFO"].rpartition("/")
            method, query = environ["REQUEST_METHOD"], environ["QUERY_STRING"]
            # Of an object in parts, the request that publishes it.
            publishes = not query if method == "PUT" else method == "POST" and "uploadId" in query
            if publishes and folder.endswith("_delta_log"):
                condition = environ.get("HTTP_IF_NONE_MATCH")
                mark = environ.get("HTTP_X_AMZ_META_" + MARK[0].upper().replace("-", "_"))
                self.headers.append((name, condition, mark))
                if self.act is not None and name[:20].isdigit() and name.endswith(".json"):
                    act, self.act = self.act, None
                    return act(application, environ, start_response)
            return application(environ, start_response)

        return answer

    def commits(self) -> list[tuple[str | None, str | None]]:
        """Condition and mark of each put of a commit."""
        return [kind for name, *kind in self.headers if name[:20].isdigit() and ".json" in name]


@pytest.fixture
def faults(s3_server: S3Server) -> Faults:
    return Faults(s3_server)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    proxy = Proxy(s3_server)
    s3_server.intercept = proxy
    yield proxy


def append(spark: DeltaSpark, table: str, number: int) -> None:
    spark.write(table, ONE_ROW.format(number))


def ids(spark: DeltaSpark, table: str) -> list[int]:
    spark.forget()
    return [json.loads(row)["id"] for row in spark.rows(f"SELECT id FROM delta.`{table}`")]


def versions(spark: DeltaSpark, table: str) -> list[int]:
    return [commit["version"] for commit in spark.history(table)]


COMMENT = "ALTER TABLE delta.`s3a://{0}` CHANGE COLUMN id COMMENT '{1}'"
LARGE = "x" * 6_000_000
"""A comment that makes a commit larger than a part of 5 MB."""


def test_every_commit_has_the_condition_and_the_mark(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str
) -> None:
    for number in range(3):
        append(delta_spark, f"s3a://{lake}", number)
    assert proxy.commits() == [["*", MARK[1]]] * 3
    assert ids(delta_spark, f"s3a://{lake}") == [0, 1, 2]
    assert [name for name, *_ in proxy.headers if name.endswith(".probe")]


def test_without_the_log_store_no_commit_has_a_condition(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str
) -> None:
    """A release of Delta or Hadoop that changes this is noticed here."""
    append(delta_spark, f"s3://{lake}", 0)
    assert proxy.commits() == [[None, None]]


def test_health_names_the_newest_commit_without_the_log_store(
    delta_spark: DeltaSpark, lake: str, s3_server: S3Server
) -> None:
    table = DeltaTable(f"s3://{lake}", storage_options=s3_server.storage_options)
    append(delta_spark, f"s3://{lake}", 0)
    (unmarked,) = table.health().unsafe_commits
    assert "committed version 0 without" in unmarked and "Apache-Spark/" in unmarked
    append(delta_spark, f"s3a://{lake}", 1)
    assert table.health().unsafe_commits == (), "the log store came later"
    append(delta_spark, f"s3://{lake}", 2)
    append(delta_spark, f"s3a://{lake}", 3)
    (unmarked,) = table.health().unsafe_commits
    assert "committed version 2 without" in unmarked


@pytest.mark.parametrize(
    "faults_of_requests",
    [
        {"PUT": [APPLIED_THEN_503]},
        {"PUT": [APPLIED_THEN_DROPPED]},
        {"PUT": [LOST_500]},
        # The SDK and S3A repeat the request.
        {"PUT": [LOST_503] * 12},
        {"PUT": [APPLIED_THEN_503], "GET": [LOST_503] * 2},
        # S3 answers so while another conditional put of the same file is under way.
        {"PUT": [CONFLICT] * 2},
    ],
    ids=["no answer", "dropped", "error", "slow down", "slow reading", "conflict"],
)
def test_a_lost_answer_is_settled(
    delta_spark: DeltaSpark, faults: Faults, lake: str, faults_of_requests: dict[str, list[Fault]]
) -> None:
    append(delta_spark, f"s3a://{lake}", 0)
    for method, queue in faults_of_requests.items():
        faults.on(f"{method} 00001.json", *queue)
    append(delta_spark, f"s3a://{lake}", 1)
    assert faults.injected == sum(map(len, faults_of_requests.values()))
    assert ids(delta_spark, f"s3a://{lake}") == [0, 1]
    assert versions(delta_spark, f"s3a://{lake}") == [1, 0]


@pytest.mark.parametrize(
    "request_", ["PUT 00001.json", "POST ?uploads", "PUT partNumber=2", "POST ?uploadId"]
)
def test_a_commit_that_fails_leaves_nothing(
    delta_spark: DeltaSpark, faults: Faults, lake: str, s3_server: S3Server, request_: str
) -> None:
    """The second request is made in the middle of writing, and the others at its end."""
    append(delta_spark, f"s3a://{lake}", 0)
    faults.on(request_, DENIED, forever=True)
    with pytest.raises(Py4JJavaError, match="AccessDenied"):
        delta_spark.sql(COMMENT.format(lake, "x" if ".json" in request_ else LARGE))
    assert faults.injected
    s3_server.intercept = None
    assert versions(delta_spark, f"s3a://{lake}") == [0]
    assert s3_server.unfinished_uploads(lake.partition("/")[0]) == []
    append(delta_spark, f"s3a://{lake}", 1)
    assert versions(delta_spark, f"s3a://{lake}") == [1, 0]


def test_writers_need_no_permission_to_delete(
    delta_spark: DeltaSpark, faults: Faults, lake: str, s3_server: S3Server
) -> None:
    """The probe stays, and is harmless."""
    faults.on("DELETE .probe", DENIED, forever=True)
    for number in range(2):
        append(delta_spark, f"s3a://{lake}", number)
    assert faults.injected
    assert versions(delta_spark, f"s3a://{lake}") == [1, 0]
    with closing(open_store(f"s3://{lake}", s3_server.storage_options)) as store:
        files = [file.path for file in store.list_from("_delta_log")]
    assert sum(path.endswith(".probe") for path in files) == 1
    table = DeltaTable(f"s3://{lake}", storage_options=s3_server.storage_options)
    assert {finding.kind for finding in table.fsck().findings} == {"unknown-file"}


def test_s3a_without_the_condition_is_refused(delta_spark: DeltaSpark, lake: str) -> None:
    bucket = lake.partition("/")[0]
    disabled = f"fs.s3a.bucket.{bucket}.create.conditional.enabled"
    refusal = r"no conditional put; use S3A of Hadoop 3\.4\.2"
    with delta_spark.setting(disabled, "false"), pytest.raises(Py4JJavaError, match=refusal):
        append(delta_spark, f"s3a://{lake}", 0)


@pytest.mark.parametrize(
    "fault", [None, APPLIED_THEN_503, CONFLICT], ids=["answer", "no answer", "409"]
)
def test_a_commit_of_another_writer_is_a_conflict_and_never_overwritten(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str, s3_server: S3Server, fault: Fault | None
) -> None:
    """Ours comes between the existence check and the put of Delta Spark."""
    append(delta_spark, f"s3a://{lake}", 0)

    def commit_first(
        application: Application, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        table = DeltaTable(f"s3://{lake}", storage_options=s3_server.storage_options)
        table.set_properties(properties=NO_CHANGE, other_writers="conditional_put")
        return (fault or passed)(application, environ, start_response)

    proxy.act = commit_first
    with pytest.raises(Py4JJavaError, match="MetadataChanged"):
        append(delta_spark, f"s3a://{lake}", 1)
    append(delta_spark, f"s3a://{lake}", 2)
    assert ids(delta_spark, f"s3a://{lake}") == [0, 2]
    assert versions(delta_spark, f"s3a://{lake}") == [2, 1, 0]


def test_without_the_log_store_the_same_race_loses_a_commit(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str, s3_server: S3Server
) -> None:
    append(delta_spark, f"s3://{lake}", 0)
    table = DeltaTable(f"s3://{lake}", storage_options=s3_server.storage_options)

    def commit_first(
        application: Application, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        table.set_properties(properties=NO_CHANGE, other_writers="conditional_put")
        return application(environ, start_response)

    proxy.act = commit_first
    append(delta_spark, f"s3://{lake}", 1)
    assert versions(delta_spark, f"s3://{lake}") == [1, 0]
    assert [entry.operation for entry in table.history()] == ["WRITE", "WRITE"]


def test_a_store_that_ignores_the_condition_is_refused(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str, s3_server: S3Server
) -> None:
    def without_conditions(application: Application) -> Application:
        def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return application(environ, start_response)

        return answer

    s3_server.intercept = without_conditions
    with pytest.raises(Py4JJavaError, match="ignores If-None-Match"):
        append(delta_spark, f"s3a://{lake}", 0)
    s3_server.intercept = proxy
    assert not any("00000.json" in request for request in s3_server.requests if "PUT" in request)


@pytest.mark.parametrize("fault", [APPLIED_THEN_503, CONFLICT], ids=["no answer", "409"])
def test_a_commit_in_parts_has_the_condition(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str, s3_server: S3Server, fault: Fault
) -> None:
    append(delta_spark, f"s3a://{lake}", 0)
    proxy.act = fault
    delta_spark.sql(COMMENT.format(lake, LARGE))
    assert any("00001.json?uploadId" in line for line in s3_server.requests)
    assert [condition for condition, _ in proxy.commits()[1:]] == ["*"] * len(proxy.commits()[1:])
    assert versions(delta_spark, f"s3a://{lake}") == [1, 0]
    assert s3_server.unfinished_uploads(lake.partition("/")[0]) == []


def test_checkpoints_and_hints_are_replaced_as_before(
    delta_spark: DeltaSpark, proxy: Proxy, lake: str
) -> None:
    for number in range(2):
        append(delta_spark, f"s3a://{lake}", number)
        delta_spark.checkpoint(f"s3a://{lake}")
    hints = [condition for name, condition, _ in proxy.headers if name == "_last_checkpoint"]
    assert hints == [None, None]
    assert ids(delta_spark, f"s3a://{lake}") == [0, 1]


@pytest.mark.usefixtures("delta_spark")
def test_the_jar_is_what_the_source_gives() -> None:
    """Where Maven is available."""
    command = [sys.executable, "tools/log_store.py", "--check"]
    subprocess.run(command, cwd=ROOT, check=True)

"""Vacuum on S3: the number of requests, and the requirements of its commits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.storage.s3 import S3Store
from delta_maintenance.table.read import Table
from tests.support.emulators.s3_server import S3Server
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import log_text
from tests.support.tables.vacuum_tables import days_ago

LIVE, DEAD = 30, 20
CLOCK_CHECK = "delta_maintenance.operations.vacuum.operation.require_same_clock"
LATER = datetime.now(UTC) + timedelta(days=8)
"""The server stamps objects with the time it is: a vacuum in a week finds them old."""


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    return s3_server


def filled(server: S3Server, *, live: int, dead: int) -> Table:
    bucket = f"bucket-{uuid.uuid4()}"
    server.make_bucket(bucket)
    in_use = [f"p={n % 7}/live {n}.parquet" for n in range(live)]
    unused = [f"p={n % 7}/dead+{n}%.parquet" for n in range(dead)]
    server.fill(bucket, [f"t/{name}" for name in (*in_use, *unused)], b"x")
    adds = [add(name.replace(" ", "%20")) for name in in_use]
    server.fill(bucket, [f"t/_delta_log/{0:020}.json"], log_text([protocol(), metadata(), *adds]))
    return Table(S3Store(Address.parse(f"s3://{bucket}/t"), server.storage_options))


@pytest.fixture
def table(server: S3Server) -> Iterator[Table]:
    made = filled(server, live=LIVE, dead=DEAD)
    yield made
    made.store.close()


@pytest.fixture(autouse=True)
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK_CHECK, lambda *_, **__: None)


def test_a_thousand_files_take_one_request_to_list_and_one_to_delete(server: S3Server) -> None:
    live, dead = 6000, 5000
    table = filled(server, live=live, dead=dead)
    snapshot = table.snapshot()
    server.requests.clear()
    surveyed = vacuum.survey(snapshot, now=LATER)
    assert surveyed.plan.files == dead and not surveyed.plan.logs_commits
    trees = [r for r in server.requests if "list-type=2" in r and "delimiter" not in r]
    manifests = [r for r in trees if "_symlink_format_manifest" in r]
    pages = [r for r in trees if r not in manifests]
    assert len(manifests) == 1
    assert len(pages) == -(-(live + dead + 1) // 1000)
    # In addition to the pages: the log is read once, its commits are listed and read for removed
    # files, the kept versions and the manifests of other readers are listed, and new commits are
    # checked.
    assert len(server.requests) <= len(pages) + 2 + 1 + 1 + 1 + 1
    server.requests.clear()
    result = vacuum.apply(table, surveyed.plan, context=RunContext.at(LATER), surveyed=surveyed)
    assert (result.deleted, result.failed) == (dead, 0)
    deletions = sum("POST" in request for request in server.requests)
    assert deletions == -(-dead // 1000)
    # One check of the log and one of the kept versions for each round of four thousand, and at the
    # end. Then the mark of the last vacuum is read and written.
    assert len(server.requests) - deletions <= 2 * (-(-dead // 4000) + 1) + 2
    table.store.close()


def test_commits_on_s3_need_to_know_who_else_writes(server: S3Server, table: Table) -> None:
    options = VacuumOptions(log_commits=True)
    surveyed = vacuum.survey(table.snapshot(), options, now=LATER)
    with pytest.raises(RefusedError, match="other writers of this table on S3"):
        vacuum.apply(table, surveyed.plan, context=RunContext.at(LATER), surveyed=surveyed)
    assert vacuum.survey(table.snapshot(), now=LATER).plan.files == DEAD, "nothing was deleted"
    options = VacuumOptions(log_commits=True, other_writers="none")
    surveyed = vacuum.survey(table.snapshot(), options, now=LATER)
    result = vacuum.apply(table, surveyed.plan, context=RunContext.at(LATER), surveyed=surveyed)
    assert (result.start_version, result.end_version) == (1, 2)
    end: Any = json.loads(table.store.read(f"_delta_log/{2:020}.json"))
    assert end["commitInfo"]["operationMetrics"]["numDeletedFiles"] == str(DEAD)


def test_keys_that_are_no_clean_paths_stay(server: S3Server, table: Table) -> None:
    bucket = table.uri.removeprefix("s3://").partition("/")[0]
    odd = ["a//b.parquet", "x/../y.parquet", "./z.parquet", "folder/", "tab\t.parquet"]
    server.fill(bucket, [f"t/{name}" for name in odd])
    server.fill(bucket, ["t2/neighbour.parquet", "t.parquet"])
    surveyed = vacuum.survey(table.snapshot(), now=LATER)
    assert surveyed.plan.files == DEAD
    vacuum.apply(table, surveyed.plan, context=RunContext.at(LATER), surveyed=surveyed)
    left = {p for batch in table.store.list_tree() for p in batch["path"].to_pylist()}
    # The files, the commit and the mark of the last vacuum.
    assert len(left) == LIVE + 2 + len(odd)


def test_ages_are_those_of_the_server(server: S3Server, table: Table) -> None:
    now = datetime.now(UTC)
    assert epoch_millis(now) - days_ago(7, now) == 7 * 86_400_000
    assert vacuum.survey(table.snapshot(), now=now).plan.files == 0
    assert vacuum.survey(table.snapshot(), now=now + timedelta(days=6.99)).plan.files == 0

"""Commits of Delta Spark on S3 that lack the mark of our log store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.operations.health import TableHealth
from delta_maintenance.policies.assess import assess
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.storage.core.paths import FileStatus
from delta_maintenance.storage.s3.client import S3Client, S3Options
from delta_maintenance.table.commit.other_writers import LOG_STORE_MARK
from tests.support.emulators.s3_server import S3Server
from tests.support.operations.table_health import health
from tests.support.tables.actions import commit_info, metadata, protocol
from tests.support.tables.policy_tables import asked
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import NOW

SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
MARK = dict([LOG_STORE_MARK])
MOST = 10


class MarkedStore(MemoryStore):
    """A store on S3 whose objects have the metadata that a test gives them."""

    def __init__(self) -> None:
        super().__init__(Address.parse("memory://spark-commits"))
        self.address = Address.parse("s3://lake/t")
        self.marked: set[int] = set()
        self.looked_at: list[int] = []

    def stat(self, path: str) -> FileStatus | None:
        status = super().stat(path)
        version = int(path.removeprefix("_delta_log/").removesuffix(".json"))
        self.looked_at.append(version)
        own = MARK if version in self.marked else {"delta-log-store": "other"}
        return None if status is None else replace(status, metadata=own)


def with_commits(engines: list[str]) -> tuple[TableBuilder, MarkedStore]:
    """A table with a commit for each letter: `m`arked or `u`nmarked Delta Spark, or `o`ther."""
    store = MarkedStore()
    for batch in list(store.list_tree()):
        store.delete_many(batch["path"].to_pylist())
    table = TableBuilder(store)
    table.commit([protocol(), metadata()])
    extend(table, store, engines)
    return table, store


def extend(table: TableBuilder, store: MarkedStore, engines: list[str]) -> None:
    for kind in engines:
        engine = "delta-rs:py-1.2.1" if kind == "o" else SPARK
        version = table.commit([commit_info("WRITE", engineInfo=engine)])
        store.marked |= {version} if kind == "m" else set()


def reported(health: TableHealth) -> int | None:
    """The version that the finding names."""
    words = " ".join(health.unsafe_commits).split()
    return int(words[words.index("version") + 1]) if words else None


def expected(engines: str) -> int | None:
    """By a regular reading of the rule: the newest unmarked commit after the first marked one."""
    spark = [(number, kind) for number, kind in enumerate(engines, 1) if kind != "o"][-MOST:]
    marked = [number for number, kind in spark if kind == "m"]
    unmarked = [number for number, kind in spark if kind == "u"]
    if not unmarked or (marked and unmarked[-1] < marked[0]):
        return None
    return unmarked[-1]


@given(st.text("muo", max_size=16), st.integers(0, 16))
def test_the_newest_unsafe_commit_is_named_and_no_older_one(engines: str, split: int) -> None:
    """Measured at once, and in two steps with the first measurement remembered."""
    whole, store = with_commits(list(engines))
    at_once = health(whole)
    assert reported(at_once) == expected(engines)
    spark = [number for number, kind in enumerate(engines, 1) if kind != "o"]
    assert sorted(store.looked_at) == spark[-MOST:], "one request for each"
    table, store = with_commits(list(engines[:split]))
    before = health(table)
    store.looked_at.clear()
    extend(table, store, list(engines[split:]))
    after = health(table, previous=before)
    assert after.spark_commits == at_once.spark_commits
    assert sorted(store.looked_at) == [n for n in spark if n > split][-MOST:]


def test_a_commit_that_is_cleaned_up_meanwhile_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, _ = with_commits(["u"])
    monkeypatch.setattr(MarkedStore, "stat", lambda *_: None)
    assert health(table).spark_commits == ()


def test_elsewhere_nothing_is_asked() -> None:
    table, store = with_commits(["u", "u"])
    store.address = Address.parse("gs://lake/t")
    assert health(table).spark_commits == () and not store.looked_at


@pytest.mark.parametrize("writers", ["conditional_put", "spark", "none", None])
def test_a_policy_reports_what_contradicts_it(writers: str | None) -> None:
    table, _ = with_commits(["m", "u"])
    assessment = assess(table.open().snapshot(), asked(other_writers=writers), now=NOW)
    notes = [note for note in assessment.notes if "without our log store" in note]
    assert len(notes) == (writers == "conditional_put")
    if notes:
        assert "version 2 " in notes[0] and SPARK in notes[0] and "2023-11-14T" in notes[0]


@pytest.fixture
def commit_as_spark(s3_server: S3Server, s3_bucket: str) -> Any:
    """Puts a commit as Delta Spark does, with or without the mark."""
    client = S3Client(S3Options.parse(s3_server.storage_options))
    table = TableBuilder(open_store(f"s3://{s3_bucket}/t", s3_server.storage_options))
    table.commit([protocol(), metadata()])

    def commit(*, mark: bool) -> TableBuilder:
        version = table.commit([commit_info("WRITE", engineInfo=SPARK)])
        target = {"Bucket": s3_bucket, "Key": f"t/_delta_log/{version:020}.json"}
        data = client.call("get_object", **target)["Body"]
        client.call("put_object", **target, Body=data, Metadata=MARK if mark else {})
        return table

    return commit


def test_the_mark_is_read_from_the_object(s3_server: S3Server, commit_as_spark: Any) -> None:
    commit_as_spark(mark=True)
    assert reported(health(commit_as_spark(mark=True))) is None
    table = commit_as_spark(mark=False)
    s3_server.requests.clear()
    seen = health(table)
    assert reported(seen) == 3
    assert [commit.is_conditional for commit in seen.spark_commits] == [False, True, True]
    assert sum(line.startswith("HEAD") for line in s3_server.requests) == 3

"""What a bucket on Google Cloud Storage keeps of deleted and replaced objects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.operations import erasure_report
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from delta_maintenance.storage.core import OldVersion
from delta_maintenance.storage.gcs.store import GCSStore
from tests.support.emulators.gcs_server import GCSServer
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
VERSIONING = {"versioning": {"enabled": True}}
DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)


@pytest.fixture
def store(gcs_server: GCSServer, gcs_bucket: str) -> Iterator[GCSStore]:
    gcs_server.page_size = 2
    store = GCSStore(Address.parse(f"gs://{gcs_bucket}/a b/t"), gcs_server.storage_options)
    yield store
    store.close()


def days_left(version: OldVersion) -> int | None:
    """The days until a version ends, rounded."""
    if version.ends_ms is None:
        return None
    return round((version.ends_ms - clock.epoch_millis(clock.now())) / DAY_MS)


def rules(*conditions: dict[str, Any], action: str = "Delete") -> dict[str, Any]:
    found = [{"action": {"type": action}, "condition": condition} for condition in conditions]
    return {"lifecycle": {"rule": found}}


def test_replaced_and_deleted_objects_are_listed_and_read(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    gcs_server.settings[gcs_bucket] = VERSIONING
    for content in (b"one", b"two", b"three"):
        store.put("x", content)
    store.put("y/é", b"four")
    store.delete("y/é")
    store.put("live", b"")
    gcs_server.fill(gcs_bucket, ["a b/other"])
    found = list(store.old_versions.list())
    assert [(each.path, each.size) for each in found] == [("x", 3), ("x", 3), ("y/é", 4)]
    assert [store.old_versions.read(each, 0, each.size - 1) for each in found] == [
        b"one",
        b"two",
        b"four",
    ]
    assert store.old_versions.read(found[2], 1, 2) == b"ou"
    assert {each.ends_ms for each in found} == {None} and "delete it there" in found[0].ends_by


@pytest.mark.parametrize(
    ("settings", "days"),
    [
        (rules({"daysSinceNoncurrentTime": 30}), (30, 30, 30)),
        (rules({"daysSinceNoncurrentTime": 30}, {"age": 10}), (10, 10, 10)),
        (rules({"age": 10, "isLive": True}), (None, None, None)),
        (rules({"daysSinceNoncurrentTime": 30}, action="SetStorageClass"), (None, None, None)),
        (rules({"daysSinceNoncurrentTime": 30, "matchesPrefix": ["other/"]}), (None, None, None)),
        (rules({"daysSinceNoncurrentTime": 30, "matchesPrefix": ["a b/"]}), (30, 30, 30)),
        (rules({"daysSinceNoncurrentTime": 30, "matchesStorageClass": ["X"]}), (None, None, None)),
        # With the live version, the second one has one newer version, and the first one two.
        (rules({"numNewerVersions": 2}), (0, None, None)),
        (rules({"numNewerVersions": 1, "isLive": False}), (0, 0, None)),
        (rules({"numNewerVersions": 1, "daysSinceNoncurrentTime": 5}), (5, 5, None)),
        (
            {
                **rules({"daysSinceNoncurrentTime": 30}),
                "softDeletePolicy": {"retentionDurationSeconds": str(7 * 86400)},
            },
            (37, 37, 37),
        ),
    ],
)
def test_rules_of_the_bucket_end_noncurrent_objects(
    gcs_server: GCSServer,
    gcs_bucket: str,
    store: GCSStore,
    settings: dict[str, Any],
    days: tuple[int | None, ...],
) -> None:
    gcs_server.settings[gcs_bucket] = VERSIONING | settings
    for content in (b"1", b"2", b"3"):
        store.put("x", content)
    store.put("y", b"4")
    store.delete("y")
    assert tuple(days_left(each) for each in store.old_versions.list()) == days


def test_without_the_right_to_read_the_bucket_no_end_is_known(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    gcs_server.settings[gcs_bucket] = VERSIONING | rules({"age": 1})
    store.put("x", b"")
    store.delete("x")
    gcs_server.hides_settings = True
    (found,) = store.old_versions.list()
    assert found.ends_ms is None and "storage.buckets.get" in found.ends_by


def test_soft_deleted_objects_cannot_be_read_and_have_an_end(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    policy = {"softDeletePolicy": {"retentionDurationSeconds": str(7 * 86400)}}
    gcs_server.settings[gcs_bucket] = policy
    for name in ("x", "y", "z"):
        store.put(name, b"gone")
        store.delete(name)
    found = list(store.old_versions.list())
    assert [(each.path, days_left(each)) for each in found] == [("x", 7), ("y", 7), ("z", 7)]
    assert all(each.problem is not None for each in found)
    gcs_server.knows_soft_delete = False
    store.put("live", b"")
    with pytest.raises(StorageError, match="does not tell which objects are soft-deleted"):
        list(store.old_versions.list())


def test_an_erasure_report_finds_rows_in_noncurrent_objects(
    gcs_server: GCSServer, gcs_bucket: str, store: GCSStore
) -> None:
    def report() -> ErasureReportResult:
        table = open_table(store.root, gcs_server.storage_options)
        plan = erasure_report.plan(table.snapshot(), ErasureReportOptions(where="id = 7"))
        found = erasure_report.apply(table, plan)
        table.store.close()
        return found

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([6, 7, 7], pa.int64())}), sink)
    data = sink.getvalue().to_pybytes()
    gcs_server.settings[gcs_bucket] = VERSIONING | rules({"daysSinceNoncurrentTime": 30})
    store.put("a.parquet", data)
    table = TableBuilder(store)
    table.commit([protocol(), metadata(schema=SCHEMA), add("a.parquet", size=len(data))])
    table.commit([remove("a.parquet")])
    store.delete("a.parquet")
    found = report()
    (total,) = found.places
    assert (total.place, total.rows) == ("old-version", 2) and total.last_end is not None
    assert abs(total.last_end - found.examined_at - timedelta(days=30)) < timedelta(minutes=5)
    gcs_server.noncurrent.clear()
    assert report().status == "erased"
    gcs_server.settings[gcs_bucket] = {"softDeletePolicy": {"retentionDurationSeconds": "86400"}}
    store.put("b.parquet", data)
    store.delete("b.parquet")
    uncertain = report()
    assert uncertain.status == "uncertain"
    assert "b.parquet: it is soft-deleted" in uncertain.not_examined[0]


@pytest.mark.parametrize(
    ("settings", "state", "days"),
    [
        ({}, "freed", None),
        ({"softDeletePolicy": {"retentionDurationSeconds": str(7 * 86400)}}, "later", 7),
        (VERSIONING, "never", None),
        (VERSIONING | rules({"numNewerVersions": 1}), "never", None),
        (VERSIONING | rules({"daysSinceNoncurrentTime": 30}), "later", 30),
        ({"storageClass": "COLDLINE"}, "later", 90),
    ],
)
def test_the_settings_of_the_bucket_say_what_a_deletion_frees(
    gcs_server: GCSServer,
    gcs_bucket: str,
    store: GCSStore,
    settings: dict[str, Any],
    state: str,
    days: int | None,
) -> None:
    gcs_server.settings[gcs_bucket] = settings
    gcs_server.requests.clear()
    found = store.bytes_of_deleted()
    assert len(gcs_server.requests) == 1
    assert (found.state, found.after) == (state, None if days is None else timedelta(days=days))


def test_unreadable_settings_of_the_bucket_do_not_say_what_a_deletion_frees(
    gcs_server: GCSServer, store: GCSStore
) -> None:
    gcs_server.hides_settings = True
    found = store.bytes_of_deleted()
    assert found.state == "unknown" and "storage.buckets.get" in found.why

"""The log of a catalog-managed table is the one that its catalog states."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.clock import instant
from delta_maintenance.errors import CorruptTableError, RefusedError, UnsupportedFeatureError
from delta_maintenance.operations import publish
from delta_maintenance.operations.health import measure
from delta_maintenance.protocol.delta_log.file_names import (
    LAST_CHECKPOINT,
    SIDECAR_DIRECTORY,
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
    uuid_checkpoint_name,
)
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.managed_log import ManagedStore
from tests.support.faults.every_fault import files_of
from tests.support.tables.actions import add
from tests.support.tables.managed import LOG, STAGED, Managed, commit_path, info, live_paths
from tests.support.tables.table_builder import log_text

_ACTIONS = st.sampled_from(
    ["ratify", "ratify", "publish", "publish", "report", "clean", "rogue", "checkpoint"]
)


@given(
    before=st.lists(_ACTIONS, max_size=25),
    meanwhile=st.lists(st.sampled_from(["ratify", "publish", "report", "clean"]), max_size=8),
)
@pytest.mark.conformance("CAT-03", "CAT-04", "CAT-07")
def test_a_snapshot_is_what_the_catalog_has_ratified(
    before: list[str], meanwhile: list[str]
) -> None:
    managed = Managed()
    follower: Table | None = None
    snapshot = None
    for action in before:
        # A rogue file is replaced by the publication of its version.
        getattr(managed, action)()
        if follower is None:
            follower = managed.table()
            snapshot = follower.snapshot()
    expected = {f"f{version}" for version in range(managed.latest + 1)}
    latest = managed.latest
    managed.meanwhile = [getattr(managed, action) for action in meanwhile]
    found = managed.table().snapshot()
    assert found.version == latest
    assert {*found.live_files()["path"].to_pylist()} == expected
    assert found.warnings == ()
    assert found.timestamp_ms == 1_000 + latest
    if follower is not None and snapshot is not None:
        assert follower.forward(snapshot).version == managed.latest
    history = managed.table().history()
    assert [entry.version for entry in history] == [*range(managed.latest, -1, -1)]


@pytest.mark.conformance("CAT-03")
def test_a_staged_commit_beats_the_published_file_of_its_version() -> None:
    managed = Managed()
    managed.ratify()
    managed.store.put(commit_path(1), log_text([info(1), add("wrong")]))
    assert live_paths(managed.table()) == {"f0", "f1"}


@pytest.mark.conformance("CAT-03")
def test_the_status_of_a_commit_is_that_of_the_file_that_is_left() -> None:
    managed = Managed()
    managed.ratify()
    store = managed.managed_store()
    for action in (lambda: None, managed.publish, managed.clean, managed.report):
        action()
        status = store.stat(commit_path(1))
        assert status is not None and status.path == commit_path(1)
        assert status.size == len(store.read(commit_path(1)))
    assert store.stat(commit_path(2)) is None


@pytest.mark.conformance("CAT-03")
def test_files_above_the_latest_version_do_not_exist() -> None:
    managed = Managed()
    managed.rogue()
    table = managed.table()
    listed = [status.path for status in table.store.list_from(LOG)]
    assert listed == [commit_path(0)]
    assert table.snapshot().version == 0


@pytest.mark.conformance("CAT-02")
def test_without_the_catalog_a_table_says_that_there_may_be_more() -> None:
    managed = Managed()
    managed.ratify()
    snapshot = managed.builder.open().snapshot()
    assert snapshot.version == 0
    assert "open the table by its name" in snapshot.warnings[0]


_WRITES: dict[str, Callable[[ManagedStore, str], object]] = {
    "put": lambda store, path: store.put(path, b""),
    "put_if_absent": lambda store, path: store.put_if_absent(path, b""),
    "create": lambda store, path: store.create(path),
    "delete": lambda store, path: store.delete(path),
    "delete_many": lambda store, path: store.delete_many([path]),
    "delete_unchanged": lambda store, path: store.delete_unchanged(pa.table({"path": [path]})),
    "remove_empty_directory": lambda store, path: store.remove_empty_directory(path),
}


@pytest.mark.conformance("CAT-01")
@pytest.mark.parametrize("name", _WRITES)
def test_a_file_that_only_the_catalog_permits_is_not_written(name: str) -> None:
    managed = Managed()
    managed.ratify()
    store = managed.managed_store()
    log = [f"{LOG}/{name}" for name in (commit_name(2), "_guarded.x", "sub/x.checkpoint.parquet")]
    staged = f"{STAGED}/{managed.listed[0].file_name}"
    unlisted = f"elsewhere/{classic_checkpoint_name(0)}"
    before = files_of(managed.store)
    for path in ("a", commit_path(1), staged, unlisted, *log):
        with pytest.raises(UnsupportedFeatureError, match="wait for a release that commits thr"):
            _WRITES[name](store, path)
    assert files_of(managed.store) == before


@pytest.mark.conformance("CAT-05")
def test_a_derived_file_is_written_for_published_versions_only() -> None:
    managed = Managed()
    for _ in range(3):
        managed.ratify()
    managed.publish()
    store = managed.managed_store()
    names = (
        classic_checkpoint_name,
        lambda version: uuid_checkpoint_name(version, managed.listed[0].file_name[21:-5], "json"),
        lambda version: compaction_name(0, version),
    )
    for name_of in names:
        path = f"{LOG}/{name_of(1)}"
        assert store.put_if_absent(path, b"1") is Put.DONE
        assert managed.store.read(path) == b"1"
        for version in (2, 3, 4):
            path = f"{LOG}/{name_of(version)}"
            for write in ("put_if_absent", "create"):
                with pytest.raises(RefusedError, match="not published; run publish"):
                    _WRITES[write](store, path)
            assert managed.store.stat(path) is None
    with store.create(f"{LOG}/{SIDECAR_DIRECTORY}/any.parquet") as file:
        file.write(b"2")
    store.put(f"{LOG}/{LAST_CHECKPOINT}", b"3")
    assert store.put_if_absent(f"{LOG}/{checksum_name(3)}", b"4") is Put.DONE
    with pytest.raises(RefusedError, match="not published"):
        store.put_if_absent(f"{LOG}/{checksum_name(4)}", b"5")
    managed.publish()
    store.put(f"{LOG}/{classic_checkpoint_name(2)}", b"6")


def test_health_counts_the_backlog_of_publication() -> None:
    managed = Managed()
    for _ in range(5):
        managed.ratify()
    managed.publish()
    managed.publish()
    now = instant(5_000)
    health = measure(managed.table().snapshot(), now=now)
    assert health.unpublished_commits == 3
    assert health.unreported_commits == 5
    assert health.oldest_unreported_commit == instant(1_001)
    assert health.facts()["publication backlog"] == (
        "3 commits not published, 5 not reported to the catalog as published, of 10 that it accepts"
    )
    assert health.warnings == ()
    managed.report()
    health = measure(managed.table().snapshot(), now=now)
    assert (health.unpublished_commits, health.unreported_commits) == (3, 3)
    assert health.oldest_unreported_commit == instant(1_003)
    assert measure(managed.builder.open().snapshot(), now=now).unpublished_commits is None


def test_health_warns_before_the_catalog_refuses_further_commits() -> None:
    managed = Managed()
    for _ in range(7):
        managed.ratify()
        managed.publish()
    assert measure(managed.table().snapshot(), now=instant(5_000)).warnings == ()
    managed.ratify()
    managed.publish()
    # All are published, and none is reported.
    health = measure(managed.table().snapshot(), now=instant(5_000))
    assert (health.unpublished_commits, health.unreported_commits) == (0, 8)
    [warning] = health.warnings
    assert warning == (
        "8 commits are not reported to the catalog as published, and from 10 on it refuses further "
        "ones: run publish"
    )
    for _ in range(2):
        managed.ratify()
    [warning] = measure(managed.table().snapshot(), now=instant(5_000)).warnings
    assert warning == (
        "10 commits are not reported to the catalog as published, so it refuses further ones, and "
        "writers wait: run publish"
    )
    assert publish.apply(managed.table(), publish.plan(managed.table())).status == "published"
    assert measure(managed.table().snapshot(), now=instant(5_000)).warnings == ()


def test_health_names_clean_ups_that_nobody_asked_for() -> None:
    managed = Managed()
    managed.ratify()
    managed.publish()
    managed.builder.checkpoint()
    managed.store.delete(commit_path(0))
    now = instant(5_000)
    [warning] = measure(managed.table().snapshot(), now=now).warnings
    assert warning.startswith("another writer deleted the commits before version 1, which its ")
    assert "Delta Spark up to 4.4.0" in warning
    managed.allowed = frozenset(("METADATA_CLEANUP",))
    assert measure(managed.table().snapshot(), now=now).warnings == ()
    *_, by_path = measure(managed.builder.open().snapshot(), now=now).warnings
    assert "unless its catalog permitted that" in by_path


def test_a_large_staged_file_that_was_cut_after_a_line_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    managed = Managed()
    managed.ratify()
    staged = f"{STAGED}/{managed.listed[0].file_name}"
    data = managed.store.read(staged)
    # Large commits are read in pieces.
    monkeypatch.setattr("delta_maintenance.table.read.log_reader._PIECE_BYTES", 10)
    assert managed.table().snapshot().version == 1
    managed.store.put(staged, data.partition(b"\n")[0] + b"\n")
    with pytest.raises(CorruptTableError, match=f"instead of {len(data)}"):
        managed.table().snapshot()

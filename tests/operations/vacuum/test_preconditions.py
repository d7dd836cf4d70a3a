"""The retention of a vacuum, and tables that it refuses."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from delta_maintenance.address import Address
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from tests.support.operations.vacuum_cases import VECTOR, WEEK_MS, removed
from tests.support.tables.actions import add, deletion_vector, features, metadata, protocol, remove
from tests.support.tables.vacuum_tables import NOW, Folder, paths_of

SHORT = {"allow_short_retention": True, "no_other_writers": True}


# Retention


@pytest.mark.conformance("VAC-07")
@pytest.mark.parametrize(("younger_ms", "goes"), [(1, True), (0, False), (-1, False)])
def test_the_retention_is_exact_to_the_millisecond(younger_ms: int, goes: bool) -> None:
    table = Folder()
    instant = epoch_millis(NOW) - WEEK_MS - younger_ms
    table.log(add("removed.parquet"))
    table.commit([remove("removed.parquet", deletionTimestamp=instant)], at_ms=instant)
    table.file("removed.parquet")
    table.at(instant, "young.parquet")
    assert table.going() == ({"removed.parquet", "young.parquet"} if goes else set())


@pytest.mark.conformance("VAC-07")
def test_retention_comes_from_the_table_and_is_shortened_by_two_flags_alone() -> None:
    first = [
        protocol(),
        metadata(configuration={"delta.deletedFileRetentionDuration": "interval 30 days"}),
    ]
    table = Folder(first=first)
    table.file("twenty.parquet", days=20)
    table.file("forty.parquet")
    assert table.going() == {"forty.parquet"}
    ten = timedelta(days=10)
    for flags in ({}, {"allow_short_retention": True}, {"no_other_writers": True}):
        with pytest.raises(RefusedError, match="shorter than 30 days"):
            table.survey(retention=ten, **flags)
    assert table.going(retention=ten, **SHORT) == {"forty.parquet", "twenty.parquet"}
    with pytest.raises(InvalidRequestError, match="negative"):
        table.survey(retention=-ten, **SHORT)


@pytest.mark.conformance("VAC-07")
def test_a_table_that_keeps_less_than_a_week_keeps_a_week_unless_both_flags_say_so() -> None:
    first = [
        protocol(),
        metadata(configuration={"delta.deletedFileRetentionDuration": "interval 1 hour"}),
    ]
    table = Folder(first=first)
    table.file("two.parquet", days=2)
    planned = table.survey()
    assert paths_of(planned) == set() and planned.plan.retention == timedelta(days=7)
    assert any("are kept nevertheless" in note for note in planned.plan.notes)
    assert table.going(**SHORT) == {"two.parquet"}


@pytest.mark.conformance("VAC-07")
def test_a_property_that_cannot_be_read_stops_the_run() -> None:
    configuration = {"delta.deletedFileRetentionDuration": "forever"}
    table = Folder(first=[protocol(), metadata(configuration=configuration)])
    with pytest.raises(RefusedError, match="cannot be read"):
        table.survey()


@pytest.mark.conformance("VAC-07")
def test_a_longer_retention_is_verified_with_commits() -> None:
    table = Folder()
    table.log(add("a.parquet"), add("b.parquet"))
    table.log(removed("a.parquet", 35), days=35)
    table.log(removed("b.parquet", 20), days=20)
    table.file("a.parquet", "b.parquet")
    # As other engines write it: tombstones of more than a week are left out.
    table.checkpoint(actions=[a for a in table.state() if "remove" not in a])
    assert table.going() == {"a.parquet", "b.parquet"}
    month = timedelta(days=30)
    assert table.going(retention=month) == {"a.parquet"}
    table.drop(*(f"{version:020}.json" for version in range(3)))
    with pytest.raises(RefusedError, match="does not cover"):
        table.survey(retention=month)


@pytest.mark.conformance("VAC-21")
def test_kept_versions_keep_their_files_and_deletion_vectors() -> None:
    """deltalake 1.6.6 keeps the data files alone (D1)."""
    table = Folder(first=[features("deletionVectors"), metadata()])
    version = table.log(add("a.parquet", dv=deletion_vector()), add("b.parquet"))
    table.log(removed("a.parquet", 30, dv=deletion_vector()), removed("b.parquet", 30), days=30)
    table.file("a.parquet", "b.parquet", VECTOR, "c.parquet")
    assert table.going() == {"a.parquet", "b.parquet", VECTOR, "c.parquet"}
    assert table.going(keep_versions=(version,)) == {"c.parquet"}
    with pytest.raises(VersionNotFoundError):
        table.survey(keep_versions=(77,))


# Gates


@pytest.mark.conformance("VAC-01")
@pytest.mark.parametrize(
    "names", [["fooBar"], ["vacuumProtocolCheck", "fooBar"], ["catalogManaged"]]
)
def test_an_unknown_writer_feature_stops_the_run(names: list[str]) -> None:
    known = [name for name in names if name != "fooBar"]
    extra = ["inCommitTimestamp"] if "catalogManaged" in names else ["fooBar"]
    table = Folder(first=[features(*known, writer_only=extra), metadata()])
    table.file("dead.parquet")
    with pytest.raises(UnsupportedFeatureError):
        table.survey()


@pytest.mark.conformance("VAC-02")
def test_vacuum_protocol_check_needs_no_other_support() -> None:
    table = Folder(first=[features("vacuumProtocolCheck"), metadata()])
    table.file("dead.parquet")
    assert table.vacuum().deleted == 1


def test_a_missing_live_file_stops_the_run() -> None:
    table = Folder()
    table.log(add("here.parquet"), add("p=1/gone%20.parquet"))
    table.file("here.parquet", "dead.parquet")
    with pytest.raises(CorruptTableError, match="is missing") as raised:
        table.survey()
    assert raised.value.file == "p=1/gone%20.parquet"
    assert table.going(ignore_missing_files=True) == {"dead.parquet"}


def test_live_files_in_hidden_folders_or_elsewhere_are_not_missing(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.log(add("_hidden/a.parquet"), add("file:/elsewhere/b.parquet"))
    table.file("_hidden/a.parquet", "dead.parquet")
    assert paths_of(table.survey()) == {"dead.parquet"}


def test_more_than_half_of_a_table_is_removed_only_if_allowed() -> None:
    table = Folder()
    table.log(add("live.parquet"))
    table.file("live.parquet", *(f"dead-{number}.parquet" for number in range(1001)))
    planned = table.survey()
    assert planned.plan.large == "1,001 files would be deleted, and 1 are live"
    with pytest.raises(RefusedError, match="1,001 files"):
        table.vacuum(planned)
    assert len(table.files()) == 1002
    assert table.vacuum(allow_large_delete=True).deleted == 1001


@pytest.mark.parametrize("root", ["memory", "s3://bucket", "s3://bucket/", "/"])
def test_the_root_of_a_store_is_refused(root: str) -> None:
    from delta_maintenance.operations.vacuum.deletion import require_deletable_root

    store = MemoryStore()
    store.address = Address.parse(root)
    if root == "memory":
        require_deletable_root(store)
        return
    with pytest.raises(RefusedError, match="root of a store"):
        require_deletable_root(store)


def test_a_plan_is_valid_for_an_hour_and_clocks_must_agree() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()
    for later in (timedelta(minutes=61), timedelta(minutes=-61)):
        with pytest.raises(RefusedError, match="an hour"):
            vacuum.apply(
                table.open(), planned.plan, context=RunContext.at(NOW + later), surveyed=planned
            )
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW) + 301_000
    with pytest.raises(RefusedError, match="clocks"):
        vacuum.apply(table.open(), planned.plan, context=RunContext.at(NOW), surveyed=planned)
    assert "dead.parquet" in table.files()


@pytest.mark.parametrize("name", ["s3-mirror/t", "s3/t", "s3a"])
def test_a_local_folder_named_like_an_s3_address_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder(name).survey().plan.logs_commits

"""What a vacuum deletes, what it leaves alone, and why."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vacuum_tables import NOW, Folder, days_ago, named_memory, operations, paths_of

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CommitConflictError,
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.vacuum import VacuumPlan, VacuumResult
from delta_maintenance.operations.vacuum import engine as vacuum_engine
from delta_maintenance.operations.vacuum.report import write_report
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.testing.actions import (
    OMIT,
    add,
    cdc,
    commit_info,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from delta_maintenance.testing.table_builder import LOG, TableBuilder

WEEK_MS = 7 * 86_400_000
VECTOR = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
"""The file of `actions.deletion_vector()`."""
CLOCK_CHECK = "delta_maintenance.operations.vacuum.operation.require_same_clock"
SHORT = {"allow_short_retention": True, "no_other_writers": True}


def removed(path: str, days: float, **fields: Any) -> Any:
    return remove(path, deletionTimestamp=days_ago(days), **fields)


# What is protected


@pytest.mark.conformance("VAC-03", "VAC-06", "VAC-20")
def test_only_what_nothing_refers_to_and_is_old_goes() -> None:
    table = Folder()
    table.log(add("live.parquet"), add("p=1/old.parquet"), add("p=1/recent.parquet"))
    table.log(removed("p=1/old.parquet", 9), days=9)
    table.log(removed("p=1/recent.parquet", 3), days=3)
    table.file("live.parquet", "p=1/old.parquet", "p=1/recent.parquet", "p=2/never.parquet")
    table.file("p=2/fresh.parquet", days=1)
    before = table.files()
    planned = table.survey()
    assert paths_of(planned) == {"p=1/old.parquet", "p=2/never.parquet"}
    groups = {group.reason: group.samples[0].path for group in planned.plan.groups}
    assert groups == {"expired-tombstone": "p=1/old.parquet", "unreferenced": "p=2/never.parquet"}
    kept = {group.why.partition(":")[0]: group.count for group in planned.plan.kept}
    assert kept["in use"] == 2 and kept["young"] == 1
    assert table.files() == before and table.version == 3, "a plan changes nothing"
    result = table.vacuum(planned)
    assert (result.status, result.deleted, result.bytes) == ("vacuumed", 2, 2)
    assert before - table.files() == paths_of(planned)
    assert table.vacuum().status == "nothing-to-do"


@pytest.mark.conformance("VAC-04", "VAC-05")
@pytest.mark.parametrize("shape", ["u", "u without prefix", "p", "p by another address"])
def test_deletion_vectors_of_live_files_stay(shape: str) -> None:
    """deltalake 1.6.6 deletes them with default settings (D1)."""
    table = Folder(
        named_memory("memory://vectors/t"), first=[features("deletionVectors"), metadata()]
    )
    plain = VECTOR.rpartition("/")[2]
    vector, file = {
        "u": (deletion_vector(), VECTOR),
        "u without prefix": (deletion_vector("^-aqEH.-t@S}K{vb[*k^"), plain),
        "p": (deletion_vector("memory://vectors/t/x%20y/v.bin", storage_type="p"), "x y/v.bin"),
        "p by another address": (
            deletion_vector(f"hdfs://somewhere/{plain}", storage_type="p"),
            plain,
        ),
    }[shape]
    table.log(add("a.parquet", dv=vector), add("b.parquet", dv={**vector, "offset": 90}))
    table.log(removed("b.parquet", 20, dv={**vector, "offset": 90}), days=20)
    table.file("a.parquet", "b.parquet", file)
    assert table.going() == {"b.parquet"}
    table.log(removed("a.parquet", 3, dv=vector), days=3)
    assert table.going() == {"b.parquet"}, "the tombstone of three days keeps both"
    table.now += timedelta(days=5)
    assert table.going(foreign_files=True) == {"a.parquet", "b.parquet", file}


@pytest.mark.conformance("VAC-04", "VAC-18")
def test_replaced_deletion_vectors_go_and_the_file_they_were_of_stays() -> None:
    table = Folder(first=[features("deletionVectors"), metadata()])
    new = deletion_vector("cd^-aqEH.-t@S}K{vb[*k^")
    table.log(add("a.parquet", dv=deletion_vector()))
    table.log(removed("a.parquet", 20, dv=deletion_vector()), add("a.parquet", dv=new), days=20)
    table.file("a.parquet", VECTOR, VECTOR.replace("ab/", "cd/"))
    for mode in ("full", "lite"):
        assert table.going(mode=mode) == {VECTOR}, mode


@pytest.mark.conformance("VAC-16")
def test_a_tombstone_of_a_deletion_vector_file_protects_it() -> None:
    table = Folder()
    table.log(removed(VECTOR, 2, dataChange=False), days=2)
    table.file(VECTOR)
    assert table.going() == set()
    table.now += timedelta(days=6)
    assert table.going() == {VECTOR}


@pytest.mark.conformance("VAC-08", "FILE-10")
def test_a_tombstone_without_a_time_is_as_old_as_its_commit() -> None:
    table = Folder()
    table.log(add("young.parquet"), add("old.parquet"))
    table.log(remove("old.parquet", deletionTimestamp=OMIT), days=20)
    table.log(remove("young.parquet", deletionTimestamp=OMIT), days=2)
    table.file("young.parquet", "old.parquet")
    assert table.going() == {"old.parquet"}
    table.checkpoint()
    planned = table.survey()
    assert paths_of(planned) == set(), "a checkpoint no longer tells which commit it was"
    assert "have no deletion time" in planned.plan.notes[0]


@pytest.mark.conformance("VAC-09", "FILE-01")
@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("a%20b.parquet", "a b.parquet"),
        ("a b.parquet", "a b.parquet"),
        ("a%2520b.parquet", "a%20b.parquet"),
        ("p=a%253Ab/x.parquet", "p=a%3Ab/x.parquet"),
        ("p=%C3%BC/x.parquet", "p=ü/x.parquet"),
        ("50%.parquet", "50%.parquet"),
        ("x%zz.parquet", "x%zz.parquet"),
        ("a%20b.parquet", "a%20b.parquet"),
        ("memory://paths/t/x.parquet", "x.parquet"),
        ("memory://paths/t/p=1/a%20b.parquet", "p=1/a b.parquet"),
        ("memory://paths/t/p=1/a%20b.parquet", "p=1/a%20b.parquet"),
        ("memory:/paths/t/x%23y.parquet", "x#y.parquet"),
        ("sub/../x.parquet", "x.parquet"),
        ("./x.parquet", "x.parquet"),
        ("a//x.parquet", "a/x.parquet"),
        ("%2e%2e/t/x.parquet", "x.parquet"),
        ("s3://an-alias-of-this-bucket/t/x.parquet", "x.parquet"),
        ("u\u0308.parquet", "\u00fc.parquet"),
        ("%C3%9C.parquet", "ü.parquet"),
        ("Data.parquet", "data.parquet"),
    ],
)
def test_a_live_file_is_protected_however_its_path_is_spelt(written: str, stored: str) -> None:
    """deltalake 1.6.6 deletes a live file whose path is absolute (D7)."""
    store = named_memory("memory://paths/t")
    table = Folder(store)
    table.log(add(written))
    table.file(stored, "dead.parquet")
    assert table.going() == {"dead.parquet"}
    table.log(removed(written, 3), days=3)
    assert table.going() == {"dead.parquet"}, "by its tombstone too"


@pytest.mark.conformance("VAC-09")
def test_an_absolute_path_counts_under_every_address_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real place"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    for number, address in enumerate(("link", "./link", str(tmp_path / "link"), str(real))):
        for existing in real.rglob("*"):
            if existing.is_file():
                existing.unlink()
        table = Folder(address)
        table.log(
            add(f"file:{str(real).replace(' ', '%20')}/one.parquet"),
            add(f"file://{tmp_path}/link/two.parquet"),
            add(f"{real}/three.parquet"),
        )
        table.file("one.parquet", "two.parquet", "three.parquet", "dead.parquet")
        assert table.going() == {"dead.parquet"}, (number, address)


@pytest.mark.conformance("VAC-09")
def test_the_live_file_wins_over_an_expired_tombstone_of_its_path() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.log(removed("a.parquet", 30), days=30)
    table.log(add("a.parquet"), days=20)
    table.file("a.parquet")
    assert table.going() == set() == table.going(mode="lite")


@pytest.mark.conformance("FILE-03")
def test_two_spellings_of_one_file_stop_the_run() -> None:
    table = Folder(named_memory("memory://spellings/t"))
    table.log(add("file:/elsewhere/x.parquet"))
    table.log(removed("file:///elsewhere/x.parquet", 30), days=30)
    table.file("x.parquet")
    with pytest.raises(RefusedError, match="two spellings"):
        table.survey()


# What is not looked at


@pytest.mark.conformance("VAC-10", "VAC-11", "VAC-12", "VAC-14")
def test_hidden_names_foreign_files_and_the_log_stay() -> None:
    """deltalake 1.6.6 looks at the first segment of a path only (D7)."""
    table = Folder(first=[protocol(), metadata(partitioned_by=["_x"])])
    stay = {
        "_tmp/a.parquet",
        "sub/_tmp/z.parquet",
        "sub/.hidden/z.parquet",
        "sub/.z.parquet",
        "_x/plain.parquet",
        "_y=1/x.parquet",
        "_x=1/_success.parquet",
        "_delta_index/bloom.parquet",
        "sub/_change_data/x.parquet",
        "metadata/v1.metadata.json",
        "readme.txt",
        "p=1/part-0.csv",
        "x.parquet.tmp",
        "deletion_vector_1.bin",
    }
    go = {"_x=1/a.parquet", "sub/_x=2/b.PARQUET", "_change_data/_x=1/cdc-0.parquet", VECTOR}
    table.file(*stay, *go)
    table.file(f"{LOG}/_sidecars/lost.parquet", f"{LOG}/x.parquet")
    assert table.going() == go
    foreign = {"metadata/v1.metadata.json", "readme.txt", "p=1/part-0.csv", "x.parquet.tmp"}
    assert table.going(foreign_files=True) == {*go, *foreign, "deletion_vector_1.bin"}


@pytest.mark.conformance("VAC-14", "ICE-01")
@pytest.mark.parametrize(
    "configuration",
    [
        {"delta.universalFormat.enabledFormats": "hudi,iceberg"},
        {"delta.enableIcebergCompatV2": "true"},
    ],
)
def test_the_metadata_of_iceberg_stays(configuration: dict[str, str]) -> None:
    listed = features(writer_only=["icebergCompatV2", "columnMapping"])
    first = [listed, metadata(configuration={"delta.columnMapping.mode": "name", **configuration})]
    table = Folder(first=first)
    table.file("metadata/v1.metadata.json", "metadata/snap.avro", "metadata/m.parquet")
    assert table.going(foreign_files=True) == set()
    plain = Folder()
    plain.file("metadata/m.parquet")
    assert plain.going() == {"metadata/m.parquet"}


@pytest.mark.conformance("VAC-10")
@pytest.mark.parametrize(
    "name", ["sub/inner/_delta_log/0.json", "s/_Delta_Log/x", "_x=1/_delta_log/y"]
)
def test_a_table_inside_the_table_stops_the_run(name: str) -> None:
    table = Folder(first=[protocol(), metadata(partitioned_by=["_x"])])
    table.file("dead.parquet", name)
    with pytest.raises(RefusedError, match="another table inside"):
        table.survey()


def test_a_table_in_a_hidden_folder_is_no_hindrance() -> None:
    table = Folder()
    table.file("dead.parquet", "_copies/t/_delta_log/0.json", "_copies/t/x.parquet")
    assert table.going() == {"dead.parquet"}


@pytest.mark.conformance("VAC-10", "VAC-12")
def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.parquet").write_bytes(b"x")
    table = Folder(tmp_path / "t")
    table.file("p=1/dead.parquet", "q/dead.parquet")
    root = tmp_path / "t"
    (root / "linked").symlink_to(outside)
    (root / "p=1" / "link.parquet").symlink_to(outside / "theirs.parquet")
    (root / "q" / "inward").symlink_to(root / "p=1")
    planned = table.survey()
    assert paths_of(planned) == {"p=1/dead.parquet", "q/dead.parquet"}
    assert ("links and other things that are no files", 3) in [
        (group.why, group.count) for group in planned.plan.kept
    ]
    for directory in ("p=1", "q"):
        table.touch(directory, days_ago(40))
    assert table.survey().found.directories == (), "a link in it keeps a directory"
    assert _apply(table, planned).deleted == 2
    assert (outside / "theirs.parquet").exists() and (root / "q" / "inward").is_symlink()


@pytest.mark.conformance("VAC-06")
@pytest.mark.parametrize("modified_ms", [0, -5, 1, epoch_millis(NOW) + 10**9])
def test_files_of_unknown_or_future_age_stay(modified_ms: int) -> None:
    table = Folder()
    table.at(modified_ms, "odd.parquet")
    assert table.going() == ({"odd.parquet"} if modified_ms == 1 else set())


@pytest.mark.conformance("VAC-13", "CDC-03")
def test_change_data_ages_by_its_files_and_lives_where_it_is_added() -> None:
    table = Folder()
    table.log(
        cdc("_change_data/a.parquet"), cdc("_change_data/b.parquet"), add("_change_data/b.parquet")
    )
    table.file("_change_data/a.parquet", "_change_data/b.parquet")
    table.file("_change_data/new.parquet", days=6.9)
    for mode in ("full", "lite"):
        planned = table.survey(mode=mode)
        assert paths_of(planned) == {"_change_data/a.parquet"}
        assert [group.reason for group in planned.plan.groups] == ["change-data"]


def test_hadoop_checksums_go_with_their_files() -> None:
    table = Folder()
    table.log(add("live.parquet"))
    table.file("live.parquet", ".live.parquet.crc", "p/dead.parquet", "p/.dead.parquet.crc")
    table.file("p/.other.parquet.crc", "q/.dead.parquet.crc")
    assert table.going() == {"p/dead.parquet", "p/.dead.parquet.crc"}


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
def test_more_than_the_tables_retention_is_proved_by_commits() -> None:
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
    with pytest.raises(RefusedError, match="does not go back"):
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
def test_vacuum_protocol_check_needs_nothing_else() -> None:
    table = Folder(first=[features("vacuumProtocolCheck"), metadata()])
    table.file("dead.parquet")
    assert table.vacuum().deleted == 1


def test_a_live_file_that_is_not_there_stops_the_run() -> None:
    table = Folder()
    table.log(add("here.parquet"), add("p=1/gone%20.parquet"))
    table.file("here.parquet", "dead.parquet")
    with pytest.raises(CorruptTableError, match="not there") as raised:
        table.survey()
    assert raised.value.file == "p=1/gone%20.parquet"
    assert table.going(ignore_missing_files=True) == {"dead.parquet"}


def test_live_files_in_hidden_folders_or_elsewhere_are_not_missing(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.log(add("_hidden/a.parquet"), add("file:/elsewhere/b.parquet"))
    table.file("_hidden/a.parquet", "dead.parquet")
    assert paths_of(table.survey()) == {"dead.parquet"}


def test_more_than_half_of_a_table_goes_only_where_that_is_allowed() -> None:
    table = Folder()
    table.log(add("live.parquet"))
    table.file("live.parquet", *(f"dead-{number}.parquet" for number in range(1001)))
    planned = table.survey()
    assert planned.plan.large == "1001 files would be deleted, and 1 are live"
    with pytest.raises(RefusedError, match="1001 files"):
        table.vacuum(planned)
    assert len(table.files()) == 1002
    assert table.vacuum(allow_large_delete=True).deleted == 1001


@pytest.mark.parametrize("root", ["memory", "s3://bucket", "s3://bucket/", "/"])
def test_no_store_as_a_whole_is_a_table(root: str) -> None:
    from delta_maintenance.operations.vacuum.deletion import require_deletable_root

    store = MemoryStore()
    store.root = root
    if root == "memory":
        require_deletable_root(store)
        return
    with pytest.raises(RefusedError, match="whole store"):
        require_deletable_root(store)


def test_a_plan_holds_for_an_hour_and_clocks_must_agree() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()
    for later in (timedelta(minutes=61), timedelta(minutes=-61)):
        with pytest.raises(RefusedError, match="an hour"):
            vacuum.apply(table.open(), planned.plan, now=NOW + later, surveyed=planned)
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW) + 301_000
    with pytest.raises(RefusedError, match="clocks"):
        vacuum.apply(table.open(), planned.plan, now=NOW, surveyed=planned)
    assert "dead.parquet" in table.files()


# Commits


@pytest.mark.conformance("VAC-19", "ICT-01")
@pytest.mark.parametrize("in_commit", [False, True])
def test_start_and_end_are_committed_as_delta_spark_does(in_commit: bool) -> None:
    configuration = {"delta.appendOnly": "true"}
    listed = protocol()
    if in_commit:
        listed = features(writer_only=["inCommitTimestamp", "appendOnly"])
        configuration["delta.enableInCommitTimestamps"] = "true"
    first = [
        commit_info(inCommitTimestamp=days_ago(60)),
        listed,
        metadata(configuration=configuration),
    ]
    table = Folder(first=first)
    table.file("dead.parquet", "p/dead.parquet", data=b"four")
    result = table.vacuum(retention=timedelta(days=8))
    (_, start), (_, end) = operations(table)[-2:]
    assert [name for name, _ in operations(table)[-2:]] == ["VACUUM START", "VACUUM END"]
    assert start["operationParameters"] == {
        "retentionCheckEnabled": "true",
        "defaultRetentionMillis": str(WEEK_MS),
        "specifiedRetentionMillis": str(WEEK_MS // 7 * 8),
    }
    assert start["operationMetrics"] == {"numFilesToDelete": "2", "sizeOfDataToDelete": "8"}
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": "2", "numVacuumedDirectories": "0"}
    assert (result.start_version, result.end_version, result.version) == (1, 2, 2)
    for version in (1, 2):
        lines = table.read(f"{version:020}.json").splitlines()
        assert [list(json.loads(line)) for line in lines] == [["commitInfo"]]
        assert ("inCommitTimestamp" in json.loads(lines[0])["commitInfo"]) is in_commit


@pytest.mark.conformance("VAC-19")
def test_no_commit_where_there_is_nothing_to_do_or_none_is_wanted() -> None:
    table = Folder()
    assert table.vacuum().status == "nothing-to-do"
    table.file("dead.parquet")
    result = table.vacuum(log_commits=False)
    assert result.deleted == 1 and (result.start_version, result.end_version) == (None, None)
    assert table.open().snapshot().version == 0


class Stubborn(MemoryStore):
    """Does not delete what has `stuck` in its name."""

    tries = 0

    def delete(self, path: str) -> None:
        if "stuck" in path:
            self.tries += 1
            raise StorageAccessError("access denied", file=path)
        super().delete(path)


@pytest.mark.conformance("VAC-19")
def test_what_cannot_be_deleted_is_named_and_the_end_says_so() -> None:
    store = Stubborn()
    table = Folder(store)
    table.file("stuck.parquet", "free.parquet", "p/free.parquet")
    result = table.vacuum()
    assert (result.status, result.deleted, result.failed) == ("partly", 2, 1)
    assert result.failures == ("stuck.parquet: access denied",) and store.tries == 2
    assert table.files() == {"stuck.parquet"}
    (_, end) = operations(table)[-1]
    assert end["operationParameters"] == {"status": "FAILED"}
    assert end["operationMetrics"]["numDeletedFiles"] == "2"


def test_a_round_of_which_nothing_goes_is_the_last() -> None:
    store = Stubborn()
    table = Folder(store)
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"stuck-{number:05}.parquet" for number in range(4001)))
    result = table.vacuum(allow_large_delete=True)
    assert result.failed == 4000 and len(result.failures) == 20
    assert result.stopped is not None and "nothing could be deleted" in result.stopped


def test_plans_and_results_travel_as_json() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey(keep_versions=(0,), retention=timedelta(days=9))
    assert VacuumPlan.from_json(json.loads(json.dumps(planned.plan.to_json()))) == planned.plan
    result = table.vacuum(planned)
    assert VacuumResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_plan_alone_is_carried_out_as_it_was_made() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = VacuumPlan.from_json(table.survey().plan.to_json())
    table.file("young.parquet", days=6.99)
    assert isinstance(table.store, MemoryStore)
    later = NOW + timedelta(minutes=50)
    table.store.now_ms = lambda: epoch_millis(later)
    assert vacuum.apply(table.open(), planned, now=later).deleted == 1
    assert table.files() == {"young.parquet"}


# Directories


@pytest.mark.conformance("VAC-15")
def test_old_directories_go_bottom_up_where_nothing_is_in_them(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("a/b/c/dead.parquet", "d/dead.parquet", "d/e/live.parquet", "_tmp/x/dead.parquet")
    table.log(add("d/e/live.parquet"))
    (tmp_path / "empty" / "nested").mkdir(parents=True)
    (tmp_path / "fresh").mkdir()
    table.file("writing/now.parquet", days=0)
    for path in ("a/b/c", "a/b", "a", "d", "d/e", "empty/nested", "empty", "writing", "_tmp"):
        table.touch(path, days_ago(40))
    planned = table.survey()
    assert set(planned.found.directories) == {"a", "a/b", "a/b/c", "empty", "empty/nested"}
    # Somebody is quicker: what is no longer empty stays, with all above it.
    table.file("a/late.parquet", days=0)
    result = _apply(table, planned)
    assert result.directories == 4
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert left == {"a", "d", "d/e", "writing", "fresh", "_tmp", "_tmp/x", LOG}


@pytest.mark.conformance("VAC-15")
def test_a_directory_that_has_just_changed_stays(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("p=1/dead.parquet")
    planned = table.survey()
    assert planned.found.directories == () and _apply(table, planned).deleted == 1
    assert (tmp_path / "p=1").is_dir()


def _apply(table: Folder, planned: vacuum.Survey) -> VacuumResult:
    """On a disk, whose clock is the real one: only the clock of the check is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLOCK_CHECK, lambda *_, **__: None)
        return vacuum.apply(table.open(), planned.plan, now=table.now, surveyed=planned)


@pytest.mark.conformance("VAC-17")
def test_a_file_that_has_changed_since_it_was_listed_stays(tmp_path: Path) -> None:
    table = Folder(tmp_path)
    table.file("a.parquet", "b.parquet", "c.parquet")
    planned = table.survey()
    table.file("a.parquet", data=b"of another size")
    table.file("b.parquet", days=39)
    result = _apply(table, planned)
    assert table.files() == {"a.parquet", "b.parquet"} and result.status == "partly"
    assert all("has changed" in failure for failure in result.failures)


# By the log alone


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_names_each_file_once_and_goes_on_where_it_ended() -> None:
    """deltalake 1.6.6 leaves deletion vectors, and names a path twice (D10)."""
    first = [features("deletionVectors"), metadata()]
    table = Folder(first=first)
    table.log(
        add("a.parquet"), add("b.parquet", dv=deletion_vector()), cdc("_change_data/c.parquet")
    )
    table.log(removed("a.parquet", 35), days=35)
    table.log(add("a.parquet"), days=34)
    table.log(removed("a.parquet", 30), removed("b.parquet", 30, dv=deletion_vector()), days=30)
    last = table.log(add("e.parquet"), days=25)
    table.log(removed("e.parquet", 2), days=2)
    table.file("a.parquet", "b.parquet", VECTOR, "_change_data/c.parquet", "e.parquet", "x.parquet")
    planned = table.survey(mode="lite")
    assert paths_of(planned) == {"a.parquet", "b.parquet", VECTOR, "_change_data/c.parquet"}
    assert (planned.plan.first_commit, planned.plan.last_commit) == (0, last)
    assert any("never were in the table" in note for note in planned.plan.notes)
    assert table.vacuum(planned).deleted == 4
    info = json.loads(table.read("_last_vacuum_info"))
    assert info == {"latestCommitVersionOutsideOfRetentionWindow": last}
    again = table.survey(mode="lite")
    assert again.plan.last_commit is None and "no commit" in again.plan.reason
    table.now += timedelta(days=6)
    later = table.survey(mode="lite")
    assert paths_of(later) == {"e.parquet"} and later.plan.first_commit == last + 1
    assert table.files() == {"e.parquet", "x.parquet"}


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_needs_every_commit_since_the_last_one() -> None:
    table = Folder()
    table.log(add("a.parquet"))
    table.log(removed("a.parquet", 30), days=30)
    table.log(commit_info(), days=20)
    table.checkpoint()
    table.drop(*(f"{version:020}.json" for version in (0, 1)))
    table.file("a.parquet")
    for info in (None, b"{}", b"garbage", b'{"latestCommitVersionOutsideOfRetentionWindow":0}'):
        if info is not None:
            table.write("_last_vacuum_info", info)
        with pytest.raises(RefusedError, match="before version 2 are gone"):
            table.survey(mode="lite")
    table.write("_last_vacuum_info", b'{"latestCommitVersionOutsideOfRetentionWindow":1}')
    assert table.going(mode="lite") == {"a.parquet"}


@pytest.mark.conformance("VAC-18")
def test_the_mode_lite_does_not_record_what_it_could_not_delete() -> None:
    table = Folder(Stubborn())
    table.log(add("stuck.parquet"), add("a.parquet"))
    table.log(removed("stuck.parquet", 30), removed("a.parquet", 30), days=30)
    table.file("stuck.parquet", "a.parquet")
    assert table.vacuum(mode="lite").status == "partly"
    assert "_last_vacuum_info" not in table.names()


def test_paths_of_the_log_never_lead_out_of_the_table(tmp_path: Path) -> None:
    """Delta Spark's VACUUM LITE joins them to the root as they are."""
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"x")
    table = Folder(tmp_path / "t")
    hostile = ["../victim.parquet", "%2e%2e/victim.parquet", "a/../../victim.parquet"]
    hostile += [f"file:{victim}", "_delta_log/0.json", f"{LOG}/{0:020}.json", "~/x", "a\\b", "%00"]
    table.log(*(add(path) for path in hostile))
    table.log(*(removed(path, 30) for path in hostile), days=30)
    planned = table.survey(mode="lite", ignore_missing_files=True)
    assert paths_of(planned) == set() and victim.exists()


# By an inventory


def inventory(rows: list[tuple[str, int, bool, int]]) -> pa.Table:
    path, length, is_dir, modified = zip(*rows, strict=True)
    columns = {"path": path, "length": length, "isDir": is_dir, "modificationTime": modified}
    return pa.table(columns)


@pytest.mark.parametrize("form", ["file", "folder", "delta"])
def test_an_inventory_says_what_may_be_there_and_the_store_what_is(
    tmp_path: Path, form: str
) -> None:
    table = Folder(tmp_path / "t")
    table.log(add("live.parquet"))
    table.file("live.parquet", "p=1/dead one.parquet", "q/dead.parquet", "unlisted.parquet")
    table.file("young.parquet", days=1)
    root = tmp_path / "t"
    rows = [
        ("live.parquet", 1, False, 1),
        (f"{root}/p=1/dead one.parquet", 1, False, 1),
        (f"file:{root}/q/dead.parquet", 1, False, 1),
        (f"{root}/p=1", 0, True, 1),
        ("young.parquet", 1, False, 1),
        ("gone.parquet", 1, False, 1),
        ("/elsewhere/x.parquet", 1, False, 1),
        (f"{LOG}/{0:020}.json", 1, False, 1),
    ]
    place = tmp_path / "inventory"
    place.mkdir()
    pq.write_table(inventory(rows[:4]), place / "a.parquet")
    pq.write_table(inventory(rows[4:]), place / "b.parquet")
    address = str(place)
    if form == "file":
        pq.write_table(inventory(rows), tmp_path / "all.parquet")
        address = str(tmp_path / "all.parquet")
    if form == "delta":
        listed = TableBuilder(str(place))
        listed.commit([protocol(), metadata(), add("a.parquet"), add("b.parquet")])
    planned = table.survey(mode="inventory", inventory=address)
    assert paths_of(planned) == {"p=1/dead one.parquet", "q/dead.parquet"}
    assert {row["size"] for row in planned.found.files().to_pylist()} == {1}


def test_an_inventory_without_a_column_is_refused(tmp_path: Path) -> None:
    table = Folder(tmp_path / "t")
    pq.write_table(pa.table({"path": ["a"], "isDir": [False]}), tmp_path / "i.parquet")
    with pytest.raises(InvalidRequestError, match="no column length"):
        table.survey(mode="inventory", inventory=str(tmp_path / "i.parquet"))
    with pytest.raises(StorageError):
        table.survey(mode="inventory", inventory=str(tmp_path / "none.parquet"))
    with pytest.raises(InvalidRequestError, match="go together"):
        table.survey(inventory="x")


# The report


def test_the_report_has_the_exact_list(tmp_path: Path) -> None:
    table = Folder(tmp_path / "t")
    table.file("a.parquet", "b/ü.parquet")
    planned = table.survey()
    write_report(planned.found.batches(), str(tmp_path / "report.parquet"), table=table.store)
    rows = pq.read_table(tmp_path / "report.parquet").to_pylist()
    assert {(row["path"], row["size"], row["reason"]) for row in rows} == {
        ("a.parquet", 1, "unreferenced"),
        ("b/ü.parquet", 1, "unreferenced"),
    }
    for place in (tmp_path / "report.parquet", tmp_path / "t" / "report.parquet"):
        with pytest.raises(RefusedError):
            write_report(planned.found.batches(), str(place), table=table.store)


# Others at work


@pytest.mark.conformance("VAC-17")
def test_a_commit_between_listing_and_reading_the_log_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    table.file("back.parquet", "dead.parquet")
    snapshot = table.open().snapshot()
    list_folder = vacuum_engine.list_folder

    def listing(*arguments: Any) -> pa.Table:
        entries = list_folder(*arguments)
        table.log(add("back.parquet"), days=0)
        return entries

    monkeypatch.setattr(vacuum_engine, "list_folder", listing)
    planned = vacuum.survey(snapshot, now=NOW)
    assert paths_of(planned) == {"dead.parquet"} and planned.plan.version == 1


@pytest.mark.conformance("VAC-17")
@pytest.mark.parametrize(
    "path", ["back.parquet", "%62ack.parquet", "memory://others/t/back.parquet", "BACK.parquet"]
)
def test_a_commit_between_plan_and_deletion_wins(path: str) -> None:
    table = Folder(named_memory("memory://others/t"))
    table.file("back.parquet", "dead.parquet")
    planned = table.survey()
    table.log(add(path), days=0)
    result = table.vacuum(planned)
    assert (result.deleted, result.spared, result.status) == (1, 1, "vacuumed")
    assert table.files() == {"back.parquet"}


@pytest.mark.conformance("VAC-17")
def test_the_log_is_read_before_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Folder()
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"dead-{number:05}.parquet" for number in range(9000)))
    planned = table.survey(ignore_missing_files=True, allow_large_delete=True)
    steps: list[int] = []

    def progress(_: str, done: int, __: int | None) -> None:
        steps.append(done)
        if len(steps) == 1:
            table.log(add("dead-08999.parquet"), add("dead-04000.parquet"), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(table.open(), planned.plan, now=NOW, surveyed=planned, progress=progress)
    assert (result.deleted, result.spared, result.lost) == (8998, 2, ())
    assert table.files() == {"dead-08999.parquet", "dead-04000.parquet"} and len(steps) == 4


def test_files_that_come_back_after_their_deletion_are_told() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()

    def progress(*_: Any) -> None:
        table.log(add("dead.parquet"), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(table.open(), planned.plan, now=NOW, surveyed=planned, progress=progress)
    assert result.status == "partly" and result.lost == ("dead.parquet",)


@pytest.mark.conformance("VAC-01", "VAC-17")
@pytest.mark.parametrize(
    "change",
    [
        metadata(configuration={"delta.deletedFileRetentionDuration": "interval 99 days"}),
        metadata(partitioned_by=["part"]),
        features(writer_only=["fooBar"]),
    ],
)
def test_a_change_of_the_rules_on_the_way_stops_the_run(change: Any) -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey(log_commits=False)
    table.log(change, days=0)
    with pytest.raises((RefusedError, UnsupportedFeatureError)):
        table.vacuum(planned)
    assert table.files() == {"dead.parquet"}


def test_a_change_half_way_is_told_with_what_was_done() -> None:
    table = Folder()
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"dead-{number:05}.parquet" for number in range(4001)))
    planned = table.survey(ignore_missing_files=True, allow_large_delete=True)

    def progress(*_: Any) -> None:
        table.log(metadata(partitioned_by=["part"]), days=0)

    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    result = vacuum.apply(table.open(), planned.plan, now=NOW, surveyed=planned, progress=progress)
    assert (result.status, result.deleted) == ("partly", 4000)
    assert result.stopped is not None and "has just changed" in result.stopped
    _, end = operations(table)[-1]
    assert end["operation"] == "VACUUM END" and end["operationParameters"] == {"status": "FAILED"}


def test_two_runs_at_once_do_no_harm() -> None:
    table = Folder()
    table.log(add("live.parquet"))
    table.file("live.parquet", "a.parquet", "b.parquet")
    one, other = table.survey(), table.survey()
    assert table.vacuum(one).deleted == 2
    assert table.vacuum(other).deleted == 2, "gone is gone, whoever did it"
    assert table.files() == {"live.parquet"}


def test_a_start_that_cannot_be_committed_deletes_nothing() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey()
    table.log(features(writer_only=["typeWidening"]), days=0)
    with pytest.raises((CommitConflictError, RefusedError, UnsupportedFeatureError)):
        table.vacuum(planned)
    assert table.files() == {"dead.parquet"}


@pytest.mark.parametrize("name", ["s3-mirror/t", "s3/t", "s3a"])
def test_a_local_folder_whose_name_begins_like_an_address_of_s3_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder(name).survey().plan.logs_commits

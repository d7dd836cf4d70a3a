"""Files that a vacuum may delete, protects or ignores."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.vacuum import VacuumPlan, engine
from tests.support.operations.vacuum_cases import VECTOR, removed
from tests.support.tables.actions import (
    OMIT,
    add,
    cdc,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.table_builder import LOG
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago, named_memory, paths_of

# Protected files.


@pytest.mark.conformance("VAC-03", "VAC-06", "VAC-20")
def test_only_old_unreferenced_files_are_deleted() -> None:
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
    assert kept == {"live": 1, "in retention": 1, "recent": 1, "hidden": 4}
    assert table.files() == before and table.version == 3, "a plan changes nothing"
    result = table.vacuum(planned)
    assert (result.status, result.deleted, result.bytes) == ("vacuumed", 2, 2)
    assert before - table.files() == paths_of(planned)
    assert table.vacuum().status == "nothing-to-do"


def test_a_plan_that_deletes_nothing_because_of_holders_says_so() -> None:
    table = Folder()
    table.log(add("live.parquet"), add("old.parquet"))
    table.log(removed("old.parquet", 9), days=9)
    table.file("live.parquet", "old.parquet")
    planned = table.survey(keep_versions=(1,)).plan
    assert planned.is_noop and planned.reason.startswith("holders keep 1 unreferenced file from")
    assert [(held.holder, held.files) for held in planned.held] == [("--keep-version 1", 1)]
    kept = {group.why.partition(":")[0]: group.count for group in planned.kept}
    assert (kept["live"], kept["held"]) == (1, 1)
    assert table.survey().plan.files == 1


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
def test_replaced_deletion_vectors_are_deleted_and_their_data_files_kept() -> None:
    table = Folder(first=[features("deletionVectors"), metadata()])
    new = deletion_vector("cd^-aqEH.-t@S}K{vb[*k^")
    table.log(add("a.parquet", dv=deletion_vector()))
    table.log(removed("a.parquet", 20, dv=deletion_vector()), add("a.parquet", dv=new), days=20)
    table.file("a.parquet", VECTOR, VECTOR.replace("ab/", "cd/"))
    for mode in ("full", "lite"):
        assert table.going(mode=mode) == {VECTOR}, mode


@pytest.mark.conformance("VAC-04", "VAC-18")
def test_a_replaced_deletion_vector_with_an_absolute_path_is_deleted_in_every_mode() -> None:
    table = Folder(
        named_memory("memory://vectors/t"), first=[features("deletionVectors"), metadata()]
    )
    inside, outside = (
        deletion_vector(f"memory://vectors/{folder}/x%20y/v.bin", storage_type="p")
        for folder in ("t", "other")
    )
    table.log(add("a.parquet", dv=inside), add("b.parquet", dv=outside))
    table.log(
        *(
            line
            for name, vector in (("a.parquet", inside), ("b.parquet", outside))
            for line in (removed(name, 20, dv=vector), add(name))
        ),
        days=20,
    )
    table.file("a.parquet", "b.parquet", "x y/v.bin")
    for mode in ("full", "lite"):
        assert table.going(mode=mode) == {"x y/v.bin"}, mode


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
    with pytest.raises(CorruptTableError, match="two different paths"):
        table.survey()


def test_paths_of_live_files_are_kept_only_to_find_missing_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[bool] = []
    read: Any = engine.read_references

    def reading(*given: Any, **options: Any) -> Any:
        references, problem = read(*given, **options)
        kept.append(bool(references.live))
        assert references.num_live == 1
        return references, problem

    monkeypatch.setattr(engine, "read_references", reading)
    table = Folder()
    table.log(add("a.parquet"))
    table.file("a.parquet")
    for options in ({}, {"ignore_missing_files": True}, {"mode": "lite"}):
        table.survey(**options)
    assert kept == [True, False, False]


# Ignored files.


@pytest.mark.conformance("VAC-10", "VAC-11", "VAC-12", "VAC-14")
def test_hidden_names_foreign_files_and_the_log_stay() -> None:
    """deltalake 1.6.6 only checks the first segment of a path (D7)."""
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
def test_the_metadata_of_iceberg_is_kept(configuration: dict[str, str]) -> None:
    listed = features(writer_only=["icebergCompatV2", "columnMapping"])
    table = Folder(first=[listed, metadata(configuration=configuration)])
    table.file("metadata/snap.avro", "metadata/m.parquet")
    table.store.put("metadata/v1.metadata.json", b'{"properties":{"delta-version":"0"}}')
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
    with pytest.raises(RefusedError, match="another table"):
        table.survey()


def test_a_table_in_a_hidden_folder_is_no_hindrance_and_keeps_its_files() -> None:
    table = Folder()
    inner = "_copies/t/x.parquet"
    table.log(add(inner), add("_copies/y.parquet"))
    table.log(removed(inner, 30), removed("_copies/y.parquet", 30), days=30)
    table.file("dead.parquet", "_copies/t/_delta_log/0.json", inner, "_copies/y.parquet")
    assert table.going() == {"dead.parquet", "_copies/y.parquet"}


@pytest.mark.conformance("VAC-11", "VAC-18")
@pytest.mark.parametrize("mode", ["full", "lite"])
@pytest.mark.parametrize("pruned", [False, True])
def test_removed_files_are_data_files_whatever_their_names(
    tmp_path: Path, mode: str, pruned: bool
) -> None:
    """The table was partitioned by `_g`, and another writer names its files without a suffix."""
    now = clock.now()
    table = Folder(tmp_path / "t", now=now, first=[protocol(), metadata(partitioned_by=["_g"])])

    def removed(path: str, days: float) -> Any:
        return remove(path, deletionTimestamp=days_ago(days, now))

    gone = ["_g=1/_x/0.parquet", "_g=2/.1.parquet", "_2.parquet", "plain", "_g=3/%C3%BC.parquet"]
    stay = {"_g=1/live.parquet", "_g=1/_x/recent.parquet", "_g=1/stray.parquet", "notes", "_g=9/y"}
    table.log(*(add(path) for path in gone), cdc("_change_data/_g=1/c.parquet"))
    table.log(add("_g=1/live.parquet"), add("_g=1/_x/recent.parquet"), days=39)
    table.log(metadata(), *(removed(path, 30) for path in gone), days=30)
    table.log(removed("_g=1/_x/recent.parquet", 3), days=3)
    places = {path.replace("%C3%BC", "ü") for path in gone} | {"_change_data/_g=1/c.parquet"}
    table.file(*places, *stay)
    table.file("_g=1/_x/.0.parquet.crc", "_g=1/.live.parquet.crc", "_delta_log/0.parquet")
    if pruned:
        # The tombstones are dropped, and only the retained commits know the names.
        table.checkpoint(2)
    planned = table.survey(mode=mode)
    assert paths_of(planned) == places | ({"_g=1/_x/.0.parquet.crc"} if mode == "full" else set())
    assert table.vacuum(planned).status == "vacuumed"
    assert stay <= table.files() and not places & table.files()


@pytest.mark.conformance("VAC-06")
@pytest.mark.parametrize("modified_ms", [0, -5, 1, epoch_millis(NOW) + 10**9])
def test_files_of_unknown_or_future_age_stay(modified_ms: int) -> None:
    table = Folder()
    table.at(modified_ms, "odd.parquet")
    assert table.going() == ({"odd.parquet"} if modified_ms == 1 else set())


@pytest.mark.conformance("VAC-13", "CDC-03")
def test_change_data_expires_by_file_time_unless_it_is_live() -> None:
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


def test_a_plan_names_the_folders_with_the_most_bytes_to_delete() -> None:
    table = Folder()
    for day in range(12):
        for number in range(day + 1):
            table.file(f"day={day:02}/{number}.parquet", days=30 + number, data=b"x" * 10)
    table.file("x.parquet", days=50, data=b"x" * 1_000)
    plan = table.survey().plan
    assert [folder.folder for folder in plan.folders] == [
        "",
        *(f"day={day:02}" for day in range(11, 2, -1)),
    ]
    first, second, *_ = plan.folders
    assert (first.count, first.bytes, first.oldest) == (1, 1_000, first.newest)
    assert (second.count, second.bytes) == (12, 120)
    assert second.oldest is not None and second.newest is not None
    assert second.newest - second.oldest == timedelta(days=11)
    facts = VacuumPlan.from_json(plan.to_json()).facts()
    assert str(facts["in day=11"]).startswith("12 files (120 B) of 20")
    assert "in the folder of the table" in facts
    assert not Folder().survey().plan.folders

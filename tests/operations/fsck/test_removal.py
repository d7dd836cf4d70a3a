"""Removal of entries whose files are missing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from delta_maintenance.address import Address
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.protocol.delta_log import checksum_name, commit_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from tests.support.operations.fsck_runs import NOW, REPAIR, files_of, outcomes, run
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import CONFIGURATION, SoundTable

REMOVE = FsckOptions(remove_missing_files=True)


@pytest.mark.conformance("FILE-05", "FILE-09", "CDC-02")
def test_entries_without_their_files_are_removed_in_one_commit() -> None:
    table = SoundTable(configuration={"delta.enableChangeDataFeed": "true"})
    adds = {path: table.live(path) for path in ("c", "b")}
    for path in adds:
        table.store.delete(path)

    result = run(table, REMOVE)

    assert outcomes(result) == {"remove-missing-files": "done"}
    (outcome,) = result.repairs
    assert (outcome.version, outcome.count) == (5, 2)
    assert result.status == "sound"
    info, *removes = [json.loads(line) for line in table.read(commit_name(5)).splitlines()]
    assert info["commitInfo"]["operation"] == "FSCK"
    assert info["commitInfo"]["operationParameters"]["numRemovedFiles"] == "2"
    found = {action["remove"]["path"]: action["remove"] for action in removes}
    for path, add in adds.items():
        remove = found[path]
        assert remove["dataChange"] is True
        assert remove["extendedFileMetadata"] is True
        repeated = ("size", "partitionValues", "baseRowId", "deletionVector", "stats")
        assert [remove.get(name) for name in repeated] == [add.get(name) for name in repeated]
    paths = table.open().snapshot().live_files()["path"].to_pylist()
    assert paths == ["d%20e"]
    assert run(table, REMOVE).repairs == ()
    plan = fsck.plan(table.open(), REMOVE, context=RunContext.at(NOW))
    assert plan.is_noop


def test_the_plan_notes_deletes_in_the_change_data_feed() -> None:
    table = SoundTable(configuration={"delta.enableChangeDataFeed": "true"})
    table.store.delete("c")

    plan = fsck.plan(table.open(), REMOVE, context=RunContext.at(NOW))

    assert any("change data feed" in note for note in plan.notes)
    (repair,) = plan.repairs
    assert repair.paths == ("c",)


@pytest.mark.conformance("CRC-05")
def test_version_checksums_continue_after_the_removes() -> None:
    table = SoundTable()
    table.store.delete("b")

    run(table, REMOVE)

    assert checksum_name(5) in table.names()
    assert run(table).status == "sound"


@pytest.mark.conformance("DV-11")
def test_an_entry_with_only_its_vector_missing_is_not_touched() -> None:
    table = SoundTable()
    table.store.delete(table.vector_path)
    before = files_of(table)

    result = run(table, FsckOptions(repair=True, remove_missing_files=True))

    assert (result.status, result.repairs) == ("corrupt", ())
    assert files_of(table) == before


@pytest.mark.conformance("CONS-01")
def test_an_append_only_table_takes_a_second_flag() -> None:
    table = SoundTable(configuration={"delta.appendOnly": "true"})
    table.store.delete("c")
    before = files_of(table)

    result = run(table, REMOVE)

    assert (result.status, result.repairs) == ("corrupt", ())
    assert any("append-only" in note for note in result.notes)
    assert files_of(table) == before

    result = run(table, FsckOptions(remove_missing_files=True, allow_append_only=True))

    assert outcomes(result) == {"remove-missing-files": "done"}
    assert (result.status, result.version) == ("sound", 6)
    snapshots = [table.open().snapshot(version=version) for version in (4, 5, 6)]
    assert [s.properties.append_only for s in snapshots] == [True, False, True]
    assert snapshots[0].metadata == snapshots[2].metadata
    assert table.open().snapshot().live_files().num_rows == 2


@pytest.mark.conformance("CONS-01")
@pytest.mark.parametrize("options", [REPAIR, REMOVE])
def test_a_later_run_restores_append_only_after_a_crash(options: FsckOptions) -> None:
    table = SoundTable(extras=False, configuration={"delta.appendOnly": "true"})
    configuration = CONFIGURATION | {"delta.appendOnly": "false"}
    table.step(
        log.metadata(configuration=configuration),
        operation="FSCK",
        operationParameters={"suspendedProperty": "delta.appendOnly"},
    )

    result = run(table, options)

    assert outcomes(result) == {"restore-append-only": "done"}
    assert table.open().snapshot().properties.append_only
    assert run(table, options).repairs == ()


def test_files_that_come_back_are_not_removed() -> None:
    table = SoundTable()
    data = table.store.read("c")
    table.store.delete("c")
    table.store.delete("b")
    plan = fsck.plan(table.open(), REMOVE, context=RunContext.at(NOW))
    surveyed = fsck.survey(table.open(), REMOVE, now=NOW)
    table.store.put("c", data)

    result = fsck.apply(table.open(), plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert [outcome.count for outcome in result.repairs] == [1]
    assert sorted(table.open().snapshot().live_files()["path"].to_pylist()) == ["c", "d%20e"]


def test_a_plan_is_carried_out_only_as_far_as_it_would_still_be_made() -> None:
    table = SoundTable()
    table.store.delete("c")
    plan = fsck.plan(table.open(), REMOVE, context=RunContext.at(NOW))
    table.step(log.remove("c", size=table.live("c")["size"]))

    result = fsck.apply(table.open(), plan, context=RunContext.at(NOW))

    assert result.repairs == ()
    assert table.open().latest_version() == 5


class RacedStore(MemoryStore):
    """Lets another writer commit directly before a commit of ours."""

    race: Callable[[], object] | None = None

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.race is not None and b'"FSCK"' in data:
            race, self.race = self.race, None
            race()
        return super().put_if_absent(path, data)


@pytest.mark.parametrize("theirs", ["append", "the same remove", "another vector"])
def test_concurrent_commits_during_the_removal(theirs: str) -> None:
    store = RacedStore()
    table = SoundTable(store)
    races: dict[str, Callable[[], object]] = {
        "append": lambda: table.step(table.data("new"), table.mark(), isBlindAppend=True),
        "the same remove": lambda: table.step(log.remove("c")),
        "another vector": lambda: table.step(
            log.remove("c"), {"add": {**table.live("c"), "deletionVector": table.vector}}
        ),
    }
    table.store.delete("c")
    store.race = races[theirs]

    result = run(table, REMOVE)

    (outcome,) = result.repairs
    live = table.open().snapshot().live_files()["path"].to_pylist()
    if theirs == "append":
        assert (outcome.status, outcome.version) == ("done", 6)
        assert sorted(live) == ["b", "d%20e", "new"]
    else:
        assert outcome.status == "failed"
        assert ("c" in live) == (theirs == "another vector")
        assert result.status == ("corrupt" if "c" in live else "sound")


def test_on_s3_the_other_writers_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SoundTable(extras=False)
    table.store.delete("c")
    monkeypatch.setattr(table.store, "address", Address.parse("s3://bucket/table"))

    assert outcomes(run(table, REMOVE)) == {"remove-missing-files": "refused"}

    options = FsckOptions(remove_missing_files=True, other_writers="conditional_put")
    assert outcomes(run(table, options)) == {"remove-missing-files": "done"}

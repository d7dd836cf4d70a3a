"""The fsck operation: what it proposes, what it puts right, and what it leaves alone and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sound_tables import CONFIGURATION, SoundTable

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import checkpoint, fsck
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan, FsckResult
from delta_maintenance.protocol.delta_log.file_names import (
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    multipart_checkpoint_name,
)
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)
REPAIR = FsckOptions(repair=True)
REMOVE = FsckOptions(remove_missing_files=True)
MANIFEST = "00000000000000000003.checkpoint.00000000-0000-4000-8000-000000000000.json"


def run(
    table: SoundTable | Table, options: FsckOptions | None = None, *, now: datetime = NOW
) -> FsckResult:
    opened = table if isinstance(table, Table) else table.open()
    plan = fsck.plan(opened, options, now=now)
    # What travels is the JSON of the plan.
    return fsck.apply(opened, FsckPlan.from_json(json.loads(json.dumps(plan.to_json()))), now=now)


def files_of(table: SoundTable) -> dict[str, bytes]:
    store = table.store
    assert isinstance(store, MemoryStore)
    paths = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    return {path: store.read(path) for path in paths}


def states(table: SoundTable) -> list[Any]:
    """Every version, as it opens."""
    found = []
    for version in range(table.open().latest_version() + 1):
        snapshot = table.open().snapshot(version=version)
        live = snapshot.live_files().to_pylist()
        found.append((snapshot.state, sorted(live, key=lambda row: str(row["path"]))))
    return found


def outcomes(result: FsckResult) -> dict[str, str]:
    return {outcome.action: outcome.status for outcome in result.repairs}


def test_a_sound_table_is_sound_and_is_left_as_it_is() -> None:
    table = SoundTable()
    before = files_of(table)

    result = run(table, FsckOptions(deep=True, repair=True, remove_missing_files=True))

    assert (result.status, result.findings, result.repairs) == ("sound", (), ())
    assert result.version == 4
    assert fsck.plan(table.open(), now=NOW).reason == "no problem was found"
    assert files_of(table) == before


def test_looking_changes_nothing_whatever_is_found() -> None:
    table = SoundTable()
    table.truncate(classic_checkpoint_name(1), -9)
    table.store.delete("c")
    table.hint("{")
    before = files_of(table)

    result = run(table)

    assert result.status == "corrupt"
    assert {count.kind: count.count for count in result.counts} == {
        "unreadable-checkpoint": 1,
        "missing-data-file": 1,
        "damaged-hint": 1,
    }
    assert result.num_corrupt == 2
    assert files_of(table) == before


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        (FsckOptions(deep=True), "local"),
        (FsckOptions(deep=True, engine="local", auto_spark_files=0), "local"),
        # Four data files and a deletion vector.
        (FsckOptions(deep=True, auto_spark_files=6), "local"),
        (FsckOptions(deep=True, auto_spark_files=5), "spark"),
        (FsckOptions(deep=True, engine="spark"), "spark"),
        (FsckOptions(engine="spark"), "local"),
    ],
)
def test_files_are_left_to_spark_where_they_are_many(
    options: FsckOptions, engine: str, tmp_path: Path
) -> None:
    table = SoundTable()
    table.step(table.data("e"), table.mark())
    table.store.put("c", b"x" * len(table.store.read("c")))
    report = tmp_path / "report.parquet"

    plan = fsck.survey(table.open(), options, now=NOW, report=str(report)).plan

    opened = options.deep and engine == "local"
    assert plan.engine == engine
    assert [count.kind for count in plan.counts] == ["unreadable-data-file"] * opened
    if engine == "spark":
        assert plan.notes[0] == (
            "5 data files and deletion vectors are to be opened by a Spark job"
        )
        assert (plan.report, report.exists()) == (None, False)
        with pytest.raises(InvalidRequestError, match="the plan is for Spark"):
            fsck.apply(table.open(), plan, now=NOW)
    else:
        assert report.exists()
        assert fsck.apply(table.open(), plan, now=NOW).counts == plan.counts


def test_a_plan_for_this_process_is_carried_out_in_it_however_many_files_there_are() -> None:
    table = SoundTable(extras=False)
    table.hint(77)
    options = FsckOptions(deep=True, repair=True, auto_spark_files=6)
    plan = fsck.plan(table.open(), options, now=NOW)
    table.step(table.data("e"), table.data("f"), table.data("g"), table.mark())
    table.store.put("f", b"x" * len(table.store.read("f")))

    result = fsck.apply(table.open(), plan, now=NOW)

    assert outcomes(result) == {"remove-hint": "done"}
    assert [count.kind for count in result.counts] == ["unreadable-data-file"]


def test_the_worst_finding_gives_the_status() -> None:
    table = SoundTable(extras=False)
    table.write("strange", b"x")
    assert run(table).status == "sound"
    table.hint("{")
    assert run(table).status == "warnings"
    table.store.delete("c")
    assert run(table).status == "corrupt"


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("hint", [b"{", b"", b'{"version":2,"size":1}', b'{"version":77,"size":1}'])
def test_a_bad_hint_is_led_to_the_newest_good_checkpoint(hint: bytes) -> None:
    table = SoundTable()
    table.drop(multipart_checkpoint_name(2, 1, 2))
    table.hint(hint)

    result = run(table, REPAIR)

    assert outcomes(result) == {"rewrite-hint": "done"}
    found = parse_hint(table.read("_last_checkpoint"))
    assert found is not None
    assert (found.version, found.v2_path) == (3, MANIFEST)
    assert run(table, REPAIR).repairs == ()


def test_a_hint_without_any_checkpoint_is_deleted() -> None:
    table = SoundTable(extras=False)
    table.hint(77)

    result = run(table, REPAIR)

    assert outcomes(result) == {"remove-hint": "done"}
    assert result.status == "sound"
    assert "_last_checkpoint" not in table.names()


def test_a_hint_repaired_by_another_process_is_not_touched() -> None:
    table = SoundTable()
    table.hint("{")
    plan = fsck.plan(table.open(), REPAIR, now=NOW)
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.hint(1)

    result = fsck.apply(table.open(), plan, now=NOW, surveyed=surveyed)

    assert outcomes(result) == {"rewrite-hint": "already-done"}
    assert json.loads(table.read("_last_checkpoint"))["version"] == 1


def _spoilt(name: str, *, differs: bool, extras: bool = True) -> SoundTable:
    table = SoundTable(extras=extras)
    version = int(name[:20])
    if not differs:
        table.truncate(name, -9)
    elif ".json" in name:
        table.v2_checkpoint(version, actions=[a for a in table.state(version) if "txn" not in a])
    else:
        parts = 2 if name != classic_checkpoint_name(version) else 1
        state = [a for a in table.state(version) if "add" not in a]
        table.checkpoint(version, actions=state, parts=parts)
    return table


NAMES = (classic_checkpoint_name(1), multipart_checkpoint_name(2, 1, 2), MANIFEST)


@pytest.mark.conformance("LOG-10", "CKPT-32")
@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_checkpoint_is_written_anew_from_a_whole_log(name: str, differs: bool) -> None:
    table = _spoilt(name, differs=differs)
    commits = {n: data for n, data in files_of(table).items() if n.endswith(".json")}
    good = states(SoundTable())

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert result.status == "sound"
    assert states(table) == good
    (outcome,) = result.repairs
    new = outcome.reason
    assert new is not None
    assert new.removeprefix("_delta_log/") in table.names()
    if name == NAMES[0]:
        assert new.endswith(name)
    else:
        assert name not in table.names()
    assert all(files_of(table)[n] == data for n, data in commits.items() if "checkpoint" not in n)
    assert run(table, REPAIR).repairs == ()


def test_a_missing_sidecar_makes_a_checkpoint_that_is_written_anew() -> None:
    table = SoundTable()
    sidecar = next(name for name in files_of(table) if "_sidecars/" in name)
    table.store.delete(sidecar)

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "done"}
    assert result.status == "sound"
    # The others of the old one are left to clean-log.
    assert {count.kind for count in result.counts} == {"orphan-sidecar"}


@pytest.mark.parametrize("differs", [False, True])
def test_without_a_whole_log_a_bad_checkpoint_stays(differs: bool) -> None:
    table = _spoilt(MANIFEST, differs=differs)
    table.drop(commit_name(0), commit_name(1), classic_checkpoint_name(1), commit_name(2))
    table.drop(*(multipart_checkpoint_name(2, part, 2) for part in (1, 2)))
    before = files_of(table)

    result = run(table, REPAIR)

    assert result.repairs == ()
    if differs:
        # With nothing older to hold it against, nobody can know.
        assert "checkpoint-differs" not in {count.kind for count in result.counts}
    else:
        assert result.status == "corrupt"
        assert any("the log before it is incomplete" in note for note in result.notes)
    assert files_of(table) == before


@pytest.mark.parametrize("differs", [False, True])
def test_behind_another_checkpoint_only_an_unreadable_one_is_replaced(differs: bool) -> None:
    """Of two that contradict each other either may be right, if neither goes back to version 0."""
    table = _spoilt(MANIFEST, differs=differs)
    table.drop(commit_name(0))
    before = files_of(table)

    result = run(table, REPAIR)

    if differs:
        assert result.repairs == ()
        assert any("nothing proves whether" in note for note in result.notes)
        assert files_of(table) == before
    else:
        assert outcomes(result) == {"replace-checkpoint": "done"}
        assert states_from(table, 1) == states(SoundTable())[1:]


def states_from(table: SoundTable, first: int) -> list[Any]:
    found = []
    for version in range(first, table.open().latest_version() + 1):
        snapshot = table.open().snapshot(version=version)
        live = snapshot.live_files().to_pylist()
        found.append((snapshot.state, sorted(live, key=lambda row: str(row["path"]))))
    return found


def test_the_only_checkpoint_a_log_rests_on_is_never_touched() -> None:
    table = SoundTable()
    table.drop(commit_name(0))
    table.truncate(classic_checkpoint_name(1), -9)
    table.drop(*(multipart_checkpoint_name(2, part, 2) for part in (1, 2)), MANIFEST)
    table.drop("_last_checkpoint")
    before = files_of(table)

    result = run(table, REPAIR)

    assert (result.status, result.repairs) == ("corrupt", ())
    assert files_of(table) == before


def test_an_empty_checkpoint_is_deleted_once_it_is_old_and_then_written() -> None:
    table = SoundTable(extras=False)
    name = classic_checkpoint_name(2)
    table.write(name, b"")
    before = states(table)
    plan = checkpoint.plan(table.open().snapshot(version=2), now=NOW)
    with pytest.raises(RefusedError, match="run fsck --repair"):
        checkpoint.apply(table.open(), plan)

    young = run(table, REPAIR, now=NOW - timedelta(hours=30))
    assert (young.repairs, table.read(name)) == ((), b"")
    assert any("day old" in note for note in young.notes)
    result = run(table, REPAIR)

    assert outcomes(result) == {"remove-empty-checkpoint": "done"}
    assert result.status == "sound"
    assert checkpoint.apply(table.open(), plan).status == "written"
    assert states(table) == before


def test_an_empty_checkpoint_that_its_writer_finished_is_not_touched() -> None:
    table = SoundTable(extras=False)
    name = classic_checkpoint_name(2)
    table.write(name, b"")
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.checkpoint(2)
    theirs = table.read(name)

    result = fsck.apply(table.open(), surveyed.plan, now=NOW, surveyed=surveyed)

    assert outcomes(result) == {"remove-empty-checkpoint": "already-done"}
    assert table.read(name) == theirs


def test_a_checkpoint_replaced_in_the_meantime_is_not_touched() -> None:
    table = _spoilt(NAMES[0], differs=False)
    surveyed = fsck.survey(table.open(), REPAIR, now=NOW)
    table.checkpoint(1)
    theirs = table.read(NAMES[0])

    result = fsck.apply(table.open(), surveyed.plan, now=NOW, surveyed=surveyed)

    assert outcomes(result) == {"replace-checkpoint": "already-done"}
    assert table.read(NAMES[0]) == theirs


def test_features_that_forbid_deleting_from_the_log_forbid_the_repair() -> None:
    table = SoundTable(extras=False)
    table.step(
        log.features(
            "catalogManaged",
            "vacuumProtocolCheck",
            "deletionVectors",
            writer_only=["inCommitTimestamp", "domainMetadata", "rowTracking"],
        )
    )
    table.checkpoint()
    table.truncate(classic_checkpoint_name(5), -9)
    before = files_of(table)

    result = run(table, REPAIR)

    assert outcomes(result) == {"replace-checkpoint": "refused"}
    assert files_of(table) == before


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
    plan = fsck.plan(table.open(), REMOVE, now=NOW)
    assert plan.is_noop


def test_the_plan_notes_deletes_in_the_change_data_feed() -> None:
    table = SoundTable(configuration={"delta.enableChangeDataFeed": "true"})
    table.store.delete("c")

    plan = fsck.plan(table.open(), REMOVE, now=NOW)

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
def test_append_only_is_restored_where_a_run_died_before_it_could(options: FsckOptions) -> None:
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
    plan = fsck.plan(table.open(), REMOVE, now=NOW)
    surveyed = fsck.survey(table.open(), REMOVE, now=NOW)
    table.store.put("c", data)

    result = fsck.apply(table.open(), plan, now=NOW, surveyed=surveyed)

    assert [outcome.count for outcome in result.repairs] == [1]
    assert sorted(table.open().snapshot().live_files()["path"].to_pylist()) == ["c", "d%20e"]


def test_a_plan_is_carried_out_only_as_far_as_it_would_still_be_made() -> None:
    table = SoundTable()
    table.store.delete("c")
    plan = fsck.plan(table.open(), REMOVE, now=NOW)
    table.step(log.remove("c", size=table.live("c")["size"]))

    result = fsck.apply(table.open(), plan, now=NOW)

    assert result.repairs == ()
    assert table.open().latest_version() == 5


class RacedStore(MemoryStore):
    """Lets somebody commit right before a commit of ours."""

    race: Callable[[], object] | None = None

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.race is not None and b'"FSCK"' in data:
            race, self.race = self.race, None
            race()
        return super().put_if_absent(path, data)


@pytest.mark.parametrize("theirs", ["append", "the same remove", "another vector"])
def test_others_commit_while_entries_are_removed(theirs: str) -> None:
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


def test_commits_that_come_while_it_looks_are_no_findings() -> None:
    """The log is listed once; whatever comes after that is another version."""

    class Busy(MemoryStore):
        def read(self, path: str) -> bytes:
            if path.endswith(commit_name(2)) and table.version < 8:
                table.step(table.data(f"more-{table.version}"), table.mark())
            return super().read(path)

    table = SoundTable(Busy(), extras=False)

    result = run(table, FsckOptions(deep=True))

    assert result.status == "sound"
    assert table.open().latest_version() > 4


def test_a_clean_up_while_it_looks_makes_it_look_again() -> None:
    class Cleaned(MemoryStore):
        armed = False

        def read(self, path: str) -> bytes:
            if self.armed and path.endswith(commit_name(4)):
                self.armed = False
                table.drop(commit_name(0), checksum_name(0))
            return super().read(path)

    store = Cleaned()
    table = SoundTable(store)
    store.armed = True

    result = run(table)

    assert (result.status, store.armed) == ("sound", False)


def test_all_findings_go_to_a_report(tmp_path: Path) -> None:
    table = SoundTable(extras=False)
    for number in range(30):
        table.write(f"strange-{number}", b"x")
    report = str(tmp_path / "findings.parquet")

    surveyed = fsck.survey(table.open(), now=NOW, report=report)

    assert len(surveyed.plan.findings) == 20
    assert surveyed.plan.counts[0].count == 30
    assert surveyed.plan.report == report
    rows = pq.read_table(report)
    assert rows.num_rows == 30
    assert rows.equals(surveyed.findings)
    with pytest.raises(RefusedError, match="a report replaces nothing"):
        fsck.survey(table.open(), now=NOW, report=report)


def test_a_report_has_no_place_in_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table" / "_delta_log"
    table.mkdir(parents=True)
    source = SoundTable(extras=False)
    for name in source.names():
        (table / name).write_bytes(source.read(name))

    with pytest.raises(RefusedError, match="inside the table"):
        fsck.survey(
            Table(_local(tmp_path / "table")), now=NOW, report=str(tmp_path / "table" / "x.parquet")
        )
    assert not (tmp_path / "table" / "x.parquet").exists()


def _local(path: Path) -> Store:
    from delta_maintenance.storage.local.store import LocalStore

    return LocalStore(path)


def test_on_s3_the_other_writers_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SoundTable(extras=False)
    table.store.delete("c")
    monkeypatch.setattr(table.store, "root", "s3://bucket/table")

    assert outcomes(run(table, REMOVE)) == {"remove-missing-files": "refused"}

    options = FsckOptions(remove_missing_files=True, other_writers="conditional_put")
    assert outcomes(run(table, options)) == {"remove-missing-files": "done"}


@pytest.mark.parametrize("options", [{"deeper": True}, {"other_writers": "somebody"}])
def test_misspelt_options_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        FsckOptions.from_json(dict(options))


def test_plans_and_results_make_the_round_trip() -> None:
    table = SoundTable()
    table.store.delete("c")
    table.hint("{")
    options = FsckOptions(repair=True, remove_missing_files=True)
    plan = fsck.plan(table.open(), options, now=NOW)
    result = fsck.apply(table.open(), plan, now=NOW)

    assert FsckPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert FsckResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert {repair.action for repair in plan.repairs} == {"rewrite-hint", "remove-missing-files"}
    assert plan.reason == (
        "1 damaged-hint (warning), 1 missing-data-file (corrupt); "
        "planned repairs: rewrite-hint, remove-missing-files"
    )
    left = fsck.plan(table.open(), now=NOW).reason
    assert left == "1 missing-removed-file (note); no repair is planned"

"""Files whose removal failed: the finding, and the missing remove as the repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.optimize import plan as plan_optimize
from delta_maintenance.protocol.delta_log import commit_name
from tests.support.operations.fsck_runs import NOW, outcomes, run
from tests.support.suite.play import examples
from tests.support.tables import actions as log
from tests.support.tables.doubled_tables import STEPS, play
from tests.support.tables.sound_tables import SoundTable
from tests.support.tables.table_builder import TableBuilder

REMOVE = FsckOptions(remove_doubled_files=True)


def missed(*, data_change: bool = True, configuration: dict[str, str] | None = None) -> SoundTable:
    """`b` has a vector since version 2, and version 5 removes it without."""
    table = SoundTable(configuration=configuration)
    table.step(log.remove("b", dataChange=data_change), table.data("e"), table.mark())
    return table


def live(table: TableBuilder) -> list[str]:
    return sorted(table.open().snapshot().live_files()["path"].to_pylist())


@pytest.mark.conformance("FILE-05", "FILE-09")
def test_the_finding_names_file_rows_and_version_and_the_repair_commits_the_remove() -> None:
    table = missed()
    b = table.live("b")

    result = run(table)

    (finding,) = [each for each in result.findings if each.kind == "doubled-file"]
    assert (finding.path, finding.version, finding.severity) == ("b", 5, "corrupt")
    assert "without its deletion vector" in finding.problem and "8 rows" in finding.problem
    assert "--remove-doubled-files" in finding.remedy
    assert result.repairs == () and "b" in live(table)

    repaired = run(table, REMOVE)

    assert outcomes(repaired) == {"remove-doubled-files": "done"}
    assert (repaired.status, repaired.repairs[0].count) == ("warnings", 1)
    assert live(table) == ["c", "d%20e", "e"]
    info, action = [json.loads(line) for line in table.read(commit_name(6)).splitlines()]
    assert info["commitInfo"]["operation"] == "FSCK"
    remove = action["remove"]
    assert remove["dataChange"] is True and remove["extendedFileMetadata"] is True
    for name in ("path", "deletionVector", "size", "partitionValues", "baseRowId", "stats"):
        assert remove.get(name) == b.get(name)
    assert fsck.plan(table.open(), REMOVE, context=RunContext.at(NOW)).is_noop
    assert not [each for each in run(table).findings if each.kind == "doubled-file"]


def test_a_compaction_stays_invisible_in_the_change_data_feed_and_on_append_only_tables() -> None:
    table = missed(data_change=False, configuration={"delta.appendOnly": "true"})

    assert outcomes(run(table, REMOVE)) == {"remove-doubled-files": "done"}

    remove = json.loads(table.read(commit_name(6)).splitlines()[1])["remove"]
    assert (remove["path"], remove["dataChange"]) == ("b", False)


def test_an_append_only_table_takes_a_second_flag_for_deleted_rows() -> None:
    table = missed(configuration={"delta.appendOnly": "true"})

    refused = run(table, REMOVE)

    assert refused.repairs == () and "b" in live(table)
    assert any("--allow-append-only" in note for note in refused.notes)
    both = FsckOptions(remove_doubled_files=True, allow_append_only=True)
    assert outcomes(run(table, both)) == {"remove-doubled-files": "done"}
    assert table.open().snapshot().properties.append_only and "b" not in live(table)


def test_a_file_that_was_added_again_is_not_removed() -> None:
    table = missed()
    table.step({"add": table.live("b")})

    result = run(table, REMOVE)

    assert result.repairs == () and "b" in live(table)
    assert not [each for each in result.findings if each.kind == "doubled-file"]


def test_a_file_whose_commit_leaves_doubt_is_named_and_stays() -> None:
    """Version 5 removes `b` without its vector and adds it with another one, which may lack the
    deletions of the first.
    """
    table = SoundTable()
    other = {**table.live("b"), "deletionVector": log.deletion_vector("i", storage_type="i")}
    table.step(log.remove("b"), {"add": other})

    result = run(table, REMOVE)

    (finding,) = [each for each in result.findings if each.kind == "doubled-file"]
    assert "which rows the commit meant" in finding.remedy and result.repairs == ()
    assert any("does not prove" in note for note in result.notes)
    assert live(table).count("b") == 2


def test_a_file_that_another_writer_changes_meanwhile_is_not_removed() -> None:
    table = missed()
    surveyed = fsck.survey(table.open(), REMOVE, now=NOW)
    b = table.live("b")
    table.step({"add": b})

    result = fsck.apply(table.open(), surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)

    assert [repair.status for repair in result.repairs] == ["already-done"]
    assert "b" in live(table)


def test_writes_continue_after_the_remove_of_an_absolute_path_is_repaired(tmp_path: Path) -> None:
    """Until then the file has two paths, one of them only in a tombstone."""
    table = TableBuilder(tmp_path)
    table.commit([log.protocol(), log.metadata(), log.add("a%20b"), log.add("c")])
    table.commit([log.remove(f"{tmp_path}/a%20b"), log.add("d")])
    assert run(table.open()).status == "corrupt"

    repaired = run(table.open(), REMOVE)

    assert outcomes(repaired) == {"remove-doubled-files": "done"}
    kinds = {finding.kind for finding in repaired.findings if finding.severity == "corrupt"}
    assert kinds == {"missing-data-file"} and live(table) == ["c", "d"]
    plan_optimize(table.open().snapshot(), OptimizeOptions())


@settings(max_examples=examples(100))
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 59)), max_size=14))
def test_the_repair_removes_exactly_the_files_that_should_not_be_live(
    steps: list[tuple[str, int]],
) -> None:
    made = play(steps)
    should_live = made.live.keys() - made.doubled.keys()

    result = run(made.builder.open(), REMOVE)

    assert [outcome.status for outcome in result.repairs] == ["done"] * bool(made.doubled)
    files = made.builder.open().snapshot().live_files().select(["path", "dv"]).to_pylist()
    assert {(file["path"], file["dv"]) for file in files} == should_live

"""The status, engine, report and options of fsck, and commits during an examination."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan, FsckResult
from delta_maintenance.protocol.delta_log import checksum_name, classic_checkpoint_name, commit_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import NOW, files_of, outcomes, run
from tests.support.tables.sound_tables import SoundTable


def test_a_sound_table_is_sound_and_is_left_as_it_is() -> None:
    table = SoundTable()
    before = files_of(table)

    result = run(table, FsckOptions(deep=True, repair=True, remove_missing_files=True))

    assert (result.status, result.findings, result.repairs) == ("sound", (), ())
    assert result.version == 4
    assert fsck.plan(table.open(), context=RunContext.at(NOW)).reason == "no problem was found"
    assert files_of(table) == before


def test_a_check_changes_nothing() -> None:
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
            fsck.apply(table.open(), plan, context=RunContext.at(NOW))
    else:
        assert report.exists()
        assert fsck.apply(table.open(), plan, context=RunContext.at(NOW)).counts == plan.counts


def test_a_plan_for_this_process_is_carried_out_in_it_however_many_files_there_are() -> None:
    table = SoundTable(extras=False)
    table.hint(77)
    options = FsckOptions(deep=True, repair=True, auto_spark_files=6)
    plan = fsck.plan(table.open(), options, context=RunContext.at(NOW))
    table.step(table.data("e"), table.data("f"), table.data("g"), table.mark())
    table.store.put("f", b"x" * len(table.store.read("f")))

    result = fsck.apply(table.open(), plan, context=RunContext.at(NOW))

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


def test_commits_during_the_check_are_not_findings() -> None:
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


def test_a_clean_up_during_the_check_repeats_it() -> None:
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
    with pytest.raises(RefusedError, match="a report never replaces a file"):
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
    from delta_maintenance.storage.local import LocalStore

    return LocalStore(path)


@pytest.mark.parametrize("options", [{"deeper": True}, {"other_writers": "somebody"}])
def test_misspelt_options_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        FsckOptions.from_json(dict(options))


def test_plans_and_results_make_the_round_trip() -> None:
    table = SoundTable()
    table.store.delete("c")
    table.hint("{")
    options = FsckOptions(repair=True, remove_missing_files=True)
    plan = fsck.plan(table.open(), options, context=RunContext.at(NOW))
    result = fsck.apply(table.open(), plan, context=RunContext.at(NOW))

    assert FsckPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert FsckResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert {repair.action for repair in plan.repairs} == {"rewrite-hint", "remove-missing-files"}
    assert plan.reason == (
        "1 damaged-hint (warning), 1 missing-data-file (corrupt); "
        "planned repairs: rewrite-hint, remove-missing-files"
    )
    left = fsck.plan(table.open(), context=RunContext.at(NOW)).reason
    assert left == "1 missing-removed-file (note); no repair is planned"

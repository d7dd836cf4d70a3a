"""`fsck` on the command line: findings and repairs out, and an exit status to go by."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance.operations.fsck import FsckPlan, FsckResult
from delta_maintenance.storage.local import LocalStore
from tests.support.tables.sound_tables import SoundTable


@pytest.fixture
def sound(tmp_path: Path) -> SoundTable:
    """A table with every kind of file on the local disk."""
    return SoundTable(LocalStore(tmp_path / "table"))


@pytest.fixture
def spoilt(sound: SoundTable) -> SoundTable:
    """The same table with a dangling hint and a missing data file."""
    sound.hint(77)
    sound.store.delete("c")
    return sound


def kinds(document: dict[str, Any]) -> dict[str, int]:
    return {count["kind"]: count["count"] for count in document["counts"]}


def test_a_sound_table_ends_with_0(cli: Any, sound: SoundTable) -> None:
    outcome = cli("fsck", sound.store.root, "--deep", "--json")

    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.document["status"] == "sound"
    assert set(outcome.document) == {field.name for field in fields(FsckResult)}
    assert "sound" in cli("fsck", sound.store.root).out


def test_warnings_end_with_0_too(cli: Any, sound: SoundTable) -> None:
    sound.hint(77)
    outcome = cli("fsck", sound.store.root, "--json")

    assert outcome.status == 0
    assert outcome.document["status"] == "warnings"


def test_each_finding_has_a_problem_a_location_and_a_remedy(cli: Any, spoilt: SoundTable) -> None:
    outcome = cli("fsck", spoilt.store.root, "--json")

    assert outcome.status == 5
    assert kinds(outcome.document) == {"dangling-hint": 1, "missing-data-file": 1}
    worst = outcome.document["findings"][0]
    assert set(worst) == {"kind", "severity", "version", "path", "problem", "remedy"}
    assert (worst["kind"], worst["severity"], worst["path"]) == (
        "missing-data-file",
        "corrupt",
        "c",
    )
    assert "--remove-missing-files" in worst["remedy"]
    assert outcome.err.count("\n") == 1 and "1 finding of corruption" in outcome.err
    told = cli("fsck", spoilt.store.root).out
    assert "missing-data-file" in told and "the data file does not exist" in told


def test_a_dry_run_prints_the_plan_and_changes_nothing(cli: Any, spoilt: SoundTable) -> None:
    before = spoilt.names()
    words = ("fsck", spoilt.store.root, "--repair", "--remove-missing-files", "--dry-run")
    outcome = cli(*words, "--json")

    plan = FsckPlan.from_json(outcome.document)
    assert outcome.status == 5
    assert [repair.action for repair in plan.repairs] == ["rewrite-hint", "remove-missing-files"]
    assert "rewrite-hint: _delta_log/_last_checkpoint" in cli(*words).out
    assert spoilt.names() == before


def test_after_the_repairs_the_table_is_sound(cli: Any, spoilt: SoundTable) -> None:
    outcome = cli("fsck", spoilt.store.root, "--repair", "--remove-missing-files", "--json")

    assert outcome.status == 0
    assert [repair["status"] for repair in outcome.document["repairs"]] == ["done", "done"]
    assert FsckResult.from_json(outcome.document).status == "sound"
    again = cli("fsck", spoilt.store.root, "--repair", "--remove-missing-files", "--json")
    assert (again.status, again.document["repairs"]) == (0, [])


def test_remaining_corruption_still_ends_with_status_5(cli: Any, spoilt: SoundTable) -> None:
    outcome = cli("fsck", spoilt.store.root, "--repair", "--json")

    assert outcome.status == 5
    assert kinds(outcome.document) == {"missing-data-file": 1}


def test_an_append_only_table_takes_its_flag(cli: Any, tmp_path: Path) -> None:
    table = SoundTable(LocalStore(tmp_path / "t"), configuration={"delta.appendOnly": "true"})
    table.store.delete("c")
    words = ("fsck", table.store.root, "--remove-missing-files", "--json")

    assert cli(*words).status == 5
    assert cli(*words, "--allow-append-only").status == 0


def test_the_report_has_every_finding(cli: Any, sound: SoundTable, tmp_path: Path) -> None:
    for number in range(25):
        sound.write(f"strange-{number}", b"x")
    report = tmp_path / "report.parquet"

    outcome = cli("fsck", sound.store.root, "--report", report, "--json")

    assert outcome.status == 0
    assert outcome.document["report"] == str(report)
    assert len(outcome.document["findings"]) == 20
    assert pq.read_table(report).num_rows == 25
    assert cli("fsck", sound.store.root, "--report", report).status == 3


def test_an_unreadable_table_is_reported_as_findings(cli: Any, sound: SoundTable) -> None:
    sound.truncate("00000000000000000004.json", 20)

    outcome = cli("fsck", sound.store.root, "--json")

    assert outcome.status == 5
    assert {"unreadable-version", "unreadable-commit"} <= kinds(outcome.document).keys()


def test_no_table_is_an_error(cli: Any, tmp_path: Path) -> None:
    outcome = cli("fsck", tmp_path, "--json")

    assert (outcome.status, outcome.out) == (5, "")

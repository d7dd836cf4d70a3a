"""The table of versions is the one that the nightly run writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def compatibility(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    import compatibility

    module: ModuleType = compatibility
    return module


def test_the_page_is_what_the_record_says(compatibility: ModuleType) -> None:
    before = compatibility.PAGE.read_text()
    compatibility.write()
    assert compatibility.PAGE.read_text() == before


def test_every_version_of_the_nightly_run_has_a_row(compatibility: ModuleType) -> None:
    import nightly

    listed = {row.part for row in compatibility.ROWS if row.part is not None}
    kinds = ("python-", "airflow-", "dagster-1", "spark-", "lowest", "debian-")
    assert listed == {name for name in nightly.PARTS if name.startswith(kinds)}


def test_a_part_that_passed_is_in_the_table_and_others_never_did(
    compatibility: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = {"passed": "2026-11-28", "commit": "0a1b2c3d", "seconds": 312}
    told = compatibility.table({"python-3.13": passed})
    [row] = [line for line in told.splitlines() if "python-3.13" in line]
    assert "2026-11-28, commit 0a1b2c3d, in 312 s" in row
    [row] = [line for line in told.splitlines() if "python-3.14" in line]
    assert row.endswith("| never |")


@pytest.mark.process
def test_changes_that_are_not_committed_are_not_recorded(
    compatibility: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import date
    from subprocess import run

    page, record = tmp_path / "docs/compatibility.md", tmp_path / "docs/compatibility.json"
    page.parent.mkdir()
    page.write_text("a\n<!-- versions -->\n<!-- end of versions -->\nb\n")
    record.write_text("{}\n")
    for name, value in (("ROOT", tmp_path), ("PAGE", page), ("RECORD", record)):
        monkeypatch.setattr(compatibility, name, value)

    def git(*arguments: str) -> None:
        run(
            ("git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments),
            cwd=tmp_path,
            check=True,
        )

    git("init", "--quiet")
    git("add", "docs")
    git("commit", "--quiet", "--message=first")
    day = date(2026, 11, 28)
    assert compatibility.record("lowest", day=day, seconds=1.4) is None
    assert compatibility.record("spark-4.1", day=day, seconds=2) is None
    assert page.read_text().count("2026-11-28, commit ") == 2
    (tmp_path / "code.py").write_text("")
    git("add", "code.py")
    assert "not committed" in str(compatibility.record("spark-4.0", day=day, seconds=2))
    assert page.read_text().count("2026-11-28, commit ") == 2


def test_records_of_other_machines_are_collected(
    compatibility: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(day: int) -> dict[str, str | int]:
        return {"passed": f"2026-11-{day}", "commit": "0a1b2c3d", "seconds": day}

    before = {"lowest": passed(10), "python-3.14": passed(11)}
    # Each machine has the older records of its checkout, too; that of `lowest` has failed.
    for part, own in (("lowest", {}), ("spark-4.0", {"spark-4.0": passed(12)})):
        (tmp_path / part).mkdir()
        (tmp_path / part / "compatibility.json").write_text(json.dumps({**before, **own}))
    (tmp_path / "python-3.14").mkdir()
    record = tmp_path / "compatibility.json"
    record.write_text(json.dumps({**before, "lowest": passed(13)}))
    monkeypatch.setattr(compatibility, "RECORD", record)
    compatibility.collect(tmp_path)
    assert json.loads(record.read_text()) == {
        "lowest": passed(13),
        "python-3.14": passed(11),
        "spark-4.0": passed(12),
    }

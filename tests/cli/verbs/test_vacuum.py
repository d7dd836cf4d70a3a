"""`vacuum`: options in, Plan, exact list or Result out."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock
from delta_maintenance.cli import operation_verb
from delta_maintenance.errors import StorageAccessError
from delta_maintenance.operations.vacuum import VacuumPlan, VacuumResult
from delta_maintenance.storage.local import LocalStore
from tests.support.tables.actions import add
from tests.support.tables.vacuum_tables import Folder


@pytest.fixture
def table(tmp_path: Path) -> Folder:
    """Two files in use, three that are not, and an old empty directory."""
    made = Folder(tmp_path / "t", now=clock.now())
    made.log(add("a.parquet"), add("p=1/b%20.parquet"))
    made.file(
        "a.parquet", "p=1/b .parquet", "dead.parquet", "p=1/dead.parquet", "q/ü\u202e.parquet"
    )
    (tmp_path / "t" / "q" / "empty").mkdir()
    for path in ("q/empty", "q", "p=1"):
        made.touch(path, 1_000_000_000_000)
    return made


def test_a_dry_run_prints_every_file_with_size_and_reason(
    cli: Any, table: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table.files()
    outcome = cli("vacuum", table.store.root, "--dry-run", "--json")
    document = outcome.document
    listed = {(row["path"], row["size"], row["reason"]) for row in document.pop("file_list")}
    assert listed == {
        ("dead.parquet", 1, "unreferenced"),
        ("p=1/dead.parquet", 1, "unreferenced"),
        ("q/ü\u202e.parquet", 1, "unreferenced"),
    }
    assert document.pop("directory_list") == ["q", "q/empty"]
    plan = VacuumPlan.from_json(document)
    assert outcome.status == 0 and (plan.files, plan.directories) == (3, 2)
    assert set(document) == {field.name for field in fields(VacuumPlan)}
    said = cli("vacuum", table.store.root, "--dry-run").out
    assert "1\tunreferenced\tp=1/dead.parquet\n" in said
    assert "\tempty-directory\tq/empty/\n" in said and "\u202e" not in said
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = cli("vacuum", table.store.root, "--dry-run").out
    assert "\n       1 B  unreferenced       p=1/dead.parquet\n" in said
    assert f"\n{'':12}empty-directory    q/empty/\n" in said and "\u202e" not in said
    assert table.files() == before


def test_a_run_deletes_exactly_the_files_of_the_dry_run(cli: Any, table: Folder) -> None:
    root = table.store.root
    dry = {row["path"] for row in cli("vacuum", root, "--dry-run", "--json").document["file_list"]}
    before = table.files()
    outcome = cli("vacuum", root, "--json")
    result = VacuumResult.from_json(outcome.document)
    assert outcome.status == 0 and (result.deleted, result.directories) == (3, 2)
    assert before - table.files() == dry
    assert set(outcome.document) == {field.name for field in fields(VacuumResult)}
    again = cli("vacuum", root)
    assert again.status == 0 and "nothing to do" in again.out


def test_options_reach_the_plan(cli: Any, table: Folder, tmp_path: Path) -> None:
    words = ["--retention", "1 hour", "--allow-short-retention", "--no-other-writers"]
    words += ["--keep-version", 0, "--keep-version", 1, "--foreign-files", "--no-log-commits"]
    words += ["--allow-large-delete", "--ignore-missing-files", "--mode", "lite"]
    words += ["--engine", "local", "--other-writers", "none"]
    plan = cli("vacuum", table.store.root, *words, "--dry-run", "--json").document
    assert plan["options"] == {
        **plan["options"],
        "mode": "lite",
        "retention": "PT1H",
        "allow_short_retention": True,
        "no_other_writers": True,
        "keep_versions": [0, 1],
        "foreign_files": True,
        "allow_large_delete": True,
        "ignore_missing_files": True,
        "log_commits": False,
        "other_writers": "none",
        "engine": "local",
    }
    assert not plan["logs_commits"]
    refused = cli("vacuum", table.store.root, "--retention", "1 hour")
    assert refused.status == 3 and "shorter than 7 days" in refused.err
    assert cli("vacuum", table.store.root, "--mode", "inventory").status == 2


def test_the_report_is_written_before_any_deletion(cli: Any, table: Folder, tmp_path: Path) -> None:
    report = tmp_path / "report.parquet"
    outcome = cli("vacuum", table.store.root, "--dry-run", "--report", report)
    assert "dead.parquet" not in outcome.out and pq.read_table(report).num_rows == 3
    refused = cli("vacuum", table.store.root, "--report", report)
    assert refused.status == 3 and "already" in refused.err and len(table.files()) == 5
    assert cli("vacuum", table.store.root, "--report", tmp_path / "two.parquet").status == 0


def test_failed_deletions_end_with_status_1(
    cli: Any, table: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LocalStore.delete_unchanged

    def stubborn(self: LocalStore, files: Any) -> Any:
        kept = [path for path in files["path"].to_pylist() if path == "dead.parquet"]
        rest = files.filter([path not in kept for path in files["path"].to_pylist()])
        denied = StorageAccessError("access denied")
        return delete(self, rest) | dict.fromkeys(kept, denied)

    monkeypatch.setattr(LocalStore, "delete_unchanged", stubborn)
    outcome = cli("vacuum", table.store.root, "--json")
    assert outcome.status == 1 and "1 file could not be deleted" in outcome.err
    assert outcome.document["failures"] == ["dead.parquet: access denied"]
    assert outcome.err.count("\n") == 1 and os.path.exists(f"{table.store.root}/dead.parquet")


def test_options_are_passed_to_spark(
    cli: Any, table: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []
    result = VacuumResult(table="t", version=7, status="partly", deleted=2, failed=1)

    def run_job(operation: str, job: dict[str, Any], _: Any, **__: Any) -> dict[str, Any]:
        asked.append({"operation": operation, **job})
        return plan if job["plan_only"] else result.to_json()

    plan = cli("vacuum", table.store.root, "--dry-run", "--json").document
    del plan["file_list"], plan["directory_list"]
    monkeypatch.setattr(operation_verb, "run_spark_job", run_job)
    monkeypatch.chdir(tmp_path)
    words = ("vacuum", table.store.root, "--engine", "spark", "--keep-version", 0)
    dry = cli(*words, "--dry-run", "--report", "r.parquet")
    assert dry.status == 0 and "vacuum, dry run" in dry.out
    assert asked[0]["operation"] == "vacuum" and asked[0]["report_uri"] == f"{tmp_path}/r.parquet"
    assert (asked[0]["options"]["engine"], asked[0]["options"]["keep_versions"]) == ("spark", [0])
    outcome = cli(*words, "--json")
    assert outcome.status == 1 and "1 file could not be deleted" in outcome.err
    assert not asked[1]["plan_only"] and len(table.files()) == 5

"""`compact-log` and `clean-log`: options in, Plan or Result out."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.cli import operation_verb
from delta_maintenance.errors import StorageAccessError
from delta_maintenance.operations.clean_log import CleanLogPlan, CleanLogResult
from delta_maintenance.operations.compact_log import (
    CompactLogOptions,
    CompactLogPlan,
    CompactLogResult,
)
from delta_maintenance.protocol.delta_log import (
    classic_checkpoint_name,
    commit_name,
    compaction_name,
)
from delta_maintenance.storage.local import LocalStore
from tests.support.tables.actions import add, remove
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def old(builder: TableBuilder) -> TableBuilder:
    """The sound table with a checkpoint of version 1, all of it from long ago."""
    builder.checkpoint(1)
    return builder


def test_the_default_is_that_of_the_operation(cli: Any) -> None:
    said = " ".join(cli("compact-log", "--help-all").out.split())
    assert f"by default {CompactLogOptions().commits_per_file}" in said


def test_a_dry_run_of_compact_log_prints_the_plan(cli: Any, builder: TableBuilder) -> None:
    before = builder.names()
    words = ("compact-log", builder.store.root, "--commits-per-file", 2, "--dry-run")
    outcome = cli(*words, "--json")
    plan = CompactLogPlan.from_json(outcome.document)
    assert outcome.status == 0 and [w.last_version for w in plan.windows] == [1]
    assert set(outcome.document) == {field.name for field in fields(CompactLogPlan)}
    assert "0 to 1" in cli(*words).out and builder.names() == before


def test_a_range_for_spark_excludes_later_commits(
    cli: Any, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(operation: str, job: Any, arguments: Any, **_: Any) -> dict[str, Any]:
        asked.append((operation, job))
        return CompactLogResult(table="t", version=9, status="written", engine="spark").to_json()

    monkeypatch.setattr(operation_verb, "run_spark_job", run)
    latest, before = builder.open().snapshot().version, builder.names()
    words = ("compact-log", builder.store.root, "--commits-per-file", 2, "--engine", "spark")
    outcome = cli(*words, "--json")
    assert outcome.status == 0 and outcome.document["engine"] == "spark"
    ((operation, job),) = asked
    options = CompactLogOptions.from_json(job["options"])
    assert operation == "compact-log" and builder.names() == before
    assert (options.engine, options.commits_per_file, job["version"]) == ("spark", 2, latest)
    assert cli(*words, "--dry-run").status == 0 and len(asked) == 1


def test_compact_log_takes_a_range_and_prints_the_result(cli: Any, builder: TableBuilder) -> None:
    words = ("--from", 1, "--to", 2, "--commits-per-file", 5, "--partial")
    outcome = cli("compact-log", builder.store.root, *words, "--json")
    result = CompactLogResult.from_json(outcome.document)
    assert outcome.status == 0 and result.status == "written"
    assert result.windows[0].path == f"_delta_log/{compaction_name(1, 2)}"
    again = cli("compact-log", builder.store.root, *words)
    assert again.status == 0 and "nothing to do" in again.out


def test_a_window_that_is_refused_after_another_is_a_failure_part_way(
    cli: Any, builder: TableBuilder
) -> None:
    builder.commit([add("x"), remove("x")])
    outcome = cli("compact-log", builder.store.root, "--commits-per-file", 2, "--json")
    assert outcome.status == 1 and outcome.document["status"] == "failed"
    assert "two actions for x" in outcome.err and outcome.err.count("\n") == 1


def test_a_dry_run_of_clean_log_prints_every_group(cli: Any, old: TableBuilder) -> None:
    before = old.names()
    outcome = cli("clean-log", old.store.root, "--dry-run", "--json")
    plan = CleanLogPlan.from_json(outcome.document)
    assert outcome.status == 0 and plan.oldest_version == 1
    assert [group.names for group in plan.groups] == [(commit_name(0),)]
    assert set(outcome.document) == {field.name for field in fields(CleanLogPlan)}
    said = cli("clean-log", old.store.root, "--dry-run").out
    assert f"{commit_name(1)} stays" in said and "1 file (" in said and old.names() == before


def test_clean_log_deletes_and_prints_the_result(cli: Any, old: TableBuilder) -> None:
    outcome = cli("clean-log", old.store.root, "--json")
    result = CleanLogResult.from_json(outcome.document)
    assert outcome.status == 0 and outcome.err == ""
    assert (result.status, result.oldest_version) == ("cleaned", 1)
    assert old.names() == [classic_checkpoint_name(1), commit_name(1), commit_name(2)]
    assert "nothing to do" in cli("clean-log", old.store.root).out


def test_the_retention_is_kept_without_two_flags(cli: Any, old: TableBuilder) -> None:
    for status in old.store.list_from("_delta_log"):
        os.utime(Path(old.store.root) / status.path)
    short = ("clean-log", old.store.root, "--log-retention", "interval 0 days")
    for flags in ((), ("--allow-short-retention",), ("--no-other-writers",)):
        refused = cli(*short, *flags)
        assert (refused.status, refused.out) == (3, "")
        assert "give --allow-short-retention --no-other-writers" in refused.err
    both = cli(*short, "--allow-short-retention", "--no-other-writers", "--dry-run", "--json")
    plan = CleanLogPlan.from_json(both.document)
    assert both.status == 0 and plan.options.log_retention == timedelta(0)
    assert cli("clean-log", old.store.root, "--log-retention", "soon").status == 2


def test_a_file_that_cannot_be_deleted_is_a_failure_part_way(
    cli: Any, old: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = LocalStore.delete

    def stuck(self: LocalStore, path: str) -> None:
        if path.endswith(commit_name(0)):
            raise StorageAccessError("not allowed", file=path)
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", stuck)
    outcome = cli("clean-log", old.store.root, "--json")
    assert outcome.status == 1 and outcome.document["status"] == "partly"
    assert outcome.document["failures"] == [f"_delta_log/{commit_name(0)}: not allowed"]
    assert "1 file could not be deleted" in outcome.err

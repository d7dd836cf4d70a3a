"""`backfill-row-ids`: options in, Plan or Result out."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.cli import operation_verb as verb
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from tests.support.operations.row_ids import check, commits
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

VERB = "backfill-row-ids"


@pytest.fixture
def counted(tmp_path: Path) -> TableBuilder:
    """A table on disk of five files, whose rows the statistics tell."""
    table = TableBuilder(tmp_path / "counted")
    stats = json.dumps({"numRecords": 3})
    table.commit([protocol(), metadata(), *(add(f"f{n}", stats=stats) for n in range(5))])
    return table


def test_the_default_is_that_of_the_operation(cli: Any) -> None:
    said = " ".join(cli(VERB, "--help-all").out.split())
    assert f"by default {BackfillRowIdsOptions().files_per_commit}" in said


def test_a_dry_run_prints_the_plan_and_commits_nothing(cli: Any, counted: TableBuilder) -> None:
    words = (VERB, counted.store.root, "--files-per-commit", 2, "--dry-run")
    outcome = cli(*words, "--json")
    plan = BackfillRowIdsPlan.from_json(outcome.document)
    assert outcome.status == 0 and (plan.files_to_backfill, plan.num_commits) == (5, 5)
    assert set(outcome.document) == {field.name for field in fields(BackfillRowIdsPlan)}
    text = cli(*words).out
    assert "files to backfill" in text and "unsupported" in text
    assert [version for version, _ in commits(counted.store)] == [0]


def test_a_run_prints_the_result_and_a_second_one_finds_nothing_to_do(
    cli: Any, counted: TableBuilder
) -> None:
    outcome = cli(VERB, counted.store.root, "--no-checkpoint", "--operation-id", "x", "--json")
    result = BackfillRowIdsResult.from_json(outcome.document)
    assert outcome.status == 0 and (result.status, result.num_commits) == ("enabled", 3)
    assert result.checkpoint is None
    assert outcome.err == ""
    check(counted.store)
    again = cli(VERB, counted.store.root)
    assert again.status == 0 and "row tracking is already enabled" in again.out


def test_files_that_cannot_be_counted_are_a_failure_half_way(
    cli: Any, builder: TableBuilder
) -> None:
    root = Path(builder.store.root)
    pq.write_table(pa.table({"id": [1, 2]}), root / "a")
    refused = cli(VERB, root, "--json")
    assert (refused.status, refused.out) == (3, "") and "nothing was committed" in refused.err
    supporting = ["--feature", "rowTracking", "--other-writers", "none"]
    assert cli("upgrade-protocol", root, *supporting).status == 0
    outcome = cli(VERB, root, "--json")
    result = BackfillRowIdsResult.from_json(outcome.document)
    assert outcome.status == 1 and result.status == "incomplete"
    assert result.files_backfilled == 1 and len(result.uncounted) == 2
    assert "1 commit was made, then: the rows of 2 files cannot be counted" in outcome.err
    check(builder.store, enabled=False)


def test_a_refusal_has_its_exit_status(cli: Any, builder: TableBuilder) -> None:
    suspended = {"delta.rowTrackingSuspended": "true"}
    features = ["domainMetadata", "rowTracking"]
    builder.commit([protocol(1, 7, writer_features=features), metadata(configuration=suspended)])
    outcome = cli(VERB, builder.store.root)
    assert (outcome.status, outcome.out) == (3, "") and "suspended" in outcome.err
    assert cli(VERB, builder.store.root, "--lift-suspension", "--dry-run").status == 0
    assert cli(VERB, builder.store.root, "--files-per-commit", 0).status == 2
    assert cli(VERB, builder.store.root, "--other-writers", "who").status == 2


def test_work_for_spark_is_submitted_with_the_options_given(
    cli: Any, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(operation: str, job: Any, arguments: Any, **_: Any) -> dict[str, Any]:
        asked.append((operation, job))
        return BackfillRowIdsResult(table="t", version=9, status="enabled").to_json()

    monkeypatch.setattr(verb, "run_spark_job", run)
    words = ("--engine", "spark", "--files-per-commit", 7, "--other-writers", "none")
    outcome = cli(VERB, builder.store.root, *words, "--json")
    assert outcome.status == 0 and outcome.document["version"] == 9
    ((operation, job),) = asked
    assert operation == VERB
    options = BackfillRowIdsOptions.from_json(job["options"])
    assert (options.engine, options.files_per_commit, options.other_writers) == ("spark", 7, "none")

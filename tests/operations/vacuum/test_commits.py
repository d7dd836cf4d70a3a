"""The commits, plans and results of a vacuum."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumPlan, VacuumResult
from delta_maintenance.storage import MemoryStore
from tests.support.operations.vacuum_cases import WEEK_MS, Stubborn
from tests.support.tables.actions import add, commit_info, features, metadata, protocol
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago, operations


@pytest.mark.conformance("VAC-19", "ICT-01")
@pytest.mark.parametrize("in_commit", [False, True])
def test_start_and_end_are_committed_as_delta_spark_does(in_commit: bool) -> None:
    configuration = {"delta.appendOnly": "true"}
    listed = protocol()
    if in_commit:
        listed = features(writer_only=["inCommitTimestamp", "appendOnly"])
        configuration["delta.enableInCommitTimestamps"] = "true"
    first = [
        commit_info(inCommitTimestamp=days_ago(60)),
        listed,
        metadata(configuration=configuration),
    ]
    table = Folder(first=first)
    table.file("dead.parquet", "p/dead.parquet", data=b"four")
    result = table.vacuum(retention=timedelta(days=8))
    (_, start), (_, end) = operations(table)[-2:]
    assert [name for name, _ in operations(table)[-2:]] == ["VACUUM START", "VACUUM END"]
    assert start["operationParameters"] == {
        "retentionCheckEnabled": "true",
        "defaultRetentionMillis": str(WEEK_MS),
        "specifiedRetentionMillis": str(WEEK_MS // 7 * 8),
    }
    assert start["operationMetrics"] == {"numFilesToDelete": "2", "sizeOfDataToDelete": "8"}
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": "2", "numVacuumedDirectories": "0"}
    assert (result.start_version, result.end_version, result.version) == (1, 2, 2)
    for version in (1, 2):
        lines = table.read(f"{version:020}.json").splitlines()
        assert [list(json.loads(line)) for line in lines] == [["commitInfo"]]
        assert ("inCommitTimestamp" in json.loads(lines[0])["commitInfo"]) is in_commit


@pytest.mark.conformance("VAC-19")
def test_no_commit_without_work_or_if_not_requested() -> None:
    table = Folder()
    assert table.vacuum().status == "nothing-to-do"
    table.file("dead.parquet")
    result = table.vacuum(log_commits=False)
    assert result.deleted == 1 and (result.start_version, result.end_version) == (None, None)
    assert table.open().snapshot().version == 0


@pytest.mark.conformance("VAC-19")
def test_undeletable_files_are_named_in_the_closing_commit() -> None:
    store = Stubborn()
    table = Folder(store)
    table.file("stuck.parquet", "free.parquet", "p/free.parquet")
    result = table.vacuum()
    assert (result.status, result.deleted, result.failed) == ("partly", 2, 1)
    assert result.failures == ("stuck.parquet: access denied",) and store.tries == 2
    assert table.files() == {"stuck.parquet"}
    (_, end) = operations(table)[-1]
    assert end["operationParameters"] == {"status": "FAILED"}
    assert end["operationMetrics"]["numDeletedFiles"] == "2"


def test_a_round_without_deletions_is_the_last() -> None:
    store = Stubborn()
    table = Folder(store)
    table.log(*(add(f"live-{n}.parquet") for n in range(3)))
    table.file(*(f"stuck-{number:05}.parquet" for number in range(4001)))
    result = table.vacuum(allow_large_delete=True)
    assert result.failed == 4000 and len(result.failures) == 20
    assert result.stopped is not None and "none of the files in the last round" in result.stopped


def test_plans_and_results_travel_as_json() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = table.survey(keep_versions=(0,), retention=timedelta(days=9))
    assert VacuumPlan.from_json(json.loads(json.dumps(planned.plan.to_json()))) == planned.plan
    result = table.vacuum(planned)
    assert VacuumResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_plan_without_its_survey_is_applied_unchanged() -> None:
    table = Folder()
    table.file("dead.parquet")
    planned = VacuumPlan.from_json(table.survey().plan.to_json())
    table.file("young.parquet", days=6.99)
    assert isinstance(table.store, MemoryStore)
    later = NOW + timedelta(minutes=50)
    table.store.now_ms = lambda: epoch_millis(later)
    assert vacuum.apply(table.open(), planned, context=RunContext.at(later)).deleted == 1
    assert table.files() == {"young.parquet"}

"""The named anomaly of each table, and its tier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.operations.core import Freed
from delta_maintenance.operations.core.assessment import AssessedOperation, LastRun
from delta_maintenance.operations.health.models import SparkCommit
from delta_maintenance.operations.recompute_stats import RecomputeStatsOptions
from delta_maintenance.policies import OperationOutcome
from delta_maintenance.policies.acknowledgements import Acknowledgement
from delta_maintenance.policies.entries import AssessmentEntry
from delta_maintenance_airflow.health_page.anomalies import ANOMALIES, anomaly_of, is_named, tier_of
from delta_maintenance_airflow.health_page.known_tables import KnownTable, KnownTables
from delta_maintenance_airflow.health_page.rows import TableRow, never_assessed, row_of
from tests.support.tables.assessed_tables import NOW, assessment, health

CALM: dict[str, Any] = {
    "commits_since_checkpoint": 5,
    "small_files": 0,
    "small_file_share": 0.0,
    "deletion_vector_share": 0.0,
    "deleted_rows_share": 0.0,
    "reclaimable_bytes": 0,
    "expired_log_files": 0,
    "bytes_to_open": 1 << 20,
}
MIB = 1 << 20


def row(entry: AssessmentEntry | None = None, /, **changes: Any) -> TableRow:
    """A table that is well, apart from some facts of its health."""
    entry = entry or AssessmentEntry(assessment=assessment())
    now = replace(entry.assessment, health=health(**{**CALM, **changes}))
    return row_of(replace(entry, assessment=now), KnownTables())


def key(found: TableRow) -> str | None:
    anomaly = anomaly_of(found)
    return None if anomaly is None else anomaly.key


def spark_commit(version: int, is_conditional: bool) -> SparkCommit:
    return SparkCommit(
        version=version, timestamp=NOW, engine="Apache-Spark/4.2.0", is_conditional=is_conditional
    )


@pytest.mark.parametrize(
    ("anomaly", "has", "has_not"),
    [
        ("publication-backlog", {"unreported_commits": 8}, {"unreported_commits": 7}),
        ("publication-backlog", {"unreported_commits": 9}, {"unreported_commits": None}),
        ("writers-wait", {"unreported_commits": 10}, {}),
        (
            "unsafe-commits",
            {"spark_commits": (spark_commit(1, True), spark_commit(2, False))},
            {"spark_commits": (spark_commit(1, False), spark_commit(2, True))},
        ),
        (
            "no-checkpoint",
            {"checkpoint_version": None, "commits_since_checkpoint": 101},
            {"checkpoint_version": None, "commits_since_checkpoint": 100},
        ),
        ("old-checkpoint", {"commits_since_checkpoint": 501}, {"commits_since_checkpoint": 500}),
        ("deleted-rows", {"deleted_rows_share": 0.11}, {"deleted_rows_share": 0.1}),
        (
            "deleted-rows",
            {"deleted_rows_share": None, "deletion_vector_share": 0.2},
            {"deleted_rows_share": 0.01, "deletion_vector_share": 0.2},
        ),
        (
            "small-files",
            {"small_files": 101, "small_file_share": 0.51},
            {"small_files": 100, "small_file_share": 0.51},
        ),
        (
            "small-files",
            {"small_files": 101, "small_file_share": 0.51},
            {"small_files": 101, "small_file_share": 0.5},
        ),
        ("replay-bytes", {"bytes_to_open": 257 * MIB}, {"bytes_to_open": 256 * MIB}),
        (
            "dead-files",
            {"reclaimable_bytes": 26 * MIB, "total_bytes": 100 * MIB},
            {"reclaimable_bytes": 25 * MIB, "total_bytes": 100 * MIB},
        ),
        ("retention", {"expired_log_files": 1_001}, {"expired_log_files": 1_000}),
    ],
)
def test_a_table_has_an_anomaly_from_its_limit_on(
    anomaly: str, has: dict[str, Any], has_not: dict[str, Any]
) -> None:
    assert key(row(**has)) == anomaly
    assert key(row(**has_not)) is None


def test_only_the_worst_is_told_and_invalid_statistics_are_the_worst() -> None:
    assert ANOMALIES[0].key == "invalid-statistics"
    operation = AssessedOperation(
        operation="recompute-stats",
        status="due",
        reason="missing or wrong statistics",
        options=RecomputeStatsOptions(),
    )
    entry = AssessmentEntry(assessment=assessment(operations=(operation,)))
    bad = {"small_files": 900, "small_file_share": 0.9, "commits_since_checkpoint": 900}
    assert key(row(**bad)) == "old-checkpoint"
    assert key(row(entry, **bad)) == "invalid-statistics"
    for other in (
        replace(operation, status="not-due"),
        replace(operation, status="blocked", options=None),
    ):
        entry = AssessmentEntry(assessment=assessment(operations=(other,)))
        assert key(row(entry)) is None, "nothing was found"


@pytest.mark.parametrize(
    ("kind", "severity", "number", "anomaly"),
    [
        ("invalid-statistics", "warning", 3, "invalid-statistics"),
        ("log-gap", "corrupt", 1, "corrupt"),
        ("log-gap", "corrupt", 0, None),
        ("history-gap", "warning", 1, None),
    ],
)
def test_findings_of_the_last_fsck_count(
    kind: str, severity: str, number: int, anomaly: str | None
) -> None:
    report = OperationOutcome(
        operation="fsck",
        status="done",
        reason="examined",
        started_at=NOW,
        result={"counts": [{"kind": kind, "severity": severity, "count": number}]},
    )
    assert key(row(AssessmentEntry(assessment=assessment(), reports=(report,)))) == anomaly


def test_tables_that_cannot_be_read_are_critical_unless_somebody_knows() -> None:
    broken = assessment(status="failed", health=None, operations=(), problem="version 3 is missing")
    entry = AssessmentEntry(assessment=broken)
    found = row_of(entry, KnownTables())
    assert key(found) == "broken" and is_named(found, "critical")
    assert entry.failure is not None
    known = Acknowledgement(failure=entry.failure, reason="known", at=NOW)
    found = row_of(replace(entry, acknowledgement=known), KnownTables())
    assert key(found) == "acknowledged" and is_named(found, "warning")
    unreadable = TableRow(name="file.json", uri=None, status="unreadable", problem="no JSON")
    assert key(unreadable) == "broken"


def test_deletions_that_free_nothing_are_told() -> None:
    run = LastRun(
        operation="vacuum",
        at=NOW,
        version=3,
        status="vacuumed",
        freed=Freed(deleted_bytes=3, state="never", why="versions are kept"),
    )
    assert key(row(AssessmentEntry(assessment=assessment(), last_runs=(run,)))) == "frees-nothing"


def test_each_table_is_in_one_tier() -> None:
    calm = row()
    assert tier_of(calm, anomaly_of(calm)) == "healthy" and is_named(calm, "healthy")
    never = never_assessed(KnownTable("never", "s3://lake/never"))
    assert is_named(never, "unknown") and not is_named(never, "healthy")


def test_the_documentation_names_each_anomaly_with_its_limit() -> None:
    page = (Path(__file__).parents[3] / "docs/integrations/airflow-health-page.md").read_text()
    for each in ANOMALIES:
        assert f"| {each.title} | {each.tier} | {each.meaning} |" in page

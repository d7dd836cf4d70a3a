"""`add-constraint`: options in, Plan or Result out; the test plays the job of a larger table."""

from __future__ import annotations

import argparse
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.cli import operation_verb as verb
from delta_maintenance.operations.add_constraint import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
    CheckedRows,
    ViolatingFile,
)
from delta_maintenance.operations.table_change.documents import PropertyChange
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

WORDS = ("Positive", "id > 0", "--engine", "spark")
CHANGE = PropertyChange(name="delta.constraints.positive", before=None, after="id > 0")
FOUND = CheckedRows(
    files=3,
    rows=70_000,
    violations=2,
    violating_files=1,
    worst_files=(ViolatingFile(path="b", rows=30, violations=2),),
)


class Job:
    """Answers like a job, and records its input."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []

    def __call__(
        self, operation: str, job: dict[str, Any], arguments: argparse.Namespace, **_: Any
    ) -> dict[str, Any]:
        self.told.append((operation, job))
        self.result["table"] = arguments.table
        return self.result

    def ends(self, **result: Any) -> None:
        """Sets the answer."""
        self.result = AddConstraintResult(table="", **result).to_json()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    job = Job()
    monkeypatch.setattr(verb, "run_spark_job", job)
    return job


@pytest.mark.conformance("FEAT-18")
def test_a_dry_run_shows_the_reads_and_starts_nothing(
    cli: Any, builder: TableBuilder, job: Job
) -> None:
    before = builder.names()
    words = ("add-constraint", builder.store.root, *WORDS, "--dry-run")
    outcome = cli(*words, "--json")
    assert set(outcome.document) == {field.name for field in fields(AddConstraintPlan)}
    planned = AddConstraintPlan.from_json(outcome.document)
    assert (outcome.status, planned.num_files, planned.total_size) == (0, 3, 60)
    said = cli(*words).out
    assert "delta.constraints.positive: (not set) → id > 0" in said
    assert "files to read   3" in said and "60 B" in said and "cut off" in said
    assert builder.names() == before and job.told == []


def test_the_job_gets_the_options_and_its_result_is_printed(
    cli: Any, builder: TableBuilder, job: Job
) -> None:
    job.ends(status="committed", version=3, checked=CheckedRows(files=3, rows=9), changes=(CHANGE,))
    words = ("add-constraint", builder.store.root, *WORDS)
    outcome = cli(*words, "--operation-id", "task-1", "--other-writers", "none", "--json")
    assert outcome.status == 0
    assert AddConstraintResult.from_json(outcome.document).changes == (CHANGE,)
    [(operation, told)] = job.told
    assert operation == "add-constraint"
    assert AddConstraintOptions.from_json(told["options"]) == AddConstraintOptions(
        name="Positive",
        expression="id > 0",
        engine="spark",
        operation_id="task-1",
        other_writers="none",
    )
    assert "delta.constraints.positive: id > 0" in cli(*words).out
    # A generated ID cannot be older than the plan, so the job need not search further back.
    own = AddConstraintOptions.from_json(job.told[1][1]["options"])
    assert own.operation_id and own.operation_since
    assert timedelta() <= clock.now() - own.operation_since < timedelta(minutes=1)
    cli(*words, "--operation-id", "task-2", "--operation-since", "2026-01-31T12:00:00Z")
    given = AddConstraintOptions.from_json(job.told[2][1]["options"])
    assert given.operation_since == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_violations_are_refused_with_their_files(cli: Any, builder: TableBuilder, job: Job) -> None:
    job.ends(status="violated", version=2, checked=FOUND, problem="2 of 70000 rows; correct them")
    outcome = cli("add-constraint", builder.store.root, *WORDS)
    assert outcome.status == 3
    assert "b: 2 of 30 rows" in outcome.out and "70,000" in outcome.out
    assert "version 2: 2 of 70000 rows" in outcome.err and outcome.err.count("\n") == 1


def test_a_conflict_has_its_own_status(cli: Any, builder: TableBuilder, job: Job) -> None:
    job.ends(status="conflict", version=2, problem="other writers committed first; run again")
    outcome = cli("add-constraint", builder.store.root, *WORDS, "--json")
    assert (outcome.status, outcome.document["status"]) == (4, "conflict")
    assert "other writers committed first" in outcome.err


def test_a_constraint_that_is_there_starts_no_job_and_can_be_removed(
    cli: Any, builder: TableBuilder, job: Job
) -> None:
    there = metadata(configuration={"delta.constraints.positive": "id > 0"})
    builder.commit([protocol(1, 3), there])
    root = builder.store.root
    outcome = cli("add-constraint", root, *WORDS)
    assert outcome.status == 0 and "nothing to do" in outcome.out
    refused = cli("add-constraint", root, "positive", "id > 1")
    assert refused.status == 3 and "--unset delta.constraints.positive" in refused.err
    removed = cli("set-properties", root, "--unset", "delta.constraints.positive")
    assert removed.status == 0 and "delta.constraints.positive=(removed)" in removed.out
    dropped = cli("drop-feature", root, "--feature", "checkConstraints", "--dry-run")
    assert dropped.status == 0
    assert job.told == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("positive",), 2, "EXPRESSION"),
        (("positive", " "), 2, "expression is empty"),
        (("", "id > 0"), 2, "not a valid name"),
    ],
)
def test_impossible_requests_are_one_line_and_a_status(
    cli: Any, builder: TableBuilder, job: Job, words: tuple[str, ...], status: int, said: str
) -> None:
    outcome = cli("add-constraint", builder.store.root, *words)
    assert (outcome.status, outcome.out) == (status, "")
    assert said in outcome.err and outcome.err.count("\n") == 1
    assert job.told == []

"""A job that applies an approved plan makes a plan of its own, and compares the two."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from delta_maintenance import clock, open_table
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.policies import ApprovedPlan
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.spark import job
from delta_maintenance.submission import JobSpec
from tests.support.rewrites.data_files import parquet
from tests.support.tables.actions import add, metadata
from tests.support.tables.overdue_tables import STATS, fingerprint, overdue_table
from tests.support.tables.vacuum_tables import Folder

NO_CLUSTER = cast(SparkSession, None)
"""Enough for jobs whose options name the local engine."""
LOCAL = {"engine": "local"}


def approved(folder: Path, operation: str) -> ApprovedPlan:
    table = Policy(version=1).table_at(str(folder))
    planned = run_operation(open_table(str(folder)), table, operation, plan_only=True)
    return ApprovedPlan.of(planned.outcomes[0])


def specification(folder: Path, plan: ApprovedPlan, **options: Any) -> JobSpec:
    asked = JobSpec(
        operation=plan.operation,
        table=str(folder),
        approved=plan.to_json(),
        options={**LOCAL, **options},
    )
    return JobSpec.from_json(json.loads(json.dumps(asked.to_json())))


def exchange_candidates(table: Folder, folder: Path) -> None:
    """Replaces the file that the vacuum would delete by another file of its size and age."""
    shutil.copy2(folder / "0.parquet", folder / "other.parquet")
    table.commit([add("0.parquet", stats=STATS)])


def _with_effect(plan: ApprovedPlan, **effect: str) -> ApprovedPlan:
    assert effect.keys() <= plan.effect.keys()
    return replace(plan, effect={**plan.effect, **effect})


@pytest.mark.parametrize("operation", ["vacuum", "optimize"])
def test_a_job_does_what_was_approved_or_is_refused_before_the_first_write(
    tmp_path: Path, operation: str
) -> None:
    tables = {name: overdue_table(tmp_path / name) for name in ("A", "B", "replaced", "changed")}
    plans = {name: approved(tmp_path / name, operation) for name in tables}
    plan, later = plans["A"], epoch_millis(clock.now()) + 2_000
    tables["replaced"].log(metadata(id="another"))
    if operation == "vacuum":
        exchange_candidates(tables["changed"], tmp_path / "changed")
    else:
        plans["changed"] = _with_effect(plans["changed"], target_bytes="1")
    other: dict[str, Any] = {"vacuum": {"foreign_files": True}, "optimize": {"min_files": 3}}[
        operation
    ]
    before = fingerprint(tmp_path)
    for spec, said in (
        (specification(tmp_path / "B", plan), "the approved plan is for another table"),
        (specification(tmp_path / "replaced", plans["replaced"]), "the table was replaced"),
        (specification(tmp_path / "changed", plans["changed"]), "would now have another effect"),
        (specification(tmp_path / "A", plan, **other), "now has other options"),
        (specification(tmp_path / "A", replace(plan, options=None)), "lacks the ID or the options"),
        (specification(tmp_path / "A", replace(plan, operation="purge")), "is for purge, and"),
    ):
        spec = replace(spec, operation=operation)
        with pytest.raises(RefusedError, match=said):
            job.run(spec, NO_CLUSTER)
        assert fingerprint(tmp_path) == before
    # What is added after the approval is left alone.
    data = parquet(pa.table({"id": [99]}))
    tables["A"].log(add("late.parquet", stats=STATS, size=len(data), modificationTime=later))
    tables["A"].file("late.parquet", data=data)
    told = job.run(specification(tmp_path / "A", plan), NO_CLUSTER)
    assert told["status"] in ("vacuumed", "rewritten"), told
    live = open_table(str(tmp_path / "A")).snapshot().live_files()
    assert "late.parquet" in live["path"].to_pylist()
    assert (tmp_path / "A/late.parquet").exists()

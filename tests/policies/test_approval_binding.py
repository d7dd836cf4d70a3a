"""An approval binds the table, the operation, its options and the effect; nothing else is changed.

A plan is made for one table and approved. Then the world changes, and the run either has the
approved effect or is refused with the part that differs.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance import clock, open_table
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import find, operations
from delta_maintenance.policies import OperationOutcome, RunResult, approval
from delta_maintenance.policies.approval import Approvals, ApprovedPlan
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.on_demand import run_operation
from tests.support.rewrites.data_files import parquet
from tests.support.suite.play import examples
from tests.support.tables.actions import add, metadata
from tests.support.tables.overdue_tables import STATS, fingerprint, overdue_table
from tests.support.tables.vacuum_tables import Folder


@dataclass
class World:
    """Two tables, and the request to run an approved plan of the first one."""

    folder: Path
    operation: str
    tables: dict[str, Folder]
    plan: ApprovedPlan
    target: str = "A"
    name: str = "orders"
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, operation: str) -> World:
        tables = {name: overdue_table(folder / name) for name in ("A", "B")}
        # The two tables differ in their ID only.
        tables["B"].log(metadata(id="another"))
        plan = ApprovedPlan.of(planned(folder / "A", operation))
        return cls(folder, operation, tables, ApprovedPlan.from_json(plan.to_json()))

    def run(self) -> RunResult:
        address = str(self.folder / self.target)
        return run_operation(
            open_table(address),
            Policy(version=1).table_at(address, name=self.name),
            self.operation,
            options=self.options,
            approvals=Approvals(plans=(self.plan,)),
        )

    def live(self, name: str) -> set[str]:
        files: list[str] = open_table(str(self.folder / name)).snapshot().live_files()["path"]
        return {str(path) for path in files}


def planned(folder: Path, operation: str, **options: Any) -> OperationOutcome:
    address = str(folder)
    table = Policy(version=1).table_at(address)
    (outcome,) = run_operation(
        open_table(address), table, operation, options=options, plan_only=True
    ).outcomes
    assert outcome.status == "planned" and outcome.result is not None, outcome.reason
    return outcome


def other_table(world: World) -> None:
    world.target = "B"


def other_table_with_the_same_id(world: World) -> None:
    world.target = "B"
    world.tables["B"].log(metadata())


def table_replaced(world: World) -> None:
    world.tables["A"].log(metadata(id="replaced"))


def table_copied_over(world: World) -> None:
    shutil.rmtree(world.folder / "A")
    shutil.copytree(world.folder / "B", world.folder / "A")


def other_option(world: World) -> None:
    other = {"vacuum": {"foreign_files": True}, "optimize": {"min_files": 3}}
    world.options = {**other.get(world.operation, {}), **world.options}


def plan_of_an_earlier_release(world: World) -> None:
    world.plan = replace(world.plan, table_id=None, options=None)


def plan_of_another_operation(world: World) -> None:
    other = "purge" if world.operation == "optimize" else "clean-log"
    world.plan = replace(world.plan, operation=other)


def table_renamed(world: World) -> None:
    world.name = "renamed"


def file_added(world: World) -> None:
    data = parquet(pa.table({"id": [99]}))
    at = epoch_millis(clock.now() + timedelta(seconds=2))
    world.tables["A"].log(add("late.parquet", stats=STATS, size=len(data), modificationTime=at))
    world.tables["A"].file("late.parquet", data=data)


def run_before(world: World) -> None:
    # A retry of the same task, after the first try has done everything.
    World.run(
        replace(
            world,
            target="A",
            options={},
            plan=ApprovedPlan.of(planned(world.folder / "A", world.operation)),
        )
    )


REFUSED: dict[Callable[[World], None], str] = {
    other_table: "the approved plan is for another table, ",
    other_table_with_the_same_id: "the approved plan is for another table, ",
    table_replaced: "the table was replaced: its ID is ",
    table_copied_over: "the table was replaced: its ID is ",
    other_option: "now has other options than the approved ones: ",
    plan_of_an_earlier_release: "lacks the ID or the options",
    plan_of_another_operation: "the approved plan is for clean-log, |plan is for purge, ",
}
HARMLESS = (table_renamed, file_added)


@pytest.mark.parametrize("operation", ["vacuum", "optimize"])
@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_a_plan_of_something_else_is_refused_with_the_difference(
    change: Callable[[World], None], operation: str, tmp_path: Path
) -> None:
    world = World.of(tmp_path, operation)
    change(world)
    before = fingerprint(tmp_path)
    result = world.run()
    assert (result.status, result.exit_status) == ("failed", 3)
    problem = str(result.problem)
    assert any(text in problem for text in REFUSED[change].split("|")), problem
    assert "approve the new plan" in problem and "\n" not in problem
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("operation", ["vacuum", "optimize"])
@settings(max_examples=examples(10))
@given(
    refused=st.sets(st.sampled_from(sorted(REFUSED, key=lambda each: each.__name__)), max_size=2),
    harmless=st.sets(st.sampled_from(HARMLESS)),
    replayed=st.booleans(),
)
def test_nothing_is_changed_beyond_the_approval(
    tmp_path_factory: pytest.TempPathFactory,
    operation: str,
    refused: set[Callable[[World], None]],
    harmless: set[Callable[[World], None]],
    replayed: bool,
) -> None:
    world = World.of(tmp_path_factory.mktemp("world"), operation)
    approved = world.live("A")
    # A plan is first replayed, then the harmless changes are made, and then the others.
    if replayed:
        run_before(world)
    for change in sorted(harmless | refused, key=lambda each: (each in refused, each.__name__)):
        change(world)
    others, before = fingerprint(world.folder / "B"), fingerprint(world.folder)
    result = world.run()
    assert fingerprint(world.folder / "B") == others
    if refused or (replayed and operation == "vacuum"):
        assert (result.status, result.exit_status) == ("failed", 3)
        assert fingerprint(world.folder) == before
    else:
        assert result.status == "done", result.problem
        assert file_added not in harmless or "late.parquet" in world.live("A")
    if operation == "vacuum" and table_copied_over not in refused:
        assert approved <= world.live("A")


def test_a_rewrite_reads_no_more_than_was_approved(tmp_path: Path) -> None:
    world = World.of(tmp_path, "optimize")
    assert world.plan.at_most["max_files"] == 13
    # Committed late with an old time, as by a writer whose clock is slow.
    data = parquet(pa.table({"id": [99]}))
    world.tables["A"].log(add("slow.parquet", stats=STATS, size=len(data), modificationTime=0))
    world.tables["A"].file("slow.parquet", data=data)
    assert world.run().exit_status in (0, 3)
    new = world.live("A") - {f"{number}.parquet" for number in range(14)} - {"slow.parquet"}
    (outcome,) = world.run().outcomes
    assert not new or (outcome.result or {})["files_before"] <= 13


def test_a_plan_file_that_claims_the_future_deletes_no_young_file(tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    young = tmp_path / "t/part-00000-11111111-1111-4111-8111-111111111111-c000.parquet"
    young.write_bytes(b"x")
    outcome = planned(tmp_path / "t", "vacuum")
    future = clock.now() + timedelta(days=3650)
    claimed = (outcome.result or {}) | {"planned_at": future.isoformat()}
    plan = ApprovedPlan.of(replace(outcome, started_at=future, result=claimed))
    assert plan.planned_at == future
    address = str(tmp_path / "t")
    table = Policy(version=1).table_at(address)
    run_operation(open_table(address), table, "vacuum", approvals=Approvals(plans=(plan,)))
    assert young.exists()


def test_a_plan_of_another_release_is_named() -> None:
    outcome = OperationOutcome(
        operation="vacuum", status="planned", reason="", started_at=clock.now(), result={"a": 1}
    )
    for wrong in (outcome, replace(outcome, result=None), replace(outcome, operation="unknown")):
        with pytest.raises(InvalidRequestError):
            ApprovedPlan.of(wrong)


@pytest.mark.parametrize("name", [record.name for record in operations()])
def test_each_record_names_fields_of_its_plan_and_limits_of_its_options(name: str) -> None:
    record = find(name)
    plan = {each.name for each in record.plan.__dataclass_fields__.values()}
    options = set(record.options.__dataclass_fields__)
    assert set(record.bounds) <= options and set(record.bounds.values()) <= plan
    # `converted_domains` is a field of only some changes.
    assert set(record.decisive) - {"converted_domains"} <= plan
    effects = record.effects
    assert record.decisive or record.bounds or not (effects.deletes or effects.commits)


def test_the_texts_of_an_approval_are_no_templates_and_no_literals() -> None:
    # Airflow renders texts, and evaluates those that look like a literal of Python.
    for value in ([], 7, 1.5, True, None, "'x'", "{{ secret }}", {"a": 1}, ["x" * 500]):
        text = approval._brief(value)
        with pytest.raises((ValueError, SyntaxError)):
            ast.literal_eval(text)
        assert "{" not in text and len(text) < 300

"""Runs that are paused while a Spark job works, and continued from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from policy_tables import Ticking, asked, statuses, worn
from vacuum_tables import NOW, Folder
from worn_tables import worn_table

from delta_maintenance import open_table
from delta_maintenance.operations import vacuum
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.environment import RunEnvironment
from delta_maintenance.policies.leases import LIFE, Leases
from delta_maintenance.policies.models import AssessedOperation, RunResult
from delta_maintenance.policies.on_demand import run_operation, run_plans
from delta_maintenance.policies.paused import PausedRun
from delta_maintenance.policies.run import run
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.submission.left_running import JobLeftRunningError

VACUUMED = {"table": "memory://t", "version": 13, "status": "vacuumed", "end_version": 13}


class Cluster:
    """Jobs that are left running; a continued run gets the document of its first job."""

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        self.documents = list(documents)
        self.clock = Ticking(timedelta(seconds=1))
        self.started: list[tuple[str, bool]] = []
        self._ended: list[Mapping[str, Any]] = []

    def __call__(
        self, table: PolicyTable, due: AssessedOperation, /, *, plan_only: bool = False
    ) -> Mapping[str, Any]:
        if self._ended:
            return self._ended.pop()
        self.started.append((due.operation, plan_only))
        raise JobLeftRunningError

    def ends(self) -> None:
        """An hour later, the job has ended."""
        self.clock.at += timedelta(hours=1)
        self._ended = [self.documents.pop(0)]


def through_database(left: JobLeftRunningError) -> PausedRun:
    assert left.run is not None
    return PausedRun.from_json(left.run.to_json())


def run_to_the_end(work: Any, cluster: Cluster, **environment: Any) -> tuple[RunResult, int]:
    """The result of a run that continues whenever a job ends, and the number of its pauses."""
    paused, pauses = None, 0
    while True:
        try:
            return work(RunEnvironment(submit=cluster, paused=paused, **environment)), pauses
        except JobLeftRunningError as left:
            paused, pauses = through_database(left), pauses + 1
            cluster.ends()


def maintained(table: Folder, rules: dict[str, Any], cluster: Cluster, **environment: Any) -> Any:
    table.store.now_ms = lambda: int(NOW.timestamp() * 1000)
    return run_to_the_end(
        lambda given: run(table.open(), asked(**rules), environment=given),
        cluster,
        now=cluster.clock,
        **environment,
    )


def test_a_run_keeps_its_results_and_continues_after_the_job() -> None:
    rules = {
        "vacuum": True,
        "compact_log": {"commits_per_file": 2},
        "engine": {"prefer": "spark"},
    }
    alone = Cluster()
    with pytest.raises(JobLeftRunningError) as caught:
        run(worn().open(), asked(**rules), environment=RunEnvironment(submit=alone))
    assert caught.value.run is not None and caught.value.run.outcomes == ()
    [(first, planned)] = alone.started
    assert not planned

    table, cluster = worn(), Cluster(*[_document_of(name) for name in _ORDER])
    result, pauses = maintained(table, rules, cluster)
    assert pauses == len(result.outcomes) == len(_ORDER) and first == _ORDER[0]
    assert statuses(result) == dict.fromkeys(_ORDER, "done")
    assert [operation for operation, _ in cluster.started] == _ORDER
    assert {outcome.engine for outcome in result.outcomes} == {"spark"}
    assert result.status == "done" and result.started_at < result.outcomes[0].started_at
    assert {each.operation for each in result.last_runs} == set(_ORDER)
    begun = [outcome.started_at for outcome in result.outcomes]
    assert begun == sorted(begun)
    assert all(outcome.seconds > 3600 for outcome in result.outcomes)


def test_a_plan_that_a_job_makes_is_held_against_limits_after_the_pause() -> None:
    table = worn()
    plan = {**vacuum.plan(table.open().snapshot(), now=NOW).to_json(), "files": 10}
    rules = {"vacuum": True, "engine": {"prefer": "spark"}}
    for most, started, status in ((10, [True, False], "done"), (9, [True], "stopped")):
        cluster = Cluster(plan, VACUUMED)
        limits = {"max_deleted_files": most}
        result, pauses = maintained(table, {**rules, "limits": limits}, cluster)
        assert [planned for _, planned in cluster.started] == started
        assert pauses == len(started) and result.outcomes[0].status == status


def test_a_job_that_failed_ends_the_continued_run() -> None:
    class Failing(Cluster):
        def __call__(self, *given: Any, **more: Any) -> Mapping[str, Any]:
            if self._ended:
                raise ValueError("the driver is lost")
            return super().__call__(*given, **more)

    with pytest.raises(ValueError, match="lost"):
        maintained(worn(), {"vacuum": True, "engine": {"prefer": "spark"}}, Failing(VACUUMED))


def test_the_lease_is_kept_during_the_job_and_released_at_the_end() -> None:
    store, table = MemoryStore(), worn()
    clock = Ticking(timedelta())
    leases = Leases(store, now=clock)
    cluster = Cluster(VACUUMED)
    environment: dict[str, Any] = {"now": clock, "lease": lambda: leases.held("t", holder="task")}
    rules = asked(vacuum=True, engine={"prefer": "spark"})
    with pytest.raises(JobLeftRunningError) as caught:
        run(table.open(), rules, environment=RunEnvironment(submit=cluster, **environment))
    assert len(list(store.list_from(""))) == 1
    clock.at += LIFE / 2
    leases.renew("t", holder="somebody else")
    leases.release("t", holder="somebody else")
    leases.renew("t", holder="task")
    clock.at += LIFE * 0.9
    assert leases._read(next(iter(store.list_from(""))).path).until > clock.at  # type: ignore[union-attr]
    cluster.ends()
    paused = through_database(caught.value)
    run(
        table.open(),
        rules,
        environment=RunEnvironment(submit=cluster, paused=paused, **environment),
    )
    assert list(store.list_from("")) == []


def test_approved_plans_continue_where_they_were(tmp_path: Path) -> None:
    worn_table(tmp_path / "t")
    table = Policy(version=1).table_at(str(tmp_path / "t"))

    def approved(operation: str, **options: Any) -> ApprovedPlan:
        planned = run_operation(
            open_table(table.uri), table, operation, options=options, plan_only=True
        )
        plan = planned.outcomes[0].result
        assert plan is not None
        return ApprovedPlan.of(operation, plan, planned_at=planned.outcomes[0].started_at)

    on_spark = table.model_copy(
        update={
            "rules": table.rules.model_copy(
                update={"engine": table.rules.engine.model_copy(update={"prefer": "spark"})}
            )
        }
    )
    plans = [approved("clean-log"), approved("vacuum")]
    plan = vacuum.plan(open_table(table.uri).snapshot(), now=plans[1].planned_at).to_json()
    cluster = Cluster(plan, {**VACUUMED, "table": table.uri})
    result, pauses = run_to_the_end(
        lambda given: run_plans(open_table(table.uri), on_spark, plans, environment=given), cluster
    )
    assert cluster.started == [("vacuum", True), ("vacuum", False)] and pauses == 2
    assert statuses(result) == {"clean-log": "done", "vacuum": "done"}
    assert {each.operation for each in result.last_runs} == {"clean-log", "vacuum"}


_ORDER = ["compact-log", "vacuum"]


def _document_of(operation: str) -> Mapping[str, Any]:
    """The Result of a job that played an operation."""
    from delta_maintenance.operations.core.registry import find

    record = find(operation)
    status = next(name for name, how in record.outcomes.items() if how.name == "DONE")
    return {"table": "memory://t", "version": 13, "status": status}

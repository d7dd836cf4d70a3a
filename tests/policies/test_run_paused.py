"""Runs that are paused while a Spark job works, and continued from JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.policies import run as run_module
from delta_maintenance.policies.approval import Approvals, ApprovedPlan
from delta_maintenance.policies.definition.policy import Policy, PolicyTable
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.leases import LIFE, Leases
from delta_maintenance.policies.models import AssessedOperation, PausedRun, RunResult
from delta_maintenance.policies.on_demand import run_operation, run_plans
from delta_maintenance.policies.run import run
from delta_maintenance.storage.memory import MemoryStore
from delta_maintenance.submission import JobLeftRunningError
from delta_maintenance.testing.actions import add
from delta_maintenance.testing.table_builder import TableBuilder
from tests.support.tables.overdue_tables import overdue_table
from tests.support.tables.policy_tables import Ticking, asked, neglected, statuses
from tests.support.tables.vacuum_tables import NOW, Folder

VACUUMED = {"table": "memory://t", "version": 13, "status": "vacuumed", "end_version": 13}


class Cluster:
    """Jobs that are left running; a continued run gets the document of its first job."""

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        self.documents = list(documents)
        self.clock = Ticking(timedelta(seconds=1))
        self.started: list[tuple[str, bool]] = []
        self.started_at: list[datetime] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """What other writers do while a job works."""
        self._ended: list[Mapping[str, Any]] = []

    def __call__(
        self,
        table: PolicyTable,
        due: AssessedOperation,
        /,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        if self._ended:
            return self._ended.pop()
        self.started.append((due.operation, plan_only))
        self.started_at.append(self.clock.at)
        raise JobLeftRunningError

    def ends(self) -> None:
        """An hour later, the job has ended."""
        self.meanwhile()
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


def maintained(
    table: Folder,
    rules: dict[str, Any],
    cluster: Cluster,
    *,
    approvals: Callable[[], Approvals] = Approvals,
    **environment: Any,
) -> Any:
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(cluster.clock.at)
    return run_to_the_end(
        lambda given: run(table.open(), asked(**rules), approvals=approvals(), environment=given),
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
        run(neglected().open(), asked(**rules), environment=RunEnvironment(submit=alone))
    assert caught.value.run is not None and caught.value.run.outcomes == ()
    [(first, planned)] = alone.started
    assert not planned

    table, cluster = neglected(), Cluster(*[_document_of(name) for name in _ORDER])
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
    # An operation begins before its job, not when the run continues.
    assert all(map(datetime.__le__, begun, cluster.started_at))


def commit_to(table: Folder) -> None:
    """Another writer commits, by the same clock."""
    assert isinstance(table.store, MemoryStore)
    clock = table.store.now_ms
    table.log(add("later.parquet"), days=0)
    table.store.now_ms = clock


def test_a_run_tells_how_the_table_was_when_it_began() -> None:
    table = neglected()
    cluster = Cluster(*[_document_of(name) for name in _ORDER])
    cluster.meanwhile = lambda: commit_to(table)
    rules = {"vacuum": True, "compact_log": {"commits_per_file": 8}, "clean_log": True}
    before = table.open().latest_version()
    result, _ = maintained(table, {**rules, "engine": {"prefer": "spark"}}, cluster)
    assert result.before is not None and result.before.health is not None
    assert result.after is not None and result.after.health is not None
    assert (result.before.health.version, result.after.health.version) == (before, before + 2)
    # The job was one operation's; others run as if there had been no pause.
    assert [operation for operation, _ in cluster.started] == _ORDER
    engines = {outcome.operation: outcome.engine for outcome in result.outcomes}
    assert engines == {"compact-log": "spark", "clean-log": "local", "vacuum": "spark"}


def test_an_operation_that_remains_due_is_not_repeated_after_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = run_module.assess_table

    def forgetful(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **{**options, "last_runs": ()})

    monkeypatch.setattr(run_module, "assess_table", forgetful)
    cluster = Cluster(*[VACUUMED] * 3)
    _, pauses = maintained(neglected(), {"vacuum": True, "engine": {"prefer": "spark"}}, cluster)
    assert pauses == 1


def test_a_job_after_a_job_that_planned_keeps_the_files_of_clones_and_holders() -> None:
    table, given = neglected(), []

    class Recording(Cluster):
        def __call__(self, policy_table: Any, due: Any, /, **options: Any) -> Mapping[str, Any]:
            given.append((due.options.clones, due.options.holders.keep))
            return super().__call__(policy_table, due, **options)

    class Clones:
        def same_tables(self, *_: Any) -> tuple[()]:
            return ()

        def of(self, *_: Any, **__: Any) -> tuple[str, ...]:
            return ("memory://clone",)

    plan = vacuum.plan(table.open().snapshot(), context=RunContext.at(NOW)).to_json()
    rules = {
        "vacuum": True,
        "engine": {"prefer": "spark"},
        "limits": {"max_deleted_files": 100},
        "keep": [{"name": "audit", "version": 5}],
    }
    _, pauses = maintained(table, rules, Recording(plan, VACUUMED), clones=Clones())
    assert pauses == 2
    assert {clones for clones, _ in given} == {("memory://clone",)}
    assert {keep[0].name for _, keep in given} == {"audit"}


def test_the_longest_duration_ends_no_operation_whose_job_has_ended() -> None:
    rules = {
        "vacuum": True,
        "compact_log": {"commits_per_file": 2},
        "engine": {"prefer": "spark"},
        "limits": {"max_duration": "30 minutes"},
    }
    result, pauses = maintained(neglected(), rules, Cluster(_document_of("compact-log")))
    assert statuses(result) == {"compact-log": "done", "vacuum": "stopped"} and pauses == 1


def test_a_plan_for_an_approval_is_shown_after_the_pause_and_takes_no_lease() -> None:
    """Also if another task has asked for the approval meanwhile."""
    table = neglected()
    plan = vacuum.plan(table.open().snapshot(), context=RunContext.at(NOW)).to_json()
    cluster = Cluster(_document_of("compact-log"), plan)
    cluster.meanwhile = lambda: commit_to(table)
    leased: list[int] = []

    def lease() -> Any:
        leased.append(len(cluster.started))
        return nullcontext()

    rules = {
        "vacuum": True,
        "compact_log": {"commits_per_file": 8},
        "engine": {"prefer": "spark"},
        "approval": ["vacuum"],
    }
    result, _ = maintained(
        table,
        rules,
        cluster,
        approvals=lambda: Approvals(
            asked=["vacuum"] if len(cluster.started) == 2 else [], plans_on_spark=True
        ),
        lease=lease,
    )
    assert cluster.started == [("compact-log", False), ("vacuum", True)]
    assert statuses(result) == {"compact-log": "done", "vacuum": "needs-approval"}
    assert result.outcomes[1].result == plan
    # Before the job of compact-log, and when that has ended; never for the plan.
    assert leased == [0, 1]
    assert result.before is not None and result.after is not None
    assert result.before.health is not None and result.after.health is not None
    assert result.after.health.version == result.before.health.version + 2


def test_a_plan_that_a_job_makes_is_held_against_limits_after_the_pause() -> None:
    table = neglected()
    plan = {
        **vacuum.plan(table.open().snapshot(), context=RunContext.at(NOW)).to_json(),
        "files": 10,
    }
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

    rules = {"vacuum": True, "engine": {"prefer": "spark"}}
    result, pauses = maintained(neglected(), rules, Failing(VACUUMED))
    assert pauses == 1 and result.status == "failed"
    assert "the driver is lost" in (result.problem or "")


def test_the_lease_is_kept_during_the_job_and_released_at_the_end() -> None:
    store, table = MemoryStore(), neglected()
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


@pytest.mark.parametrize("order", [("clean-log", "vacuum"), ("vacuum", "clean-log")])
def test_approved_plans_continue_where_they_were(tmp_path: Path, order: tuple[str, str]) -> None:
    overdue_table(tmp_path / "t")
    table = Policy(version=1).table_at(str(tmp_path / "t"))
    plans = [approved(table, operation) for operation in order]
    planned_at = next(each.planned_at for each in plans if each.operation == "vacuum")
    plan = vacuum.plan(
        open_table(table.uri).snapshot(), context=RunContext.at(planned_at)
    ).to_json()
    cluster = Cluster(plan, {**VACUUMED, "table": table.uri})
    before = open_table(table.uri).latest_version()
    cluster.meanwhile = lambda: commit(table.uri)
    result, pauses = run_to_the_end(
        lambda given: run_plans(open_table(table.uri), on_spark(table), plans, environment=given),
        cluster,
    )
    assert cluster.started == [("vacuum", True), ("vacuum", False)] and pauses == 2
    assert statuses(result) == {"clean-log": "done", "vacuum": "done"}
    assert [outcome.operation for outcome in result.outcomes] == list(order)
    assert {each.operation for each in result.last_runs} == {"clean-log", "vacuum"}
    begun = [outcome.started_at for outcome in result.outcomes]
    assert result.started_at <= begun[0] <= begun[1]
    assert result.before is not None and result.before.health is not None
    assert result.before.health.version == before


def test_an_approved_plan_that_a_job_finds_changed_does_not_run(tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    table = Policy(version=1).table_at(str(tmp_path / "t"))
    plan = approved(table, "vacuum")
    found = vacuum.plan(open_table(table.uri).snapshot(), context=RunContext.at(plan.planned_at))
    assert not found.is_noop
    Path(table.uri, "0.parquet").unlink()
    other = vacuum.plan(
        open_table(table.uri).snapshot(), context=RunContext.at(plan.planned_at)
    ).to_json()
    cluster = Cluster(other, {**VACUUMED, "table": table.uri})
    result, _ = run_to_the_end(
        lambda given: run_plans(open_table(table.uri), on_spark(table), [plan], environment=given),
        cluster,
    )
    assert cluster.started == [("vacuum", True)]
    assert statuses(result) == {"vacuum": "failed"} and result.exit_status == 3
    assert "another effect" in (result.problem or "")


def commit(uri: str) -> None:
    TableBuilder(uri).commit([add("0.parquet")], version=open_table(uri).latest_version() + 1)


def approved(table: PolicyTable, operation: str) -> ApprovedPlan:
    """The plan of an operation as a person approves it."""
    planned = run_operation(open_table(table.uri), table, operation, plan_only=True)
    return ApprovedPlan.of(planned.outcomes[0])


def on_spark(table: PolicyTable) -> PolicyTable:
    engine = table.rules.engine.model_copy(update={"prefer": "spark"})
    return table.model_copy(update={"rules": table.rules.model_copy(update={"engine": engine})})


_ORDER = ["compact-log", "vacuum"]


def _document_of(operation: str) -> Mapping[str, Any]:
    """The Result of a job that played an operation."""
    from delta_maintenance.operations.core.registry import find

    record = find(operation)
    status = next(name for name, how in record.outcomes.items() if how.name == "DONE")
    return {"table": "memory://t", "version": 13, "status": status}

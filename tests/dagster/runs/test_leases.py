"""Leases of tables in a Dagster instance: one run at a time, and no lease without a process."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import filelock
import pytest

from delta_maintenance import clock
from delta_maintenance.errors import BusyError
from delta_maintenance_dagster import leases, table_run
from delta_maintenance_dagster.leases import LIFE, InstanceLease, limit_to_one
from tests.support.tables.table_builder import TableBuilder

POOL = "delta_lake/events"
NOW = datetime(2026, 11, 23, tzinfo=UTC)


@dg.job
def other() -> None:
    """Stands for a run that holds a lease."""


@pytest.fixture
def running(instance_with_pools: dg.DagsterInstance) -> Callable[[], str]:
    """The ID of a run that has started and not ended."""

    def started() -> str:
        run = instance_with_pools.create_run_for_job(other, status=dg.DagsterRunStatus.STARTED)
        return run.run_id

    return started


def lease(instance: dg.DagsterInstance, run_id: str, *, at: datetime = NOW) -> InstanceLease:
    return InstanceLease(instance=instance, pool=POOL, run_id=run_id, now=lambda: at)


def test_a_table_in_use_is_reported_with_its_run(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    first, second = running(), running()
    with (
        lease(instance_with_pools, first)(),
        pytest.raises(BusyError, match=first),
        lease(instance_with_pools, second)(),
    ):
        raise AssertionError("entered together")
    with lease(instance_with_pools, second)():
        pass
    assert not instance_with_pools.event_log_storage.get_concurrency_info(POOL).claimed_slots


def test_a_retry_of_the_same_run_takes_its_lease_over(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    run_id = running()
    with ExitStack() as never_left:
        never_left.enter_context(lease(instance_with_pools, run_id)())
        with lease(instance_with_pools, run_id)():
            pass


def test_the_lease_of_a_run_that_has_ended_is_free(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    dead, next_run = running(), running()
    storage = instance_with_pools.event_log_storage
    limit_to_one(instance_with_pools, POOL)
    # Claimed as the executor of Dagster claims the pool of a step, and never freed.
    assert storage.claim_concurrency_slot(POOL, dead, "step").is_claimed
    waiting = running()
    storage.claim_concurrency_slot(POOL, waiting, "step")
    with pytest.raises(BusyError), lease(instance_with_pools, next_run)():
        pass
    for run_id in (dead, waiting):
        run = instance_with_pools.get_run_by_id(run_id)
        assert run is not None
        instance_with_pools.report_run_failed(run)
    with lease(instance_with_pools, next_run)():
        pass


def test_a_lease_that_is_not_renewed_expires(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    lost, next_run = running(), running()
    with ExitStack() as never_left:
        never_left.enter_context(lease(instance_with_pools, lost)())
        almost = NOW + LIFE - timedelta(seconds=1)
        with pytest.raises(BusyError), lease(instance_with_pools, next_run, at=almost)():
            pass
        with lease(instance_with_pools, next_run, at=NOW + LIFE + timedelta(seconds=1))():
            pass


def test_a_run_that_was_killed_after_its_claim_loses_its_lease(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    """It has never stated an expiry time, and its run never ends."""
    earlier, lost, next_run = running(), running(), running()
    with lease(instance_with_pools, earlier)():
        pass
    assert lease(instance_with_pools, lost)._claim_slot()
    with pytest.raises(BusyError), lease(instance_with_pools, next_run)():
        pass
    with lease(instance_with_pools, next_run, at=NOW + LIFE + timedelta(seconds=1))():
        pass


def test_a_step_of_a_running_run_keeps_the_slot(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    storage = instance_with_pools.event_log_storage
    limit_to_one(instance_with_pools, POOL)
    assert storage.claim_concurrency_slot(POOL, running(), "step").is_claimed
    next_run = running()
    for at in (NOW, NOW + 2 * LIFE):
        with pytest.raises(BusyError), lease(instance_with_pools, next_run, at=at)():
            pass


def test_the_holder_renews_its_lease(
    instance_with_pools: dg.DagsterInstance, running: Callable[[], str]
) -> None:
    first, second = running(), running()
    renewed = threading.Event()
    now = NOW

    def reading() -> datetime:
        if threading.current_thread().name == "lease":
            renewed.set()
        return now

    mine = InstanceLease(
        instance=instance_with_pools,
        pool=POOL,
        run_id=first,
        now=reading,
        life=timedelta(seconds=0.3),
    )
    with mine():
        now = NOW + timedelta(seconds=1)
        renewed.clear()
        assert renewed.wait(30)
        # The renewal that the clock was read for may not be stored yet.
        renewed.clear()
        assert renewed.wait(30)
        with pytest.raises(BusyError), lease(instance_with_pools, second, at=now)():
            pass


ROUNDS = 20


def _contend(home: str, run_id: str, start: Barrier, entered: Queue, leave: Barrier) -> None:
    with dg.DagsterInstance.local_temp(home) as instance:
        for number in range(ROUNDS):
            start.wait()
            try:
                with InstanceLease(instance=instance, pool=f"{POOL}/{number}", run_id=run_id)():
                    entered.put(run_id)
                    leave.wait()
            except BusyError:
                entered.put(None)
                leave.wait()
            except Exception as error:
                entered.put(f"{type(error).__name__}: {error}")
                leave.wait()


def test_two_first_claims_of_an_instance_exclude_each_other(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        runs = [
            instance.create_run_for_job(other, status=dg.DagsterRunStatus.STARTED).run_id
            for _ in range(2)
        ]
    context = multiprocessing.get_context("spawn")
    start, leave = context.Barrier(2, timeout=400), context.Barrier(3, timeout=400)
    entered = context.Queue()
    processes = [
        context.Process(target=_contend, args=(str(tmp_path), run_id, start, entered, leave))
        for run_id in runs
    ]
    for process in processes:
        process.start()
    found = []
    for _ in range(ROUNDS):
        found.append({entered.get(timeout=400) for _ in processes})
        # The first one stays inside until the second one has its answer.
        leave.wait()
    for process in processes:
        process.join()
    assert all(each in ({None, runs[0]}, {None, runs[1]}) for each in found), found


def _claim_and_wait(home: str, run_id: str, claimed: Event) -> None:
    with (
        dg.DagsterInstance.local_temp(home) as instance,
        InstanceLease(instance=instance, pool=POOL, run_id=run_id)(),
    ):
        claimed.set()
        time.sleep(400)


def test_a_killed_process_loses_its_lease_although_its_run_never_ends(tmp_path: Path) -> None:
    """As under `dg dev`, where nothing marks the run of a killed process as failed."""
    context = multiprocessing.get_context("spawn")
    claimed = context.Event()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        killed, next_run = (
            instance.create_run_for_job(other, status=dg.DagsterRunStatus.STARTED).run_id
            for _ in range(2)
        )
        process = context.Process(target=_claim_and_wait, args=(str(tmp_path), killed, claimed))
        process.start()
        assert claimed.wait(400)
        with pytest.raises(BusyError), lease(instance, next_run, at=clock.now())():
            pass
        process.kill()
        process.join()
        now = clock.now()
        with pytest.raises(BusyError), lease(instance, next_run, at=now)():
            pass
        with lease(instance, next_run, at=now + LIFE + timedelta(seconds=1))():
            pass
        run = instance.get_run_by_id(killed)
        assert run is not None and not run.is_finished


def test_on_sqlite_one_process_claims_at_a_time(
    instance_with_pools: dg.DagsterInstance,
    running: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_CLAIM_TIMEOUT", 0.01)
    lock = filelock.FileLock(Path(instance_with_pools.root_directory) / "delta-maintenance.lock")
    with lock, pytest.raises(BusyError), lease(instance_with_pools, running())():
        pass
    with lease(instance_with_pools, running())():
        pass


def test_a_limit_that_somebody_set_is_kept(instance_with_pools: dg.DagsterInstance) -> None:
    storage = instance_with_pools.event_log_storage
    storage.set_concurrency_slots(POOL, 3)
    limit_to_one(instance_with_pools, POOL)
    limit_to_one(instance_with_pools, "delta_other")
    limits = {each.name: each.limit for each in storage.get_pool_limits()}
    assert limits == {POOL: 3, "delta_other": 1}


def test_a_run_waits_for_another_one_on_its_table_and_then_does_its_work(
    table: TableBuilder,
    load: Callable[..., dg.Definitions],
    instance_with_pools: dg.DagsterInstance,
    running: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder, waits = running(), []
    rules = {"checkpoint": {"max_commits": 5}}
    definitions = load(tables=[{"uri": table.store.root, "key": "lake/events", **rules}])
    pool = f"delta_{table.store.root}"
    held = ExitStack()
    held.enter_context(InstanceLease(instance=instance_with_pools, pool=pool, run_id=holder)())

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        held.close()

    watch = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(table_run, "time", watch)
    job = definitions.resolve_job_def("delta_maintenance")
    assert job.execute_in_process(instance=instance_with_pools).success
    assert waits == [table_run.PAUSE_SECONDS]
    assert any("checkpoint.parquet" in name for name in table.names())


def test_a_run_with_nothing_to_do_does_not_wait(
    table: TableBuilder,
    load: Callable[..., dg.Definitions],
    instance_with_pools: dg.DagsterInstance,
    running: Callable[[], str],
) -> None:
    definitions = load(tables=[{"uri": table.store.root, "key": "lake/events"}])
    pool = f"delta_{table.store.root}"
    with InstanceLease(instance=instance_with_pools, pool=pool, run_id=running())():
        job = definitions.resolve_job_def("delta_maintenance")
        assert job.execute_in_process(instance=instance_with_pools).success

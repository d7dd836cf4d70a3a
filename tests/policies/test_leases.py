"""One at a time on each table."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import BusyError, FullStoreError
from delta_maintenance.policies.leases import LIFE, Leases
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash
from tests.support.stores.interleaving import Schedule, ScheduledStore

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def test_a_second_task_gets_the_holder_and_the_expiry() -> None:
    leases = Leases(MemoryStore(), now=Clock())
    with (
        leases.held("orders", holder="first"),
        leases.held("users", holder="second"),
        pytest.raises(BusyError, match=r"first is working on orders; .* 12:05:00 UTC") as refused,
        leases.held("orders", holder="second"),
    ):
        pass
    assert refused.value.retryable


def test_it_ends_with_the_block_however_that_ends() -> None:
    store = MemoryStore()
    leases = Leases(store)
    with pytest.raises(ValueError), leases.held("orders", holder="first"):
        raise ValueError
    assert list(store.list_from("")) == []
    with leases.held("orders", holder="second"):
        pass


def test_the_lease_of_a_dead_task_expires_on_time() -> None:
    store, clock = MemoryStore(), Clock()
    dead = Leases(store, now=clock)
    dead._take(_path(dead, store), "orders", "dead")
    clock.now = NOON + LIFE - timedelta(seconds=1)
    with pytest.raises(BusyError), dead.held("orders", holder="next"):
        pass
    clock.now = NOON + LIFE
    with dead.held("orders", holder="next"):
        pass


def test_an_expired_lease_is_of_a_killed_task_unless_the_task_has_reported() -> None:
    store, clock = MemoryStore(), Clock()
    leases = Leases(store, now=clock)
    assert leases.abandoned("orders", reported_at=None) is None
    leases._take(_path(leases, store), "orders", "killed")
    assert leases.abandoned("orders", reported_at=None) is None
    clock.now = NOON + LIFE
    lease = leases.abandoned("orders", reported_at=NOON - timedelta(seconds=1))
    assert lease is not None and (lease.holder, lease.written_at) == ("killed", NOON)
    # It could not release its lease.
    assert leases.abandoned("orders", reported_at=NOON + timedelta(seconds=1)) is None
    with leases.held("orders", holder="next"):
        assert leases.abandoned("orders", reported_at=None) is None
    assert leases.abandoned("orders", reported_at=None) is None


def test_the_lease_of_another_holder_is_neither_released_nor_renewed() -> None:
    store, clock = MemoryStore(), Clock()
    leases = Leases(store, now=clock)
    with leases.held("orders", holder="first"):
        clock.now += timedelta(minutes=1)
        leases.renew("orders", holder="second")
        leases.release("orders", holder="second")
        with pytest.raises(BusyError, match=r"first is working on orders; .* 12:05:00 UTC"):
            leases._take(next(iter(store.list_from(""))).path, "orders", "third")
        leases.renew("orders", holder="first")
        with pytest.raises(BusyError, match="12:06:00 UTC"), leases.held("orders", holder="third"):
            pass
    leases.release("orders", holder="first")
    assert list(store.list_from("")) == []


@pytest.mark.parametrize("meanwhile", ["ends", "is dead", "is followed by another task"])
def test_an_earlier_attempt_has_time_to_end(meanwhile: str) -> None:
    store, pauses = MemoryStore(), list[float]()
    tasks = ExitStack()
    first = ExitStack()
    first.enter_context(Leases(store).held("orders", holder="task"))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if meanwhile != "is dead":
            first.close()
        if meanwhile == "is followed by another task":
            tasks.enter_context(Leases(store).held("orders", holder="other"))

    second = Leases(store, sleep=sleep).held("orders", holder="task", patience=timedelta(seconds=9))
    with tasks:
        if meanwhile == "is followed by another task":
            with pytest.raises(BusyError, match="other is working"):
                tasks.enter_context(second)
        else:
            tasks.enter_context(second)
        assert Leases(store).is_held("orders")
    assert pauses == [9]
    with (
        Leases(store, sleep=sleep).held("orders", holder="task", patience=timedelta(seconds=9)),
        Leases(store, sleep=sleep).held("orders", holder="task"),
    ):
        assert pauses == [9]
    first.pop_all()


def test_a_local_folder_has_one_lease_under_each_of_its_addresses(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "link").symlink_to("orders")
    leases = Leases(MemoryStore())
    addresses = [f"{tmp_path}/link", f"file://{tmp_path}/orders", f"{tmp_path}/x/../orders"]
    with leases.held("orders", holder="first", uri=f"{tmp_path}/orders"):
        for uri in addresses:
            with pytest.raises(BusyError), leases.held("other name", holder="second", uri=uri):
                pass
        for uri in (f"{tmp_path}/users", "s3://bucket/orders", "memory://orders"):
            with leases.held("orders", holder="second", uri=uri):
                pass


def test_a_second_try_takes_over_from_the_first_at_once() -> None:
    store = MemoryStore()
    leases = Leases(store)
    leases._take(_path(leases, store), "orders", "task 1")
    with leases.held("orders", holder="task 1"):
        pass
    assert list(store.list_from("")) == []


def test_it_is_renewed_for_as_long_as_the_work_takes() -> None:
    renewed = threading.Semaphore(0)
    clock = Clock()

    class Renewals(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            renewed.release()

    # A renewal every 0.1 s. The lease expires by the clock, which stands still on a slow machine.
    leases = Leases(Renewals(), now=clock, life=timedelta(seconds=0.3))
    with leases.held("orders", holder="first"):
        clock.now = NOON + timedelta(hours=1)
        while renewed.acquire(blocking=False):
            pass
        # The first of these renewals may have begun before the clock changed.
        assert all(renewed.acquire(timeout=120) for _ in range(2))
        with pytest.raises(BusyError), leases.held("orders", holder="second"):
            pass


@pytest.mark.parametrize("ahead", [timedelta(minutes=4), timedelta(hours=1), timedelta(days=400)])
def test_a_holder_whose_clock_is_ahead_blocks_for_two_lifetimes_at_most(ahead: timedelta) -> None:
    store, fast, true = MemoryStore(), Clock(), Clock()
    fast.now += ahead
    dead = Leases(store, now=fast)
    dead._take(_path(dead, store), "orders", "dead")
    if ahead < LIFE:
        with pytest.raises(BusyError), Leases(store, now=true).held("orders", holder="next"):
            pass
        true.now += 2 * LIFE
    with Leases(store, now=true).held("orders", holder="next"):
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"what is this",
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"name":"orders","holder":"other","until":"2099-01-01T00:00:00","nonce":"1"}',
    ],
    ids=["no JSON", "empty", "no text", "no object", "nested too deeply", "no time zone"],
)
def test_an_unreadable_lease_is_replaced(data: bytes) -> None:
    store = MemoryStore()
    leases = Leases(store)
    store.put(_path(leases, store), data)
    with leases.held("orders", holder="first"):
        pass


def test_only_one_of_many_holds_the_lease() -> None:
    store = MemoryStore()
    leases = Leases(store)
    at_work, most, done = 0, 0, []
    lock, start = threading.Lock(), threading.Barrier(8)

    def work(name: str) -> None:
        nonlocal at_work, most
        start.wait()
        try:
            with leases.held("orders", holder=name):
                with lock:
                    at_work += 1
                    most = max(most, at_work)
                threading.Event().wait(0.05)
                with lock:
                    at_work -= 1
                done.append(name)
        except BusyError:
            pass

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and done


@pytest.mark.parametrize("left", ["expired", "unreadable"])
@given(seed=st.integers(0, 2**32), persistence=st.sampled_from([0.0, 0.5, 0.9]))
def test_only_one_task_takes_over_whatever_the_schedule(
    left: str, seed: int, persistence: float
) -> None:
    store, clock = MemoryStore(), Clock()
    dead = Leases(store, now=clock)
    path = _path(dead, store)
    dead._take(path, "orders", "dead")
    if left == "unreadable":
        store.put(path, b"?")
    clock.now += LIFE
    schedule = Schedule(seed, persistence=persistence)
    at_work = set[str]()

    def work(name: str) -> None:
        leases = Leases(ScheduledStore(store, schedule), now=clock)
        for _ in range(2):
            try:
                leases._take(path, "orders", name)
            except BusyError:
                continue
            assert not at_work
            at_work.add(name)
            leases.renew("orders", holder=name)
            at_work.remove(name)
            leases.release("orders", holder=name)

    def wake() -> None:
        leases = Leases(ScheduledStore(store, schedule), now=clock)
        leases.release("orders", holder="dead")

    for name in "abc":
        schedule.begin(partial(work, name))
    schedule.begin(wake)
    schedule.run()
    assert list(store.list_from("")) == []


@pytest.mark.parametrize("step", range(5))
def test_a_task_that_dies_while_it_takes_over_blocks_for_one_lifetime(step: int) -> None:
    """The steps: create, read, claim, read, replace."""
    store, clock = MemoryStore(), Clock()
    path = _path(Leases(store), store)
    Leases(store, now=clock)._take(path, "orders", "dead")
    for _ in range(3):
        clock.now += LIFE
        dying = FaultStore(store, at=step, fault=Fault.CRASH_BEFORE)
        with pytest.raises(SimulatedCrash):
            Leases(dying, now=clock)._take(path, "orders", "dying")
    clock.now += LIFE
    with Leases(store, now=clock).held("orders", holder="next"):
        assert Leases(store, now=clock).is_held("orders")


def _path(leases: Leases, store: MemoryStore) -> str:
    with leases.held("orders", holder="whoever"):
        return next(iter(store.list_from(""))).path


def test_a_folder_that_cannot_be_written_holds_up_no_work(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStore):
        def put_if_absent(self, path: str, data: bytes) -> Put:
            raise FullStoreError("cannot write: no space left")

    with Leases(Full()).held("orders", holder="first"):
        pass
    assert caplog.messages == ["orders is worked on without a lease: cannot write: no space left"]

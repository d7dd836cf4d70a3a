"""The contract of a remote store under lost requests and answers, as pytest tests.

Derive a test class from `FaultContract` and give it a `proxy` fixture and `open_through`. It needs
`pytest`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from delta_maintenance.errors import CommitUnknownError, StorageAccessError, StorageError
from delta_maintenance.rest.failure import PAUSES
from delta_maintenance.storage.core import Put, Store
from tests.support.faults.fault_proxy import FaultProxy, HttpFault
from tests.support.servers.loopback import Request

PATH = "_delta_log/00000000000000000007.json"
PATIENCE = 0.5
"""Seconds that a client under test should wait for an answer."""
SPOILT = (HttpFault.HALF_AN_ANSWER, HttpFault.EMPTY_ANSWER)
LOST = [fault for fault in HttpFault if fault not in SPOILT]
QUICK = [fault for fault in LOST if "silence" not in fault.value]
APPLIED = [fault for fault in HttpFault if "after" in fault.value]


class FaultContract:
    """No acknowledged write is lost, and no writer gets a wrong outcome."""

    resumes_reads = False
    """Whether the client resumes a partial answer, over kept connections whose further requests the
    proxy does not see. In that case only one answer is cut.
    """

    @pytest.fixture
    def proxy(self) -> Iterator[FaultProxy]:
        """A proxy without faults before the server of the store. To be overridden."""
        raise NotImplementedError("derive a class with a fixture named proxy")

    def open_through(self, proxy: FaultProxy) -> Store:
        """Returns another store over one root for the whole test, with a timeout of `PATIENCE`.

        Files larger than 1 MiB are uploaded in parts. The store need not pause between attempts.
        """
        raise NotImplementedError("derive a class with a method open_through")

    def publishes(self, request: Request) -> bool:
        """Whether this request publishes a small file."""
        return writes(request)

    def reads(self, request: Request) -> bool:
        """Whether the answer to this request contains bytes of a file."""
        return request.method == "GET"

    @pytest.fixture
    def open_one(self, proxy: FaultProxy) -> Iterator[Callable[[], Store]]:
        opened: list[Store] = []

        def open_one() -> Store:
            opened.append(self.open_through(proxy))
            # Triggers the one-time work of the store before faults are injected.
            opened[-1].put_if_absent("warm-up", b"")
            return opened[-1]

        yield open_one
        proxy.choose = lambda request: None
        for store in opened:
            store.close()

    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.value)
    def test_a_lost_answer_changes_neither_winner_nor_content(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        ours, theirs = open_one(), open_one()
        proxy.choose = once(fault, of=self.publishes)
        assert ours.put_if_absent(PATH, b"ours!!") is Put.DONE
        assert proxy.injected == [fault]
        assert theirs.put_if_absent(PATH, b"theirs") is Put.EXISTS
        assert theirs.read(PATH) == b"ours!!"

    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.value)
    def test_who_lost_is_not_told_to_have_won_whatever_its_answer(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        ours, theirs = open_one(), open_one()
        # With equal bytes, only the ID of the call distinguishes the writers.
        assert theirs.put_if_absent(PATH, b"same") is Put.DONE
        proxy.choose = once(fault, of=self.publishes)
        assert ours.put_if_absent(PATH, b"same") is Put.EXISTS
        assert proxy.injected == [fault]

    @pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.value)
    def test_without_any_answer_the_outcome_is_the_true_one_or_unknown(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        ours, theirs = open_one(), open_one()
        proxy.choose = lambda request: fault if self.publishes(request) else None
        if fault in APPLIED:
            assert ours.put_if_absent(PATH, b"ours") is Put.DONE
        else:
            with pytest.raises(CommitUnknownError):
                ours.put_if_absent(PATH, b"ours")
        proxy.choose = lambda request: None
        assert (theirs.stat(PATH) is not None) == (fault in APPLIED)

    def test_a_condition_refuted_by_its_own_first_attempt_is_a_success(
        self, proxy: FaultProxy, open_one: Callable[[], Store]
    ) -> None:
        ours = open_one()
        written = 0

        def choose(request: Request) -> HttpFault | None:
            nonlocal written
            written += self.publishes(request)
            if self.publishes(request):
                return HttpFault.CUT_AFTER if written == 1 else None
            # The writer of the file cannot be determined before the second attempt.
            return HttpFault.ERROR_BEFORE if written == 1 else None

        proxy.choose = choose
        assert ours.put_if_absent(PATH, b"ours") is Put.DONE
        # Some HTTP clients repeat the request by themselves, without a check in between.
        assert written == 2 and proxy.injected[0] is HttpFault.CUT_AFTER

    def test_a_server_that_goes_away_for_good_leaves_the_outcome_unknown(
        self, proxy: FaultProxy, open_one: Callable[[], Store]
    ) -> None:
        ours, theirs = open_one(), open_one()
        gone = threading.Event()

        def choose(request: Request) -> HttpFault | None:
            if self.publishes(request) and not gone.is_set():
                gone.set()
                return HttpFault.CUT_AFTER
            return HttpFault.CUT_BEFORE if gone.is_set() else None

        proxy.choose = choose
        with pytest.raises(CommitUnknownError):
            ours.put_if_absent(PATH, b"ours")
        proxy.choose = lambda request: None
        assert theirs.read(PATH) == b"ours"

    def test_under_random_faults_whoever_is_told_to_have_won_has_won(
        self, proxy: FaultProxy, open_one: Callable[[], Store]
    ) -> None:
        seed = int(os.environ.get("SEED", time.time_ns()))
        print(f"SEED={seed}")
        dice, lock = random.Random(seed), threading.Lock()

        def choose(request: Request) -> HttpFault | None:
            with lock:
                return dice.choice(QUICK) if dice.random() < 0.4 else None

        stores = [open_one() for _ in range(4)]
        names = [f"_delta_log/{version:020}.json" for version in range(8)]
        proxy.choose = choose
        outcomes_of: dict[str, list[Put | None]] = {}
        with ThreadPoolExecutor(4) as pool:
            for name in names:
                tasks = [pool.submit(attempt, stores[n], name, b"%d" % n) for n in range(4)]
                outcomes_of[name] = [task.result() for task in tasks]
        proxy.choose = lambda request: None
        assert len(proxy.injected) > 10
        for name, outcomes in outcomes_of.items():
            assert outcomes.count(Put.DONE) <= 1, name
            if stores[0].stat(name) is None:
                assert Put.DONE not in outcomes and Put.EXISTS not in outcomes
                continue
            winner = int(stores[0].read(name))
            assert outcomes[winner] is not Put.EXISTS
            assert Put.DONE not in outcomes or outcomes[winner] is Put.DONE
        assert sum(Put.DONE in outcomes for outcomes in outcomes_of.values()) >= len(names) // 2

    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.value)
    def test_a_large_stream_survives_the_loss_of_any_answer(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        store = open_one()
        data = os.urandom(3 << 20)
        hits = 0

        def choose(request: Request) -> HttpFault | None:
            # Only every second request fails, so that repetitions succeed, and only a limited
            # number: if the last request is lost, all parts are sent again.
            nonlocal hits
            hits += writes(request)
            return fault if writes(request) and hits % 2 and hits < 8 else None

        proxy.choose = choose
        with store.create("large") as file:
            file.write(data)
        assert len(proxy.injected) >= 3
        proxy.choose = lambda request: None
        assert store.read("large") == data
        with pytest.raises(FileExistsError), store.create("large") as file:
            file.write(data[::-1])
        assert store.read("large") == data

    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.value)
    def test_a_listing_is_complete_or_an_error(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        store = open_one()
        names = [f"d/{number}" for number in range(3)]
        for name in names:
            store.put(name, b"")
        proxy.choose = once(fault, of=lambda request: request.method == "GET")
        assert [status.path for status in store.list_from("d")] == names
        assert proxy.injected == [fault]
        if fault in QUICK:
            proxy.choose = lambda request: fault
            with pytest.raises(StorageError) as got:
                list(store.list_from("d"))
            assert not isinstance(got.value, StorageAccessError)
            with pytest.raises(StorageError):
                store.stat(names[0])
            with pytest.raises(StorageError):
                store.read(names[0])

    def test_half_an_answer_is_asked_for_again_and_is_never_the_file(
        self, proxy: FaultProxy, open_one: Callable[[], Store]
    ) -> None:
        store, data = open_one(), os.urandom(200_000)
        store.put("x", data)
        proxy.choose = once(HttpFault.HALF_AN_ANSWER, of=self.reads)
        assert store.read("x") == data
        if self.resumes_reads:
            assert proxy.injected == [HttpFault.HALF_AN_ANSWER]
            return
        with store.open("x") as file:
            proxy.choose = once(HttpFault.HALF_AN_ANSWER, of=self.reads)
            assert file.read() == data
        assert proxy.injected == [HttpFault.HALF_AN_ANSWER] * 2
        proxy.injected.clear()
        proxy.choose = lambda request: HttpFault.HALF_AN_ANSWER if self.reads(request) else None
        with pytest.raises(StorageError):
            store.read("x")
        # No layer below the store repeats a request by itself.
        assert len(proxy.injected) == 1 + len(PAUSES)

    @pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.value)
    def test_a_delete_without_an_answer_is_no_success(
        self, proxy: FaultProxy, open_one: Callable[[], Store], fault: HttpFault
    ) -> None:
        store = open_one()
        names = ["d/a", "d/b", "d/c"]
        for name in names:
            store.put(name, b"")
        proxy.choose = once(fault, of=lambda request: request.method in ("DELETE", "POST"))
        assert store.delete_many(names[:2]) == {}
        assert [status.path for status in store.list_from("d")] == names[2:]
        if fault not in APPLIED:
            proxy.choose = lambda request: fault
            assert list(store.delete_many(names[2:])) == names[2:]
            proxy.choose = lambda request: None
            assert [status.path for status in store.list_from("d")] == names[2:]


def once(
    fault: HttpFault, *, of: Callable[[Request], bool]
) -> Callable[[Request], HttpFault | None]:
    """Returns a fault for the first request of a kind."""
    left = [fault]
    lock = threading.Lock()

    def choose(request: Request) -> HttpFault | None:
        with lock:
            return left.pop() if left and of(request) else None

    return choose


def writes(request: Request) -> bool:
    """Whether the request would create a file."""
    return request.method in ("PUT", "POST")


def attempt(store: Store, path: str, data: bytes) -> Put | None:
    """Returns the outcome of a put; None if it is unknown or nothing was written."""
    try:
        return store.put_if_absent(path, data)
    except (CommitUnknownError, StorageError):
        return None

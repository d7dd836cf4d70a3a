"""The fault store: a correct store without a fault, and exactly the requested fault otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delta_maintenance.errors import CommitUnknownError, StorageError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.testing.store_contract import StoreContract
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash, Step, faults


class TestWithoutFault(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return FaultStore(MemoryStore())


def use(store: Store) -> None:
    """Makes every kind of step once, in this order."""
    list(store.list_from("log"))
    store.stat("log/a")
    store.read("log/a")
    store.open("log/a").close()
    store.put_if_absent("log/b", b"bbbb")
    store.put("log/a", b"AAAA")
    with store.create("log/c") as file:
        file.write(b"cccc")
    store.delete("log/a")


def filled() -> MemoryStore:
    store = MemoryStore()
    store.put("log/a", b"aaaa")
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {status.path: store.read(status.path) for status in store.list_from("log")}


def failing(fault: Fault, at: int) -> tuple[MemoryStore, FaultStore]:
    files = filled()
    return files, FaultStore(files, at=at, fault=fault)


def test_the_trace_records_every_call_in_order() -> None:
    store = FaultStore(filled())
    use(store)
    assert store.trace == [
        Step("list_from", "log"),
        Step("stat", "log/a"),
        Step("read", "log/a"),
        Step("open", "log/a"),
        Step("put_if_absent", "log/b"),
        Step("put", "log/a"),
        Step("create", "log/c"),
        Step("delete", "log/a"),
    ]


def test_faults_of_a_trace_are_distinct() -> None:
    store = FaultStore(filled())
    use(store)
    found = [(store.trace[at].kind, fault) for at, fault in faults(store.trace)]
    reads = {"list_from", "stat", "read", "open"}
    for fault, kinds in {
        Fault.CRASH_BEFORE: reads | {"put_if_absent", "put", "create", "delete"},
        Fault.CRASH_AFTER: {"put_if_absent", "put", "create", "delete"},
        Fault.CRASH_WITHIN: {"put_if_absent", "put", "create"},
        Fault.FAILURE: reads | {"put_if_absent", "put", "create", "delete"},
        Fault.LOST_ANSWER: {"put_if_absent", "put", "create", "delete"},
        Fault.NOT_FOUND: {"read", "open"},
    }.items():
        assert {kind for kind, each in found if each is fault} == kinds


EFFECTS = [
    {"log/a": b"aaaa"},
    {"log/a": b"aaaa", "log/b": b"bbbb"},
    {"log/a": b"AAAA", "log/b": b"bbbb"},
    {"log/a": b"AAAA", "log/b": b"bbbb", "log/c": b"cccc"},
    {"log/b": b"bbbb", "log/c": b"cccc"},
]
"""The files before step 4 and after each later step."""


@pytest.mark.parametrize("at", range(8))
def test_a_crash_before_a_step_keeps_earlier_effects(at: int) -> None:
    files, store = failing(Fault.CRASH_BEFORE, at)
    with pytest.raises(SimulatedCrash):
        use(store)
    assert contents(files) == EFFECTS[max(0, at - 4)]


@pytest.mark.parametrize("at", range(4, 8))
def test_a_crash_after_a_step_keeps_its_effect(at: int) -> None:
    files, store = failing(Fault.CRASH_AFTER, at)
    with pytest.raises(SimulatedCrash):
        use(store)
    assert contents(files) == EFFECTS[at - 3]


@pytest.mark.parametrize(("at", "torn"), [(4, "b"), (5, "a"), (6, "c")])
def test_a_crash_within_a_step_leaves_a_partial_temporary_file(at: int, torn: str) -> None:
    files, store = failing(Fault.CRASH_WITHIN, at)
    with pytest.raises(SimulatedCrash):
        use(store)
    left = contents(files)
    assert left.pop(f"log/.{torn}.torn.tmp") != b""
    assert left == EFFECTS[at - 4]


@pytest.mark.parametrize("at", range(8))
def test_a_failing_step_has_no_effect_and_the_store_recovers(at: int) -> None:
    files, store = failing(Fault.FAILURE, at)
    with pytest.raises(StorageError):
        use(store)
    assert contents(files) == EFFECTS[max(0, at - 4)]
    files.put("log/a", b"aaaa")
    assert store.read("log/a") == b"aaaa"


@pytest.mark.parametrize("at", range(4, 8))
def test_a_lost_response_hides_the_effect(at: int) -> None:
    files, store = failing(Fault.LOST_ANSWER, at)
    with pytest.raises(CommitUnknownError if at in (4, 6) else StorageError):
        use(store)
    assert contents(files) == EFFECTS[at - 3]


@pytest.mark.parametrize("at", [2, 3])
def test_a_vanished_file_is_not_found_once(at: int) -> None:
    _, store = failing(Fault.NOT_FOUND, at)
    with pytest.raises(FileNotFoundError):
        use(store)
    assert store.read("log/a") == b"aaaa"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: list(store.list_from("log")),
        lambda store: store.stat("log/a"),
        lambda store: store.read("log/a"),
        lambda store: store.open("log/a"),
        lambda store: store.put("log/z", b""),
        lambda store: store.put_if_absent("log/z", b""),
        lambda store: store.create("log/z").__enter__(),
        lambda store: store.delete("log/a"),
    ],
)
def test_a_crashed_process_has_no_further_effect(call: Callable[[Store], object]) -> None:
    files, store = failing(Fault.CRASH_BEFORE, 0)
    with pytest.raises(SimulatedCrash):
        store.stat("log/a")
    with pytest.raises(SimulatedCrash):
        call(store)
    assert contents(files) == EFFECTS[0]


def test_a_failing_write_block_creates_nothing() -> None:
    files = filled()
    store = FaultStore(files)
    with pytest.raises(ZeroDivisionError), store.create("log/c"):
        raise ZeroDivisionError
    assert (store.trace, contents(files)) == ([], EFFECTS[0])


def test_a_crash_closes_files_of_the_underlying_store(tmp_path: object) -> None:
    # An unclosed store emits a warning, and warnings are errors.
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_WITHIN, Fault.FAILURE):
        store = FaultStore(LocalStore(str(tmp_path)), at=0, fault=fault)
        with (
            pytest.raises((SimulatedCrash, StorageError)),
            store.create(f"log/{fault.name}") as file,
        ):
            file.write(b"data")
    assert [status.path for status in LocalStore(str(tmp_path)).list_from("log")] == [
        "log/.CRASH_WITHIN.torn.tmp",
        "log/CRASH_AFTER",
    ]


def test_an_existing_file_is_reported() -> None:
    store = FaultStore(filled())
    assert store.put_if_absent("log/a", b"mine") is Put.EXISTS
    with pytest.raises(FileExistsError), store.create("log/a") as file:
        file.write(b"mine")

"""Tables of a policy that cannot be read, or only slowly: what counts of them in a vacuum."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.holds import references as references_module
from delta_maintenance.policies import clones as clones_module
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.policies.test_clones import LAKE, Run, named_store, table
from tests.policies.test_clones import _delete as delete_table
from tests.support.operations.vacuum_cases import removed
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.vacuum_tables import Folder, named_memory


@pytest.fixture(autouse=True)
def _empty_lake() -> Iterator[None]:
    named_memory(LAKE)
    yield
    named_memory(LAKE)


BROKEN = {"missing": None, "truncated": b'{"add":{"path":', "zeros": bytes(64)}
"""What becomes of one commit of a table."""


@pytest.mark.parametrize("damage", BROKEN)
@pytest.mark.parametrize("reference", ["none", "commit", "checkpoint"])
def test_a_table_that_cannot_be_read_counts_by_what_can_be_read_of_it(
    damage: str, reference: str, caplog: pytest.LogCaptureFixture
) -> None:
    table("a", "x.parquet")
    table("other", "x.parquet")
    broken = table("broken", "own.parquet")
    if reference != "none":
        broken.log(add(f"{LAKE}/a/x.parquet"))
    if reference == "checkpoint":
        broken.checkpoint()
        broken.drop(*(f"{version:020}.json" for version in range(3)))
    for _ in range(3):
        broken.log(add("more.parquet"))
    lost = f"_delta_log/{broken.open().latest_version() - 1:020}.json"
    broken.store.delete(lost)
    if (data := BROKEN[damage]) is not None:
        broken.store.put(lost, data)
    suspected = set() if reference == "none" else {"broken"}
    run = Run("a", "other", "broken")
    assert (run.of("a"), run.of("other")) == (suspected, set())
    told = [line for line in caplog.messages if "broken" in line]
    is_whole = damage != "missing" and reference != "checkpoint"
    assert len(told) == (0 if is_whole else 1), "once for the run"
    strict = Run("a", "other", "broken", clones={"unreadable": "block"})
    if is_whole or reference != "none":
        assert strict.of("a") == suspected
    else:
        with pytest.raises(RefusedError, match="the table memory://lake/broken may be a shallow"):
            strict.of("a")


def test_a_policy_whose_table_lacks_a_commit_goes_on_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = clock.now()
    names = [f"t{number}" for number in range(4)]

    def ended(case: str, defaults: str = "", rules: str = "") -> list[str]:
        lake = tmp_path / case
        for name in (*names, "broken"):
            made = Folder(lake / name, now=now, first=[protocol(), metadata()])
            made.log(add("x.parquet"))
            made.log(removed("x.parquet", 90))
            made.file("x.parquet")
        (lake / "broken/_delta_log" / f"{1:020}.json").unlink()
        config = tmp_path / "policy.yaml"
        config.write_text(
            f"version: 1\n{defaults}tables:\n- {{pattern: '{lake}/*', vacuum: true{rules}}}\n"
        )
        main(["run", str(config), "--json"])
        printed = capsys.readouterr()
        assert printed.err.count("could not be examined for shallow clones") <= 1
        problems = {each["name"]: each["problem"] for each in json.loads(printed.out)}
        assert "commit 1 is missing" in problems["broken"]
        deleted = [not (lake / name / "x.parquet").exists() for name in names]
        assert deleted == [problems[name] is None for name in names]
        return [problems[name] for name in names]

    assert ended("by default") == [None] * 4
    # The keys are where the messages say.
    strict = "defaults: {clones: {unreadable: block}}\n"
    for problem in ended("strict", strict):
        assert "set clones: {unreadable: suspected} in the policy, for this table" in problem
    assert ended("undone", strict, ", clones: {unreadable: suspected}") == [None] * 4


class Silent:
    """Lets looks at one table wait, as for a store that does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.released = threading.Event()
        self.looks = 0
        uri, opened = f"{LAKE}/{name}", clones_module.open_table

        def open_silent(address: str, *arguments: Any, **options: Any) -> Any:
            if address == uri:
                self.looks += 1
                self.released.wait(20)
            return opened(address, *arguments, **options)

        monkeypatch.setattr(clones_module, "open_table", open_silent)
        monkeypatch.setattr(clones_module, "_PATIENCE", 0.2)
        monkeypatch.setattr(clones_module, "_BRIEFLY", 0.05)


def test_a_silent_table_is_waited_for_once_and_counts_as_soon_as_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = Silent(monkeypatch, "copy")
    table("a", "x.parquet")
    copy = table("copy", f"{LAKE}/a/x.parquet")
    state = MemoryStore()
    run = Run("a", "copy", state=state)
    looks = [threading.active_count()]
    for _ in range(20):
        assert run.clones.of(copy.open(), run.policy.named_tables[0], anew=True) == ()
    assert silent.looks == 1 and threading.active_count() <= looks[0] + 2
    silent.released.set()
    wait([look.job for look in run.clones._looks.values()], timeout=20)
    run.now += timedelta(minutes=6)
    assert run.of("a") == {"copy"}


def test_a_table_that_is_still_being_read_counts_by_what_was_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table("a", "x.parquet")
    table("copy", f"{LAKE}/a/x.parquet")
    released, taken = threading.Event(), references_module.take_foreign_paths

    def take_slowly(snapshot: Any, **options: Any) -> None:
        taken(snapshot, **options)
        if snapshot.table.endswith("copy"):
            released.wait(20)

    monkeypatch.setattr(references_module, "take_foreign_paths", take_slowly)
    monkeypatch.setattr(clones_module, "_PATIENCE", 0.3)
    try:
        assert Run("a", "copy").of("a") == {"copy"}
    finally:
        released.set()


def test_a_failure_is_remembered_for_a_while_and_not_by_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table("a", "x.parquet")
    copy = table("copy", f"{LAKE}/a/x.parquet")
    copy.store.put(f"_delta_log/{0:020}.json", b"{")
    copy.drop(f"{1:020}.json")
    opened, looks = clones_module.open_table, []
    monkeypatch.setattr(
        clones_module, "open_table", lambda *a, **k: (looks.append(a[0]), opened(*a, **k))[1]
    )
    state = MemoryStore()
    run = Run("a", "copy", state=state, clones={"unreadable": "block"})
    for _ in range(3):
        run.clones.of(Table(MemoryStore()), run.policy.named_tables[0])
        policy_table = run.policy.named_tables[0]
        run.clones.of(Table(named_store(f"{LAKE}/a")), policy_table, anew=True)
    assert looks.count(f"{LAKE}/copy") == 1
    # It was repaired, and the vacuum is tried again at once.
    delete_table(copy)
    table("copy", f"{LAKE}/a/x.parquet")
    again = Run("a", "copy", state=state, clones={"unreadable": "block"})
    assert set(again.clones.of(Table(named_store(f"{LAKE}/a")), policy_table, anew=True)) == {
        f"{LAKE}/copy"
    }


def test_a_slow_table_is_waited_for_once_and_what_its_last_look_has_shown_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table("a", "x.parquet")
    copy = table("copy", "own.parquet")
    store = Silent(monkeypatch, "copy")
    monkeypatch.setattr(clones_module, "_PATIENCE", 60.0)
    store.released.set()
    run = Run("a", "copy")
    entry = run.policy.table_at(f"{LAKE}/a", name="a")

    def clones() -> tuple[str, ...]:
        return run.clones.of(Table(named_store(f"{LAKE}/a")), entry, anew=True)

    monkeypatch.setattr(clones_module, "_SLOW", 0.0)

    def is_slow() -> bool:
        return run.clones._known[copy.store.root].is_slow

    assert clones() == () and not is_slow(), "the first look may take long"
    assert clones() == () and is_slow()
    store.released.clear()
    copy.log(add(f"{LAKE}/a/x.parquet"))
    assert clones() == clones() == (), "nobody waits until the look ends"
    assert store.looks == 3, "which is one for all"
    strict = Run("a", "copy", clones={"unreadable": "block"}).policy.table_at(f"{LAKE}/a", name="a")
    threading.Timer(0.5, store.released.set).start()
    of_a = Table(named_store(f"{LAKE}/a"))
    assert run.clones.of(of_a, strict, anew=True) == (copy.store.root,), "it waits where asked to"
    monkeypatch.setattr(clones_module, "_SLOW", 20.0)
    assert clones() == (copy.store.root,)
    assert not is_slow(), "the store is as fast as others again"


def test_a_slow_table_is_waited_for_every_15_minutes_whatever_process_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table("a", "x.parquet")
    copy = table("copy", "own.parquet")
    store, state = Silent(monkeypatch, "copy"), MemoryStore()
    monkeypatch.setattr(clones_module, "_SLOW", 0.0)
    monkeypatch.setattr(clones_module, "_PATIENCE", 60.0)
    store.released.set()

    def looks_in_a_process(minutes: int) -> set[str]:
        run = Run("a", "copy", state=state)
        run.now += timedelta(minutes=minutes)
        return run.of("a")

    def remembered() -> dict[str, Any]:
        references: dict[str, dict[str, Any]] = json.loads(state.read("clones.references"))
        return references[copy.store.root]

    assert looks_in_a_process(0) == looks_in_a_process(6) == set()
    copy.log(add(f"{LAKE}/a/x.parquet"))
    store.released.clear()
    assert looks_in_a_process(12) == looks_in_a_process(20) == set(), "neither waits"
    threading.Timer(0.5, store.released.set).start()
    assert looks_in_a_process(26) == {"copy"}, "what was seen has become too old"
    # Then it stops to answer.
    store.released.clear()
    monkeypatch.setattr(clones_module, "_PATIENCE", 0.2)
    assert looks_in_a_process(50) == {"copy"}
    monkeypatch.setattr(clones_module, "_PATIENCE", 60.0)
    assert looks_in_a_process(56) == {"copy"}
    assert remembered()["problem"] is not None, "it is not waited for again"
    store.released.set()
    assert looks_in_a_process(62) == {"copy"}
    assert remembered()["is_slow"]
    copy.store.put(
        f"_delta_log/{copy.open().latest_version():020}.json", BROKEN["truncated"] or b""
    )
    assert looks_in_a_process(72) == {"copy"}
    assert not remembered()["is_slow"], "it is broken, not slow"

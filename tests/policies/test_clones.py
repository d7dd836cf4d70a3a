"""Shallow clones among the tables of a policy: which are found, remembered, and stop a vacuum."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.cli.main import main
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.operations.holds import references as references_module
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.discovery import Discovery, UnlistedPattern
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.operations.vacuum_cases import removed
from tests.support.tables.actions import add, features, metadata, protocol
from tests.support.tables.vacuum_tables import NOW, Folder, named_memory

LAKE = "memory://lake"


@pytest.fixture(autouse=True)
def _empty_lake() -> Iterator[None]:
    named_memory(LAKE)
    yield
    named_memory(LAKE)


def table(name: str, *paths: str) -> Folder:
    """A table of the lake."""
    made = Folder(named_memory(f"{LAKE}/{name}"))
    made.log(*map(add, paths))
    return made


def policy(*names: str, **rules: Any) -> Policy:
    entries = [{"name": name, "uri": f"{LAKE}/{name}"} for name in names]
    return Policy.from_json({"version": 1, "defaults": rules, "tables": entries})


class Run:
    """One process that looks after the tables of a policy."""

    def __init__(self, *names: str, state: MemoryStore | None = None, **rules: Any) -> None:
        self.policy = policy(*names, **rules)
        self.now = NOW
        self.unlisted: tuple[UnlistedPattern, ...] = ()
        self.listed: tuple[str, ...] = ()
        self.clones = PolicyClones(
            discover=lambda: Discovery(self.policy.named_tables, self.unlisted, self.listed),
            options_at=lambda rule, uri: {},
            state=state,
            now=lambda: self.now,
        )

    def of(self, name: str) -> set[str]:
        """Returns the names of the clones of a table."""
        uri = f"{LAKE}/{name}"
        found = self.clones.of(Table(named_store(uri)), self.policy.table_at(uri, name=name))
        return {each.removeprefix(f"{LAKE}/") for each in found}


def named_store(uri: str) -> MemoryStore:
    """Returns the store at an address, with its files."""
    return MemoryStore(Address.parse(uri))


def test_tables_with_files_of_another_are_its_clones_whatever_their_partitions() -> None:
    table("a/orders", "x.parquet")
    table("b/copy", f"{LAKE}/a/orders/day=1/hour=2/x.parquet")
    table("c/copy-of-copy", f"{LAKE}/b/copy/y.parquet", f"{LAKE}/a/orders/x.parquet")
    # The store of the source may have another name there.
    table("d/alias", "dbfs:/mnt/lake/a/orders/x.parquet")
    table("e/orders2", f"{LAKE}/e/orders2/own.parquet", "own.parquet")
    table("f/other", f"{LAKE}/a/orders-2/x.parquet")
    every = ("a/orders", "b/copy", "c/copy-of-copy", "d/alias", "e/orders2", "f/other")
    run = Run(*every)
    assert run.of("a/orders") == {"b/copy", "c/copy-of-copy", "d/alias"}
    assert run.of("b/copy") == {"c/copy-of-copy"}
    assert run.of("e/orders2") == set()


def test_many_folders_become_folders_above_them() -> None:
    table("deep", "x.parquet")
    table("copy", *(f"{LAKE}/deep/{n:03}/{n % 7}/x.parquet" for n in range(500)))
    state = MemoryStore()
    assert Run("deep", "copy", state=state).of("deep") == {"copy"}
    assert len(state.read("clones.references")) < 2000


def test_only_new_commits_are_read_in_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    table("a", "x.parquet")
    copy = table("copy", "own.parquet")
    state, read = MemoryStore(), []
    assert Run("a", "copy", state=state).of("a") == set()
    taken = references_module.take_foreign_paths
    monkeypatch.setattr(
        references_module, "take_foreign_paths", lambda *a, **k: (read.append(1), taken(*a, **k))
    )
    run = Run("a", "copy", state=state)
    run.now = NOW + timedelta(minutes=6)
    assert run.of("a") == set() and not read
    copy.log(add(f"{LAKE}/a/x.parquet"))
    # A vacuum soon afterwards uses the same search.
    assert run.of("a") == set()
    run.now += timedelta(minutes=6)
    assert run.of("a") == {"copy"} and not read
    # A table that was replaced is read in full.
    _delete(copy)
    table("copy", "z.parquet").log(add("more.parquet"))
    run.now += timedelta(minutes=6)
    assert run.of("a") == set() and len(read) == 1


def test_former_references_are_forgotten_a_day_later() -> None:
    table("a", "x.parquet")
    copy = table("copy", f"{LAKE}/a/x.parquet")
    state = MemoryStore()
    assert Run("a", "copy", state=state).of("a") == {"copy"}
    copy.log(removed(f"{LAKE}/a/x.parquet", 39))
    copy.checkpoint(actions=[each for each in copy.state() if "remove" not in each])
    copy.drop(*(f"{version:020}.json" for version in range(2)))
    copy.log(add("own.parquet"))
    copy.checkpoint(actions=[each for each in copy.state() if "remove" not in each])
    copy.drop(f"{2:020}.checkpoint.parquet", f"{2:020}.json")
    run = Run("a", "copy", state=state)
    run.now = NOW + timedelta(days=1)
    assert run.of("a") == set()


@pytest.mark.parametrize("what", ["damaged", "gone"])
def test_a_remembered_clone_stays_one_when_it_cannot_be_read(what: str) -> None:
    table("a", "x.parquet")
    copy = table("copy", f"{LAKE}/a/x.parquet")
    state = MemoryStore()
    assert Run("a", "copy", state=state).of("a") == {"copy"}
    if what == "gone":
        _delete(copy)
    else:
        copy.store.put(f"_delta_log/{2:020}.json", b"{")
    for rules, found in ({}, {"copy"}), ({"clones": {"unreadable": "ignore"}}, set()):
        run = Run("a", "copy", state=state, **rules)
        run.now = NOW + timedelta(minutes=6)
        assert run.of("a") == found


def test_the_text_of_a_log_decides_for_a_table_that_is_not_supported() -> None:
    table("a", "x.parquet")
    unsupported = Folder(named_memory(f"{LAKE}/new"), first=[features("fooBar"), metadata()])
    unsupported.log(add("own.parquet"))
    assert Run("a", "new").of("a") == set()
    unsupported.log(add(f"{LAKE}/a/x.parquet"))
    assert Run("a", "new").of("a") == {"new"}
    # Its older part is a checkpoint, which is not text.
    unsupported.checkpoint()
    unsupported.drop(*(f"{version:020}.json" for version in range(3)))
    unsupported.log(add("more.parquet"))
    assert Run("a", "new").of("a") == {"new"}
    assert Run("a", "new", clones={"unreadable": "ignore"}).of("a") == set()


@pytest.mark.parametrize("unreadable", ["suspected", "block", "ignore"])
def test_tables_that_could_not_be_listed_stop_a_vacuum_if_the_policy_says_so(
    unreadable: str, caplog: pytest.LogCaptureFixture
) -> None:
    table("a", "x.parquet")
    run = Run("a", clones={"unreadable": unreadable})
    run.unlisted = (UnlistedPattern("s3://b/**", StorageError("access denied")),)
    if unreadable == "block":
        with pytest.raises(RefusedError, match=r"s3://b/\*\* may be .* access denied.*suspected"):
            run.of("a")
        return
    assert run.of("a") == run.of("a") == set()
    assert len(caplog.messages) == (unreadable == "suspected")


def test_a_memory_that_cannot_be_written_holds_up_no_vacuum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table("a", "x.parquet")
    table("copy", f"{LAKE}/a/x.parquet")

    class Full(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            raise StorageError("cannot write: no space left", remedy="make room")

    run = Run("a", "copy", state=Full())
    for _ in range(3):
        assert run.of("a") == {"copy"}
        run.now += timedelta(minutes=6)
    assert len(caplog.messages) == 1 and "no space left" in caplog.messages[0]


def test_a_table_that_earlier_runs_may_have_read_stops_a_vacuum_while_their_memory_is_unknown() -> (
    None
):
    table("a", "x.parquet")
    broken = table("broken", "own.parquet")
    broken.log(add("more.parquet"))
    broken.drop(f"{1:020}.json")

    class Down(MemoryStore):
        def read_head(self, path: str, size: int) -> bytes:
            raise StorageError("the folder is not there", remedy="wait")

    with pytest.raises(RefusedError, match=r"broken may be .* unknown: the folder is not there"):
        Run("a", "broken", state=Down()).of("a")
    assert Run("a", state=Down()).of("a") == set(), "only tables that cannot be read"


@pytest.mark.parametrize("part", ["s3://b/**", "catalogs.lake.sales"])
def test_tables_that_an_earlier_run_could_list_stop_no_vacuum_but_that_of_their_sources(
    part: str,
) -> None:
    table("a", "x.parquet")
    table("other", "x.parquet")
    table("copy", f"{LAKE}/a/x.parquet")
    state = MemoryStore()
    before = Run("a", "other", "copy", state=state)
    before.listed = ("s3://b/**", "catalogs.lake")
    assert before.of("a") == {"copy"}
    for minutes in (6, 12):
        run = Run("a", "other", state=state)
        run.now = NOW + timedelta(minutes=minutes)
        run.unlisted = (UnlistedPattern(part, StorageError("no answer")),)
        assert (run.of("a"), run.of("other")) == ({"copy"}, set())
    for later in range(2):
        new = Run("a", "other", state=state)
        new.now = NOW + timedelta(minutes=18 + 6 * later)
        new.listed = ("catalogs.lake2",)
        new.unlisted = (UnlistedPattern("catalogs.lake2.new", StorageError("no answer")),)
        assert new.of("a") == {"copy"}
        new.policy = policy("a", "other", clones={"unreadable": "block"})
        with pytest.raises(RefusedError, match=r"catalogs.lake2.new may be"):
            new.of("a")


def test_a_ledger_that_cannot_be_read_stops_no_vacuum() -> None:
    table("a", "x.parquet")
    ledger = table("ledger", "y.parquet")
    ledger.checkpoint()
    ledger.drop(f"{0:020}.json")
    ledger.store.put(f"_delta_log/{2:020}.json", b"{")
    run = Run("a")
    run.policy = Policy.from_json(
        {
            "version": 1,
            "ledger": {"uri": f"{LAKE}/ledger", "maintenance": {"vacuum": True}},
            "tables": [{"name": "a", "uri": f"{LAKE}/a"}],
        }
    )
    made = run.policy.ledger_table
    assert made is not None
    run.clones.discover = lambda: Discovery((*run.policy.named_tables, made), (), ())
    assert run.of("a") == set()
    as_table = Run("a", "ledger", clones={"unreadable": "block"})
    with pytest.raises(RefusedError, match="ledger may be a shallow clone"):
        as_table.of("a")


def test_a_table_that_was_never_there_needs_nothing() -> None:
    table("a", "x.parquet")
    assert Run("a", "nothing").of("a") == set()


def test_a_vacuum_on_demand_asks_for_clones_and_a_clone_by_the_policy_counts() -> None:
    source = table("a", "x.parquet", "y.parquet", "z.parquet")
    source.log(*(removed(f"{name}.parquet", 39) for name in "xyz"), days=39)
    source.file("x.parquet", "y.parquet", "z.parquet")
    table("copy", f"{LAKE}/a/x.parquet")
    table("elsewhere", f"{LAKE}/a/y.parquet")
    run = Run("a", "copy", clones={"also": [f"{LAKE}/elsewhere"]})
    assert isinstance(source.store, MemoryStore)
    source.store.now_ms = lambda: clock.epoch_millis(NOW)
    result = run_operation(
        source.open(),
        run.policy.named_tables[0],
        "vacuum",
        options={"ignore_missing_files": True},
        environment=RunEnvironment(now=lambda: NOW, clones=run.clones),
    )
    [outcome] = result.outcomes
    assert (outcome.status, source.files()) == ("done", {"x.parquet", "y.parquet"})
    named_store(f"{LAKE}/elsewhere").put(f"_delta_log/{2:020}.json", b"{")
    result = run_operation(
        source.open(),
        run.policy.named_tables[0],
        "vacuum",
        environment=RunEnvironment(now=lambda: NOW, clones=run.clones),
    )
    assert result.status == "failed" and "elsewhere" in (result.problem or "")


def test_an_erasure_report_of_a_table_searches_its_clones() -> None:
    source = table("a", "x.parquet")
    table("copy", f"{LAKE}/a/x.parquet")
    table("elsewhere", f"{LAKE}/a/x.parquet")
    run = Run("a", "copy", clones={"also": [f"{LAKE}/elsewhere"]})
    [outcome] = run_operation(
        source.open(),
        run.policy.named_tables[0],
        "erasure-report",
        options={"where": "id = 1"},
        plan_only=True,
        environment=RunEnvironment(now=lambda: NOW, clones=run.clones),
    ).outcomes
    assert outcome.options is not None, outcome.reason
    assert outcome.options["clones"] == [f"{LAKE}/copy"]
    assert outcome.options["holders"]["clones"] == [f"{LAKE}/elsewhere"]


def test_the_command_line_keeps_files_for_tables_that_it_does_not_select(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = clock.now()
    source = Folder(tmp_path / "source", now=now, first=[protocol(), metadata()])
    source.log(add("x.parquet"), add("y.parquet"))
    source.log(removed("x.parquet", 90), removed("y.parquet", 90))
    source.file("x.parquet", "y.parquet")
    Folder(tmp_path / "copy", now=now).log(add(f"file:{tmp_path}/source/x.parquet"))
    config = tmp_path / "policy.yaml"
    config.write_text(
        f"version: 1\ntables:\n- {{name: source, uri: {tmp_path}/source, vacuum: true}}\n"
        f"- {{name: copies, pattern: '{tmp_path}/c*'}}\n"
    )
    assert main(["run", str(config), "--table", "source"]) == 0
    assert source.files() == {"x.parquet"}
    assert "vacuum" in capsys.readouterr().out


def _delete(made: Folder) -> None:
    for batch in list(made.store.list_tree()):
        made.store.delete_many(batch["path"].to_pylist())


@pytest.mark.parametrize("how", ["new table", "new commit", "in another process"])
def test_a_clone_of_an_old_version_counts_that_was_made_just_before_the_vacuum(how: str) -> None:
    orders = table("orders", "old.parquet")
    orders.log(removed("old.parquet", 40), add("new.parquet"))
    orders.file("old.parquet", "new.parquet", "orphan.parquet", days=60)
    state = MemoryStore()
    names = ["orders"]
    if how != "new table":
        copy = table("copy", "own.parquet")
        names.append("copy")
    run = Run(*names, state=state, vacuum=True)
    assert run.of("orders") == set()
    if how == "new table":
        copy = table("copy", "own.parquet")
        run.policy = policy("orders", "copy", vacuum=True)
    copy.log(add(f"{LAKE}/orders/old.parquet"))
    if how == "in another process":
        run = Run(*names, state=state, vacuum=True)
    run.now += timedelta(minutes=1)
    orders.store.now_ms = lambda: epoch_millis(run.now)  # type: ignore[attr-defined]
    result = run_operation(
        Table(orders.store),
        run.policy.named_tables[0],
        "vacuum",
        environment=RunEnvironment(clones=run.clones, now=lambda: run.now),
    )
    assert result.status == "done", result.problem
    assert orders.files() == {"old.parquet", "new.parquet"}


def test_logs_are_not_looked_at_again_for_a_vacuum_with_nothing_to_delete() -> None:
    orders = table("orders", "new.parquet")
    orders.file("new.parquet")
    orders.store.now_ms = lambda: epoch_millis(NOW)  # type: ignore[attr-defined]
    table("copy", "own.parquet")
    run, looks = Run("orders", "copy", vacuum=True), []
    run.clones.discover = lambda: (looks.append(1), Discovery(run.policy.named_tables))[1]
    for _ in range(3):
        run_operation(
            Table(orders.store),
            run.policy.named_tables[0],
            "vacuum",
            environment=RunEnvironment(clones=run.clones, now=lambda: NOW),
        )
    assert len(looks) == 1

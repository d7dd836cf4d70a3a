"""One trigger that watches many tables: none is missed, none holds up the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from delta_maintenance import open_table
from delta_maintenance.errors import StorageError
from delta_maintenance.operations import position, watch
from delta_maintenance.operations.position import Position
from delta_maintenance.policies import AssessmentStore
from delta_maintenance.policies import run as policies
from delta_maintenance.policies.definition import load_policy
from delta_maintenance.storage import Store, open_store
from delta_maintenance_airflow.triggers import DeltaPolicyCommitTrigger, announcements, polling
from delta_maintenance_airflow.triggers.announcements import CommitWatcher, Notice
from delta_maintenance_airflow.triggers.cursor import CursorBoard
from delta_maintenance_airflow.triggers.polling import PollResult, store_root
from tests.support.orchestrators.watching import (
    MERGE,
    OPTIMIZE,
    WRITE,
    State,
    eventually,
    run,
    running,
)
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

QUICK = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "settling_seconds", 0.0)
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "gathering_seconds", 0.0)
    monkeypatch.setattr(polling, "_IN_TROUBLE", QUICK)
    yield
    polling._pool.cache_clear()


@pytest.fixture
def lake(tmp_path: Path) -> dict[str, TableBuilder]:
    """Three tables at version 1."""
    made = {}
    for name in ("a", "b", "c"):
        table = made[name] = TableBuilder(tmp_path / name)
        table.commit([protocol(), metadata()])
        table.commit(WRITE)
    return made


@pytest.fixture
def policy(tmp_path: Path, lake: dict[str, TableBuilder]) -> Callable[..., str]:
    """Writes a policy that names some of the tables; gives its path."""
    path = tmp_path / "policy.yaml"

    def write(*names: str, **extra: Any) -> str:
        tables = [{"name": name, "uri": str(tmp_path / name), **extra} for name in names]
        written = path.with_suffix(".new")
        written.write_text(yaml.safe_dump({"version": 1, "tables": tables}))
        written.rename(path)
        return str(path)

    return write


def watcher(path: str, state: State | None = None, **given: Any) -> DeltaPolicyCommitTrigger:
    made = DeltaPolicyCommitTrigger(policy=path, store="file:", poll_interval=QUICK, **given)
    if state is not None:
        made.asset_state_store = SimpleNamespace(_by_name={"lake": state})
    return made


def told(events: list[Any]) -> dict[str, list[tuple[int, int]]]:
    """Returns the reported versions, by the name of each table."""
    found: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        for one in event["tables"]:
            assert one["status"] == "changed", one
            versions = (one["from_version"], one["to_version"])
            found.setdefault(Path(one["table"]).name, []).append(versions)
    return found


async def settled(state: State, count: int) -> None:
    """Waits until the positions of this number of tables are stored."""
    await eventually(lambda: sum(map(len, state.values.values())) == count)


def test_changes_of_tables_are_reported_and_maintenance_is_not(
    lake: dict[str, TableBuilder], policy: Callable[..., str]
) -> None:
    async def scenario() -> None:
        state = State()
        async with running(watcher(policy("a", "b", "c"), state).run()) as events:
            await settled(state, 3)
            assert events == []
            lake["a"].commit(WRITE)
            lake["b"].commit(OPTIMIZE)
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
            lake["b"].commit(MERGE)
            lake["c"].commit(WRITE)
            await eventually(lambda: len(told(events)) == 3)
        assert told(events) == {"a": [(1, 2)], "b": [(1, 3)], "c": [(1, 2)]}

    run(scenario())


@pytest.mark.parametrize("interrupted", [False, True])
def test_changes_at_one_time_share_an_event(
    lake: dict[str, TableBuilder],
    policy: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    gathering, seen = 12_345.0, set()
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "gathering_seconds", gathering)
    take, sleep = CommitWatcher.take, asyncio.sleep

    async def taking(self: CommitWatcher, result: PollResult) -> Notice | None:
        found = await take(self, result)
        if found is not None and found.event is not None:
            seen.add(found.event["table"])
        return found

    async def sleeping(seconds: float) -> None:
        # The time to gather is over when every table was polled.
        if seconds == gathering:
            await eventually(lambda: len(seen) == 3)
        else:
            await sleep(seconds)

    async def interrupted_get(queue: asyncio.Queue[Any]) -> None:
        # As when the timeout ends at the moment at which there is something to get.
        while queue.empty():
            await sleep(0.001)
        raise TimeoutError

    if interrupted:
        monkeypatch.setattr(asyncio.Queue, "get", interrupted_get)
    monkeypatch.setattr(CommitWatcher, "take", taking)
    monkeypatch.setattr(asyncio, "sleep", sleeping)

    async def scenario() -> None:
        state = State()
        async with running(watcher(policy("a", "b", "c"), state).run()) as events:
            await settled(state, 3)
            for table in lake.values():
                table.commit(WRITE)
            await eventually(lambda: len(events) > 0)
            assert [sorted(told([event])) for event in events] == [["a", "b", "c"]]

    run(scenario())


def test_a_restart_misses_nothing_and_repeats_nothing(
    lake: dict[str, TableBuilder], policy: Callable[..., str]
) -> None:
    async def scenario() -> None:
        state, path = State(), policy("a", "b", "c")
        async with running(watcher(path, state).run()) as events:
            await settled(state, 3)
            lake["a"].commit(WRITE)
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
            await eventually(lambda: [2, 2, 0, None, 1] in rows(state))
        lake["b"].commit(WRITE)
        lake["b"].commit(WRITE)
        lake["c"].commit(OPTIMIZE)
        async with running(watcher(path, state).run()) as events:
            await eventually(lambda: told(events) == {"b": [(1, 3)]})
            await eventually(lambda: [3, 3, 0, None, 1] in rows(state))
        async with running(watcher(path, state).run()) as events:
            await asyncio.sleep(20 * QUICK)
            assert events == []

    run(scenario())


def rows(state: State) -> list[list[Any]]:
    return [row for part in state.values.values() for row in part.values()]


def keys(state: State) -> set[str]:
    return {key for part in state.values.values() for key in part}


def test_an_event_that_the_triggerer_may_have_lost_is_sent_again(
    lake: dict[str, TableBuilder], policy: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        state, path = State(), policy("a")
        async with running(watcher(path, state).run()):
            await settled(state, 1)
        monkeypatch.setattr(DeltaPolicyCommitTrigger, "settling_seconds", 3600.0)
        lake["a"].commit(WRITE)
        async with running(watcher(path, state).run()) as events:
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
            # A later position must not be stored before the event.
            lake["a"].commit(OPTIMIZE)
            await asyncio.sleep(20 * QUICK)
        async with running(watcher(path, state).run()) as events:
            await eventually(lambda: told(events) == {"a": [(1, 3)]})

    run(scenario())


def test_a_version_is_announced_until_a_run_has_dealt_with_it(
    lake: dict[str, TableBuilder],
    policy: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    monkeypatch.setattr(announcements, "_BETWEEN_REVIEWS", timedelta())
    monkeypatch.setattr(position, "repeat_after", lambda _: timedelta(seconds=10 * QUICK))
    path, store = policy("a", "b"), AssessmentStore(str(tmp_path / "kept"))

    def maintain(name: str) -> None:
        table = load_policy(path).table_at(str(tmp_path / name))
        result = policies.run(open_table(table.uri), table)
        assert result.before is not None
        store.save(result.after or result.before, result)

    async def scenario() -> None:
        state = State()
        maintain("b")
        async with running(watcher(path, state).run()) as events:
            await settled(state, 2)
            lake["a"].commit(WRITE)
            await eventually(lambda: told(events) == {"a": [(1, 2)] * 3})
            await eventually(lambda: [2, 2, 0, None, 1] in rows(state))
        async with running(watcher(path, state).run()) as events:
            await eventually(lambda: told(events) == {"a": [(1, 2)]})
            maintain("a")
            await eventually(lambda: [2, 2, 0, None] in rows(state))
            count = len(events)
            lake["a"].commit(OPTIMIZE)
            await eventually(lambda: [3, 2, 0, None] in rows(state))
            await asyncio.sleep(20 * QUICK)
            assert len(events) == count

    run(scenario())


def test_commits_are_counted_for_each_table(
    lake: dict[str, TableBuilder], policy: Callable[..., str]
) -> None:
    async def scenario() -> None:
        state, path = State(), policy("a", "b")
        async with running(watcher(path, state, min_commits=2).run()) as events:
            await settled(state, 2)
            lake["a"].commit(WRITE)
            lake["b"].commit(WRITE)
            await eventually(lambda: rows(state) == [[2, 1, 1, None]] * 2)
            lake["b"].commit(WRITE)
            await eventually(lambda: told(events) == {"b": [(1, 3)]})
            await eventually(lambda: [3, 3, 0, None, 1] in rows(state))
        lake["a"].commit(WRITE)
        async with running(watcher(path, state, min_commits=2).run()) as events:
            await eventually(lambda: told(events) == {"a": [(1, 3)]})

    run(scenario())


def test_the_tables_follow_the_policy(
    lake: dict[str, TableBuilder], policy: Callable[..., str]
) -> None:
    async def scenario() -> None:
        state = State()
        async with running(watcher(policy("a"), state).run()) as events:
            await settled(state, 1)
            before = keys(state)
            policy("b", "c", checkpoint=True)
            # Commits before the first poll of a table cause no event.
            await eventually(lambda: len(keys(state) - before) == 2)
            for table in lake.values():
                table.commit(WRITE)
            await eventually(lambda: len(told(events)) == 2)
        assert set(told(events)) == {"b", "c"}

    run(scenario())


def test_an_unreadable_policy_is_reported_once_and_tables_stay_watched(
    lake: dict[str, TableBuilder], policy: Callable[..., str], tmp_path: Path
) -> None:
    async def scenario() -> None:
        state, path = State(), policy("a")
        async with running(watcher(path, state).run()) as events:
            await settled(state, 1)
            # Replaced at once, because half-written files are other problems.
            broken = Path(path).with_suffix(".new")
            broken.write_text("tables: [")
            broken.rename(path)
            await eventually(lambda: len(events) == 1)
            (problem,) = events[0]["tables"]
            assert (problem["status"], problem["table"]) == ("error", path)
            lake["a"].commit(WRITE)
            await eventually(lambda: told(events[1:]) == {"a": [(1, 2)]})
            policy("a", "b")
            await settled(state, 2)
            lake["b"].commit(WRITE)
            await eventually(lambda: told(events[2:]) == {"b": [(1, 2)]})

    run(scenario())


def test_a_failing_table_does_not_delay_others(
    lake: dict[str, TableBuilder],
    policy: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = str(tmp_path / "c")

    def opened(uri: str, options: Any = None) -> Store:
        if uri == broken:
            raise RuntimeError("a defect")
        return open_store(uri)

    monkeypatch.setattr(watch, "open_watched", opened)
    path = policy("gone", "a", "c")

    async def scenario() -> None:
        state = State()
        async with running(watcher(path, state).run()) as events:
            await eventually(lambda: len(events) == 1)
            (problem,) = events[0]["tables"]
            assert problem["status"] == "error" and problem["table"].endswith("/gone")
            # Of the missing table and of the first one.
            await settled(state, 2)
            lake["a"].commit(WRITE)
            await eventually(lambda: told(events[1:]) == {"a": [(1, 2)]})

    run(scenario())


def test_an_unresponsive_store_does_not_delay_others(
    lake: dict[str, TableBuilder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def opened(uri: str, options: Any = None) -> Store:
        return open_store(uri if not uri.startswith("s3:") else str(tmp_path / "a"))

    def looked(self: Any) -> Any:
        if threading.current_thread().name.startswith("delta-watch-s3"):
            hangs.wait(30)
            raise StorageError("no answer", remedy="wait")
        return poll(self)

    poll = watch.LogWatch.poll
    monkeypatch.setattr(watch.LogWatch, "poll", looked)
    monkeypatch.setattr(watch, "open_watched", opened)
    path = tmp_path / "policy.yaml"
    uris = [f"s3://dead/{number}" for number in range(20)] + [str(tmp_path / "b")]
    tables = [{"uri": uri} for uri in uris]
    path.write_text(yaml.safe_dump({"version": 1, "tables": tables}))

    async def scenario() -> None:
        state = State()
        dead = DeltaPolicyCommitTrigger(policy=str(path), store="s3://dead", poll_interval=QUICK)
        async with running(dead.run()), running(watcher(str(path), state).run()) as events:
            await settled(state, 1)
            lake["b"].commit(WRITE)
            await eventually(lambda: told(events) == {"b": [(1, 2)]})
            hangs.set()

    run(scenario())


def test_the_positions_of_many_tables_take_few_values_below_the_limit_of_airflow() -> None:
    state, now = State(), 0.0
    board = CursorBoard([state], "n", now=lambda: now)
    uris = [f"s3://lake/{'x' * 200}/{number}" for number in range(12_000)]
    for uri in uris:
        board.put(uri, Position(version=10**12, announced=10**12, counted=10**6))
    run(board.save())
    assert len(state.values) == CursorBoard.PARTS
    assert max(len(json.dumps(value)) for value in state.values.values()) < 64 << 10
    again = CursorBoard([state], "n")
    run(again.load())
    assert all(again.get(uri) is not None for uri in uris)
    assert again.get("s3://lake/other") is None


def test_a_position_waits_as_long_as_the_event_before_it() -> None:
    state, now = State(), [0.0]
    board = CursorBoard([state], "n", now=lambda: now[0])
    board.put("t", Position(version=2, announced=2), after=5)
    board.put("t", Position(version=3, announced=2))
    run(board.save())
    assert state.values == {}
    now[0] = 5.0
    run(board.save())
    assert rows(state) == [[3, 2, 0, None]]
    state.values.clear()
    run(board.save())
    assert state.values == {}, "nothing is written twice"


def test_a_state_that_cannot_be_written_is_written_later() -> None:
    state = State()
    board = CursorBoard([state], "n")
    board.put("t", Position(version=2, announced=2))
    state.fails = True
    run(board.save())
    state.fails = False
    run(board.save())
    assert rows(state) == [[2, 2, 0, None]]


def test_of_two_assets_the_older_position_counts_and_damage_is_left_out() -> None:
    states = [State(), State()]
    for state, version in zip(states, (7, 4), strict=True):
        board = CursorBoard([state], "n")
        board.put("t", Position(version=version, announced=version))
        run(board.save())
    (key,) = states[0].values
    states[0].values[key]["damaged"] = ["x"]
    states[1].values["n_3" if key != "n_3" else "n_4"] = "no mapping"
    board = CursorBoard(states, "n")
    run(board.load())
    assert board.get("t") == Position(version=4, announced=4)
    board.forget_others(["other"])
    assert board.get("t") is None


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("s3://lake/a/b", "s3://lake"),
        ("S3://lake", "s3://lake"),
        ("abfss://c@account.dfs.core.windows.net/t", "abfss://c@account.dfs.core.windows.net"),
        ("/srv/a", "file:"),
        ("relative", "file:"),
        ("file:///srv/a", "file:"),
    ],
)
def test_the_store_of_a_table(uri: str, root: str) -> None:
    assert store_root(uri) == root

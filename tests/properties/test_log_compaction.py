"""A compaction has the same effect on every state before its range as the commits of the range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import compact_log
from delta_maintenance.operations.compact_log import CompactLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.read import Table
from tests.properties.model import replay, state_of
from tests.properties.test_routes import build, histories, layouts
from tests.support.suite.play import examples
from tests.support.tables.actions import Action
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2030, 1, 1, tzinfo=UTC)
IN_FILE = {"protocol", "metaData", "txn", "domainMetadata", "add", "remove"}


def compact(table: Table, first: int, last: int) -> compact_log.CompactLogResult:
    options = CompactLogOptions(
        first_version=first, last_version=last, commits_per_file=last - first + 1
    )
    return compact_log.apply(
        table, compact_log.plan(table.snapshot(), options, context=RunContext.at(NOW))
    )


def writable(commits: list[list[Action]]) -> list[list[Action]]:
    """Returns the history with a known feature instead of the unknown one."""
    known: list[list[Action]] = json.loads(json.dumps(commits).replace('"x"]', '"appendOnly"]'))
    return known


def actions_of(commits: Sequence[Sequence[Action]]) -> list[Action]:
    """Every action as the compaction has to hold it."""
    return [
        {name: value | {"dataChange": False} if name in ("add", "remove") else value}
        for commit in commits
        for action in commit
        for name, value in action.items()
        if name in IN_FILE
    ]


@pytest.mark.conformance("COMP-02", "COMP-03", "COMP-04", "COMP-05", "COMP-06", "COMP-07", "REC-03")
@settings(max_examples=examples(40))
@given(histories().map(writable))
def test_every_range_on_its_base_gives_the_state_after_it(commits: list[list[Action]]) -> None:
    for first in range(len(commits)):
        for last in range(first + 1, len(commits)):
            table = TableBuilder()
            for commit in commits:
                table.commit(commit)
            result = compact(table.open(), first, last)
            (window,) = result.windows
            if window.status == "empty":
                assert not actions_of(commits[first : last + 1])
                continue
            assert window.status == "written" and window.path is not None
            content = [json.loads(line) for line in table.store.read(window.path).splitlines()]
            state = replay(commits[:first])
            state.apply(content)
            expected = replay(commits[: last + 1])
            assert without_change(state) == without_change(expected)
            known = actions_of(commits[first : last + 1])
            assert all(action in known for action in content)
            assert {json.dumps(action, sort_keys=True) for action in content} == {
                json.dumps(action, sort_keys=True) for action in newest(known)
            }


def without_change(state: Any) -> Any:
    for files in (state.live, state.tombstones):
        for value in files.values():
            value.pop("dataChange", None)
    return state


def newest(actions: Sequence[Action]) -> list[Action]:
    """The last action of each key."""
    builder = TableBuilder()
    builder.commits = {number: [action] for number, action in enumerate(actions)}
    return builder.reconciled(0, len(actions) - 1)


@pytest.mark.conformance("COMP-07", "COMP-08", "COMP-11")
@settings(max_examples=examples(40))
@given(st.data())
def test_compactions_beside_checkpoints_change_no_version(data: st.DataObject) -> None:
    commits = data.draw(histories().map(writable))
    last = len(commits) - 1
    table = build(commits, data.draw(layouts(last)))
    before = [without_change(state_of(table.open().snapshot(version=v))) for v in range(last + 1)]
    options = CompactLogOptions(
        commits_per_file=data.draw(st.integers(2, 4)),
        first_version=data.draw(st.none() | st.integers(0, last)),
        partial=data.draw(st.booleans()),
    )
    plan = compact_log.plan(table.open().snapshot(), options, context=RunContext.at(NOW))
    result = compact_log.apply(table.open(), plan)
    assert not result.failures
    for version, state in enumerate(before):
        snapshot = table.open().snapshot(version=version)
        assert snapshot.warnings == ()
        assert without_change(state_of(snapshot)) == state
    assert [entry.version for entry in table.open().history()] == list(range(last, -1, -1))

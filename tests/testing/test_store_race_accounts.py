"""The comparison of a race's accounts with the log names each kind of difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.store_races.accounts import (
    Account,
    Act,
    LoggedCommit,
    compare,
    expected_rows,
    read_acts,
)


def acted(mark: str, **fields: Any) -> Act:
    return Act(**{"writer": "w", "kind": "append", "mark": mark, "outcome": "committed", **fields})


def commits(*marks: str) -> list[LoggedCommit]:
    return [
        LoggedCommit(version=version, mark=mark, operation="WRITE")
        for version, mark in enumerate(marks)
    ]


@pytest.mark.parametrize(
    ("acts", "marks", "kinds"),
    [
        ([acted("a"), acted("b", outcome="failed"), acted("c", outcome="unknown")], ["a"], set()),
        ([acted("a"), acted("b", outcome="unknown")], ["a", "b"], set()),
        ([acted("a"), acted("b")], ["a"], {"lost"}),
        ([acted("a")], ["a", "a"], {"doubled"}),
        ([acted("a", version=1), acted("b", version=0)], ["a", "b"], {"moved"}),
        ([acted("a", outcome="failed")], ["a"], {"denied"}),
        ([acted("a")], ["a", "b"], {"unaccounted"}),
    ],
)
def test_each_difference_is_named(acts: list[Act], marks: list[str], kinds: set[str]) -> None:
    differences = compare(acts, commits(*marks))
    names = ("lost", "doubled", "moved", "denied", "unaccounted")
    assert {name for name in names if getattr(differences, name)} == kinds
    assert bool(differences) == bool(kinds)


def test_the_log_decides_which_unknown_acts_changed_rows(tmp_path: Path) -> None:
    account = Account(tmp_path, "w")
    account.begin("append", "a", {1: 0, 2: 0, 3: 0})
    account.end("a", "committed")
    account.begin("delete", "b", {1: None})
    account.begin("merge", "c", {2: 7})
    account.close()
    acts = read_acts(tmp_path)
    assert [act.outcome for act in acts] == ["committed", "unknown", "unknown"]
    assert expected_rows(acts, commits("a", "c")) == {1: 0, 2: 7, 3: 0}
    assert expected_rows(acts, commits("a", "b")) == {2: 0, 3: 0}

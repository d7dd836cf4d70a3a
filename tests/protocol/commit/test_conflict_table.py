"""Every pair of a commit in progress and a concurrent commit, with the expected outcome."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from delta_maintenance.protocol.commit.conflicts import BACKFILL, Conflict, Rebased, Rule, check
from delta_maintenance.protocol.commit.staged import ReadSet
from tests.support.logs.concurrent_commits import (
    OPERATIONS,
    ROOT,
    WINNERS,
    adds,
    attempt,
    paths,
    removes,
    won,
)

OK = "ok"
_ALWAYS = {"same metadata": OK, "same protocol": OK, "domain": OK, "nothing": OK}
_STATE = {
    "allowed metadata": OK,
    "other metadata": Rule.METADATA,
    "feature added": OK,
    "demanding feature added": Rule.PROTOCOL,
    "feature dropped": Rule.PROTOCOL,
} | _ALWAYS
_NO_FILES = {
    name: OK
    for name in ("append", "remove same", "new vector", "re-add same", "remove other", "backfill")
}
_CHANGES_STATE = _NO_FILES | dict.fromkeys(
    ("feature added", "demanding feature added", "feature dropped"), Rule.PROTOCOL
)
CELLS: Mapping[str, Mapping[str, object]] = {
    "optimize": _STATE
    | {
        "append": OK,
        "remove same": Rule.DELETE,
        "new vector": Rule.DELETION_VECTOR,
        "re-add same": OK,
        "remove other": OK,
        "backfill": OK,
    },
    "backfill": _STATE | dict.fromkeys(_NO_FILES, OK),
    "recompute": _STATE | dict.fromkeys(_NO_FILES, OK),
    "empty": _STATE | _NO_FILES,
    "properties": _ALWAYS
    | _CHANGES_STATE
    | {"allowed metadata": Rule.METADATA, "other metadata": Rule.METADATA},
    "upgrade": _ALWAYS | _CHANGES_STATE | {"allowed metadata": OK, "other metadata": Rule.METADATA},
    "repair": _STATE
    | {
        "append": Rule.APPEND,
        "remove same": Rule.DELETE,
        "new vector": Rule.APPEND,
        "re-add same": Rule.APPEND,
        "remove other": OK,
        "backfill": OK,
    },
    "append": _STATE | _NO_FILES,
    "delete_all": _STATE
    | {
        "append": Rule.APPEND,
        "remove same": Rule.DELETE,
        "new vector": Rule.APPEND,
        "re-add same": Rule.APPEND,
        "remove other": Rule.DELETE,
        "backfill": OK,
    },
}


@pytest.mark.conformance("TXN-04", "TXN-05", "TXN-06", "TXN-07")
@pytest.mark.parametrize(
    ("mine", "winner"), [(mine, winner) for mine in OPERATIONS for winner in WINNERS]
)
def test_cell_of_the_conflict_table(mine: str, winner: str) -> None:
    result = check(OPERATIONS[mine](), WINNERS[winner]())
    expected = CELLS[mine][winner]
    if expected is OK:
        assert isinstance(result, Rebased), result
        assert result.attempt.base_version == 5
    else:
        assert isinstance(result, Conflict), result
        assert result.rule is expected
        assert result.version == 5
        assert "version 5" in result.explanation
        assert result.remedy


@pytest.mark.conformance("TXN-06", "RT-14")
@pytest.mark.parametrize("mine", ["backfill", "recompute"])
@pytest.mark.parametrize("winner", ["remove same", "new vector", "re-add same"])
def test_re_adds_of_touched_files_are_dropped(mine: str, winner: str) -> None:
    result = check(OPERATIONS[mine](), WINNERS[winner]())
    assert isinstance(result, Rebased)
    assert paths(result.attempt.actions.adds) == ["b"]
    assert result.dropped_files == 1
    assert result.attempt.reads.files is not None
    assert paths(result.attempt.reads.files) == ["b"]


@pytest.mark.conformance("TXN-06", "FILE-03")
def test_touched_files_are_compared_by_location() -> None:
    ours = attempt(BACKFILL, ReadSet(files=adds("p%20q", "b")), adds=adds("p%20q", "b"))
    result = check(ours, won("DELETE", removes=removes(f"{ROOT}/p%20q")))
    assert isinstance(result, Rebased)
    assert paths(result.attempt.actions.adds) == ["b"]

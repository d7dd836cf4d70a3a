"""No file is deleted that the commits leave live, although the checkpoint lacks it.

Here the checkpoint counts as large and nothing else is compared with it, as for a log whose newest
commits do not name the lost files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.table.evidence import contradictions
from tests.support.operations.vacuum_cases import VECTOR, removed
from tests.support.tables.actions import Action, add, commit_info, deletion_vector, features
from tests.support.tables.actions import metadata as described
from tests.support.tables.vacuum_tables import Folder

LOST = "lost.parquet"
ENCODED = "lost%20file.parquet"


@pytest.fixture(autouse=True)
def _nothing_else_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "FEW_ACTIONS", 0)
    monkeypatch.setattr(contradictions, "MOST_BYTES_OF_LARGE", 0)


def table_of(*commits: list[Action], lost: str = LOST) -> Folder:
    """A table whose newest checkpoint lacks a file."""
    table = Folder(first=[features("deletionVectors"), described()])
    for actions in commits:
        table.log(*actions)
    table.file(lost.replace("%20", " "), "kept.parquet", "dead.parquet")
    state = table.state(table.version)
    short = [action for action in state if action.get("add", {}).get("path") != lost]
    table.checkpoint(actions=[each for each in short if each.get("remove", {}).get("path") != lost])
    table.log(commit_info(), days=39)
    return table


def options(mode: str, folder: Path) -> dict[str, Any]:
    if mode != "inventory":
        return {"mode": mode}
    paths = pa.array([LOST, "dead.parquet"])
    columns = {"path": paths, "length": pa.array([1, 1]), "isDir": pa.array([False, False])}
    times = pa.array([1, 1])
    pq.write_table(pa.table({**columns, "modificationTime": times}), folder / "inventory.parquet")
    return {"mode": mode, "inventory": str(folder / "inventory.parquet")}


RESTORED = ([add(LOST), add("kept.parquet")], [removed(LOST, 40)], [add(LOST)])


@pytest.mark.parametrize("mode", ["full", "lite", "inventory"])
def test_a_file_that_a_commit_adds_and_none_removes_stops_the_vacuum(
    mode: str, tmp_path: Path
) -> None:
    table = table_of(*RESTORED)
    with pytest.raises(CorruptTableError, match=r"no commit removes lost\.parquet"):
        table.survey(ignore_missing_files=True, **options(mode, tmp_path))


def _with_another_vector(old: Action) -> list[Action]:
    return [{"remove": {**old["add"], "deletionTimestamp": 1}}, add(LOST, dv=deletion_vector())]


STATES: dict[str, Callable[[], Folder]] = {
    "added": lambda: table_of([add(LOST)]),
    "encoded": lambda: table_of([add(ENCODED)], lost=ENCODED),
    "with a vector": lambda: table_of([add(LOST)], _with_another_vector(add(LOST))),
}


@pytest.mark.parametrize("state", STATES)
def test_every_file_is_recognised(state: str) -> None:
    with pytest.raises(CorruptTableError, match="no commit removes lost"):
        STATES[state]().survey(ignore_missing_files=True)


def test_the_file_of_a_vector_is_recognised() -> None:
    table = table_of([add(LOST)], _with_another_vector(add(LOST)))
    table.store.delete(LOST)
    table.file(VECTOR)
    with pytest.raises(CorruptTableError, match="no commit removes ab/deletion_vector"):
        table.survey(ignore_missing_files=True)


def test_the_files_of_an_older_checkpoint_count() -> None:
    table = Folder(first=[features("deletionVectors"), described()])
    table.log(add(LOST), add("kept.parquet"))
    table.checkpoint()
    table.log(commit_info())
    table.file(LOST, "kept.parquet", "dead.parquet")
    table.checkpoint(actions=[a for a in table.state() if a.get("add", {}).get("path") != LOST])
    table.drop(commit_name(0))
    with pytest.raises(CorruptTableError, match=r"no commit removes lost\.parquet"):
        table.survey(ignore_missing_files=True)


@pytest.mark.parametrize(
    "last",
    [
        [removed(LOST, 40)],
        [removed("%6Cost.parquet", 40)],
        [removed(LOST, 40, deletionVector=deletion_vector())],
    ],
    ids=["removed", "removed by another spelling", "removed with another vector"],
)
def test_a_file_that_a_commit_removes_goes(last: list[Action]) -> None:
    assert table_of([add(LOST), add("kept.parquet")], last).going() == {LOST, "dead.parquet"}


def test_commits_before_a_missing_one_prove_nothing() -> None:
    table = table_of([add(LOST), add("kept.parquet")], [commit_info()])
    table.drop(commit_name(2))
    table.log(commit_info(), days=38)
    assert LOST in table.going()

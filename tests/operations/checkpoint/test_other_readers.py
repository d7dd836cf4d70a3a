"""Other readers see the same files after each incremental checkpoint, without the log before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from delta_maintenance import open_table
from delta_maintenance.storage.local import LocalStore
from tests.support.logs.checkpointing import LOG
from tests.support.operations.incremental_checkpoints import based, incremental
from tests.support.oracle.other_readers import DuckDb, Files, duck, polars_rows, require
from tests.support.tables.actions import Action, add, remove, txn
from tests.support.tables.table_builder import TableBuilder

__all__ = ["duck"]

ROUNDS: list[list[Action]] = [
    [add("new 1", stats='{"numRecords":1}'), txn("app", 1)],
    [remove("f005"), remove("f006"), add("new%202")],
    [add("f005"), remove("f030")],
    [remove("new 1"), remove("f031"), add("f030")],
    [txn("app", 2), add("f005")],
]
"""Appends, removes in one sidecar and in several, files that come back, and a file added twice."""


def ours(table: Path) -> Files:
    files = open_table(str(table)).snapshot().live_files()
    paths = map(unquote, files["path"].to_pylist())
    return set(zip(paths, files["num_records"].to_pylist(), strict=True))


def by_deltalake(table: Path) -> Files:
    files = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True))
    return {(unquote(path), None) for path in files["path"].to_pylist()}


def after_each_checkpoint(table: TableBuilder, compare: Callable[[Path], None]) -> None:
    """Calls a function when a checkpoint of the newest version is all that is left of the log."""
    root = Path(str(table.store.root))
    for actions in ROUNDS:
        table.commit(actions)
        result = incremental(table)
        opened = open_table(str(root)).snapshot().log.checkpoint
        assert opened is not None and result.path is not None and result.sidecars_taken_over
        needed = {result.path, *opened.sidecar_paths, f"{LOG}/_last_checkpoint"}
        needed.add(f"{LOG}/{result.version:020}.json")
        for file in (root / LOG).rglob("*"):
            if file.is_file() and str(file.relative_to(root)) not in needed:
                file.unlink()
        compare(root)


@pytest.mark.conformance("CKPT-03", "CKPT-24", "REC-02")
def test_readers_see_the_same_files(tmp_path: Path, duck: DuckDb) -> None:
    require("polars_deltalake")
    table = based(store=LocalStore(str(tmp_path)))
    names = [*(f"f{number:03d}" for number in range(40)), "new 1", "new 2"]
    for number, name in enumerate(names):
        pq.write_table(pa.table({"id": [number], "part": ["x"]}), tmp_path / name)
    counts = []

    def compare(root: Path) -> None:
        found = ours(root)
        counts.append(len(found))
        assert duck.files(root) == found
        assert by_deltalake(root) == {(path, None) for path, _ in found}
        rows = polars_rows(root)["id"].to_pylist()
        assert sorted(names[row] for row in rows) == sorted(path for path, _ in found)

    after_each_checkpoint(table, compare)
    assert counts == [41, 40, 40, 39, 39]

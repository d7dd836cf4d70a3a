"""Small logs, and their live files and actions."""

from __future__ import annotations

from typing import Any

from delta_maintenance.table.read import Snapshot
from tests.support.tables.actions import Action, metadata, protocol
from tests.support.tables.table_builder import LOG, TableBuilder

START = [protocol(), metadata()]


COMMIT_1 = f"{LOG}/{1:020d}.json"


def started(*lines: Any) -> TableBuilder:
    """A table whose version 0 has protocol and metaData, and whose version 1 has these lines."""
    table = TableBuilder()
    table.commit(START)
    if lines:
        table.commit(lines)
    return table


def live(table: TableBuilder) -> list[str]:
    paths: list[str] = table.open().snapshot().live_files()["path"].to_pylist()
    return sorted(paths)


def everything(snapshot: Snapshot) -> list[Action]:
    """Returns every field of every live file."""
    rows: list[Action] = []
    for batch in snapshot.log.scan():
        rows += batch.adds.to_pylist()
    return rows


def only(table: TableBuilder) -> Action:
    [row] = everything(table.open().snapshot())
    return row

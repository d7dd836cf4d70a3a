"""How many adds and removes a checkpoint holds, for dividing the work of a Spark job."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tables.actions import OMIT, add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder


def built(path: Path) -> TableBuilder:
    table = TableBuilder(path)
    table.commit([features("v2Checkpoint"), metadata()])
    table.commit([add(f"f{n}") for n in range(9)])
    table.commit([remove(f"f{n}", deletionTimestamp=OMIT) for n in range(4)])
    return table


def counts(table: TableBuilder) -> tuple[int, int]:
    checkpoint = table.open().snapshot().log.checkpoint
    assert checkpoint is not None
    return checkpoint.action_counts()


def test_the_footers_of_other_writers_tell_both_numbers(tmp_path: Path) -> None:
    table = built(tmp_path)
    table.checkpoint(rows_per_group=3)
    assert counts(table) == (5, 4)


def test_inline_actions_of_a_json_file_count_as_adds(tmp_path: Path) -> None:
    table = built(tmp_path)
    table.v2_checkpoint()
    assert sum(counts(table)) == 9
    checkpoint = table.open().snapshot().log.checkpoint
    assert checkpoint is not None and checkpoint.stated_adds == (5, None)


def test_tags_do_not_decide_the_numbers(tmp_path: Path) -> None:
    table = built(tmp_path)
    name = table.v2_checkpoint(sidecars=2)[0]
    lines = [json.loads(line) for line in table.read(name).splitlines()]
    tags = {"sidecarNumActions": str(10**17), "numOfAddFiles": str(10**17)}
    lines[0]["checkpointMetadata"]["tags"] = tags
    table.write(name, "\n".join(map(json.dumps, lines)).encode())
    assert counts(table) == (5, 4)

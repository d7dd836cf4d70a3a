"""`health` and policies on the command line, for tables that have lost data files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.usefixtures("asks_for_files")


def fill(builder: TableBuilder) -> None:
    """Creates the files of the table of this folder, with their sizes."""
    for name, size in {"a": 10, "b": 20, "c": 30}.items():
        builder.store.put(name, b"x" * size)


def test_health_prints_what_is_missing_and_ends_with_corruption(
    cli: Any, builder: TableBuilder, table: str
) -> None:
    fill(builder)
    sound = cli("health", table)
    assert sound.status == 0 and "looked for" in sound.out and "missing" not in sound.out
    builder.store.delete("b")
    hollow = cli("health", table)
    assert hollow.status == 5 and "b: the data file does not exist" in hollow.out
    assert f"table {table}, version 2, file b: the data file does not exist; " in hollow.err
    document = cli("health", table, "--json")
    assert document.status == 5
    assert [f["path"] for f in document.document["file_check"]["findings"]] == ["b"]


def test_the_failure_of_a_sampled_file_outlasts_runs_until_it_is_back(
    cli: Any, tmp_path: Path
) -> None:
    builder = TableBuilder(tmp_path / "many")
    names = [f"f{number:03}" for number in range(300)]
    builder.commit([protocol(), metadata(), *(add(name) for name in names)])
    for name in names:
        builder.store.put(name, b"x")
    builder.checkpoint()
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\ntables: [{{name: t, uri: {tmp_path}/many, checkpoint: true}}]\n"
    )
    words = (policy, "--state", tmp_path / "state")
    assert cli("assess", *words).status == 0
    for name in names:
        builder.store.delete(name)
    match = re.search(r"file (f\d+): the data file does not exist", cli("assess", *words).err)
    assert match is not None
    lost = match[1]
    for name in names:
        if name != lost:
            builder.store.put(name, b"x")
    for verb in ("run", "assess", "run"):
        again = cli(verb, *words)
        assert again.status == 5 and f"file {lost}: the data file does not exist" in again.err
    builder.store.put(lost, b"x")
    assert cli("run", *words).status == 0

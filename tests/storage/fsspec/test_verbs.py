"""Every verb on a read-only table: reads succeed, writes are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

READING = [
    ["inspect"],
    ["files"],
    ["history"],
    ["health"],
    ["fsck"],
    ["checkpoint", "--dry-run"],
    ["compact-log", "--dry-run"],
    ["clean-log", "--dry-run"],
    ["vacuum", "--dry-run"],
]
WRITING = [
    ["checkpoint"],
    ["compact-log", "--commits-per-file", "2"],
    ["set-properties", "--set", "delta.appendOnly=true"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with commits after a checkpoint, an unreferenced file and an unknown one."""
    builder = TableBuilder(tmp_path / "t")
    builder.commit([protocol(), metadata()])
    for number in range(4):
        name = f"part={number % 2}/a%20b-{number}.parquet"
        builder.commit([add(name, partitionValues={"part": str(number % 2)})])
        file = tmp_path / "t" / name.replace("%20", " ")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"PAR1")
    builder.checkpoint()
    builder.commit([remove("part=0/a%20b-0.parquet")])
    for number in range(4, 8):
        builder.commit([add(f"part=0/{number}.parquet", partitionValues={"part": "0"})])
    return tmp_path / "t"


@pytest.fixture(params=["zip", "file"])
def address(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "zip":
        with zipfile.ZipFile(folder.parent / "t.zip", "w") as archive:
            for file in sorted(folder.rglob("*")):
                archive.write(file, f"t/{file.relative_to(folder)}")
        return f"zip://t::{folder.parent}/t.zip"
    # The same store twice: nothing may be cached between them.
    return f"simplecache::file://{folder}"


@pytest.mark.parametrize("verb", READING, ids=lambda verb: verb[0])
def test_a_verb_that_reads_answers_as_on_the_folder_itself(
    folder: Path, address: str, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for table in (str(folder), address):
        status = main([verb[0], table, *verb[1:], "--json"])
        answers.append((status, capsys.readouterr().out.replace(table, "TABLE")))
    assert answers[1][0] == answers[0][0]
    if address.startswith("zip:"):
        # Archives tell times in steps of two seconds and without a zone.
        return
    assert timeless(answers[1][1]) == timeless(answers[0][1])


@pytest.mark.parametrize("verb", WRITING, ids=lambda verb: verb[0])
def test_a_verb_that_writes_is_refused_in_one_line(
    folder: Path, address: str, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    status = main([verb[0], address, *verb[1:]])
    told = capsys.readouterr()
    if "nothing" in told.out:
        pytest.fail(f"the verb had nothing to do: {told.out}")
    assert status == 3, told
    assert "can only be read" in told.err and "stores.md" in told.err
    assert sorted(folder.rglob("*")) == before


def timeless(out: str) -> object:
    """The documents without durations."""
    try:
        documents = [json.loads(out)]
    except ValueError:
        documents = [json.loads(line) for line in out.splitlines()]

    def stripped(value: object) -> object:
        if isinstance(value, dict):
            return {
                key: stripped(item)
                for key, item in value.items()
                if "seconds" not in key and key not in _NOW
            }
        if isinstance(value, list):
            return [stripped(item) for item in value]
        return value

    return stripped(documents)


_NOW = ("planned_at", "measured_at", "tombstones_from", "delete_before")

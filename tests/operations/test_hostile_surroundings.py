"""Permissions, full disks, clocks that jump, stale listings, encrypted files and hostile names."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.errors import CommitConflictError, CorruptTableError, DeltaMaintenanceError
from delta_maintenance.operations import backfill_row_ids, checkpoint, fsck, set_properties
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import FileStatus
from delta_maintenance.table.read import Table
from tests.support.hostile.encrypted_files import encrypted
from tests.support.rewrites.data_files import parquet
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import Folder, days_ago

STATS = '{"numRecords":3}'
ROWS = pa.table({"id": [1, 2, 3]})

SCRIPT = """
import json, resource, sys
from delta_maintenance.cli.main import main
words, most = json.loads(sys.argv[1])
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for line in words:
    status = main(line)
    print(json.dumps(status), file=sys.stderr, flush=True)
"""


def restricted(*lines: tuple[object, ...], largest_file: int = 0) -> list[tuple[int, str]]:
    """Exit status and stderr of command lines in a process to which permissions apply."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        drop = "-dac_override,-dac_read_search"
        prefix = ["setpriv", f"--inh-caps={drop}", f"--bounding-set={drop}"]
    words = [[str(word) for word in line] for line in lines]
    done = subprocess.run(
        [*prefix, sys.executable, "-c", SCRIPT, json.dumps([words, largest_file])],
        capture_output=True,
        text=True,
        check=True,
    )
    found, told = [], []
    for line in done.stderr.splitlines():
        if line.isdigit():
            found.append((int(line), "\n".join(told)))
            told = []
        else:
            told.append(line)
    return found


def table_on(root: Path) -> Folder:
    """Live files, one of them in a subfolder, and an unreferenced file."""
    table = Folder(root, now=clock.now())
    data = parquet(ROWS)
    for path in ("a.parquet", "inner/b.parquet"):
        table.log(add(path, size=len(data), stats=STATS))
        table.file(path, data=data)
    table.file("part-00000-c000.snappy.parquet", "inner/part-00001-c000.snappy.parquet")
    return table


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.process
def test_a_folder_without_permission_is_no_folder_without_files(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table_on(root)
    before = everything(root)
    os.chmod(root / "inner", 0)
    try:
        found = restricted(
            ("fsck", root),
            ("fsck", root, "--repair", "--remove-missing-files"),
            ("vacuum", root, "--allow-large-delete", "--ignore-missing-files"),
            ("checkpoint", root),
        )
    finally:
        os.chmod(root / "inner", 0o755)
    *refused, (written, _) = found
    assert all(status == 1 and "no permission" in told for status, told in refused), found
    log = root / "_delta_log"
    assert written == 0
    assert everything(root) - before == {
        f"_delta_log/{name}" for name in ("_last_checkpoint", f"{2:020}.checkpoint.parquet")
    }
    assert len(list(log.glob("*[0-9].json"))) == 3


@pytest.mark.process
def test_a_commit_without_permission_is_no_damaged_commit(tmp_path: Path) -> None:
    table_on(tmp_path)
    log = tmp_path / "_delta_log"
    before = everything(tmp_path)
    commit = log / f"{1:020}.json"
    os.chmod(commit, 0)
    os.chmod(log, 0o555)
    try:
        found = restricted(
            ("inspect", tmp_path),
            ("fsck", tmp_path, "--repair"),
            ("set-properties", tmp_path, "--set", "a=b"),
        )
    finally:
        os.chmod(log, 0o755)
        os.chmod(commit, 0o644)
    assert [status for status, _ in found] == [1, 1, 1], found
    assert all("no permission" in told for _, told in found)
    assert everything(tmp_path) == before


@pytest.mark.process
def test_a_write_that_fails_halfway_leaves_no_file(tmp_path: Path) -> None:
    table_on(tmp_path)
    before = everything(tmp_path)
    found = restricted(
        ("checkpoint", tmp_path),
        ("set-properties", tmp_path, "--set", f"a={'x' * 3000}"),
        largest_file=1000,
    )
    assert [status for status, _ in found] == [1, 1], found
    assert all("File too large" in told for _, told in found), found
    assert everything(tmp_path) == before
    assert fsck.plan(TableBuilder(tmp_path).open(), context=RunContext.at(clock.now())).status == (
        "sound"
    )


@pytest.mark.parametrize("jump", [timedelta(days=400), -timedelta(days=400)], ids=["on", "back"])
def test_a_jumping_clock_shortens_no_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: timedelta, capsys: Any
) -> None:
    real = datetime.now(UTC)
    table = table_on(tmp_path)
    table.log(add("gone.parquet"), days=3)
    table.log(remove("gone.parquet", deletionTimestamp=days_ago(2, table.now)), days=2)
    table.file("gone.parquet", "part-00009-c000.snappy.parquet", days=2)
    table.checkpoint(4)
    looks = 0

    def jumping() -> datetime:
        nonlocal looks
        looks += 1
        return real if looks == 1 else real + jump

    monkeypatch.setattr(clock, "now", jumping)
    for words in (["vacuum", "--allow-large-delete"], ["clean-log"], ["checkpoint"]):
        looks = 0
        status = main([words[0], str(tmp_path), *words[1:]])
        assert status in (0, 3), capsys.readouterr().err
        left = everything(tmp_path)
        assert {"gone.parquet", "part-00009-c000.snappy.parquet", "inner/b.parquet"} <= left
        assert {f"_delta_log/{version:020}.json" for version in (3, 4)} <= left


class Stale(MemoryStore):
    """Lists the log as it was before some of its files came; everything else is as it is."""

    hidden: tuple[str, ...] = ()

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        files = super().list_from(directory, start)
        return (status for status in files if status.path not in self.hidden)


def test_a_stale_listing_of_the_log_costs_no_file_and_no_commit() -> None:
    store = Stale()
    table = Folder(store)
    table.log(add("old"), days=40)
    table.file("old", "orphan", days=40)
    table.log(add("new"), remove("old", deletionTimestamp=days_ago(40)), days=1)
    table.file("new", days=1)
    newest = f"_delta_log/{2:020}.json"
    text = store.read(newest)
    store.hidden = (newest,)

    options = set_properties.SetPropertiesOptions(properties={"a": "b"})
    for step in (
        lambda: table.vacuum(allow_large_delete=True, foreign_files=True),
        lambda: checkpoint.apply(
            Table(store),
            checkpoint.plan(Table(store).snapshot(version=1), context=RunContext.at(table.now)),
        ),
        lambda: set_properties.apply(
            Table(store),
            set_properties.plan(Table(store).snapshot(), options, context=RunContext.at(table.now)),
            context=RunContext(sleep=lambda _: None),
        ),
    ):
        # Verified by putting another commit in its place. Once one of ours comes after the hidden
        # commit, the log has a gap as long as that is hidden.
        with suppress(CommitConflictError, CorruptTableError):
            step()

    assert store.read(newest) == text
    assert {"old", "new"} <= table.files()
    store.hidden = ()
    assert table.open().snapshot(version=2).live_files()["path"].to_pylist() == ["new"]


@pytest.mark.parametrize("footer", [True, False], ids=["footer", "pages"])
def test_an_encrypted_checkpoint_is_an_unusable_one(footer: bool) -> None:
    builder = TableBuilder()
    builder.commit([protocol(), metadata(), add("a")])
    builder.commit([add("b")])
    builder.checkpoint(1)
    name = f"_delta_log/{1:020}.checkpoint.parquet"
    plain = pq.read_table(io.BytesIO(builder.store.read(name)))
    builder.store.put(name, encrypted(plain, "add.path", footer=footer))
    snapshot = builder.open().snapshot()
    assert sorted(snapshot.live_files()["path"].to_pylist()) == ["a", "b"]
    assert any("skipped" in said and "encrypted" in said for said in snapshot.warnings)


@pytest.mark.parametrize("footer", [True, False], ids=["footer", "pages"])
def test_an_encrypted_data_file_is_not_read(footer: bool) -> None:
    table = Folder(MemoryStore())
    data = encrypted(ROWS, "id", footer=footer)
    table.log(add("a", size=len(data)))
    table.file("a", data=data)
    commits = len(table.commits)

    found = fsck.plan(table.open(), fsck.FsckOptions(deep=True), context=RunContext.at(table.now))
    kinds = {finding.kind for finding in found.findings}
    assert kinds == ({"unsupported-data-file"} if footer else set())
    planned = backfill_row_ids.plan(table.open().snapshot(), context=RunContext.at(table.now))
    if footer:
        with pytest.raises(DeltaMaintenanceError):
            backfill_row_ids.apply(table.open(), planned, context=RunContext(sleep=lambda _: None))
        assert table.open().latest_version() + 1 == commits


HOSTILE = (
    "nul%00",
    "line%0Abreak",
    "esc%1B[2J",
    "\u202egpj.exe",
    "\u2066iso",
    "%ED%A0%80",
    "c1%C2%9B2J",
)


@pytest.mark.parametrize("verbose", [False, True], ids=["quiet", "verbose"])
def test_names_of_a_table_are_escaped_on_the_terminal(
    tmp_path: Path, capsys: Any, verbose: bool
) -> None:
    table = Folder(tmp_path, now=clock.now())
    table.log(*(add(name) for name in HOSTILE))
    (tmp_path / "part-\x1b[31m-\u202e-c000.parquet").write_bytes(b"x")
    (tmp_path / os.fsdecode(b"part-\xff-c000.parquet")).write_bytes(b"x")
    (tmp_path / "_delta_log" / f"{1:020}.json").write_bytes(b"")
    (tmp_path / "_delta_log" / f"{2:020}.json").write_text(
        '{"add":{"path":"\\u001b[2J"}}\n{"\\u202e'
    )
    more = ["-v"] if verbose else []
    for words in (["inspect"], ["inspect", "--version", "0"], ["files", "--version", "0"], ["fsck"],
                  ["vacuum", "--dry-run", "--ignore-missing-files"], ["history"]):  # fmt: skip
        main([words[0], str(tmp_path), *words[1:], *more])
        shown = capsys.readouterr()
        for text in (shown.out, shown.err):
            odd = [char for char in text if not char.isprintable() and char not in "\n\t"]
            assert not odd, (words, odd, text)

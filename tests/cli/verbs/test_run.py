"""The summary of `run`, and runs on one table without a policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance import open_table
from delta_maintenance.cli.starter_policy import policy_for
from tests.support.rewrites.data_files import parquet
from tests.support.tables.actions import add, commit_info, metadata, protocol, remove
from tests.support.tables.vacuum_tables import Folder, days_ago

HINT = "without --state, later runs do not know of a vacuum or fsck that left no commit"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table with small files, and with one that has been dead for long."""
    now = datetime.now(UTC)
    table = Folder(tmp_path / "t", now=now, first=[protocol(), metadata()])
    data = parquet(pa.table({"id": pa.array([1], pa.int64()), "part": ["p"]}))
    names = [f"part-{number:05}-c000.snappy.parquet" for number in range(12)]
    for name in names:
        table.log(add(name, size=len(data)))
        table.file(name, data=data)
    table.log(remove(names[0], deletionTimestamp=days_ago(40, now), size=len(data)))
    return tmp_path / "t"


def test_everything_that_is_due_on_one_table_is_done_once_it_is_approved(
    cli: Any, root: Path
) -> None:
    first = cli("run", "--all-due", root)
    assert first.status == 0 and first.err == ""
    *_, sums, gained, waiting, how, hint = first.out.splitlines()
    assert sums == "1 table: 1 done"
    assert gained.startswith("11 data files became 1")
    assert waiting.startswith("vacuum waits for approval: 1 file, ")
    assert "--approve" in how and hint == HINT
    assert (root / "part-00000-c000.snappy.parquet").exists()

    approved = cli("run", "--all-due", root, "--approve", "vacuum", "--state", root.parent / "s")
    assert approved.out.splitlines()[-2] == "1 table: 1 done"
    assert approved.out.splitlines()[-1].endswith(" of files were deleted")
    assert not (root / "part-00000-c000.snappy.parquet").exists()
    assert open_table(str(root)).snapshot().counts.num_files == 1


def test_a_run_names_no_operation_as_blocked_that_it_has_run(cli: Any, root: Path) -> None:
    state = root.parent / "s"
    lost = root / "part-00001-c000.snappy.parquet"
    content = lost.read_bytes()
    lost.unlink()
    assert cli("run", "--all-due", root, "--state", state).status == 5
    lost.write_bytes(content)
    repaired = cli("run", "--all-due", root, "--state", state)
    assert "optimize" in repaired.out and "blocked" not in repaired.out


def test_a_run_is_for_a_policy_or_for_one_table(cli: Any, root: Path) -> None:
    for words in ([], ["policy.yaml", "--all-due", root]):
        outcome = cli("run", *words)
        assert outcome.status == 2 and "give one of them" in outcome.err
    ignored = cli("run", "policy.yaml", "--other-writers", "spark")
    assert ignored.status == 2 and "belong to --all-due" in ignored.err


def test_the_starter_policy_says_how_others_write(root: Path) -> None:
    rules = policy_for("s3://lake/t", other_writers="spark").named_tables[0].rules
    assert rules.other_writers == "spark" and rules.optimize and rules.approval == ("vacuum",)


def test_a_table_in_error_is_named(cli: Any, table: str) -> None:
    (Path(table) / "_delta_log/00000000000000000001.json").unlink()
    outcome = cli("run", "--all-due", table)
    assert outcome.status == 5 and "1 table: 1 failed" in outcome.out
    assert outcome.err.count("\n") == 1 and table in outcome.err


def test_a_folder_above_tables_is_no_table_and_names_them(cli: Any, table: str) -> None:
    outcome = cli("run", "--all-due", Path(table).parent)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (5, "", 1)
    assert outcome.err.rstrip().endswith("the folder contains table")


@pytest.fixture
def policy(tmp_path: Path, root: Path) -> Path:
    """A policy over the table with work, two without any, and three that are damaged alike."""
    now = datetime.now(UTC)
    for name in ("idle-1", "idle-2", "bad-1", "bad-2", "bad-3"):
        table = Folder(tmp_path / name, now=now)
        table.log(commit_info("WRITE"))
        table.log(commit_info("WRITE"))
        if name.startswith("bad"):
            (tmp_path / name / f"_delta_log/{1:020}.json").unlink()
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\n"
        "defaults: {fsck: {every: 7 days}, optimize: true, vacuum: true, approval: [vacuum],\n"
        "           clones: {unreadable: ignore}}\n"
        f"tables:\n- {{pattern: '{tmp_path}/**'}}\n"
    )
    return path


def test_only_tables_with_work_have_a_line_and_failures_one_for_each_cause(
    cli: Any, policy: Path
) -> None:
    outcome = cli("run", policy)
    assert outcome.status == 5
    header, line, sums, *_ = outcome.out.splitlines()
    assert header.split() == ["table", "outcome"]
    assert line.split(maxsplit=1)[0] == "t"
    assert "optimize (11 files became 1); vacuum needs approval (1 file, " in line
    assert sums == "6 tables: 3 failed, 2 nothing to do, 1 done"
    assert f"delta-maintenance approve {policy}" in outcome.out
    (cause,) = [line for line in outcome.err.splitlines() if "warning" not in line]
    assert cause.startswith("delta-maintenance: 3 tables, bad-1, bad-2, bad-3: table ")
    assert cause.count("commit 1 is missing") == 1


def test_a_dry_run_has_a_line_for_each_table_with_work(cli: Any, policy: Path) -> None:
    lines = cli("run", policy, "--dry-run").out.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:2]] == ["table", "t"]
    assert "optimize planned" in lines[1] and "vacuum planned (1 file, " in lines[1]
    assert lines[2] == "6 tables: 3 failed, 2 nothing to do, 1 planned"


def test_reasons_have_a_line_for_each_operation(cli: Any, policy: Path) -> None:
    out = cli("run", policy, "--reasons").out
    assert out.count("no run of fsck is recorded") == 3


def test_what_blocks_tables_is_said_once(cli: Any, policy: Path) -> None:
    day = f"{datetime.now(UTC) + timedelta(days=3):%a}"
    closed = f"hours: {{timezone: UTC, windows: ['{day} 12:00-12:01']}}"
    text = policy.read_text().replace("approval: [vacuum]", f"approval: [vacuum], {closed}")
    policy.write_text(text)
    out = cli("run", policy, "--table", "idle-1", "--table", "idle-2", "--table", "t").out
    assert "blocked on 3 tables, such as idle-1: fsck, vacuum" in out
    assert out.count("fsck") == 2, "in this line and in the hint about the state"

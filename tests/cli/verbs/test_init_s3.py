"""`init` on tables in S3: it recognises Delta Spark, and asks at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.policies.definition import load_policy
from delta_maintenance.storage import open_store
from tests.support.emulators.s3_server import S3Server
from tests.support.tables.actions import add, commit_info, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
DELTA_RS = "delta-rs:py-1.2.1"


@pytest.fixture(autouse=True)
def lake(s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with a table of Delta Spark, whose newest commits are others', and another table."""
    for name, value in s3_server.storage_options.items():
        monkeypatch.setenv(name, value)
    files = [add(f"{number}.parquet", size=10) for number in range(13)]
    for folder, engines in (
        ("sales/orders", [SPARK, *["Other/1"] * 6]),
        ("ops/events", [DELTA_RS]),
    ):
        table = TableBuilder(open_store(f"s3://{s3_bucket}/{folder}", s3_server.storage_options))
        table.commit([protocol(), metadata(), *files])
        for number in range(13):
            table.store.put(f"{number}.parquet", bytes(10))
        for engine in engines:
            table.commit([commit_info("WRITE", engineInfo=engine)])
    return f"s3://{s3_bucket}"


def statuses(document: Any) -> dict[str, dict[str, str]]:
    """The status of each operation, by the last folder of each table."""
    return {
        row["uri"].rpartition("/")[2]: {e["operation"]: e["status"] for e in row["operations"]}
        for row in document
    }


def at_terminal(lake: str, folder: Path, *answers: str) -> str:
    """Answers the questions of `init` at a terminal of 80 columns, and returns what it shows."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "delta_maintenance", "init", "policy"]
    command += [f"{lake}/sales", f"{lake}/ops", "--folder", str(folder)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        shown, waiting = b"", list(answers)
        while True:
            try:
                data = os.read(controller, 4096)
            except OSError:
                # The other end is closed.
                break
            shown += data
            if waiting and shown.endswith(b"[4]: "):
                os.write(controller, waiting.pop(0).encode())
    os.close(controller)
    assert process.returncode == 0, shown
    assert not waiting
    return shown.decode().replace("\r\n", "\n")


def test_without_a_terminal_tables_of_delta_spark_are_declared_so(
    cli: Any, lake: str, tmp_path: Path, s3_server: S3Server
) -> None:
    s3_server.requests.clear()
    told = cli("init", "policy", f"{lake}/sales", f"{lake}/ops", "--folder", tmp_path)
    assert told.status == 0 and "be blocked; `assess --reasons` says why" in told.out
    text = (tmp_path / "policy.yaml").read_text()
    for command in ("checkpoint", "compact-log", "clean-log", "vacuum", "fsck"):
        assert command in text
    assert f"# Seen: {SPARK}" in text and f"# Seen: {DELTA_RS}" in text
    sales, ops = yaml.safe_load(text)["tables"]
    assert sales["other_writers"] == "spark" and "other_writers" not in ops
    seen = statuses(cli("assess", tmp_path / "policy.yaml", "--json").document)
    assert seen["orders"]["optimize"] == seen["events"]["optimize"] == "blocked"
    assert {seen["orders"][name] for name in ("fsck", "vacuum")} == {"due"}


@pytest.mark.parametrize("writers", ["conditional_put", "none", "spark"])
def test_other_writers_are_those_of_the_command_line(
    cli: Any, lake: str, tmp_path: Path, writers: str
) -> None:
    words = (f"{lake}/sales", f"{lake}/ops", "--folder", tmp_path, "--other-writers", writers)
    told = cli("init", "policy", *words, "--json")
    entries = load_policy(tmp_path / "policy.yaml").patterns
    assert [entry.other_writers for entry in entries] == [writers] * 2
    status = "blocked" if writers == "spark" else "due"
    for document in (
        told.document["tables"],
        cli("assess", tmp_path / "policy.yaml", "--json").document,
    ):
        assert {table["optimize"] for table in statuses(document).values()} == {status}
    # The commit of Delta Spark has no mark of the log store.
    notes = [note for row in told.document["tables"] for note in row["notes"]]
    assert any("without our log store" in note for note in notes) == (writers == "conditional_put")
    assessed = cli("assess", tmp_path / "policy.yaml")
    assert ("without our log store" in assessed.err) == (writers == "conditional_put")


@pytest.mark.process
@pytest.mark.parametrize(
    ("answers", "rules", "status"),
    [
        (("1\n",), {"other_writers": "conditional_put"}, "due"),
        (("maybe\n", "2\n"), {"other_writers": "none"}, "due"),
        # The last commit is younger than the quiet window.
        (("3\n",), {"other_writers": "spark", "quiet": "10 minutes"}, "blocked"),
        (("\n",), {"other_writers": "spark"}, "blocked"),
        (("\x04",), {"other_writers": "spark"}, "blocked"),
    ],
    ids=lambda value: None,
)
def test_a_terminal_is_asked_once(
    cli: Any,
    lake: str,
    tmp_path: Path,
    answers: tuple[str, ...],
    rules: dict[str, str],
    status: str,
) -> None:
    shown = at_terminal(lake, tmp_path, *answers)
    assert shown.count("Delta Spark writes 1 table on S3") == 1
    question = shown[: shown.index("1, 2, 3 or 4")].replace(lake, "s3://lake")
    assert max(map(len, question.split("\n"))) <= 80
    sales, ops = yaml.safe_load((tmp_path / "policy.yaml").read_text())["tables"]
    assert {key: sales[key] for key in rules} == rules and ("quiet" in sales) == ("quiet" in rules)
    assert "other_writers" not in ops
    assert ("be blocked" in shown) and ("without our log store" in shown) == (answers == ("1\n",))
    seen = statuses(cli("assess", tmp_path / "policy.yaml", "--json").document)
    assert seen["orders"]["optimize"] == status

"""`ledger` shows what other verbs have recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tables.actions import add, commit_info
from tests.support.tables.overdue_tables import overdue_table
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def policy(tmp_path: Path, table: str) -> Path:
    """A policy for one table whose checkpoint is due, and a ledger."""
    path = tmp_path / "policy.yaml"
    document = {
        "version": 1,
        "ledger": str(tmp_path / "ledger"),
        "defaults": {"checkpoint": {"max_commits": 1}},
        "tables": [{"name": "orders", "uri": table, "owner": "sales"}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_run_is_shown_and_summed(cli: Any, policy: Path, tmp_path: Path) -> None:
    before = cli("ledger", policy)
    assert before.status == 5 and "the first run that does something creates" in before.err
    assert cli("run", policy, "--dry-run").status == 0
    assert not (tmp_path / "ledger").exists()
    assert cli("run", policy, "--state", tmp_path / "state").err == ""
    (row,) = cli("ledger", policy, "--json").document
    assert (row["table_name"], row["operation"], row["outcome"]) == ("orders", "checkpoint", "done")
    assert row["replay_bytes_before"] > 0 and row["done_by"] == "cli"
    assert cli("ledger", policy).out.splitlines()[1].split()[2:5] == [
        "orders",
        "checkpoint",
        "done",
    ]
    for by, group in (("table", "orders"), ("operation", "checkpoint"), ("owner", "sales")):
        (found,) = cli("ledger", policy, "--by", by, "--json").document
        assert (found["group"], found["operations"], found["failed"]) == (group, 1, 0)
        assert group in cli("ledger", policy, "--by", by).out
    assert len(cli("ledger", policy, "--by", "day").out.splitlines()) == 2
    assert cli("ledger", policy, "--since", "0 days", "--json").document == []
    # Nothing is due, so nothing is recorded.
    cli("run", policy)
    assert len(cli("ledger", policy, "--json").document) == 1


def test_the_row_of_an_approved_operation_names_the_user(
    cli: Any, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = yaml.safe_load(policy.read_text())
    document["defaults"]["approval"] = ["checkpoint"]
    policy.write_text(yaml.safe_dump(document))
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert cli("run", policy).status == 0
    assert cli("run", policy, "--approve", "checkpoint").status == 0
    done, waits = cli("ledger", policy, "--json").document
    assert (waits["outcome"], waits["approved_by"]) == ("needs-approval", None)
    assert (done["outcome"], done["approved_by"]) == ("done", "ann")


def test_a_table_that_cannot_be_read_is_in_the_ledger(cli: Any, policy: Path, table: str) -> None:
    (Path(table) / "_delta_log/00000000000000000001.json").unlink()
    assert cli("run", policy).status == 5
    (row,) = cli("ledger", policy, "--json").document
    assert (row["operation"], row["outcome"]) == (None, "failed")
    assert "commit 1 is missing" in row["error"]
    assert "commit 1 is missing" in cli("ledger", policy).out


def test_a_ledger_that_is_another_table_costs_a_warning(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    TableBuilder(tmp_path / "ledger").commit([commit_info()])
    told = cli("run", policy)
    assert told.status == 0 and "checkpoint" in told.out
    assert told.err.count("\n") == 1 and "the ledger was not written" in told.err


def test_one_verb_records_itself(cli: Any, policy: Path, table: str, tmp_path: Path) -> None:
    ledger = ("--ledger", tmp_path / "ledger")
    assert cli("checkpoint", table, *ledger).status == 0
    assert cli("vacuum", table, "--dry-run", *ledger).status == 5
    (failed, done) = cli("ledger", policy, "--json").document
    assert (done["operation"], done["outcome"]) == ("checkpoint", "done")
    assert (failed["operation"], failed["outcome"]) == ("vacuum", "failed")
    assert "missing" in failed["error"]


def test_the_maintenance_of_others_is_imported(
    cli: Any, policy: Path, builder: TableBuilder
) -> None:
    builder.commit([commit_info("OPTIMIZE", engineInfo="Apache-Spark/4.2.0"), add("z")])
    told = cli("ledger", policy, "--import", "--since", "99999 days")
    assert told.status == 0 and "1 operation of other engines imported" in told.err
    assert "optimize" in told.out
    assert "0 operations" in cli("ledger", policy, "--import", "--since", "99999 days").err


def test_wrong_requests_are_one_line(cli: Any, tmp_path: Path, policy: Path) -> None:
    (tmp_path / "none.yaml").write_text("version: 1\n")
    for words, told in (
        ((tmp_path / "none.yaml",), "`ledger: s3://lake/_maintenance/ledger`"),
        ((policy, "--since", "yesterday"), "is not a duration"),
    ):
        ended = cli("ledger", *words)
        assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert told in ended.err


def test_a_ledger_that_cannot_be_one_is_refused_before_anything_is_done(
    cli: Any, table: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(table).rglob("*")}
    for address in ("", "s3://user:hunter2@lake/ledger"):
        ended = cli("checkpoint", table, "--ledger", address)
        assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "hunter2" not in ended.err and "address" in ended.err
    assert {path: path.stat().st_mtime_ns for path in Path(table).rglob("*")} == before


def test_a_ledger_is_shown_whole_for_longer_than_time_has_a_date(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    cli("run", policy)
    for words in ((), ("--by", "table")):
        told = cli("ledger", policy, "--since", "9999999 days", *words)
        assert (told.status, told.err) == (0, "") and "orders" in told.out


def test_an_interrupted_verb_is_recorded_as_such(
    cli: Any, policy: Path, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("delta_maintenance.operations.checkpoint.operation.apply", interrupt)
    assert cli("checkpoint", table, "--ledger", tmp_path / "ledger").status == 130
    (row,) = cli("ledger", policy, "--json").document
    assert (row["outcome"], row["error"]) == ("failed", "interrupted")


def test_a_refused_condition_leaves_no_personal_data_in_the_ledger(
    cli: Any, policy: Path, table: str, tmp_path: Path
) -> None:
    conditions = (
        "mail = 'zoe@x.example'",
        "mail = 'zoe@x.example",
        "it's 'zoe@x.example",
        "zoe",
        "zoe = 1",
    )
    for condition in conditions:
        ended = cli("erasure-report", table, condition, "--ledger", tmp_path / "ledger")
        assert ended.status == 2 and "zoe" in ended.err
    rows = cli("ledger", policy, "--json").document
    assert len(rows) == len(conditions)
    assert all("the condition '…' cannot be used" in row["error"] for row in rows)
    assert "zoe" not in str(rows)


def test_a_verb_that_deletes_says_what_that_frees(cli: Any, tmp_path: Path) -> None:
    overdue_table(tmp_path / "t")
    assert "frees" not in cli("vacuum", tmp_path / "t", "--dry-run").out
    told = cli("vacuum", tmp_path / "t")
    assert told.status == 0
    (line,) = (each for each in told.out.splitlines() if each.split()[0] == "frees")
    assert line.split(maxsplit=1)[1] == "486 B"
    assert "frees" not in cli("vacuum", tmp_path / "t").out, "nothing was deleted"

"""Known failures on the command line: named apart, and without an exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Two broken tables and a sound one, with work."""
    for name in ("sound", "torn", "gone"):
        table = TableBuilder(tmp_path / name)
        table.commit([protocol(), metadata()])
        table.commit([add("a.parquet")])
    tear(tmp_path / "torn")
    path = tmp_path / "policy.yaml"
    tables = [
        {"name": name, "uri": str(tmp_path / name), "owner": "sales"} for name in ("sound", "torn")
    ]
    path.write_text(
        yaml.safe_dump(
            {"version": 1, "defaults": {"checkpoint": {"max_commits": 1}}, "tables": tables}
        )
    )
    return path


def tear(folder: Path, version: int = 1) -> None:
    (folder / "_delta_log" / f"{version:020}.json").write_bytes(b"{")


def test_runs_succeed_while_only_acknowledged_tables_fail(cli: Any, policy: Path) -> None:
    state = policy.parent / "state"
    on = (policy, "--state", state)
    first = cli("run", *on)
    assert first.status == 5 and "2 tables: 1 done, 1 failed" in first.out
    done = cli(
        *("acknowledge", "torn", "--state", state, "--until", "2d", "--by", "ann"),
        *("--reason", "restored on Monday"),
    )
    assert done.status == 0 and done.out.startswith("torn: acknowledged by ann until 20")
    for verb in ("run", "assess"):
        again = cli(verb, *on)
        assert again.status == 0, again.err
        assert "1 acknowledged" in again.out and "failed" not in again.out
        assert again.err.startswith(
            "delta-maintenance: torn: acknowledged by ann until "
        ) and again.err.endswith("\n")
        assert ": restored on Monday: table " in again.err
    assert cli("run", *on, "--dry-run").status == 0
    assert "acknowledged" in cli("assess", *on, "--group-by", "owner").out
    (policy.parent / "torn/_delta_log" / f"{1:020}.json").unlink()
    tear(policy.parent / "torn", 0)
    other = cli("run", *on)
    assert other.status == 5 and "acknowledged" not in other.err


def test_an_acknowledgement_can_be_removed(cli: Any, policy: Path) -> None:
    state = policy.parent / "state"
    cli("assess", policy, "--state", state)
    about = ("acknowledge", "torn", "--state", state)
    told = cli(*about, "--reason", "known", "--until-changed", "--json").document
    assert told["acknowledgement"]["reason"] == "known"
    assert told["acknowledgement"]["failure"]["step"] == "assessment"
    assert cli("assess", policy, "--state", state).status == 0
    assert cli(*about, "--remove").out == "torn: no longer acknowledged\n"
    assert cli("assess", policy, "--state", state).status == 5


def test_a_process_whose_user_has_no_name_can_acknowledge(
    cli: Any, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    state = policy.parent / "state"
    cli("assess", policy, "--state", state)
    told = cli("acknowledge", "torn", "--state", state, "--reason", "known", "--until", "2d")
    assert (told.status, told.err) == (0, "") and told.out.startswith("torn: acknowledged until 20")


def test_what_cannot_be_acknowledged_is_refused_in_one_line(cli: Any, policy: Path) -> None:
    state = policy.parent / "state"
    cli("assess", policy, "--state", state)
    for words, problem in (
        (("nobody", "--reason", "x", "--until", "1d"), "'nobody' was never assessed in "),
        (("sound", "--reason", "x", "--until", "1d"), "sound has not failed"),
        (("torn", "--until", "1d"), "an acknowledgement needs a reason"),
        (("torn", "--reason", "x"), "an acknowledgement needs an end"),
        (("torn", "--reason", "x", "--until", "soon"), "'soon' is not a date or a duration"),
        (("torn", "--reason", "x", "--remove"), "--remove takes no reason and no end"),
    ):
        refused = cli("acknowledge", *words, "--state", state)
        assert refused.status == 2 and problem in refused.err, refused.err
        assert refused.err.count("\n") == 1 and refused.out == ""

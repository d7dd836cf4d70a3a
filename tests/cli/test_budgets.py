"""`run` and `assess` within the budget of a policy."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.policies import lanes
from delta_maintenance.policies.budget.account import BudgetAccount
from delta_maintenance.policies.budget.selection import amount_text
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.vacuum_tables import Folder


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Three tables, of which a day has budget for one checkpoint."""
    write_tables(tmp_path)
    path = tmp_path / "policy.yaml"
    tables = "".join(f"  - {{name: t{n}, uri: {tmp_path}/t{n}}}\n" for n in range(3))
    path.write_text(
        "version: 1\n"
        "defaults: {checkpoint: {max_commits: 3}}\n"
        f"ledger: {{uri: {tmp_path}/ledger, maintenance: false}}\n"
        "budget: {day: {processor_time: 1 millisecond}}\n"
        f"tables:\n{tables}"
    )
    return path


def write_tables(folder: Path) -> None:
    for number in range(3):
        table = Folder(folder / f"t{number}", first=[protocol(), metadata()])
        for commit in range(5 + 5 * number):
            table.log(add(f"{commit}.parquet"))


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.parts[-3] for path in folder.glob("t*/_delta_log/*.checkpoint.parquet"))


def outcomes(cli: Any, policy: Path) -> list[tuple[str, str, str]]:
    rows = json.loads(cli("ledger", policy, "--json").out)
    return [(row["table_name"], row["operation"], row["outcome"]) for row in rows]


def test_a_run_does_what_the_budget_of_a_day_permits_and_says_why_the_rest_waits(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    words = ("run", policy, "--state", tmp_path / "state")
    first = cli(*words)
    assert first.status == 0 and "3 tables: 2 deferred, 1 done" in first.out, first.out
    assert "deferred on 2 tables, such as t0: checkpoint: " in first.out
    [waits] = [line for line in cli("ledger", policy).out.splitlines() if " t0 " in line]
    assert waits.partition("deferred  ")[2].startswith("until ") and "time left" in waits
    assert "see the order with --budget" in cli("assess", *words[1:]).out
    assert checkpoints(tmp_path) == ["t2"]
    second = cli(*words)
    assert second.status == 0 and checkpoints(tmp_path) == ["t2"]
    nothing = "the budget of processor time is spent or reserved"
    assert nothing in second.out and nothing in cli("assess", *words[1:], "--budget").out
    assert outcomes(cli, policy).count(("t0", "checkpoint", "deferred")) == 2
    assert ("t2", "checkpoint", "done") in outcomes(cli, policy)


def test_a_run_names_what_each_operation_waits_for(cli: Any, policy: Path, tmp_path: Path) -> None:
    text = policy.read_text().replace("{max_commits: 3}", "{max_commits: 3}, vacuum: true")
    policy.write_text(text.replace("1 millisecond", "20 milliseconds"))
    lines = [
        line.split(": ")[:2]
        for line in cli("run", policy, "--state", tmp_path / "state").out.splitlines()
        if line.startswith("deferred on ")
    ]
    assert sorted(operation for _, operation in lines) == ["checkpoint", "vacuum"], lines


def test_a_run_in_shadow_records_the_choice_and_changes_nothing(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    outcome = cli("run", policy, "--state", tmp_path / "state", "--shadow")
    assert outcome.status == 0 and "1 operation to run, 2 operations deferred" in outcome.out
    assert checkpoints(tmp_path) == []
    assert sorted(outcomes(cli, policy)) == [
        ("t0", "checkpoint", "deferred"),
        ("t1", "checkpoint", "deferred"),
        ("t2", "checkpoint", "chosen"),
    ]
    assert json.loads(cli("ledger", policy, "--by", "table", "--json").out) == []


def test_an_assessment_shows_the_order_and_the_cut_off(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    outcome = cli("assess", policy, "--state", tmp_path / "state", "--budget")
    lines = outcome.out.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["t2", "t1", "t0"]
    assert lines[-2].startswith("spared a day: 16 files of the log (")
    assert lines[-3].startswith("1 operation to run, 2 operations deferred until ")
    assert lines[-1].startswith("processor time: ")
    choice = json.loads(cli("assess", policy, "--budget", "--json").out)["choice"]
    assert [item["work"]["table"] for item in choice["chosen"]] == ["t2"]
    assert [item["work"]["table"] for item in choice["deferred"]] == ["t1", "t0"]


def test_a_terminal_shows_why_each_operation_waits(
    cli: Any, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True, raising=False)
    lines = [line.rstrip() for line in cli("assess", policy, "--budget").out.splitlines()]
    assert "1 t2" in lines and lines.count("- t1") == 1
    text = " ".join(" ".join(lines).split())
    assert text.count("0 s of the processor time left") == 2
    assert all(len(line) <= 80 for line in lines)


def test_a_budget_without_a_folder_or_a_readable_ledger_is_said(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    log = tmp_path / "ledger" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{1:020}.json").write_text("{}")
    outcome = cli("run", policy)
    assert outcome.status == 0, outcome
    assert "without --state, the limits of a day count only" in outcome.err
    assert "the usual order is used until the budget is spent" in outcome.err
    assert len(checkpoints(tmp_path)) == 1


def test_what_waits_is_due_since_it_was_found_due_first(
    cli: Any, policy: Path, tmp_path: Path
) -> None:
    def due_since() -> dict[str, str]:
        words = ("assess", policy, "--state", tmp_path / "state", "--budget", "--json")
        choice = json.loads(cli(*words).out)["choice"]
        works = [item["work"] for item in (*choice["chosen"], *choice["deferred"])]
        return {work["table"]: work["due_since"] for work in works}

    first = due_since()
    assert due_since() == first
    cli("run", policy, "--state", tmp_path / "state")
    assert due_since() == {name: at for name, at in first.items() if name != "t2"}


def test_tables_are_booked_and_changed_one_at_a_time(
    cli: Any, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside each other, operations that take more than expected would exceed the budget, and what
    waits for its turn would reserve what others could use.
    """
    held: list[bool] = []
    begin = BudgetAccount.begin

    class Recorded(lanes.Turns):
        def __init__(self, *, at_once: int = 4) -> None:
            super().__init__(at_once=at_once)
            assert at_once == 1

        @contextmanager
        def turn(self, place: float) -> Iterator[None]:
            with super().turn(place):
                in_turn.append(threading.get_ident())
                yield
                in_turn.remove(threading.get_ident())

    def recorded(account: BudgetAccount, *args: Any, **options: Any) -> str | None:
        held.append(in_turn == [threading.get_ident()])
        return begin(account, *args, **options)

    in_turn: list[int] = []
    monkeypatch.setattr(lanes, "Turns", Recorded)
    monkeypatch.setattr(BudgetAccount, "begin", recorded)
    assert cli("run", policy).status == 0 and held and all(held)


def test_tables_have_their_turns_in_the_order_of_the_choice(
    cli: Any, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[float] = []
    turn = lanes.Turns.turn

    def recorded(turns: lanes.Turns, place: float) -> Any:
        places.append(place)
        return turn(turns, place)

    monkeypatch.setattr(lanes.Turns, "turn", recorded)
    policy.write_text(policy.read_text().replace("1 millisecond", "1 hour"))
    results = json.loads(cli("run", policy, "--json").out)
    assert [result["name"] for result in results] == ["t2", "t1", "t0"]
    assert sorted(places) == [0, 1, 2]


def test_a_dry_run_within_a_budget_writes_nothing(cli: Any, policy: Path, tmp_path: Path) -> None:
    outcome = cli("run", policy, "--state", tmp_path / "state", "--dry-run")
    assert outcome.status == 0 and not [*(tmp_path / "state").glob("**/*.*")]


@pytest.mark.parametrize("words", [["assess", "--budget"], ["run", "--shadow"]])
def test_a_table_that_cannot_be_read_is_reported_beside_the_choice(
    cli: Any, policy: Path, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "t0/_delta_log" / f"{2:020}.json").unlink()
    outcome = cli(words[0], policy, *words[1:])
    assert outcome.status == 5 and "t0: " in outcome.err and "1 operation to run" in outcome.out


def test_a_policy_without_a_budget_has_no_choice(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"version: 1\ntables: [{{uri: {tmp_path}/t}}]\n")
    for words in (["assess", path, "--budget"], ["run", path, "--shadow"]):
        outcome = cli(*words)
        assert outcome.status == 2 and "the policy has no budget" in outcome.err


def test_costs_that_no_operation_has_are_printed() -> None:
    """By rows of a ledger that another program has written."""
    assert amount_text("cpu_seconds", 1e300) == amount_text("seconds", 1e13)
    assert amount_text("seconds", 59.0) == "59 s" and amount_text("seconds", 3600) == "1 hour"

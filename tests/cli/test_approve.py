"""`approve`: what waits is shown, a person answers, and the approved plans are applied as shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.cli.verbs import approve
from delta_maintenance.policies import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.approval import PutOff
from tests.support.tables.actions import add, remove
from tests.support.tables.vacuum_tables import Folder, days_ago

DEAD = "dead.parquet"


class Lake:
    """Two tables with a dead file each, one without, and the policy over them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.now = datetime.now(UTC)
        for name in ("a", "b", "clean"):
            table = Folder(root / "lake" / name, now=self.now)
            if name != "clean":
                self.leave_dead_file(table, DEAD)
        self.policy = root / "policy.yaml"
        self.policy.write_text(
            f"version: 1\ndefaults: {{vacuum: true, approval: [vacuum]}}\n"
            f"tables:\n- {{pattern: '{root}/lake/**'}}\n"
        )

    def leave_dead_file(self, table: Folder, name: str) -> None:
        table.log(add(name, size=3))
        table.file(name)
        old = days_ago(40, self.now)
        table.log(remove(name, deletionTimestamp=old, size=3, extendedFileMetadata=True))

    @property
    def dead(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob(f"lake/*/{DEAD}"))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    return Lake(tmp_path)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Types an answer on a terminal."""

    def type_answer(text: str) -> None:
        answers = iter([text, ""])
        monkeypatch.setattr(approve, "is_interactive", lambda: True)
        monkeypatch.setattr("builtins.input", lambda _: next(answers))

    return type_answer


def test_without_a_terminal_what_waits_is_shown_and_nothing_happens(cli: Any, lake: Lake) -> None:
    outcome = cli("approve", lake.policy)
    assert (outcome.status, outcome.err) == (0, "")
    blocks = outcome.out.split("\n    ")
    assert re.fullmatch(r" 1  vacuum of a, 1 file, 1 B, oldest \d{4}-\d\d-\d\d", blocks[0])
    assert blocks[1].startswith("due: no run of vacuum is recorded, and the policy asks for one")
    assert "needs these" in outcome.out and "\n 2  vacuum of b, 1 file" in outcome.out
    assert outcome.out.endswith("apply them with --yes, or one with --plan and its ID\n")
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    assert lake.dead == ["a", "b"]
    named = cli("approve", lake.policy, "b")
    assert "vacuum of b" in named.out and "vacuum of a" not in named.out


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("yes", []),
        ("2", ["a"]),
        ("1, 2", []),
        ("no", ["a", "b"]),
        ("", ["a", "b"]),
        ("3", ["a", "b"]),
    ],
)
def test_the_answer_applies_to_the_chosen_plans(
    cli: Any, lake: Lake, answer: Callable[[str], None], text: str, left: list[str]
) -> None:
    cli("run", lake.policy, "--state", lake.state)
    answer(text)
    outcome = cli("approve", lake.policy, "--state", lake.state)
    assert (outcome.status, outcome.err) == (0, "")
    assert lake.dead == left
    assert ("of files were deleted" in outcome.out) == (left != ["a", "b"])
    waiting = cli("approve", lake.policy, "--state", lake.state, "--json").document
    assert [plan["name"] for plan in waiting] == left


def test_plans_of_an_earlier_list_are_approved_by_their_ids(cli: Any, lake: Lake) -> None:
    words = (lake.policy, "--state", lake.state)
    cli("run", *words)
    of_a, of_b = (plan["id"] for plan in cli("approve", *words, "--json").document)
    assert "vacuum of b, 1 file, 1 B, oldest 2" in (text := cli("approve", *words).out)
    assert of_a in text and of_b in text
    assert cli("approve", *words, "--plan", of_b).status == 0
    assert lake.dead == ["a"]
    gone = cli("approve", *words, "--plan", of_a, "--plan", of_b)
    assert (gone.status, gone.err.count("\n")) == (2, 1) and f"no plan {of_b} waits" in gone.err
    assert lake.dead == ["a"]


def test_the_result_names_who_approved(cli: Any, lake: Lake) -> None:
    results = cli("approve", lake.policy, "--yes", "--json").document
    outcomes = [outcome for result in results for outcome in result["outcomes"]]
    assert [outcome["approved_by"] for outcome in outcomes] == ["ann", "ann"]
    assert [outcome["reason"] for outcome in outcomes] == ["approved by ann"] * 2
    again = cli("approve", lake.policy, "--yes")
    assert (again.status, again.out) == (0, "no plan waits for an approval\n")


def test_a_plan_that_the_table_has_outgrown_is_refused_and_made_again(cli: Any, lake: Lake) -> None:
    words = (lake.policy, "--table", "a", "--state", lake.state)
    cli("run", *words)
    (lake.root / "lake/a" / DEAD).unlink()
    refused = cli("approve", *words, "--yes")
    assert refused.status == 3 and "the table has changed" in refused.err
    lake.leave_dead_file(Folder(lake.root / "lake/c", now=lake.now), DEAD)
    again = cli("approve", lake.policy, "--state", lake.state, "--yes")
    assert again.status == 0 and lake.dead == []


def test_a_snoozed_plan_is_not_asked_about(cli: Any, lake: Lake) -> None:
    cli("run", lake.policy, "--state", lake.state)
    state = AssessmentStore(str(lake.state))
    entry = state.load(f"{lake.root}/lake/a", name="a")
    assert isinstance(entry, AssessmentEntry)
    now = clock.now()
    until = PutOff(operation="vacuum", answer="snoozed", until=now + timedelta(days=1), at=now)
    state.put_off(entry.pending[0], until)
    waiting = cli("approve", lake.policy, "--state", lake.state, "--json").document
    assert [plan["name"] for plan in waiting] == ["b"]


def test_a_broken_table_hides_no_plan_of_another(cli: Any, lake: Lake) -> None:
    (lake.root / "lake/clean/_delta_log" / f"{0:020}.json").write_text("{")
    outcome = cli("approve", lake.policy)
    assert outcome.status == 5 and "clean: table" in outcome.err
    assert "vacuum of a" in outcome.out and "vacuum of b" in outcome.out


def test_the_status_of_chosen_plans_is_theirs(
    cli: Any, lake: Lake, answer: Callable[[str], None]
) -> None:
    (lake.root / "lake/clean/_delta_log" / f"{0:020}.json").write_text("{")
    answer("1")
    chosen = cli("approve", lake.policy)
    assert chosen.status == 0 and "clean: table" in chosen.err
    assert lake.dead == ["b"]
    assert cli("approve", lake.policy, "--yes").status == 5
    assert lake.dead == []

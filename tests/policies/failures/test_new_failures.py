"""Each new failure is reported once, as soon as the report is delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.policies import AssessmentStore
from delta_maintenance.policies.acknowledgements import acknowledge_failure
from delta_maintenance.policies.new_failures import report_new_failures
from tests.support.tables.assessed_tables import NOW, assessment


class Chat:
    """A recipient, and what it received."""

    def __init__(self, store: AssessmentStore) -> None:
        self.store = store
        self.messages: list[str] = []
        self.is_down = False

    def run(self, *failed: str, problems_of_run: Mapping[str, str] | None = None) -> list[str]:
        """Reports the outcome of a run; returns the messages."""
        self.messages.clear()
        report_new_failures(
            self.store,
            failed,
            self._deliver,
            title="run",
            now=NOW,
            problems_of_run=problems_of_run or {},
        )
        return list(self.messages)

    def _deliver(self, text: str) -> None:
        if self.is_down:
            raise ConnectionError("not now")
        self.messages.append(text)


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    store = AssessmentStore(str(tmp_path / "state"))
    yield Chat(store)
    store.close()


def fail(chat: Chat, name: str, problem: str = "it is broken") -> None:
    failed = assessment(name, status="failed", health=None, operations=())
    chat.store.save(replace(failed, problem=problem, exit_status=5))


def test_all_new_failures_are_reported_once(chat: Chat) -> None:
    for name in ("a", "b"):
        fail(chat, name)
    assert chat.run("a", "b") == ["run: 2 new failures\n• a: it is broken\n• b: it is broken"]
    assert chat.run("a", "b") == [], "an hour later they are not new"
    fail(chat, "b", "it is gone")
    assert chat.run("a", "b") == ["run: 1 new failure\n• b: it is gone"]
    chat.store.save(assessment("a"))
    assert chat.run("b") == ["run: well again: a"]
    fail(chat, "a")
    assert chat.run("a", "b") == ["run: 1 new failure\n• a: it is broken"]


def test_a_message_that_was_not_delivered_is_sent_again(chat: Chat) -> None:
    fail(chat, "a")
    chat.is_down = True
    with pytest.raises(ConnectionError):
        chat.run("a")
    chat.is_down = False
    assert len(chat.run("a")) == 1
    assert chat.run("a") == []


def test_a_table_that_this_run_left_out_stays_as_it_was_reported(chat: Chat) -> None:
    fail(chat, "a")
    chat.run("a")
    assert chat.run() == []
    assert chat.run("a") == []


def test_acknowledged_failures_are_new_when_the_acknowledgement_has_ended(chat: Chat) -> None:
    fail(chat, "a")
    chat.run("a")

    def make(entry: Any) -> Any:
        return acknowledge_failure(
            entry.failure,
            name="a",
            reason="known",
            by=None,
            until="1d",
            until_changed=False,
            now=NOW,
        )

    chat.store.acknowledge("a", make)
    assert chat.run("a") == []
    later = assessment("a", status="failed", health=None, operations=())
    end = NOW + timedelta(days=1)
    chat.store.save(replace(later, problem="it is broken", exit_status=5, assessed_at=end))
    assert chat.run("a") == ["run: 1 new failure\n• a: it is broken"]


def test_a_part_of_the_run_that_failed_is_reported_once(chat: Chat) -> None:
    problem = "1 of 3 batches of tables were not assessed"
    assert chat.run(problems_of_run={"task assess": problem}) == [
        f"run: 1 new failure\n• task assess: {problem}"
    ]
    assert chat.run(problems_of_run={"task assess": problem.replace("1", "2")}) == []
    assert chat.run() == ["run: well again: task assess"]


def test_a_long_list_is_cut(chat: Chat) -> None:
    names = [f"t{number:02}" for number in range(25)]
    for name in names:
        fail(chat, name, "x" * 400)
    [text] = chat.run(*names)
    assert text.splitlines()[-1] == "and 15 more"
    assert len(text) < 4_000


def test_damaged_state_repeats_a_message_and_loses_none(chat: Chat) -> None:
    fail(chat, "a")
    chat.run("a")
    (file,) = Path(chat.store.uri).glob("*.reported")
    file.write_text("[")
    assert len(chat.run("a")) == 1
    assert chat.run("a") == []

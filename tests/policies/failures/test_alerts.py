"""Alerts: each new failure once, to its owner, until the message is delivered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import AlertError, InvalidRequestError
from delta_maintenance.policies.acknowledgements import acknowledged
from delta_maintenance.policies.alerts import tell
from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.policies.definition.alerts import AlertRules, Webhook
from delta_maintenance.policies.definition.policy import Policy
from delta_maintenance.policies.webhook import post, post_by_environment
from tests.support.servers.loopback import Reply, Request, serve
from tests.support.tables.assessed_tables import NOW, assessment

RULES = AlertRules(
    default=Webhook(connection="everybody"),
    owners={"sales": Webhook(connection="sales"), "finance": Webhook(connection="finance")},
)


class Chats:
    """The chats by the name of their connection, and what they were told."""

    def __init__(self, store: AssessmentStore) -> None:
        self.store = store
        self.heard: list[tuple[str, str]] = []
        self.down: set[str] = set()

    def run(self, *failed: str, of_run: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        """Tells the outcome of a run; returns the messages."""
        self.heard.clear()
        errors = tell(RULES, self.store, failed, self._post, title="run", now=NOW, of_run=of_run)
        assert len(errors) == len(self.down)
        return list(self.heard)

    def _post(self, webhook: Webhook, text: str) -> bool:
        assert webhook.connection is not None
        self.heard.append((webhook.connection, text))
        if webhook.connection in self.down:
            raise AlertError("not now")
        return True


@pytest.fixture
def chats(tmp_path: Path) -> Iterator[Chats]:
    store = AssessmentStore(str(tmp_path / "state"))
    yield Chats(store)
    store.close()


def fail(chats: Chats, name: str, owner: str | None, problem: str = "it is broken") -> None:
    found = assessment(name, status="failed", health=None, operations=(), owner=owner)
    chats.store.save(replace(found, problem=problem, exit_status=5))


def test_each_owner_is_told_once_of_all_new_failures(chats: Chats) -> None:
    for name, owner in (("a", "sales"), ("b", "sales"), ("c", "nobody"), ("d", None)):
        fail(chats, name, owner)
    assert chats.run("a", "b", "c", "d") == [
        ("sales", "run: 2 new failures\n• a: it is broken\n• b: it is broken"),
        ("everybody", "run: 2 new failures\n• c: it is broken\n• d: it is broken"),
    ]
    assert chats.run("a", "b", "c", "d") == [], "an hour later they are not new"
    fail(chats, "b", "sales", "it is gone")
    assert chats.run("a", "b") == [("sales", "run: 1 new failure\n• b: it is gone")]
    chats.store.save(assessment("a", owner="sales"))
    chats.store.save(assessment("d"))
    assert chats.run("b") == [
        ("sales", "run: well again: a"),
        ("everybody", "run: well again: d"),
    ]
    fail(chats, "a", "sales")
    assert [text for _, text in chats.run("a", "b")] == ["run: 1 new failure\n• a: it is broken"]


def test_a_message_that_was_not_delivered_is_sent_again(chats: Chats) -> None:
    fail(chats, "a", "sales")
    fail(chats, "b", "finance")
    chats.down = {"sales"}
    assert [chat for chat, _ in chats.run("a", "b")] == ["sales", "finance"]
    chats.down = set()
    assert [chat for chat, _ in chats.run("a", "b")] == ["sales"]
    assert chats.run("a", "b") == []


def test_a_table_that_this_run_left_out_stays_as_it_was_told(chats: Chats) -> None:
    fail(chats, "a", "sales")
    chats.run("a")
    assert chats.run() == []
    assert chats.run("a") == []


def test_acknowledged_failures_are_told_when_the_acknowledgement_has_ended(chats: Chats) -> None:
    fail(chats, "a", "sales")
    chats.run("a")

    def make(entry: Any) -> Any:
        return acknowledged(
            entry.failure,
            name="a",
            reason="known",
            by=None,
            until="1d",
            until_changed=False,
            now=NOW,
        )

    chats.store.acknowledge("a", make)
    assert chats.run("a") == []
    later = assessment("a", status="failed", health=None, operations=(), owner="sales")
    end = NOW + timedelta(days=1)
    chats.store.save(replace(later, problem="it is broken", exit_status=5, assessed_at=end))
    assert [text for _, text in chats.run("a")] == ["run: 1 new failure\n• a: it is broken"]


def test_a_part_of_the_run_that_failed_is_told_to_everybody_once(chats: Chats) -> None:
    lost = {"task assess": "1 of 3 batches of tables were not assessed"}
    assert chats.run(of_run=lost) == [
        (
            "everybody",
            "run: 1 new failure\n• task assess: 1 of 3 batches of tables were not assessed",
        )
    ]
    assert chats.run(of_run={"task assess": "2 of 3 batches of tables were not assessed"}) == []
    assert chats.run() == [], "a run that knows no parts says nothing about them"
    assert chats.run(of_run={}) == [("everybody", "run: well again: task assess")]


def test_a_long_list_is_cut(chats: Chats) -> None:
    names = [f"t{number:02}" for number in range(25)]
    for name in names:
        fail(chats, name, None, "x" * 400)
    [(_, text)] = chats.run(*names)
    assert text.splitlines()[-1] == "and 15 more"
    assert len(text) < 4_000


def test_damaged_state_repeats_a_message_and_loses_none(chats: Chats) -> None:
    fail(chats, "a", "sales")
    chats.run("a")
    (told,) = Path(chats.store.uri).glob("*.told")
    told.write_text("[")
    assert len(chats.run("a")) == 1
    assert chats.run("a") == []


@pytest.mark.parametrize(
    "webhook", [{"url": "https://chat/secret"}, {"url": "x${env:HOOK}"}, {}, {"token": "x"}]
)
def test_a_policy_contains_no_address_of_a_webhook(webhook: dict[str, str]) -> None:
    Policy.from_json({"version": 1, "alerts": {"default": {"url": "${env:HOOK}"}}})
    with pytest.raises(InvalidRequestError) as refused:
        Policy.from_json({"version": 1, "alerts": {"default": webhook}})
    assert "secret" not in str(refused.value).replace("is a secret", "")


@pytest.mark.server
def test_the_address_is_in_the_environment_and_in_no_message() -> None:
    heard: list[tuple[str, Any]] = []

    def answer(request: Request) -> Reply:
        heard.append((request.headers.get("Authorization", ""), json.loads(request.body)))
        return Reply(status=200 if len(heard) == 1 else 404)

    with serve(answer) as address:
        hook = Webhook(url="${env:HOOK}")
        environment = {"HOOK": f"{address}/canary"}
        assert post_by_environment(hook, "hello", environment=environment)
        with pytest.raises(AlertError, match="HTTP status 404") as lost:
            post(f"{address}/canary", "again", name="the chat", token="t")
    assert heard == [("", {"text": "hello"}), ("Bearer t", {"text": "again"})]
    assert "canary" not in repr(lost.value) and lost.value.__context__ is None
    with pytest.raises(AlertError) as lost:
        post(f"{address}/canary", "gone", name="the chat")
    assert "canary" not in repr(lost.value) and lost.value.__context__ is None
    with pytest.raises(InvalidRequestError, match="HOOK is not set"):
        post_by_environment(hook, "hello", environment={})
    assert not post_by_environment(Webhook(connection="chat"), "hello", environment={})

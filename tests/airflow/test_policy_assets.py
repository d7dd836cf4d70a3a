"""Watchers of a policy's tables reach them as their maintenance does."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk._shared.secrets_masker import redact

from delta_maintenance.operations.position import Position
from delta_maintenance.policies.definition import load_policy
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.hooks import delta as policy_hook
from delta_maintenance_airflow.hooks.delta import PolicyHook
from delta_maintenance_airflow.policy_assets import changed_tables, watched_assets
from delta_maintenance_airflow.policy_work import PolicyWork
from delta_maintenance_airflow.triggers import (
    DeltaCommitEventTrigger,
    DeltaPolicyCommitTrigger,
    polling,
)
from delta_maintenance_airflow.triggers.cursor import CursorBoard
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.watching import WRITE, State, eventually, run, running
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

QUICK = 0.01
SECRET = "of-this-lake-alone"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "settling_seconds", 0.0)
    monkeypatch.setattr(DeltaPolicyCommitTrigger, "gathering_seconds", 0.0)
    monkeypatch.setattr(polling, "_IN_TROUBLE", QUICK)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    s3_server.make_bucket("watched")
    return s3_server


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"s3://watched/{tmp_path.name}"


@pytest.fixture
def table(server: S3Server, uri: str) -> TableBuilder:
    table = TableBuilder(open_store(uri, server.storage_options))
    table.commit([protocol(), metadata()])
    table.commit(WRITE)
    return table


@pytest.fixture
def policy(tmp_path: Path, uri: str) -> Callable[..., str]:
    """Writes a policy with one table; returns its path."""

    def write(storage: dict[str, Any], *, below: dict[str, Any] | None = None) -> str:
        path = tmp_path / "policy.yaml"
        tables = [{"name": "events", "uri": uri, "storage": storage}]
        document = {"version": 1, "defaults": {"storage": below or {}}, "tables": tables}
        # At once: a watcher may read the file at any time.
        path.with_suffix(".new").write_text(yaml.safe_dump(document))
        path.with_suffix(".new").replace(path)
        return str(path)

    return write


def connect(monkeypatch: pytest.MonkeyPatch, **extra: str) -> None:
    login = {"login": "testing-key", "password": SECRET}
    connection = {"conn_type": "delta", **login, "extra": {"region": "us-east-1", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))


def watcher(path: str) -> DeltaPolicyCommitTrigger:
    """Returns the watcher of the only store, as Airflow creates it from its stored arguments."""
    (asset,) = watched_assets(path, interval=QUICK)
    (watcher,) = asset.watchers
    _, kwargs = watcher.trigger.serialize()
    made = DeltaPolicyCommitTrigger(**json.loads(json.dumps(kwargs)))
    assert made.serialize() == watcher.trigger.serialize()
    # Version 0 is known.
    (table,) = load_policy(path).named_tables
    state = State()
    board = CursorBoard([state], made._board_name())
    board.put(table.uri, Position(version=0, announced=0))
    # Also within a running event loop: none of this state has to be awaited.
    with suppress(StopIteration):
        board.save().send(None)
    made.asset_state_store = SimpleNamespace(_by_name={"events": state})
    return made


def changed(uri: str) -> dict[str, Any]:
    told = {"status": "changed", "table": uri, "from_version": 0, "to_version": 1}
    return {"tables": [told]}


def test_the_watcher_uses_the_endpoint_of_the_policy(
    table: TableBuilder,
    uri: str,
    server: S3Server,
    policy: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, endpoint_url=NOWHERE)
    options = {"AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true"}
    path = policy({"connection": "lake", "options": options})

    async def scenario() -> None:
        async with running(watcher(path).run()) as events:
            await eventually(lambda: events == [changed(uri)])

    run(scenario())
    kept = json.dumps(watcher(path).serialize())
    assert path in kept
    assert server.url not in kept and SECRET not in kept and "AWS" not in kept


def test_references_in_options_are_resolved_in_the_triggerer(
    table: TableBuilder,
    uri: str,
    server: S3Server,
    policy: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {**server.storage_options, "AWS_SECRET_ACCESS_KEY": "${env:LAKE_SECRET}"}
    del own["AWS_ACCESS_KEY_ID"]
    path = policy({"options": {"AWS_ACCESS_KEY_ID": "${env:LAKE_KEY}"}}, below={"options": own})
    monkeypatch.setenv("LAKE_KEY", "testing-key")

    async def scenario() -> None:
        async with running(watcher(path).run()) as events:
            await eventually(lambda: len(events) == 1)
            (told,) = events[0]["tables"]
            assert told["status"] == "error"
            assert "environment variable LAKE_SECRET is not set" in told["message"]
            monkeypatch.setenv("LAKE_SECRET", SECRET)
            await eventually(lambda: events[1:] == [changed(uri)])

    run(scenario())
    assert SECRET not in json.dumps(watcher(path).serialize())
    assert redact(f"the key is {SECRET}") == "the key is ***"


def test_a_corrected_policy_is_read_again(
    table: TableBuilder,
    uri: str,
    server: S3Server,
    policy: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch)
    path = policy({"connection": "lake", "options": {"AWS_ALLOW_HTTP": "perhaps"}})
    trigger = watcher(path)

    async def scenario() -> None:
        async with running(trigger.run()) as events:
            await eventually(lambda: len(events) == 1)
            (told,) = events[0]["tables"]
            assert told["status"] == "error" and "AWS_ALLOW_HTTP" in told["message"]
            options = {"AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true"}
            policy({"connection": "lake", "options": options})
            await eventually(lambda: events[1:] == [changed(uri)])

    run(scenario())


def test_a_deleted_policy_is_reported(policy: Callable[..., str]) -> None:
    path = policy({"options": {"AWS_REGION": "us-east-1"}})
    trigger = watcher(path)
    Path(path).unlink()

    async def scenario() -> None:
        async with running(trigger.run()) as events:
            await eventually(lambda: len(events) == 1)
            (told,) = events[0]["tables"]
            assert told["table"] == path
            assert f"{path}: the policy cannot be read" in told["message"]
            event = SimpleNamespace(extra={"payload": events[0]})
            (row,) = changed_tables({"asset": [event]}, path)
            assert row == {"name": path, "uri": path, "problem": told["message"]}

    run(scenario())


def test_a_store_has_one_watcher_however_many_tables_it_has(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    uris = [f"s3://lake/{number}" for number in range(1_000)]
    uris += ["s3://pond/1", "gs://lake/1", "/srv/a", "file:///srv/b"]
    tables = [{"uri": uri} for uri in uris] + [{"pattern": "s3://found/**"}]
    path.write_text(yaml.safe_dump({"version": 1, "tables": tables}))
    assets = watched_assets(str(path))
    stores = [asset.watchers[0].trigger.store for asset in assets]
    assert stores == ["file:", "gs://lake", "s3://lake", "s3://pond"]
    assert len({asset.uri for asset in assets}) == len({asset.name for asset in assets}) == 4
    kept = json.dumps([asset.watchers[0].trigger.serialize() for asset in assets])
    assert len(kept) < 2_000, "Airflow keeps this of each"
    assert watched_assets(str(path))[0].watchers[0].trigger.serialize() == (
        assets[0].watchers[0].trigger.serialize()
    )


def test_events_of_both_kinds_name_tables_once_and_as_the_policy_does(
    policy: Callable[..., str], uri: str
) -> None:
    path = policy({})
    one = {"status": "changed", "table": uri, "from_version": 0, "to_version": 1}
    other = {"status": "error", "table": "s3://elsewhere/t", "error": "E", "message": "gone"}
    told = [SimpleNamespace(extra={"payload": one})]
    many = [SimpleNamespace(extra={"payload": {"tables": [one, other]}})]
    nothing = [SimpleNamespace(extra=None), SimpleNamespace(extra={"payload": {"x": 1}})]
    assert changed_tables({"a": told, "b": many, "c": nothing}, path) == [
        {"name": "events", "uri": uri, "problem": None},
        {"name": "s3://elsewhere/t", "uri": "s3://elsewhere/t", "problem": "gone"},
    ]


def test_a_watcher_of_one_table_keeps_the_name_of_its_memory() -> None:
    fixed = DeltaCommitEventTrigger(table_uri="s3://lake/events")
    assert fixed._cursor_name() == "delta_commits_8dd07a0bcb44c4b9"
    assert fixed.serialize()[1] == {
        "table_uri": "s3://lake/events",
        "delta_conn_id": None,
        "poll_interval": 30.0,
        "min_commits": 1,
        "operations": [],
        "after_version": None,
    }
    by_policy = DeltaCommitEventTrigger(table_uri="s3://lake/events", policy="p.yaml")
    assert by_policy.serialize()[1]["policy"] == "p.yaml"
    assert by_policy._cursor_name() == fixed._cursor_name()
    assert by_policy.shared_stream_key() != fixed.shared_stream_key()


def test_a_watcher_takes_either_a_connection_or_a_policy() -> None:
    with pytest.raises(ValueError, match="delta_conn_id or policy"):
        DeltaCommitEventTrigger(table_uri="s3://lake/t", delta_conn_id="lake", policy="p.yaml")


def test_a_watcher_and_maintenance_have_the_same_options(
    policy: Callable[..., str], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, endpoint_url=NOWHERE, session_token="${env:NO_REFERENCE}")
    monkeypatch.setenv("LAKE_SECRET", "another")
    options = {"AWS_SECRET_ACCESS_KEY": "${env:LAKE_SECRET}", "endpoint_url": "http://here"}
    path = policy({"connection": "lake"}, below={"options": options})
    rule = PolicyWork(path).table("events", uri).rules.storage
    assert rule == policy_hook._storage_rule(path, uri)
    hook = PolicyHook(rule)
    assert run(hook.astorage_options(uri)) == hook.storage_options(uri)
    assert hook.storage_options(uri) == {
        "AWS_ACCESS_KEY_ID": "testing-key",
        "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_SESSION_TOKEN": "${env:NO_REFERENCE}",
        "region": "us-east-1",
        "endpoint_url": "http://here",
    }


def test_a_policy_is_read_once_for_all_of_its_tables(
    policy: Callable[..., str], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = policy({"options": {"AWS_REGION": "x"}})
    read: list[str] = []

    def counted(file: str) -> Any:
        read.append(file)
        return load_policy(file)

    monkeypatch.setattr("delta_maintenance.policies.definition.policy.load_policy", counted)
    for _ in range(3):
        policy_hook._storage_rule(path, uri)
    assert read == [path]

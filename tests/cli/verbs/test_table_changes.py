"""`upgrade-protocol` and `set-properties`: options in, Plan or Result out."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from delta_maintenance.operations.set_properties import SetPropertiesPlan, SetPropertiesResult
from delta_maintenance.operations.table_change import operation as table_change
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolPlan, UpgradeProtocolResult
from delta_maintenance.table.read import Snapshot
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder


def committed(builder: TableBuilder, version: int = 3) -> list[dict[str, Any]]:
    text = builder.read(f"{version:020d}.json").decode()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.conformance("FEAT-18")
def test_dry_runs_print_the_plan_and_the_clients_that_lose_access(
    cli: Any, builder: TableBuilder
) -> None:
    before = builder.names()
    upgrade = ("upgrade-protocol", builder.store.root, "--feature", "v2Checkpoint", "--dry-run")
    outcome = cli(*upgrade, "--json")
    plan = UpgradeProtocolPlan.from_json(outcome.document)
    assert outcome.status == 0 and plan.added_features == ("v2Checkpoint",)
    assert set(outcome.document) == {field.name for field in fields(UpgradeProtocolPlan)}
    said = cli(*upgrade).out
    assert "Polars 2.1: reading ends (v2Checkpoint)" in said
    assert "reader 3, writer 7: appendOnly, invariants, v2Checkpoint" in said

    words = ("set-properties", builder.store.root, "--set", "delta.columnMapping.mode=name")
    outcome = cli(*words, "--dry-run", "--json")
    assert set(outcome.document) == {field.name for field in fields(SetPropertiesPlan)}
    assert SetPropertiesPlan.from_json(outcome.document).maps_columns
    said = cli(*words, "--dry-run").out
    assert "delta.columnMapping.mode: (not set) → name" in said and "every column gets" in said
    assert builder.names() == before


def test_upgrade_protocol_commits_and_prints_the_result(cli: Any, builder: TableBuilder) -> None:
    words = ("upgrade-protocol", builder.store.root, "--feature", "rowTracking")
    more = ("--feature", "deletionVectors", "--writer-version", "3", "--operation-id", "task-1")
    outcome = cli(*words, *more, "--json")
    result = UpgradeProtocolResult.from_json(outcome.document)
    assert (outcome.status, result.status, result.version) == (0, "committed", 3)
    assert result.protocol is not None and "checkConstraints" in (
        result.protocol.writer_features or ()
    )
    assert committed(builder)[0]["commitInfo"]["operationId"] == "task-1"
    again = cli(*words, *more)
    assert again.status == 0 and "nothing to do" in again.out


def test_set_properties_commits_and_prints_the_result(cli: Any, builder: TableBuilder) -> None:
    root = builder.store.root
    words = ("--set", "delta.logRetentionDuration=interval 60 days", "--set", "owner=a=b")
    outcome = cli("set-properties", root, *words, "--json")
    result = SetPropertiesResult.from_json(outcome.document)
    assert (outcome.status, result.status, result.added_features) == (0, "committed", ())
    assert committed(builder)[1]["metaData"]["configuration"] == {
        "delta.logRetentionDuration": "interval 60 days",
        "owner": "a=b",
    }
    removed = cli("set-properties", root, "--unset", "owner", "--unset", "nobody")
    assert removed.status == 0 and "owner=(removed)" in removed.out
    assert "nobody is not set" in removed.out
    assert committed(builder, 4)[0]["commitInfo"]["operation"] == "UNSET TBLPROPERTIES"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("set-properties", "--set", "delta.appendonly=true"), 2, "use delta.appendOnly"),
        (("set-properties", "--set", "delta.appendOnly=maybe"), 2, "is not true or false"),
        (("set-properties", "--set", "a=1", "--set", "a=2"), 2, "set twice"),
        (("set-properties",), 2, "no property is given"),
        (("set-properties", "--set", "delta.enableRowTracking=true"), 3, "backfill-row-ids"),
        (("set-properties", "--set", "delta.constraints.c=id > 0"), 3, "add-constraint"),
        (
            ("set-properties", "--set", "delta.columnMapping.maxColumnId=9"),
            3,
            "cannot be set or removed directly",
        ),
        (("upgrade-protocol",), 2, "the request is empty"),
        (("upgrade-protocol", "--feature", "rowtracking"), 3, "use rowTracking"),
        (("upgrade-protocol", "--feature", "clustering"), 3, "use set-clustering"),
        (("upgrade-protocol", "--writer-version", "8"), 2, "writer version 8 does not exist"),
    ],
)
def test_impossible_requests_are_one_line_and_a_status(
    cli: Any, builder: TableBuilder, words: tuple[str, ...], status: int, said: str
) -> None:
    outcome = cli(words[0], builder.store.root, *words[1:])
    assert (outcome.status, outcome.out) == (status, "")
    assert said in outcome.err and outcome.err.count("\n") == 1
    assert builder.version == 2 and len(builder.names()) == 3


@pytest.mark.conformance("DRAFT-03")
def test_a_draft_is_converted_on_request(cli: Any, builder: TableBuilder) -> None:
    draft = protocol(1, 7, writer_features=["rowIds"])
    builder.commit([draft, {"rowIdHighWaterMark": {"highWaterMark": 7}}])
    refused = cli("set-properties", builder.store.root, "--set", "owner=me")
    assert refused.status == 3 and "rowIds" in refused.err
    outcome = cli("upgrade-protocol", builder.store.root, "--convert-draft")
    assert outcome.status == 0 and "delta.rowTracking" in outcome.out
    assert cli("set-properties", builder.store.root, "--set", "owner=me").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("upgrade-protocol", "--feature", "deletionVectors"),
        ("set-properties", "--set", "delta.checkpointInterval=5"),
    ],
)
def test_a_conflict_has_its_own_status_and_a_result(
    cli: Any, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    require = table_change.require_changeable
    checks = []

    def somebody_else(snapshot: Snapshot, *arguments: Any, **settings: Any) -> None:
        require(snapshot, *arguments, **settings)
        checks.append(snapshot.version)
        if len(checks) == 2:
            builder.commit([metadata(configuration={"own": "x"})])
            builder.commit([protocol(1, 3)])

    for module in ("set_properties", "upgrade_protocol"):
        name = f"delta_maintenance.operations.table_change.{module}.require_changeable"
        monkeypatch.setattr(name, somebody_else)
    outcome = cli(words[0], builder.store.root, *words[1:], "--json")
    assert outcome.status == 4 and outcome.document["status"] == "conflict"
    assert "committed first" in outcome.err and outcome.err.count("\n") == 1

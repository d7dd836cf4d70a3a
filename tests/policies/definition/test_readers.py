"""The readers and the kept versions of a policy, and what operations are told of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from delta_maintenance.address import StoreKind
from delta_maintenance.operations.core import options_for
from delta_maintenance.operations.holds import KeptVersion, Reader
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.definition.rules import Rules


def rules(*readers: dict[str, Any]) -> Rules:
    return Rules.model_validate({"readers": readers})


def test_readers_and_kept_versions_become_holders() -> None:
    read = Rules.model_validate(
        {
            "keep": [{"name": "quarter", "at": "2026-09-30", "why": "report"}],
            "readers": [
                {"stream": "s3://state/silver/", "name": "silver", "silent_after": "14 days"},
                {"change_feed": "warehouse", "max_lag": "10 days"},
                {"share": "partners", "max_lag": "P30D"},
                {
                    "last_read": "s3://state/orders.json",
                    "silent_after": "1 day",
                    "when_silent": "release",
                },
            ],
        }
    )
    held = read.holders
    at = datetime(2026, 9, 30, tzinfo=UTC)
    assert held.keep == (KeptVersion(name="quarter", timestamp=at, why="report"),)
    days = timedelta(days=1)
    file = "s3://state/orders.json"
    assert held.readers == (
        Reader(kind="stream", name="silver", address="s3://state/silver", silent_after=14 * days),
        Reader(kind="change-feed", name="warehouse", max_lag=10 * days),
        Reader(kind="share", name="partners", max_lag=30 * days),
        Reader(kind="last-read", name=file, address=file, silent_after=days, release_silent=True),
    )
    # An operation that is asked for at once holds the same.
    assert read.asking_for("vacuum").holders == held


@pytest.mark.parametrize(
    "reader",
    [
        {},
        {"stream": "a", "share": "b", "max_lag": "1 day"},
        {"change_feed": "a"},
        {"stream": "a", "max_lag": "1 day"},
        {"share": "a", "max_lag": "1 day", "silent_after": "1 day"},
        {"stream": "a", "when_silent": "release"},
        {"stream": "s3://key:secret@state/silver"},
    ],
)
def test_a_contradictory_reader_is_refused(reader: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        rules(reader)
    assert "secret" not in str(caught.value)


def test_a_stream_must_match_only_in_the_entry_of_one_table() -> None:
    stream = [{"stream": "s3://state/silver"}]
    policy = Policy.model_validate(
        {
            "version": 1,
            "defaults": {"readers": stream},
            "tables": [
                {"uri": "s3://lake/own", "readers": stream},
                {"uri": "s3://lake/loose", "readers": [{**stream[0], "must_match": False}]},
                {"uri": "s3://lake/default"},
                {"pattern": "s3://lake/many/*", "readers": stream},
                {"uri": "s3://lake/many/own"},
            ],
        }
    )
    found = {
        table.uri.removeprefix("s3://lake/"): table
        for table in (*policy.named_tables, policy.table_at("s3://lake/many/other"))
    }
    # Orchestrators pass tables on as JSON.
    found = {
        name: PolicyTable.model_validate_json(table.model_dump_json())
        for name, table in found.items()
    }
    must = {name: table.rules.holders.readers[0].must_match for name, table in found.items()}
    assert must == {
        "own": True,
        "loose": False,
        "default": False,
        "many/own": False,
        "many/other": False,
    }


def test_the_options_of_a_table_are_those_of_its_readers_in_the_same_kind_of_store() -> None:
    given = {"AWS_REGION": "eu-central-1"}
    assert options_for("s3://state/silver", given, kind=StoreKind.S3) == given
    assert options_for("gs://state/silver", given, kind=StoreKind.S3) is None
    assert options_for("/state/silver", given, kind=StoreKind.S3) is None

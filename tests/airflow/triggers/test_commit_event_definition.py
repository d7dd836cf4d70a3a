"""The definition of a watcher: its arguments, and what Airflow stores of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger

from delta_maintenance_airflow.triggers import DeltaCommitEventTrigger


def test_the_same_watcher_looks_the_same_to_airflow() -> None:
    uri = "memory://lake/t"
    one = DeltaCommitEventTrigger(table_uri=uri, operations=["MERGE", "write"], poll_interval=30)
    other = DeltaCommitEventTrigger(
        table_uri=uri, operations=("WRITE", "merge"), poll_interval=30.0
    )
    path, kwargs = one.serialize()
    assert (path, kwargs) == other.serialize()
    assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*other.serialize())
    assert DeltaCommitEventTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)
    assert path == "delta_maintenance_airflow.triggers.commit_event.DeltaCommitEventTrigger"


def test_it_is_a_watcher_of_an_asset() -> None:
    trigger = DeltaCommitEventTrigger(table_uri="s3://lake/events")
    asset = Asset("events", watchers=[AssetWatcher(name="commits", trigger=trigger)])
    assert asset.watchers[0].trigger is trigger


@pytest.mark.parametrize("arguments", [{"poll_interval": 0}, {"min_commits": 0}])
def test_conditions_that_never_or_always_hold_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="poll_interval"):
        DeltaCommitEventTrigger(**{"table_uri": "memory://lake/t", **arguments})

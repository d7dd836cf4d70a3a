"""The storage of readers that are on a store of their own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg

from delta_maintenance.policies.definition import Policy
from delta_maintenance_dagster import DeltaStorageResource, DeltaTable
from delta_maintenance_dagster.resources import Reference
from delta_maintenance_dagster.spark_resource import DeltaSparkResource
from delta_maintenance_dagster.step_resources import StepResources

STATE = "s3://state/query"


def test_a_reader_names_a_resource_of_its_own(tmp_path: Path) -> None:
    readers = [{"stream": STATE, "storage": {"connection": "team-state"}}]
    entry = {"uri": "s3://lake/t", "readers": readers}
    (policy,) = Policy.from_json({"version": 1, "tables": [entry]}).named_tables
    table = DeltaTable(policy=policy, key=dg.AssetKey("t"))
    lake = DeltaStorageResource(options={"AWS_REGION": "lake"})
    resources = StepResources.for_all(
        [table], storage=Reference(lake), spark=Reference(DeltaSparkResource())
    ).of(table)
    assert resources.keys == {"team_state"}
    provided = SimpleNamespace(team_state=DeltaStorageResource(options={"AWS_REGION": "state"}))
    # An instance that ends would leave its storage of states to the tests that follow.
    instance = SimpleNamespace(storage_directory=lambda: str(tmp_path))
    run = SimpleNamespace(remote_job_origin=None)
    context: Any = SimpleNamespace(resources=provided, run=run, instance=instance)
    clones = resources.clones(context, "lake", None)
    (reader,) = policy.rules.readers
    assert reader.storage is not None
    assert clones.options_at(reader.storage, STATE) == {"AWS_REGION": "state"}
    assert clones.options_at(policy.rules.storage, policy.uri) == {"AWS_REGION": "lake"}

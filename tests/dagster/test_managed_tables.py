"""The commit sensor on a catalog-managed table: the catalog wakes it, and is asked once a tick."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from delta_maintenance_dagster import DeltaMaintenanceComponent
from tests.dagster.test_commit_sensor import Ticks, versions
from tests.support.catalogs.managed_tables import ManagedTables
from tests.support.servers.unity_delta import TOKEN, serve_unity

pytestmark = pytest.mark.server


def test_a_tick_asks_the_catalog_once_and_runs_what_it_ratified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with serve_unity() as server:
        tables = ManagedTables(server, tmp_path)
        managed = tables.add()
        managed.ratify()
        tables.state()
        lake = {
            "kind": "unity",
            "address": server.url,
            "catalog": "main",
            "options": {"token": "${env:LAKE_TOKEN}"},
        }
        component = DeltaMaintenanceComponent.model_validate(
            {"catalogs": {"lake": lake}, "tables": [{"catalog": "lake.**"}]}
        )
        state = tmp_path / "state.json"
        component.write_state_to_path(state)
        context = dg.ComponentTree.for_test().load_context
        ticks = Ticks(component.build_defs_from_state(context, state), instance)
        assert versions(ticks()) == ["1"]
        tables.asked()
        assert versions(ticks()) == []
        assert tables.asked() == {"t0": 1}
        # Neither a publication nor a file beside the catalog is a version.
        managed.publish()
        managed.rogue()
        assert versions(ticks()) == []
        managed.ratify()
        tables.state()
        tick = ticks()
        assert versions(tick) == ["2"] and len(tick.run_requests) == 1

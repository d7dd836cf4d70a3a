"""Tables that hold up none of the others, in one step of Dagster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance.policies import clones as clones_module
from delta_maintenance_dagster import table_run
from tests.support.tables.fleet import BAD, HEALTHY, RULES, StuckStores, write_fleet


def test_all_others_of_a_step_are_maintained_before_slow_and_silent_ones(
    tmp_path: Path,
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_fleet(tmp_path)
    monkeypatch.setattr(clones_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(clones_module, "_BRIEFLY", 0.1)
    # A huge table has a step of its own.
    names = sorted(HEALTHY | BAD - {"huge"})
    definitions = load(
        defaults=RULES,
        tables=[{"uri": str(tmp_path / name), "key": name} for name in names],
        execution={"tables_per_step": 50, "retry_policy": {"max_retries": 0}},
    )
    stuck, ended = StuckStores(monkeypatch), []
    finish = table_run.TableRun._finish

    def ended_run(self: Any, result: Any, *arguments: Any) -> Any:
        ended.append(Path(result.uri).name)
        if {*ended} >= HEALTHY:
            stuck.released.set()
        assert Path(result.uri).name not in HEALTHY or result.status == "done", result.problem
        return finish(self, result, *arguments)

    monkeypatch.setattr(table_run.TableRun, "_finish", ended_run)
    definitions.resolve_job_def("delta_maintenance").execute_in_process(
        instance=instance, raise_on_error=False
    )
    assert not stuck.gave_up and {*ended} == {*names}
    assert not [name for name in HEALTHY if (tmp_path / name / "old.parquet").exists()]
    # A retry is a process of its own, and reads only what is new.
    assert [*Path(instance.storage_directory()).rglob("clones.references")]

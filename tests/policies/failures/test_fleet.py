"""A policy of 45 tables of which ten hold up none of the others, on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.cli import policy_tables
from delta_maintenance.cli.main import main
from delta_maintenance.policies import clones as clones_module
from delta_maintenance.policies import lanes as lanes_module
from tests.support.tables.fleet import BAD, HEALTHY, StuckStores, fleet_policy, write_fleet


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckStores]:
    """The tables on disk, of which some wait for their store until they are released."""
    write_fleet(tmp_path)
    stores = StuckStores(monkeypatch)
    monkeypatch.setattr(clones_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(clones_module, "_BRIEFLY", 0.1)
    yield stores
    stores.released.set()


def test_all_others_are_done_before_a_slow_silent_or_huge_table_goes_on(
    stuck: StuckStores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended: list[str] = []
    keep = policy_tables.PolicyTables.keep

    def kept(self: Any, assessment: Any, result: Any = None) -> None:
        keep(self, assessment, result)
        ended.append(assessment.name)
        if {*ended} >= HEALTHY:
            stuck.released.set()

    monkeypatch.setattr(policy_tables.PolicyTables, "keep", kept)
    # The huge table works while others have their turns.
    monkeypatch.setattr(
        lanes_module.Turns.__init__, "__kwdefaults__", {"at_once": 4, "patience": 0.2}
    )
    config = fleet_policy(tmp_path)
    main(["run", str(config), "--state", str(tmp_path / "state"), "--json"])
    assert not stuck.gave_up, "the others waited"
    printed = capsys.readouterr()
    results = {each["name"]: each for each in json.loads(printed.out)}
    assert [*results] == sorted(results) and len(results) == len(HEALTHY | BAD) == 45
    for name in HEALTHY:
        statuses = {each["operation"]: each["status"] for each in results[name]["outcomes"]}
        assert statuses == {"checkpoint": "done", "vacuum": "done"}, results[name]["problem"]
        assert not (tmp_path / name / "old.parquet").exists()
    assert printed.err.count("could not be examined for shallow clones") == 1
    for name in (each for each in BAD if each.startswith("broken")):
        assert results[name]["status"] == "failed"
    assert {*ended[-len(stuck.names) :]} == stuck.names

"""What policies and watchers ask of the catalog of catalog-managed tables: one request for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from delta_maintenance.cli.main import main
from delta_maintenance.errors import CatalogError
from delta_maintenance.operations.position import Position
from delta_maintenance.operations.watch import (
    CommitCount,
    CommitFilter,
    LogWatch,
    Wait,
    WaitCondition,
    open_watched,
)
from delta_maintenance.storage.local import LocalStore
from tests.support.catalogs.managed_tables import ManagedTables
from tests.support.servers.unity_delta import TOKEN, serve_unity

pytestmark = pytest.mark.server

NAME = "uc://main.s.t0"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedTables]:
    with serve_unity() as server:
        monkeypatch.setenv("UNITY_CATALOG_URI", server.url)
        monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
        yield ManagedTables(server, tmp_path)


@pytest.mark.parametrize("verb", ["assess", "run"])
@pytest.mark.parametrize(
    "rules",
    [
        ("checkpoint",),
        ("publish",),
        ("publish", "checkpoint"),
        ("publish", "checkpoint", "compact_log", "optimize", "clean_staged"),
        ("checkpoint", "compact_log", "optimize", "clean_staged"),
    ],
    ids=" ".join,
)
def test_a_policy_asks_one_request_for_each_table_with_nothing_to_do(
    served: ManagedTables, tmp_path: Path, verb: str, rules: tuple[str, ...]
) -> None:
    for published in (0, 2, 3):
        managed = served.add()
        for _ in range(3):
            managed.ratify()
        for _ in range(published):
            managed.publish()
    served.tables[-1].report()
    served.state()
    policy = {
        "version": 1,
        "defaults": dict.fromkeys(rules, True),
        "catalogs": {"main": {"kind": "unity"}},
        "tables": [{"catalog": "main.**"}],
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    # After it, nothing is to do.
    assert main(["run", str(tmp_path / "policy.yaml")]) == 0
    served.asked()
    assert main([verb, str(tmp_path / "policy.yaml")]) == 0
    asked = served.asked()
    assert {name: asked[name] for name in asked if "=" not in name} == {"t0": 1, "t1": 1, "t2": 1}
    # The lists of schemas and of tables.
    assert asked.total() == 5


def test_a_watcher_wakes_on_the_version_of_the_catalog_and_lists_nothing(
    served: ManagedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = served.add()
    managed.ratify()
    served.state()
    watch = LogWatch(open_watched(NAME))
    assert watch.poll().version == 1
    listings = Mock(side_effect=AssertionError)
    monkeypatch.setattr(LocalStore, "list_from", listings)
    served.asked()
    assert watch.poll().since == watch.poll().version == 1
    assert served.asked() == {"t0": 2}
    # A writer that ignores the catalog wakes nobody.
    managed.rogue()
    assert watch.poll().version == 1
    managed.ratify()
    served.state()
    sighting = watch.poll()
    assert (sighting.since, sighting.version, sighting.replaced) == (1, 2, False)
    count = CommitCount(CommitFilter(data_changes_only=True), Position(version=1))
    assert count.count(watch, newest=2) and count.matched == 2
    assert served.asked() == {"t0": 2}
    assert not listings.called


def test_a_wait_for_a_version_asks_the_catalog(served: ManagedTables) -> None:
    managed = served.add()
    served.state()
    wait = Wait(open_watched(NAME), WaitCondition(version=2))
    assert not wait.poll().done
    managed.ratify()
    managed.ratify()
    served.state()
    served.asked()
    assert wait.poll().done
    assert served.asked() == {"t0": 1}


def test_a_table_that_was_made_again_ends_a_watch(served: ManagedTables) -> None:
    served.add().ratify()
    served.state()
    watch = LogWatch(open_watched(NAME))
    watch.poll()
    served.server.tables["main.s.t0"].table_id = "99999999-2222-3333-4444-555555555555"
    with pytest.raises(CatalogError, match="t0 was dropped and created again"):
        watch.poll()


def test_a_catalog_that_goes_back_has_another_log(served: ManagedTables) -> None:
    managed = served.add()
    for _ in range(3):
        managed.ratify()
    served.state()
    watch = LogWatch(open_watched(NAME), version=3)
    assert watch.poll().since == 3
    table = served.server.tables["main.s.t0"]
    table.latest, table.commits = 1, table.commits[:1]
    sighting = watch.poll()
    assert (sighting.since, sighting.version, sighting.replaced) == (-1, 1, True)

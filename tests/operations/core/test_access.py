"""The record of an operation decides which credentials a catalog is asked for, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.catalogs import source_of
from delta_maintenance.clock import now
from delta_maintenance.errors import CatalogError, DeltaMaintenanceError, RefusedError
from delta_maintenance.operations.core import BUILT_IN, AnyOperation, find
from delta_maintenance.policies import assess_table
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.policies.run import run
from delta_maintenance.table.read import open_table
from tests.support.emulators.s3_server import S3Server
from tests.support.servers.unity_delta import UnityServer, serve_guarded_table

pytestmark = pytest.mark.server

_NAME = "uc://main.s.t"
# The table is no catalog-managed one.
_OPERATIONS = tuple(name for name in BUILT_IN if name != "publish")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def unity(s3_server: S3Server, s3_bucket: str) -> Iterator[UnityServer]:
    """A table with a checkpoint that is due, on a store that accepts vended keys only."""
    with serve_guarded_table(s3_server, s3_bucket) as server:
        yield server


@pytest.fixture
def options(unity: UnityServer, s3_server: S3Server) -> dict[str, str]:
    own = {name: v for name, v in s3_server.storage_options.items() if name not in _KEYS}
    return {**own, **unity.options}


def _called(record: AnyOperation, options: dict[str, str], **settings: Any) -> Any:
    method = getattr(DeltaTable(_NAME, options), record.name.replace("-", "_"))
    return method(**record.example, **settings)


def _policy_table(unity: UnityServer) -> PolicyTable:
    uri = unity.tables["main.s.t"].location
    document = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 2}},
        "tables": [{"uri": uri, "name": "t"}],
    }
    return Policy.model_validate(document).named_tables[0]


def test_plans_and_operations_without_effects_ask_for_reading(
    unity: UnityServer, options: dict[str, str]
) -> None:
    asked = {}
    for record in map(find, _OPERATIONS):
        source_of.cache_clear()
        unity.requests.clear()
        with suppress(DeltaMaintenanceError):
            _called(record, options, dry_run=True)
        if record.effects.only_reads or record.name == "fsck":
            _called(record, options)
        asked[record.name] = set(unity.vended())
    assert asked == dict.fromkeys(_OPERATIONS, {"READ"})


def test_missing_rights_are_named_before_the_table_is_read(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    unity.tables["main.s.t"].rights = frozenset(("READ",))
    for record in map(find, _OPERATIONS):
        if record.effects.only_reads:
            continue
        source_of.cache_clear()
        more = {"repair": True} if record.name == "fsck" else {}
        with pytest.raises(CatalogError, match="SELECT and MODIFY"):
            _called(record, options, **more)
        assert s3_server.requests == [], record.name


def test_a_run_of_a_policy_asks_for_writing_with_its_first_plan(
    unity: UnityServer, options: dict[str, str]
) -> None:
    assert run(open_table(_NAME, options), _policy_table(unity)).status == "done"
    assert unity.vended() == ["READ", "READ_WRITE"]


def test_a_run_that_only_plans_asks_for_reading(
    unity: UnityServer, options: dict[str, str]
) -> None:
    table, rules = open_table(_NAME, options), _policy_table(unity)
    assert run(table, rules, plan_only=True).status == "planned"
    assert run_operation(table, rules, "vacuum", plan_only=True).status == "planned"
    assert run_operation(table, rules, "fsck").status == "done"
    assert unity.vended() == ["READ"]


def test_an_assessment_after_a_write_asks_for_reading(
    unity: UnityServer, options: dict[str, str]
) -> None:
    table, rules = open_table(_NAME, options), _policy_table(unity)
    assert run(table, rules).status == "done"
    unity.reject_keys()
    assert assess_table(table, rules, now=now()).status == "nothing-due"
    assert unity.vended() == ["READ", "READ_WRITE", "READ"]


def test_a_run_without_the_right_to_write_ends_before_its_plan(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    unity.tables["main.s.t"].rights = frozenset(("READ",))
    table = open_table(_NAME, options)
    table.snapshot()
    s3_server.requests.clear()
    result = run_operation(table, _policy_table(unity), "checkpoint")
    assert result.status == "failed" and "SELECT and MODIFY" in (result.problem or "")
    assert not any(line.startswith(("PUT", "POST")) for line in s3_server.requests)


def test_an_access_of_the_user_takes_precedence(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    with pytest.raises(RefusedError, match="opened for reading only"):
        DeltaTable(_NAME, {**options, "catalog_access": "read"}).checkpoint()
    assert unity.vended() == []


def test_a_catalog_managed_table_says_what_it_waits_for(
    unity: UnityServer, options: dict[str, str]
) -> None:
    """Not that a right is missing, which would not help."""
    table = unity.tables["main.s.t"]
    table.managed, table.latest, table.rights = True, 2, frozenset(("READ",))
    with pytest.raises(DeltaMaintenanceError, match="release that commits through catalogs"):
        DeltaTable(_NAME, options).set_properties(
            properties={"delta.appendOnly": "true"}, other_writers="none"
        )
    assert set(unity.vended()) == {"READ"}

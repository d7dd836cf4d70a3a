"""Protocol upgrades and property changes with concurrent writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from delta_maintenance.operations import set_properties, upgrade_protocol
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import (
    SetPropertiesOptions,
    SetPropertiesPlan,
    SetPropertiesResult,
)
from delta_maintenance.operations.upgrade_protocol import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from delta_maintenance.table.read import Table
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)


class RacedStore(MemoryStore):
    """Lets others act directly before a put of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], object]] = []

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races and path.endswith(".json"):
            self.races.pop(0)()
        return super().put_if_absent(path, data)


def built(
    *more: log.Action,
    protocol: log.Action | None = None,
    configuration: Mapping[str, str] | None = None,
) -> TableBuilder:
    table = TableBuilder(RacedStore())
    table.commit([protocol or log.protocol(), log.metadata(configuration=configuration), *more])
    return table


def race(table: TableBuilder, *lines: log.Action) -> None:
    store = table.store
    assert isinstance(store, RacedStore)
    store.races.append(lambda: table.commit(lines))


def plan_properties(
    table: Table, remove: tuple[str, ...] = (), /, **given: Any
) -> SetPropertiesPlan:
    operation_id = given.pop("operation_id", None)
    properties = {f"delta.{name.replace('_', '.')}": value for name, value in given.items()}
    options = SetPropertiesOptions(properties=properties, remove=remove, operation_id=operation_id)
    return set_properties.plan(table.snapshot(), options, context=RunContext.at(NOW))


def apply_properties(table: Table, plan: SetPropertiesPlan) -> SetPropertiesResult:
    # Passed on as JSON, as an orchestrator does.
    plan = SetPropertiesPlan.from_json(json.loads(json.dumps(plan.to_json())))
    result = set_properties.apply(table, plan, context=RunContext.at(NOW, sleep=lambda _: None))
    assert SetPropertiesResult.from_json(result.to_json()) == result
    return result


def set_(table: Table, remove: tuple[str, ...] = (), /, **properties: Any) -> SetPropertiesResult:
    return apply_properties(table, plan_properties(table, remove, **properties))


def plan_upgrade(table: Table, *features: str, **options: Any) -> UpgradeProtocolPlan:
    given = UpgradeProtocolOptions(features=features, **options)
    return upgrade_protocol.plan(table.snapshot(), given, context=RunContext.at(NOW))


def apply_upgrade(table: Table, plan: UpgradeProtocolPlan) -> UpgradeProtocolResult:
    plan = UpgradeProtocolPlan.from_json(json.loads(json.dumps(plan.to_json())))
    result = upgrade_protocol.apply(table, plan, context=RunContext.at(NOW, sleep=lambda _: None))
    assert UpgradeProtocolResult.from_json(result.to_json()) == result
    return result


def upgrade(table: Table, *features: str, **options: Any) -> UpgradeProtocolResult:
    return apply_upgrade(table, plan_upgrade(table, *features, **options))


def lines(table: TableBuilder, version: int) -> list[dict[str, Any]]:
    text = table.read(f"{version:020d}.json").decode()
    return [json.loads(line) for line in text.splitlines()]

"""The operations of this library, with options of all kinds, on a table that others change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.simulation.actors import Actor
from tests.simulation.world import has

from delta_maintenance.operations import (
    backfill_row_ids,
    checkpoint,
    clean_log,
    compact_log,
    drop_feature,
    set_properties,
    upgrade_protocol,
    vacuum,
)
from delta_maintenance.storage.base import Store
from delta_maintenance.table.table import Table
from delta_maintenance.testing.fault_store import FaultStore

_FEATURES = (
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "rowTracking",
    "v2Checkpoint",
    "vacuumProtocolCheck",
)
_PROPERTIES = (
    {"delta.enableInCommitTimestamps": "true"},
    {"delta.enableInCommitTimestamps": "false"},
    {"delta.enableDeletionVectors": "true"},
    {"delta.checkpointPolicy": "v2"},
    {"delta.checkpointPolicy": "classic"},
    {"delta.checkpoint.writeStatsAsStruct": "true"},
)


class Keeper(Actor):
    """Runs operations at random, and has the table judged after each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.endings: list[tuple[str, str]] = []
        self.is_alone = self.tasks == 0

    def run(self, task: str) -> None:
        name = self.chance.choice(sorted(OPERATIONS))
        operation = OPERATIONS[name]
        for _, store in self.attempts(longest=40):
            attempt = partial(self.attempt, name, operation, store, task)
            done = self.tried(store, attempt)
            self.world.check()
            if done:
                return

    def attempt(self, name: str, operation: _Operation, store: Store, task: str) -> None:
        self.endings.append((name, "tried"))
        status = operation(self, Table(store), task)
        self.endings.append((name, status))


_Operation = Callable[[Keeper, Table, str], str]


def _checkpoint(keeper: Keeper, table: Table, task: str) -> str:
    snapshot = table.snapshot()
    if keeper.chance.random() < 0.2:
        oldest = keeper.world.oldest
        snapshot = table.snapshot(version=keeper.chance.randint(oldest, snapshot.version))
    kinds: tuple[Any, ...] = ("auto", "classic")
    if has(keeper.world.ledger.states[snapshot.version], "v2Checkpoint"):
        kinds = ("auto", "v2-classic", "v2-json", "v2-parquet")
    options = checkpoint.CheckpointOptions(
        kind=keeper.chance.choice(kinds), actions_per_sidecar=keeper.chance.choice((0, 2, 50))
    )
    planned = checkpoint.plan(snapshot, options, now=keeper.now())
    return checkpoint.apply(table, planned, new_id=keeper.world.new_id).status


def _compact_log(keeper: Keeper, table: Table, task: str) -> str:
    options = compact_log.CompactLogOptions(
        commits_per_file=keeper.chance.choice((2, 3, 5)), partial=keeper.chance.random() < 0.5
    )
    planned = compact_log.plan(table.snapshot(), options, now=keeper.now())
    result = compact_log.apply(table, planned)
    assert result.status != "failed", result
    return result.status


def _clean_log(keeper: Keeper, table: Table, task: str) -> str:
    planned = clean_log.plan(table.snapshot(), now=keeper.now())
    result = clean_log.apply(table, planned, now=keeper.now(), new_id=keeper.world.new_id)
    assert isinstance(table.store, FaultStore) or result.status != "partly", result
    return result.status


def _vacuum(keeper: Keeper, table: Table, task: str) -> str:
    now = keeper.now()
    options = vacuum.VacuumOptions(
        # By the log, it refuses logs that were cleaned up further than it went.
        mode="full" if keeper.is_alone else keeper.chance.choice(("full", "full", "lite")),
        allow_short_retention=True,
        no_other_writers=True,
        log_commits=keeper.chance.random() < 0.5,
    )
    brought_back = set(keeper.world.brought_back)
    surveyed = vacuum.survey(table.snapshot(), options, now=now)
    result = vacuum.apply(
        table, surveyed.plan, now=keeper.now(), new_id=keeper.world.new_id, surveyed=surveyed
    )
    missed = keeper.world.brought_back - brought_back - {*result.lost}
    if isinstance(table.store, FaultStore):
        return result.status
    assert not missed or result.stopped, f"{missed} came back, and nobody was told"
    return result.status


def _backfill_row_ids(keeper: Keeper, table: Table, task: str) -> str:
    options = backfill_row_ids.BackfillRowIdsOptions(
        files_per_commit=keeper.chance.choice((1, 2, 100)),
        checkpoint=keeper.chance.random() < 0.5,
        lift_suspension=keeper.chance.random() < 0.5,
    )
    planned = backfill_row_ids.plan(table.snapshot(), options, now=keeper.now())
    return backfill_row_ids.apply(
        table, planned, now=keeper.now, new_id=keeper.world.new_id, sleep=_no_sleep
    ).status


def _upgrade_protocol(keeper: Keeper, table: Table, task: str) -> str:
    features = tuple(keeper.chance.sample(_FEATURES, keeper.chance.choice((1, 2))))
    options = upgrade_protocol.UpgradeProtocolOptions(features=features, operation_id=task)
    new_id = keeper.world.new_id
    planned = upgrade_protocol.plan(table.snapshot(), options, now=keeper.now(), new_id=new_id)
    return upgrade_protocol.apply(
        table, planned, now=keeper.now, new_id=new_id, sleep=_no_sleep
    ).status


def _set_properties(keeper: Keeper, table: Table, task: str) -> str:
    options = set_properties.SetPropertiesOptions(
        properties=keeper.chance.choice(_PROPERTIES), operation_id=task
    )
    new_id = keeper.world.new_id
    planned = set_properties.plan(table.snapshot(), options, now=keeper.now(), new_id=new_id)
    return set_properties.apply(
        table, planned, now=keeper.now, new_id=new_id, sleep=_no_sleep
    ).status


def _drop_feature(keeper: Keeper, table: Table, task: str) -> str:
    snapshot, world = table.snapshot(), keeper.world
    names = world.ledger.states[snapshot.version].protocol or {}
    present = sorted({*_FEATURES, "checkpointProtection"} & {*names.get("writerFeatures", ())})
    if not present:
        return "nothing-to-do"
    options = drop_feature.DropFeatureOptions(
        feature=keeper.chance.choice(present),
        truncate_history=keeper.chance.random() < 0.5,
        operation_id=task,
        files_per_commit=keeper.chance.choice((2, 100)),
    )
    planned = drop_feature.plan(snapshot, options, now=keeper.now(), new_id=world.new_id)
    if planned.way == "truncate-history":
        world.truncated = True
    return drop_feature.apply(table, planned, now=keeper.now, new_id=world.new_id).status


def _no_sleep(seconds: float) -> None:
    pass


OPERATIONS: Mapping[str, _Operation] = {
    "backfill-row-ids": _backfill_row_ids,
    "checkpoint": _checkpoint,
    "clean-log": _clean_log,
    "compact-log": _compact_log,
    "drop-feature": _drop_feature,
    "set-properties": _set_properties,
    "upgrade-protocol": _upgrade_protocol,
    "vacuum": _vacuum,
}

"""The operations of this library, with all kinds of options, on a table that others change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from delta_maintenance.errors import CorruptTableError
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
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.simulation.actors import Actor, ActorStore
from tests.simulation.ledger import has
from tests.support.faults.fault_store import FaultStore

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


@dataclass(frozen=True)
class Asked:
    """The request of a task, the same in each of its attempts."""

    task: str
    since: datetime | None
    """The start of its first attempt, if it is passed on."""
    chance: random.Random


class Keeper(Actor):
    """Runs random operations; the table is checked after each."""

    def __init__(
        self,
        *args: Any,
        operations: Sequence[str],
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`settings` are further options of `set-properties`."""
        super().__init__(*args, **kwargs)
        self.operations = operations
        self.settings = settings or {}
        self.endings: list[tuple[str, str]] = []
        self.is_alone = self.tasks == 0

    def run(self, task: str) -> None:
        name = self.chance.choice(self.operations)
        operation = OPERATIONS[name]
        began = self.chance.choice((None, self.now()))
        seed = self.chance.getrandbits(32)
        for _, store in self.attempts(longest=self.chance.choice((12, 40))):
            asked = Asked(task, began, random.Random(seed))
            done = self.tried(store, partial(self.attempt, name, operation, store, asked))
            self.world.check()
            if done:
                return

    def attempt(self, name: str, operation: _Operation, store: Store, asked: Asked) -> None:
        self.endings.append((name, "tried"))
        status = operation(self, Table(store), asked)
        self.endings.append((name, status))


_Operation = Callable[[Keeper, Table, Asked], str]


def _checkpoint(keeper: Keeper, table: Table, asked: Asked) -> str:
    snapshot = table.snapshot()
    if asked.chance.random() < 0.2:
        oldest = keeper.world.oldest
        snapshot = table.snapshot(version=asked.chance.randint(oldest, snapshot.version))
    kinds: tuple[Any, ...] = ("auto", "classic")
    if has(keeper.world.ledger.states[snapshot.version], "v2Checkpoint"):
        kinds = ("auto", "v2-classic", "v2-json", "v2-parquet")
    options = checkpoint.CheckpointOptions(
        kind=asked.chance.choice(kinds), actions_per_sidecar=asked.chance.choice((0, 2, 50))
    )
    planned = checkpoint.plan(snapshot, options, context=RunContext.at(keeper.now()))
    return checkpoint.apply(
        table, planned, context=RunContext.at(keeper.now(), new_id=keeper.world.new_id)
    ).status


def _compact_log(keeper: Keeper, table: Table, asked: Asked) -> str:
    options = compact_log.CompactLogOptions(
        commits_per_file=asked.chance.choice((2, 3, 5)), partial=asked.chance.random() < 0.5
    )
    planned = compact_log.plan(table.snapshot(), options, context=RunContext.at(keeper.now()))
    result = compact_log.apply(table, planned)
    assert result.status != "failed", result
    return result.status


def _clean_log(keeper: Keeper, table: Table, asked: Asked) -> str:
    planned = clean_log.plan(table.snapshot(), context=RunContext.at(keeper.now()))
    result = clean_log.apply(
        table, planned, context=RunContext.at(keeper.now(), new_id=keeper.world.new_id)
    )
    assert isinstance(table.store, FaultStore) or result.status != "partly", result
    return result.status


def _vacuum(keeper: Keeper, table: Table, asked: Asked) -> str:
    now = keeper.now()
    options = vacuum.VacuumOptions(
        # By the log, it refuses logs that were cleaned up further than it went.
        mode="full" if keeper.is_alone else asked.chance.choice(("full", "full", "lite")),
        allow_short_retention=True,
        no_other_writers=True,
        log_commits=asked.chance.random() < 0.5,
    )
    surveyed = vacuum.survey(table.snapshot(), options, now=now)
    result = vacuum.apply(
        table,
        surveyed.plan,
        context=RunContext.at(keeper.now(), new_id=keeper.world.new_id),
        surveyed=surveyed,
    )
    if isinstance(table.store, ActorStore):
        missed = table.store.brought_back - {*result.lost}
        assert not missed or result.stopped, f"{missed} came back, and nobody was told"
    return result.status


def _backfill_row_ids(keeper: Keeper, table: Table, asked: Asked) -> str:
    options = backfill_row_ids.BackfillRowIdsOptions(
        files_per_commit=asked.chance.choice((1, 2, 100)),
        checkpoint=asked.chance.random() < 0.5,
        lift_suspension=asked.chance.random() < 0.5,
        operation_id=asked.task,
        operation_since=asked.since,
    )
    planned = backfill_row_ids.plan(table.snapshot(), options, context=RunContext.at(keeper.now()))
    return backfill_row_ids.apply(
        table,
        planned,
        context=RunContext.at(keeper.now, new_id=keeper.world.new_id, sleep=_no_sleep),
    ).status


def _upgrade_protocol(keeper: Keeper, table: Table, asked: Asked) -> str:
    features = tuple(asked.chance.sample(_FEATURES, asked.chance.choice((1, 2))))
    options = upgrade_protocol.UpgradeProtocolOptions(
        features=features, operation_id=asked.task, operation_since=asked.since
    )
    new_id = keeper.world.new_id
    planned = upgrade_protocol.plan(
        table.snapshot(), options, context=RunContext.at(keeper.now(), new_id=new_id)
    )
    return upgrade_protocol.apply(
        table, planned, context=RunContext.at(keeper.now, new_id=new_id, sleep=_no_sleep)
    ).status


def _set_properties(keeper: Keeper, table: Table, asked: Asked) -> str:
    options = set_properties.SetPropertiesOptions(
        properties=asked.chance.choice(_PROPERTIES),
        operation_id=asked.task,
        operation_since=asked.since,
        **keeper.settings,
    )
    new_id = keeper.world.new_id
    planned = set_properties.plan(
        table.snapshot(), options, context=RunContext.at(keeper.now(), new_id=new_id)
    )
    return set_properties.apply(
        table, planned, context=RunContext.at(keeper.now, new_id=new_id, sleep=_no_sleep)
    ).status


def _drop_feature(keeper: Keeper, table: Table, asked: Asked) -> str:
    snapshot, world = table.snapshot(), keeper.world
    names = world.ledger.states[snapshot.version].protocol or {}
    wanted = [*_FEATURES, "checkpointProtection"]
    asked.chance.shuffle(wanted)
    present = [name for name in wanted if name in names.get("writerFeatures", ())]
    if not present:
        return "nothing-to-do"
    options = drop_feature.DropFeatureOptions(
        feature=present[0],
        truncate_history=asked.chance.random() < 0.5,
        operation_id=asked.task,
        operation_since=asked.since,
        files_per_commit=asked.chance.choice((2, 100)),
    )
    planned = drop_feature.plan(
        snapshot, options, context=RunContext.at(keeper.now(), new_id=world.new_id)
    )
    if planned.way == "truncate-history":
        world.truncated = True
    context = RunContext.at(keeper.now, new_id=world.new_id)
    try:
        return drop_feature.apply(table, planned, context=context).status
    except CorruptTableError:
        # The data files and deletion vectors of the simulation have no content to rewrite.
        if options.feature != "deletionVectors":
            raise
        return "refused"


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

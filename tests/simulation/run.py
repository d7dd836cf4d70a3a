"""One seed, from the first commit of a table to the last check."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from delta_maintenance import clock
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.commit import transaction
from tests.simulation.actors import Actor, Calendar
from tests.simulation.ledger import MARK, Effect
from tests.simulation.upkeep import OPERATIONS, Asked, Keeper
from tests.simulation.world import DAY_MS, HOUR_MS, World
from tests.simulation.writers import KINDS, Writer, new_file, write
from tests.support.stores.interleaving import Schedule, single_threaded
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, log_text

WRITERS = 3
KEEPERS = 2
TASKS = 5
"""Tasks of each actor."""
_LEGACY = ("appendOnly", "invariants")
PROTOCOLS = (
    log.protocol(1, 2),
    log.features("deletionVectors", writer_only=_LEGACY),
    log.features("deletionVectors", writer_only=[*_LEGACY, "inCommitTimestamp"]),
    log.features("deletionVectors", writer_only=[*_LEGACY, "domainMetadata", "rowTracking"]),
    log.features(
        "deletionVectors", "v2Checkpoint", writer_only=[*_LEGACY, "domainMetadata", "rowTracking"]
    ),
)
_REPEATED = ("path", "partitionValues", "size", "baseRowId", "defaultRowCommitVersion")
"""Fields of an add that its remove has too."""


@dataclass
class Played:
    """The run of one seed."""

    world: World
    turns: int
    writers: list[Writer]
    keepers: list[Keeper]

    def numbers(self) -> dict[str, int]:
        """Counts of events."""
        actors = [*self.writers, *self.keepers]
        return {
            "seeds": 1,
            "turns": self.turns,
            "commits": len(self.world.ledger.states),
            "checks": self.world.checks,
            "crashes": sum(actor.crashes for actor in actors),
            "failures": sum(actor.faults for actor in actors),
        }


def play(seed: int) -> Played:
    chance = random.Random(f"table {seed}")
    schedule = Schedule(seed, persistence=chance.choice((0.0, 0.5, 0.8, 0.95)))
    days = chance.choice((1, 1, 1, 7))
    world = World(schedule.random, data_retention_ms=days * DAY_MS, now_ms=EPOCH_MS)
    begin(world, chance, retention_days=days)
    # If all actors could do everything, harmful pairs would seldom meet.
    kinds = [write, *chance.sample(KINDS, chance.choice((1, 2, 3, len(KINDS))))]
    operations = chance.sample(sorted(OPERATIONS), chance.choice((1, 2, 3, len(OPERATIONS))))
    writers = [Writer(f"w{n}", world, schedule, tasks=TASKS, kinds=kinds) for n in range(WRITERS)]
    keepers = [
        Keeper(f"k{n}", world, schedule, tasks=TASKS, operations=operations) for n in range(KEEPERS)
    ]
    actors: list[Actor] = [*writers, *keepers, Calendar("calendar", world, schedule, tasks=TASKS)]
    for actor in actors:
        schedule.begin(actor.work)
    with on_its_own_clock(world), single_threaded():
        schedule.run()
        while world.late:
            world.deliver()
        for writer in writers:
            writer.judge()
        _end(world, schedule)
    return Played(world, schedule.turns, writers, keepers)


@contextmanager
def on_its_own_clock(world: World) -> Iterator[None]:
    """Where an operation takes no clock of its caller, its commits take the world's, and no nap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: datetime.fromtimestamp(world.now_ms / 1000, UTC))
        for kind in (transaction.Writer, RunContext):
            patch.setitem(kind.__init__.__kwdefaults__, "sleep", lambda _: None)
        yield


def begin(
    world: World,
    chance: random.Random,
    *,
    retention_days: int,
    protocols: Sequence[log.Action] = PROTOCOLS,
) -> None:
    """A table with a history that is longer than any retention."""
    configuration = {
        "delta.deletedFileRetentionDuration": f"interval {retention_days} days",
        "delta.logRetentionDuration": f"interval {retention_days + chance.choice((0, 1))} days",
    }
    protocol = chance.choice(protocols)
    tracks = "rowTracking" in protocol["protocol"].get("writerFeatures", ())
    versions = chance.randint(2, 8)
    # Files from before that have no row IDs.
    upgraded_at = chance.choice((0, versions - 1))
    ledger, live, mark = world.ledger, list[log.Action](), -1
    for version in range(versions):
        lines = [log.commit_info("WRITE", txnId=f"begin-{version}")]
        if version == 0:
            lines.append(log.metadata(partitioned_by=["part"], configuration=configuration))
        if version in (0, upgraded_at):
            lines.append(protocol if version == upgraded_at else PROTOCOLS[0])
        deleted = frozenset[str]()
        if live and chance.random() < 0.7:
            gone = live.pop(chance.randrange(len(live)))
            deleted = ledger.rows_of[gone["path"]]
            fields = {name: gone[name] for name in _REPEATED if name in gone}
            lines.append(log.remove(**fields, deletionTimestamp=world.now_ms))
        new = [new_file(world, world.store) for _ in range(chance.randint(1, 2))]
        if tracks and version >= upgraded_at:
            for file in new:
                file["baseRowId"], file["defaultRowCommitVersion"] = mark + 1, version
                mark += len(ledger.rows_of[file["path"]])
            lines.append(log.domain(MARK, json.dumps({"rowIdHighWaterMark": mark})))
        live += new
        inserted = frozenset[str]().union(*(ledger.rows_of[file["path"]] for file in new))
        ledger.effects[f"begin-{version}"] = Effect(inserted=inserted, deleted=deleted)
        lines += [{"add": file} for file in new]
        world.store.put_if_absent(f"_delta_log/{version:020d}.json", log_text(lines))
        world.now_ms += chance.randrange(HOUR_MS, retention_days * DAY_MS)


def _end(world: World, schedule: Schedule) -> None:
    """Without interference and failures, every operation completes."""
    world.now_ms += 2 * world.data_retention_ms
    keeper = Keeper("last", world, schedule, tasks=0, operations=())
    for name in ("checkpoint", "compact-log", "clean-log", "vacuum"):
        asked = Asked(f"last-{name}", None, schedule.random)
        keeper.attempt(name, OPERATIONS[name], world.store, asked)
        world.check()
    world.check(every_version=True)

"""One seed from the first commit of a table to the last check of everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.simulation.actors import Actor, Calendar
from tests.simulation.upkeep import OPERATIONS, Keeper
from tests.simulation.world import DAY_MS, HOUR_MS, Effect, World
from tests.simulation.writers import Writer, new_file

from delta_maintenance.table.transaction import Transaction
from delta_maintenance.testing import actions as log
from delta_maintenance.testing.interleaving import Schedule, single_threaded
from delta_maintenance.testing.table_builder import EPOCH_MS, log_text

WRITERS = 3
KEEPERS = 2
TASKS = 5
"""Of each actor."""
_PROTOCOLS = (
    log.protocol(1, 2),
    log.features("deletionVectors", writer_only=["appendOnly", "invariants"]),
    log.features("deletionVectors", "v2Checkpoint", writer_only=["domainMetadata", "rowTracking"]),
    log.features("deletionVectors", writer_only=["inCommitTimestamp"]),
)


@dataclass
class Played:
    """One seed, played to its end."""

    world: World
    turns: int
    writers: list[Writer]
    keepers: list[Keeper]

    def numbers(self) -> dict[str, int]:
        """How much has happened."""
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
    _begin(world, chance, retention_days=days)
    writers = [Writer(f"w{n}", world, schedule, tasks=TASKS) for n in range(WRITERS)]
    keepers = [Keeper(f"k{n}", world, schedule, tasks=TASKS) for n in range(KEEPERS)]
    actors: list[Actor] = [*writers, *keepers, Calendar("calendar", world, schedule, tasks=TASKS)]
    for actor in actors:
        schedule.begin(actor.work)
    with _on_its_own_clock(world), single_threaded():
        schedule.run()
        while world.late:
            world.deliver()
        for writer in writers:
            writer.judge()
        _end(world, schedule)
    return Played(world, schedule.turns, writers, keepers)


@contextmanager
def _on_its_own_clock(world: World) -> Iterator[None]:
    """Where an operation takes no clock of its caller, its commits take the world's, and no nap."""
    begin, commit = Transaction.__init__.__kwdefaults__, Transaction.commit.__kwdefaults__
    assert begin is not None and commit is not None
    before = begin["now"], commit["sleep"]
    begin["now"] = lambda: datetime.fromtimestamp(world.now_ms / 1000, UTC)
    commit["sleep"] = lambda _: None
    try:
        yield
    finally:
        begin["now"], commit["sleep"] = before


def _begin(world: World, chance: random.Random, *, retention_days: int) -> None:
    """A table with a history that is longer than any retention."""
    configuration = {
        "delta.deletedFileRetentionDuration": f"interval {retention_days} days",
        "delta.logRetentionDuration": f"interval {retention_days + chance.choice((0, 1))} days",
    }
    protocol = chance.choice(_PROTOCOLS)
    names = protocol["protocol"].get("writerFeatures", ())
    first = [protocol, log.metadata(partitioned_by=["part"], configuration=configuration)]
    live: list[log.Action] = []
    mark = -1
    for version in range(chance.randint(2, 8)):
        lines = first if version == 0 else []
        lines = [log.commit_info("WRITE", txnId=f"begin-{version}"), *lines]
        new = [new_file(world, world.store) for _ in range(chance.randint(1, 2))]
        if version > 1 and live and chance.random() < 0.7:
            gone = live.pop(chance.randrange(len(live)))
            known = ("path", "partitionValues", "size", "baseRowId", "defaultRowCommitVersion")
            fields = {k: v for k, v in gone.items() if k in known}
            fields["deletionTimestamp"] = world.now_ms
            lines.append(log.remove(**fields))
            deleted = world.ledger.rows_of[gone["path"]]
        else:
            deleted = frozenset()
        ids = {}
        for file in new:
            if "rowTracking" in names:
                file["baseRowId"], file["defaultRowCommitVersion"] = mark + 1, version
                mark += len(world.ledger.rows_of[file["path"]])
                ids = {"rowIdHighWaterMark": mark}
            lines.append({"add": file})
        if ids:
            lines.append(log.domain("delta.rowTracking", log_text([ids]).decode().strip()))
        live += new
        inserted = frozenset().union(*(world.ledger.rows_of[f["path"]] for f in new))
        world.ledger.effects[f"begin-{version}"] = Effect(inserted=inserted, deleted=deleted)
        world.store.put_if_absent(f"_delta_log/{version:020d}.json", log_text(lines))
        world.now_ms += chance.randrange(HOUR_MS, retention_days * DAY_MS)


def _end(world: World, schedule: Schedule) -> None:
    """When nobody interferes and nothing fails, every operation comes to its end."""
    world.now_ms += 2 * world.data_retention_ms
    keeper = Keeper("last", world, schedule, tasks=0)
    for name in ("checkpoint", "compact-log", "clean-log", "vacuum"):
        keeper.attempt(name, OPERATIONS[name], world.store, f"last-{name}")
        world.check()
    world.check(every_version=True)

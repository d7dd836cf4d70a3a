"""One seed of a table on S3 with writers of several engines, with and without conditional puts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from delta_maintenance.address import Address
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.table.evidence import overwritten_commits
from delta_maintenance.table.evidence.overwritten_commits import states_of, verify_guarded
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.segment import list_log
from tests.properties.model import state_of
from tests.simulation.actors import Actor
from tests.simulation.engines import (
    CreateCommit,
    Engine,
    like_delta_rs,
    with_log_store,
    without_log_store,
)
from tests.simulation.run import PROTOCOLS, begin, on_its_own_clock
from tests.simulation.upkeep import Keeper
from tests.simulation.world import DAY_MS, HOUR_MS, World
from tests.simulation.writers import KINDS, Writer, write
from tests.support.stores.interleaving import Schedule, single_threaded
from tests.support.tables.table_builder import EPOCH_MS

MINUTE_MS = 60_000
_BREAKS_MS = (0, 0, 5_000, 5 * MINUTE_MS, 2 * HOUR_MS, DAY_MS)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Who writes, and how long they take."""

    engines: Sequence[CreateCommit]
    settings: Mapping[str, Any]
    """The settings of this library for each of its commits."""
    pauses_ms: Sequence[int] = (0, 0, 2_000, MINUTE_MS, 30 * MINUTE_MS)
    """The times that other engines may take right before the put of a commit."""
    breaks_ms: Sequence[int] = _BREAKS_MS
    """The times between two tasks of another engine."""
    own_breaks_ms: Sequence[int] = _BREAKS_MS
    num_engine_tasks: int = 3
    num_own_tasks: int = 2
    upkeep: Sequence[str] = (
        "checkpoint",
        "checkpoint",
        "clean-log",
        "compact-log",
        "set-properties",
    )


CAREFUL = Setting(
    engines=(with_log_store, with_log_store, like_delta_rs),
    settings={"other_writers": "conditional_put"},
)
UNDECLARED = Setting(engines=(without_log_store, like_delta_rs), settings={})
REFUSED = replace(UNDECLARED, settings={"other_writers": "spark"})
GUARDED = replace(UNDECLARED, settings={"other_writers": "spark", "quiet": timedelta(minutes=10)})


class S3World(World):
    """A table at an address of S3. Its invariants are checked at the end."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance, data_retention_ms=DAY_MS, now_ms=EPOCH_MS)
        self.store.address = Address.parse("s3://bucket/table")

    def check(self, *, every_version: bool = False) -> None:
        """Checks the table at its end. The commits of others lose no row through ours."""
        if not every_version:
            return
        if not self.ledger.overwritten:
            super().check()
        rows = self.ledger.rows_of_files(self.ledger.latest)
        lost = self.ledger.intended_rows() - set(rows)
        assert not lost, f"rows lost: {lost}"

    def is_latest_hidden(self) -> bool:
        """Whether readers see the files of an overwritten commit, from a checkpoint of it."""
        read = state_of(Table(self.store).snapshot())
        return read.live.keys() != self.ledger.latest.live.keys()


class S3Run:
    """The run of one seed."""

    def __init__(self, seed: int, setting: Setting) -> None:
        chance = random.Random(f"s3 {seed}")
        schedule = Schedule(seed, persistence=chance.choice((0.0, 0.5, 0.8, 0.95)))
        self.world = world = S3World(schedule.random)
        world.quiet_ms = setting.settings.get("quiet", timedelta()) // timedelta(milliseconds=1)
        begin(world, chance, retention_days=1, protocols=PROTOCOLS[:2])
        own: dict[str, Any] = {"breaks_ms": setting.own_breaks_ms, "settings": setting.settings}
        own["kinds"] = [write, *chance.sample(KINDS, 2)]
        self.ours = [
            Writer(f"w{n}", world, schedule, tasks=setting.num_own_tasks, **own) for n in "01"
        ]
        # Checkpoints take most of the time of a seed.
        num_tasks = chance.choice((0, 0, 1, 2)) if setting.upkeep else 0
        own = own | {"tasks": num_tasks, "operations": setting.upkeep}
        del own["kinds"]
        self.keeper = Keeper("k", world, schedule, **own)
        self.engines = [
            Engine(
                f"e{n}",
                world,
                schedule,
                tasks=setting.num_engine_tasks,
                create=create,
                breaks_ms=setting.breaks_ms,
                pauses_ms=setting.pauses_ms,
            )
            for n, create in enumerate(setting.engines)
        ]
        actors: list[Actor] = [*self.ours, self.keeper, *self.engines]
        for actor in actors:
            schedule.begin(actor.work)
        self.warnings = list[str]()
        with (
            patch.object(overwritten_commits._logger, "warning", self.note_warning),
            on_its_own_clock(world),
            single_threaded(),
        ):
            schedule.run()
            while world.late:
                world.deliver()
            for writer in self.ours:
                writer.judge()
            self.end()
        self.crashes = sum(actor.crashes for actor in actors)
        self.faults = sum(actor.faults for actor in actors)
        self.turns = schedule.turns

    def note_warning(self, text: str, *values: object) -> None:
        """Keeps a warning of a verification."""
        self.warnings.append(text % values)

    def end(self) -> None:
        self.world.check(every_version=True)
        self.is_hidden = bool(self.world.ledger.overwritten) and self.world.is_latest_hidden()
        self.verdicts = Counter[str]()
        if self.world.quiet_ms:
            self._judge_verification()

    def _judge_verification(self) -> None:
        """Every commit of ours that was overwritten is named as such, or as uncertain if the run
        was killed before it knew the outcome; every other one is not called overwritten."""
        ledger, store = self.world.ledger, self.world.store
        listing = list_log(store)
        states = states_of(store, listing.guarded, listing.commits)
        verdicts = {guard.copy.file.uuid or "": state for guard, state in states}
        named = {guard.version for guard, state in states if state == "overwritten"}
        assert named == self._versions_by_fsck() if named else not self._is_refused()
        for txn_id, version in ledger.overwritten.items():
            if not txn_id.startswith("task-e"):
                # A copy in doubt is deleted after a day, by a run that says so.
                was_told = any(txn_id in warning for warning in self.warnings)
                verdict = verdicts.pop(txn_id, "uncertain" if was_told else None)
                assert verdict in ("overwritten", "uncertain"), f"{version} is {verdict}"
                self.verdicts[f"lost: {verdict}"] += 1
        for txn_id, verdict in verdicts.items():
            assert verdict != "overwritten", f"{txn_id} is called {verdict}"
            self.verdicts[f"{'sound' if txn_id in ledger.owners else 'never put'}: {verdict}"] += 1

    def _versions_by_fsck(self) -> set[int | None]:
        now = datetime.fromtimestamp(self.world.now_ms / 1000, UTC)
        plan = fsck.plan(Table(self.world.store), context=RunContext.at(now))
        kinds = ("overwritten-commit", "needed-overwritten-commit")
        return {find.version for find in plan.findings if find.kind in kinds}

    def _is_refused(self) -> bool:
        try:
            verify_guarded(self.world.store)
        except CorruptTableError:
            return True
        return False

    def numbers(self) -> Counter[str]:
        """Counts of events."""
        names = [*self.world.ledger.owners, *self.world.ledger.overwritten]
        num_others = sum(name.startswith("task-e") for name in names)
        num_first = sum(name.startswith("begin-") for name in names)
        return self.verdicts + Counter(
            {
                "seeds": 1,
                "turns": self.turns,
                "crashes": self.crashes,
                "failures": self.faults,
                "hidden by checkpoints": self.is_hidden,
                "overwritten": len(self.world.ledger.overwritten),
                "commits of ours": len(names) - num_others - num_first,
                "commits of others": num_others,
            }
        )

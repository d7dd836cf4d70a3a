"""The number of sidecars over a long history of incremental checkpoints.

`DELTA_MAINTENANCE_BOUND_COMMITS` sets the number of commits; a heavy run has 10,000.
"""

from __future__ import annotations

import os
import random

from delta_maintenance.protocol.delta_log import most_sidecars
from tests.support.logs.checkpointing import KEEP_TOMBSTONES, NOW, write
from tests.support.operations.incremental_checkpoints import begun
from tests.support.tables.actions import Action, add, commit_info, remove

COMMITS = int(os.environ.get("DELTA_MAINTENANCE_BOUND_COMMITS", "60"))
EVERY = max(5, COMMITS // 200)
"""Commits from one checkpoint to the next."""
SIZE = 40
"""Actions of a full sidecar."""


def test_the_number_of_sidecars_stays_within_its_bound() -> None:
    chance = random.Random(5)
    table = begun(files=100, properties=KEEP_TOMBSTONES)
    live = [f"f{number:03d}" for number in range(100)]
    write(table.open(), per_sidecar=SIZE)
    most = taken_over = 0
    for number in range(1, COMMITS + 1):
        lines: list[Action] = [commit_info(), add(f"g{number}")]
        if chance.random() < 0.4:
            gone = live.pop(chance.randrange(len(live)))
            lines.append(remove(gone, deletionTimestamp=number))
        live.append(f"g{number}")
        table.commit(lines)
        if number % EVERY:
            continue
        result = write(table.open(), per_sidecar=SIZE, incremental="always", now=NOW)
        bound = most_sidecars(result.num_files, SIZE) + most_sidecars(result.num_tombstones, SIZE)
        assert result.sidecars <= bound, number
        assert result.num_files == len(live)
        most = max(most, result.sidecars)
        taken_over += result.sidecars_taken_over
    assert most and taken_over

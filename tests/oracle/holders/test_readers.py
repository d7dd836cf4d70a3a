"""Streams of Delta Spark are stopped and continue while we delete everything that they do not hold.

Nothing else protects a version: each round vacuums and cleans the log up without a retention.
`DELTA_MAINTENANCE_STREAM_ROUNDS` sets the number of rounds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import checkpoint, clean_log, optimize, vacuum
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.holds import Holders, Reader
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from tests.oracle.holders.test_streams import Stream
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import create

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_STREAM_ROUNDS", "2"))
ROWS = 6
"""The rows of an append, in three files."""
LATER = timedelta(minutes=2)
"""Log retention boundaries are full minutes."""
FLAGS = {"allow_short_retention": True, "no_other_writers": True}


@dataclass
class Table:
    """A table, and what its streams have to read."""

    spark: DeltaSpark
    path: Path
    rows: int = 0
    changes: Counter[tuple[int, str]] = field(default_factory=Counter)

    def sql(self, statement: str) -> None:
        self.spark.forget()
        self.spark.sql(statement.replace("TABLE", f"delta.`{self.path}`"))

    def append(self) -> None:
        first, self.rows = self.rows, self.rows + ROWS
        self.sql(
            "INSERT INTO TABLE SELECT /*+ REPARTITION(3) */ id, concat('text ', id), 'p' "
            f"FROM range({first}, {self.rows})"
        )
        self.changes.update((row, "insert") for row in range(first, self.rows))

    def change(self) -> None:
        """Deletes a row of the last append and updates another one."""
        self.sql(f"DELETE FROM TABLE WHERE id = {self.rows - 1}")
        self.sql(f"UPDATE TABLE SET text = 'new' WHERE id = {self.rows - 2}")
        self.changes.update(
            [
                (self.rows - 1, "delete"),
                (self.rows - 2, "update_preimage"),
                (self.rows - 2, "update_postimage"),
            ]
        )

    def maintain(self, holders: Holders) -> tuple[int, int, int]:
        """Deletes everything that is not held. Returns the numbers of deleted data files, of
        deleted files of the log, and of the files that are held.
        """
        table = open_table(str(self.path))
        options = OptimizeOptions(full=True, workers=1)
        optimize.apply(table, optimize.plan(table.snapshot(), options))
        checkpoint.apply(table, checkpoint.plan(table.snapshot()))
        at = RunContext.at(clock.now() + LATER)
        now = timedelta()
        dead = vacuum.plan(
            table.snapshot(), VacuumOptions(retention=now, holders=holders, **FLAGS), at
        )
        vacuumed = vacuum.apply(table, dead)
        old = clean_log.plan(
            table.snapshot(),
            CleanLogOptions(log_retention=now, holders=holders, to_the_minute=True, **FLAGS),
            at,
        )
        cleaned = clean_log.apply(table, old)
        self.spark.forget()
        files = sum(group.deleted for group in cleaned.groups)
        return vacuumed.deleted, files, sum(each.files for each in dead.held)


def read_some(stream: Stream, batches: int) -> None:
    """Stops a stream in the middle, after it has read this many more batches."""
    commits = stream.state / "commits"
    done = len(list(commits.glob("[0-9]*")))
    query = stream.start(available_now=False)
    deadline = time.monotonic() + 300
    while query.isActive() and len(list(commits.glob("[0-9]*"))) < done + batches:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    if not query.exception().isEmpty():
        raise AssertionError(query.exception().get().toString())
    query.stop()


def test_streams_lose_and_repeat_no_row_across_deletions_of_everything_else(
    delta_spark: DeltaSpark, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    path = tmp_path / "table"
    create(
        delta_spark,
        path,
        "id BIGINT, text STRING, part STRING",
        enableDeletionVectors="true",
        enableChangeDataFeed="true",
    )
    table = Table(delta_spark, path)
    table.append()
    slow = {"maxFilesPerTrigger": "1"}
    streams = {
        "plain": Stream(
            delta_spark, path, tmp_path / "plain", {"skipChangeCommits": "true", **slow}
        ),
        "feed": Stream(
            delta_spark,
            path,
            tmp_path / "feed",
            {"readChangeFeed": "true", "startingVersion": "1", **slow},
        ),
    }
    for name in streams:
        (tmp_path / name).mkdir()
    holders = Holders(
        readers=tuple(
            Reader(kind="stream", name=name, address=str(tmp_path / name / "state"))
            for name in streams
        )
    )
    deleted = Counter[str]()
    for _ in range(ROUNDS):
        # The first round stops in the snapshot with which a stream begins.
        read_some(streams["plain"], 2)
        read_some(streams["feed"], 1)
        table.append()
        table.change()
        data, log, held = table.maintain(holders)
        deleted.update(data=data, log=log, held=held)
    inserted = {key: count for key, count in table.changes.items() if key[1] == "insert"}
    assert streams["plain"].read() == inserted
    assert streams["feed"].read() == table.changes
    data, log, _ = table.maintain(holders)
    assert deleted["held"] > 0 and data > 0 and log > 0
    deleted.update(data=data, log=log)
    for name, count in deleted.items():
        count_cases(f"{name} files", count)

"""Checkpoints, hints and checksums of Delta Spark and of deltalake never contradict their log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from delta_maintenance import open_table
from delta_maintenance.table.evidence.contradictions import find_contradiction
from tests.support.logs.contradicted_logs import RandomLog
from tests.support.oracle.recordings import RecordedSpark
from tests.support.suite.play import some
from tests.support.tables.actions import commit_info, metadata

pytestmark = pytest.mark.recorded

TABLES = some(range(200), 4)


def write(log: RandomLog, chance: random.Random, *, policy: str | None = None) -> None:
    """Writes commits up to the version to be checkpointed."""
    if policy is not None:
        log.table.commit(
            [commit_info("SET"), metadata(configuration={"delta.checkpointPolicy": policy})]
        )
    for _ in range(chance.randint(2, 8)):
        log.commit()


def require_no_contradiction(root: Path) -> None:
    snapshot = open_table(root).snapshot()
    assert snapshot.log.checkpoint is not None
    assert find_contradiction(snapshot) is None
    assert not snapshot.warnings


@pytest.mark.parametrize("number", TABLES)
def test_delta_spark(number: int, recorded_spark: RecordedSpark, tmp_path: Path) -> None:
    chance = random.Random(number)
    log = RandomLog(tmp_path, chance)
    write(log, chance, policy=chance.choice([None, "classic", "v2"]))
    for _ in range(chance.randint(1, 2)):
        recorded_spark.forget()
        recorded_spark.checkpoint(tmp_path)
        require_no_contradiction(tmp_path)
        recorded_spark.sql(f"INSERT INTO delta.`{tmp_path}` VALUES (1, 'x')")
        recorded_spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id % 7 = {chance.randint(0, 6)}")
        require_no_contradiction(tmp_path)


@pytest.mark.parametrize("number", TABLES)
def test_deltalake(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    log = RandomLog(tmp_path, chance)
    write(log, chance)
    for _ in range(chance.randint(1, 2)):
        DeltaTable(tmp_path).create_checkpoint()
        require_no_contradiction(tmp_path)
        log.commit()
        require_no_contradiction(tmp_path)

"""Delta Spark cleans a log up while our processes write, checkpoint and clean it, until SIGKILL.

`DELTA_MAINTENANCE_SPARK_KILLS` sets the number of rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from delta_maintenance.protocol.delta_log import commit_name
from tests.operations.checkpoint.test_incremental_processes import (
    age,
    begin,
    fork_server,
    keep,
    require_whole,
    write,
)
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.tables.table_builder import LOG

__all__ = ["fork_server"]

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ROUNDS = int(os.environ.get("DELTA_MAINTENANCE_SPARK_KILLS", "3"))
SECONDS = 0.6
"""The length of a round."""


@pytest.mark.conformance("CLEAN-08", "CLEAN-10", "CKPT-25")
def test_killed_processes_lose_no_sidecar_while_delta_spark_cleans_up(
    delta_spark: DeltaSpark,
    fork_server: Callable[[Path, float], list[int]],
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
) -> None:
    begin(tmp_path)
    cleaned = incremental = 0
    with ThreadPoolExecutor(1) as pool:
        for _ in range(ROUNDS):
            killed = pool.submit(fork_server, tmp_path, SECONDS)
            cleaned += clean_until(killed, delta_spark, tmp_path)
            assert set(killed.result()) == {-9}, "a process ended by itself"
            require_whole(tmp_path)
            # The newest checkpoint may be too old for the first one, or have no file in common.
            for _ in range(2):
                write(str(tmp_path))
                incremental += keep(str(tmp_path))
            cleaned += clean(delta_spark, tmp_path)
            require_whole(tmp_path)
            age(tmp_path)
    count_cases("clean-ups of Delta Spark beside killed processes", cleaned)
    assert cleaned, "Delta Spark never cleaned up"
    assert incremental, "no sidecar was ever taken over"
    assert not (tmp_path / LOG / commit_name(0)).exists(), "nothing was ever cleaned up"


def clean_until(killed: Future[list[int]], spark: DeltaSpark, path: Path) -> int:
    """Cleans the log up again and again; returns how often that came to its end."""
    cleaned = 0
    while not killed.done():
        cleaned += clean(spark, path)
    return cleaned


def clean(spark: DeltaSpark, path: Path) -> int:
    """1 if the clean-up came to its end; 0 if the log changed too much while Spark read it."""
    try:
        spark.clean_up(path)
    except Py4JJavaError:
        return 0
    return 1

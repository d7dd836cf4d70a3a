"""Erasure reports against Delta Spark: *erased* is not said while a version of it has the row."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.suite.play import examples
from tests.support.tables.erasure_histories import VALUE, History

pytestmark = [pytest.mark.oracle, pytest.mark.spark]


def versions_with_rows(spark: DeltaSpark, history: History) -> list[int]:
    """The versions of which Delta Spark returns the row."""
    found = []
    for version in range(history.version + 1):
        query = f"SELECT * FROM delta.`{history.root}` VERSION AS OF {version}"
        # It opens no version whose log was cleaned, and reads none whose files are gone.
        with suppress(Exception):
            rows = [json.loads(row) for row in spark.rows(query)]
            values = {str(value).removesuffix(".00") for row in rows for value in row.values()}
            if values & {str(VALUE), f"{VALUE}.0"}:
                found.append(version)
    return found


def test_erased_is_never_said_while_delta_spark_returns_the_row(
    delta_spark: DeltaSpark, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    erased, seed, is_read = 0, 3000, False
    while erased < examples(5) or not is_read:
        history = History(tmp_path / str(seed), seed, features=seed % 4 != 0)
        history.play(history.random.randint(2, 8))
        is_erased = history.report().status == "erased"
        if is_erased:
            erased += 1
            found = versions_with_rows(delta_spark, history)
            assert not found, (seed, history.steps, found)
        elif not is_read:
            # It returns such rows where they are.
            is_read = bool(versions_with_rows(delta_spark, history))
        seed += 1
    count_cases("histories that are called erased, and Delta Spark returns no row", erased)

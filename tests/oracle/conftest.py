"""Delta Spark, started once for the whole group, or the reason why it is not available."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable
from tests.support.oracle.oracle_tables import Bench

JARS = Path(__file__).parents[2] / ".tools" / "ivy"

UNAVAILABLE = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def delta_spark(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[DeltaSpark]:
    """A running Delta Spark; without its jars, the group is skipped with a notice."""
    try:
        spark = DeltaSpark(jars=JARS, scratch=tmp_path_factory.mktemp("delta-spark"))
    except OracleUnavailable as reason:
        pytestconfig.stash[UNAVAILABLE] = str(reason)
        pytest.skip(f"NO ORACLE: {reason}")
    yield spark
    spark.close()


@pytest.fixture(scope="session")
def bench(delta_spark: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The oracle with its tables."""
    return Bench(delta_spark, tmp_path_factory.mktemp("tables"))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Reports once, at the end, that the tests with Delta Spark were skipped."""
    if (reason := config.stash.get(UNAVAILABLE, None)) is not None:
        terminalreporter.write_line(
            f"WARNING: every test against Delta Spark was skipped: {reason}", yellow=True, bold=True
        )

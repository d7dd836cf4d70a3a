"""Delta Spark, started once for the whole group, or the reason why it is not available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from delta_maintenance.clock import epoch_millis, instant
from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable
from tests.support.oracle.oracle_tables import Bench
from tests.support.oracle.recordings import FOLDER, Mode, RecordedSpark, Recording, repeatable

JARS = Path(__file__).parents[2] / ".tools" / "ivy"

UNAVAILABLE = pytest.StashKey[str]()
SAMPLE = pytest.StashKey[set[str]]()
"""The tests with recorded answers that ask Delta Spark all the same: the first of each module."""

StartSpark = Callable[[], DeltaSpark]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first: dict[str, str] = {}
    for item in items:
        if item.get_closest_marker("recorded"):
            first.setdefault(item.nodeid.partition("::")[0], item.nodeid)
    config.stash[SAMPLE] = set(first.values())


@pytest.fixture(scope="session")
def start_spark(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[StartSpark]:
    """Starts Delta Spark at the first call; without its jars, tests are skipped with a notice."""
    started: list[DeltaSpark] = []

    def start() -> DeltaSpark:
        if not started:
            try:
                scratch = tmp_path_factory.mktemp("delta-spark")
                started.append(DeltaSpark(jars=JARS, scratch=scratch))
            except OracleUnavailable as reason:
                pytestconfig.stash[UNAVAILABLE] = str(reason)
                pytest.skip(f"NO ORACLE: {reason}")
        return started[0]

    yield start
    for spark in started:
        spark.close()


@pytest.fixture(scope="session")
def delta_spark(start_spark: StartSpark) -> DeltaSpark:
    """A running Delta Spark."""
    return start_spark()


@pytest.fixture(scope="module")
def recorded_module(
    request: pytest.FixtureRequest, start_spark: StartSpark
) -> Iterator[RecordedSpark]:
    """Delta Spark with the recorded answers for a module that is marked `recorded`."""
    config, path = request.config, request.path.relative_to(Path(__file__).parent)
    recording = Recording.read(FOLDER / path.with_suffix(".json.xz"))
    compared = request.node.get_closest_marker("recorded") is not None
    records = compared and config.getoption("--oracle") == "record"
    choice: Mode | Literal["sample"] = config.getoption("--oracle")
    # For fixtures of the module, which are set up before the first test.
    mode: Mode = "recorded" if choice == "sample" else choice
    spark = RecordedSpark(start_spark, recording, mode=mode, compared=compared)
    failed = request.session.testsfailed
    yield spark
    if records and request.session.testsfailed == failed:
        answers = recording.answers.items()
        recording.answers = {key: answer for key, answer in answers if key in spark.used}
        recording.write()


@pytest.fixture
def recorded_spark(
    recorded_module: RecordedSpark, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RecordedSpark]:
    """Delta Spark with its recorded answers; the product repeats the recorded run of the test."""
    spark, config, nodeid = recorded_module, request.config, request.node.nodeid
    if not spark.compared:
        yield spark
        return
    choice = config.getoption("--oracle")
    sampled = choice == "sample" and nodeid in config.stash[SAMPLE]
    mode: Mode = "live" if sampled else "recorded" if choice == "sample" else choice
    spark.mode, spark.answered, spark.asked = mode, 0, 0
    now = datetime.now(UTC)
    if nodeid in spark.recording.instants:
        now = instant(spark.recording.instants[nodeid])
    elif mode == "record":
        spark.recording.instants[nodeid] = epoch_millis(now)
    repeatable(monkeypatch, nodeid, now)
    yield spark
    missing = spark.asked if mode == "recorded" else 0
    request.node.user_properties.append(
        ("delta-spark", {"answered": spark.answered, "asked": spark.asked, "missing": missing})
    )


@pytest.fixture(scope="module")
def module_bench(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The tables of a module."""
    return Bench(recorded_module, tmp_path_factory.mktemp("tables"))


@pytest.fixture
def bench(module_bench: Bench, recorded_spark: RecordedSpark) -> Bench:
    """The oracle with its tables."""
    assert module_bench.spark is recorded_spark
    return module_bench


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Reports once, at the end, how many answers were recorded, and what was skipped."""
    if (reason := config.stash.get(UNAVAILABLE, None)) is not None:
        terminalreporter.write_line(
            f"WARNING: every test against Delta Spark was skipped: {reason}", yellow=True, bold=True
        )
    counts: Counter[str] = Counter()
    missing: set[str] = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                counted = dict(report.user_properties).get("delta-spark", {})
                counts.update(counted)
                if counted.get("missing"):
                    missing.add(report.nodeid)
    if counts:
        terminalreporter.write_line(
            f"Delta Spark: {counts['answered']} recorded answers were used, "
            f"{counts['asked']} questions were asked"
        )
    if counts["missing"]:
        terminalreporter.write_line(
            f"WARNING: {counts['missing']} questions have no recorded answer, and were asked: "
            f"record them with --oracle=record: {', '.join(sorted(missing))}",
            yellow=True,
        )

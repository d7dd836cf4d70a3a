"""Event logs that Spark has written while Delta Spark read a table, in each of their forms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import DeltaTable
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import create

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

QUERIES = ("a = 700", "a < 250 AND day = '2026-01-02'", "a = 700", "s LIKE 'k07%'", "a IN (3, 9)")


@contextmanager
def event_log(spark: DeltaSpark, folder: Path, **settings: str) -> Iterator[None]:
    """Writes the events of the block, with the settings of Spark unless others are given."""
    context = spark.jvm_session().sparkContext()
    conf = context.getConf().clone()
    for name, value in settings.items():
        conf.set(f"spark.eventLog.{name.replace('_', '.')}", value)
    folder.mkdir()
    listener: Any = spark.jvm.org.apache.spark.scheduler.EventLoggingListener(
        "app-20261126",
        spark.jvm.scala.Option.empty(),
        spark.jvm.java.net.URI(f"file://{folder}"),
        conf,
    )
    listener.start()
    context.addSparkListener(listener)
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(listener)
        listener.stop()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compress": "false"},
        {"rolling_enabled": "false"},
        {"rolling_enabled": "false", "compress": "false"},
    ],
    ids=["as Spark is installed", "rolled", "compressed", "plain"],
)
def test_the_conditions_of_an_event_log_are_those_of_its_queries(
    delta_spark: DeltaSpark, tmp_path: Path, settings: dict[str, str]
) -> None:
    path = tmp_path / "table"
    create(delta_spark, path, "a BIGINT, s STRING, day DATE", "PARTITIONED BY (day)")
    delta_spark.sql(
        f"INSERT INTO delta.`{path}` SELECT id, concat('k', lpad(cast(id AS STRING), 4, '0')), "
        "date_add(DATE'2026-01-01', cast(id / 800 AS INT)) FROM range(1600)"
    )
    delta_spark.forget()
    with event_log(delta_spark, tmp_path / "events", **settings):
        for condition in QUERIES:
            delta_spark.rows(f"SELECT * FROM delta.`{path}` WHERE {condition}")
        delta_spark.rows("SELECT count(*) FROM range(7)")
    (log,) = (tmp_path / "events").iterdir()
    report = DeltaTable(str(path)).layout(queries=str(log))
    assert sum(each.runs for each in report.conditions) == len(QUERIES)
    assert not any(each.not_understood for each in report.conditions)
    files = {each.condition: each.files for each in report.conditions}
    assert len(files) == len(QUERIES) - 1
    assert files["isnotnull(day), (day = 2026-01-02), IsNotNull(a), LessThan(a,250)"] == 0
    assert sorted(files.values()) == [0, 1, 1, 1]

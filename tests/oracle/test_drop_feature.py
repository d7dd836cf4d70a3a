"""Delta Spark goes on after our drop, whose protocol is the one that it comes to itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from delta_bench import Bench
from delta_spark import DeltaSpark
from delta_spark_tables import copy
from droppable_tables import comparable

from delta_maintenance import clock, open_table
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.table.read.table import Table

pytestmark = [pytest.mark.oracle, pytest.mark.spark]


@dataclass(frozen=True)
class Case:
    """A table that Delta Spark writes, and the feature that it is to lose."""

    feature: str
    properties: str = ""
    statements: Sequence[str] = ()
    """With `{t}` for the table."""
    truncate: bool = False


CHECKED = "'delta.feature.vacuumProtocolCheck' = 'supported'"
CASES = {
    "vectors": Case(
        "deletionVectors",
        "'delta.enableDeletionVectors' = 'true'",
        # Vectors that only tombstones have left.
        ("DELETE FROM {t} WHERE id = 3", "DELETE FROM {t}", "INSERT INTO {t} VALUES (1, 'n')"),
    ),
    "v2-checkpoints": Case("v2Checkpoint", "'delta.checkpointPolicy' = 'v2'"),
    "row-tracking": Case(
        "rowTracking",
        "'delta.enableRowTracking' = 'true'",
        ("UPDATE {t} SET name = 'x' WHERE id = 1",),
    ),
    "commit-times": Case(
        "inCommitTimestamp",
        "",
        ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",),
    ),
    "vacuum-check": Case(
        "vacuumProtocolCheck", "'delta.feature.vacuumProtocolCheck' = 'supported'"
    ),
    "vacuum-check-truncated": Case(
        "vacuumProtocolCheck", "'delta.feature.vacuumProtocolCheck' = 'supported'", truncate=True
    ),
    "constraints": Case(
        "checkConstraints",
        "",
        (
            "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)",
            "ALTER TABLE {t} DROP CONSTRAINT positive",
        ),
    ),
    "domains": Case("domainMetadata", "'delta.feature.domainMetadata' = 'supported'"),
}


def written(spark: DeltaSpark, case: Case, path: Path) -> Path:
    properties = f"TBLPROPERTIES ({case.properties})" if case.properties else ""
    table = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {table} (id LONG, name STRING) USING delta {properties}")
    spark.sql(f"INSERT INTO {table} SELECT id + 1, 'n' FROM range(6)")
    for statement in case.statements:
        spark.sql(statement.format(t=table))
    return path


def dropped(table: Table, case: Case) -> drop_feature.DropFeatureResult:
    options = DropFeatureOptions(feature=case.feature, truncate_history=case.truncate)
    plan = drop_feature.plan(table.snapshot(), options, now=clock.now())
    return drop_feature.apply(table, plan)


@pytest.mark.conformance("FEAT-14", "FEAT-15", "RT-20", "DOM-05")
@pytest.mark.parametrize("name", CASES)
def test_delta_spark_drops_to_the_same_protocol_and_continues(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    spark, case = bench.spark, CASES[name]
    ours = written(spark, case, tmp_path / "ours")
    theirs = copy(ours, tmp_path / "theirs")
    rows = spark.rows(f"SELECT * FROM delta.`{ours}`")
    last = open_table(str(ours)).latest_version()

    result = dropped(open_table(str(ours)), case)
    assert result.status == "dropped"
    suffix = " TRUNCATE HISTORY" if case.truncate else ""
    spark.sql(f"ALTER TABLE delta.`{theirs}` DROP FEATURE {case.feature}{suffix}")

    found, expected = (open_table(str(path)).snapshot() for path in (ours, theirs))
    assert comparable(found.protocol.to_json()) == comparable(expected.protocol.to_json())
    protection = "delta.requireCheckpointProtectionBeforeVersion"
    kept = [
        {k: v for k, v in snapshot.metadata.configuration.items() if k != protection}
        for snapshot in (found, expected)
    ]
    assert kept[0] == kept[1]
    assert (protection in found.metadata.configuration) == (
        protection in expected.metadata.configuration
    )
    assert found.domain_metadata == expected.domain_metadata == {}

    spark.forget()
    assert spark.rows(f"SELECT * FROM delta.`{ours}`") == rows
    assert spark.rows(f"SELECT * FROM delta.`{ours}` VERSION AS OF {last}") == rows
    spark.sql(f"INSERT INTO delta.`{ours}` VALUES (100, 'later')")
    spark.checkpoint(ours)
    assert len(spark.rows(f"SELECT * FROM delta.`{ours}`")) == len(rows) + 1


def test_delta_spark_ends_what_we_began(bench: Bench, tmp_path: Path) -> None:
    spark = bench.spark
    case = Case("deletionVectors", "'delta.enableDeletionVectors' = 'true'", truncate=True)
    path = written(spark, case, tmp_path / "t")
    assert dropped(open_table(str(path)), case).status == "waiting"
    spark.forget()
    spark.sql(f"ALTER TABLE delta.`{path}` DROP FEATURE deletionVectors")
    protocol = open_table(str(path)).snapshot().protocol
    assert "deletionVectors" not in (protocol.writer_features or ())

"""Delta Spark enforces the constraints that we add, and would have added the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import add_constraint, set_properties
from delta_maintenance.operations.add_constraint import AddConstraintOptions, AddConstraintResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader
from delta_maintenance.table.read import Snapshot
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import copy
from tests.support.oracle.recordings import RecordedSpark

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

EXPRESSION = "number > 0"


@pytest.fixture(scope="module")
def written(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitioned, with a renamed column, deletion vectors and one file from before a column."""
    path = tmp_path_factory.mktemp("constraint") / "written"
    recorded_module.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, part DATE) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    rows = "SELECT id, CAST('2024-02-29' AS DATE) FROM range(-3, 5)"
    recorded_module.sql(f"INSERT INTO delta.`{path}` {rows}")
    recorded_module.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN id TO number")
    recorded_module.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN more STRUCT<a: INT>")
    recorded_module.sql(f"INSERT INTO delta.`{path}` VALUES (7, NULL, named_struct('a', 1))")
    recorded_module.sql(f"DELETE FROM delta.`{path}` WHERE number <= 0")
    return path


def live_rows(snapshot: Snapshot, *names: str) -> pa.Table:
    layout = RowLayout.of(snapshot, names, zone=None)
    reader = RowReader(snapshot.log.store, layout)
    found = [layout.schema.empty_table()]
    for batch in snapshot.log.scan(fields={"add": FILES.names}):
        files = batch.adds.select(FILES.names).cast(FILES)
        for number in range(files.num_rows):
            found += [
                pa.table(rows.columns, schema=layout.schema) for rows in reader.read(files, number)
            ]
    return pa.concat_tables(found)


def add_ours(path: Path, name: str = "Positive") -> AddConstraintResult:
    table = open_table(str(path))
    options = AddConstraintOptions(name=name, expression=EXPRESSION)
    plan = add_constraint.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return add_constraint.apply(table, plan)


def add_theirs(spark: DeltaSpark, path: Path) -> None:
    spark.forget()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT Positive CHECK ({EXPRESSION})")


def essence(path: Path) -> dict[str, Any]:
    snapshot = open_table(str(path)).snapshot()
    info = snapshot.log.state.commit_info
    assert info is not None
    protocol = snapshot.protocol
    return {
        "versions": (protocol.min_reader_version, protocol.min_writer_version),
        "readers": sorted(protocol.reader_features or ()),
        "writers": sorted(protocol.writer_features or ()),
        "configuration": snapshot.metadata.configuration,
        "schema": snapshot.metadata.schema_string,
        "operation": info.operation,
        "parameters": info.values["operationParameters"],
    }


@pytest.mark.conformance("CM-05", "DV-01", "SCHEMA-07")
def test_we_check_the_rows_that_delta_spark_reads(
    recorded_spark: RecordedSpark, written: Path
) -> None:
    ours = live_rows(open_table(str(written)).snapshot(), "number", "part", "more").to_pylist()
    rows = map(json.loads, recorded_spark.rows(f"SELECT * FROM delta.`{written}`"))
    theirs = [(row["number"], row.get("part"), row.get("more")) for row in rows]
    found = [(row["number"], str(row["part"] or "") or None, row["more"]) for row in ours]
    assert sorted(found, key=str) == sorted(theirs, key=str) and len(theirs) == 5


@pytest.mark.conformance("FEAT-12")
@pytest.mark.parametrize("legacy", [False, True])
def test_delta_spark_adds_the_same_constraint_and_enforces_ours(
    recorded_spark: RecordedSpark, written: Path, tmp_path: Path, legacy: bool
) -> None:
    source = written
    if legacy:
        source = tmp_path / "legacy"
        recorded_spark.sql(
            f"CREATE TABLE delta.`{source}` (number BIGINT) USING delta "
            "TBLPROPERTIES ('delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '2')"
        )
        recorded_spark.sql(f"INSERT INTO delta.`{source}` VALUES (1), (2)")
    ours, theirs = copy(source, tmp_path / "ours"), copy(source, tmp_path / "theirs")
    assert add_ours(ours).status == "committed"
    add_theirs(recorded_spark, theirs)
    assert essence(ours) == essence(theirs)

    more = "" if legacy else ", NULL, NULL"
    recorded_spark.sql(f"INSERT INTO delta.`{ours}` VALUES (9{more})")
    for bad in ("-1", "NULL"):
        with pytest.raises(Exception, match="(?i)check constraint positive"):
            recorded_spark.sql(f"INSERT INTO delta.`{ours}` VALUES ({bad}{more})")
    table = open_table(str(ours))
    options = SetPropertiesOptions(remove=("delta.constraints.positive",))
    plan = set_properties.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    assert set_properties.apply(table, plan).status == "committed"
    recorded_spark.forget()
    recorded_spark.sql(f"INSERT INTO delta.`{ours}` VALUES (-1{more})")


@pytest.mark.parametrize("bad", ["-1", "NULL"])
def test_delta_spark_finds_the_same_violating_rows(
    recorded_spark: RecordedSpark, written: Path, tmp_path: Path, bad: str
) -> None:
    path = copy(written, tmp_path / "violated")
    recorded_spark.sql(f"INSERT INTO delta.`{path}` VALUES ({bad}, NULL, NULL)")
    with pytest.raises(Exception, match="(?i)1 rows in .* violate the new CHECK constraint"):
        add_theirs(recorded_spark, path)
    result = add_ours(path)
    assert (result.status, result.checked.violations) == ("violated", 1)

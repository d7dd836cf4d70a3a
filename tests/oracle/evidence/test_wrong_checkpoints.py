"""Delta Spark and deltalake: they read what was repaired, and their checkpoints are not accused."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance import open_table
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.storage import open_store
from tests.operations.fsck.test_wrong_checkpoints import NOW, REPAIR, scenario
from tests.support.oracle.recordings import RecordedSpark
from tests.support.suite.play import examples, some
from tests.support.tables.wrong_checkpoints import KINDS, ROWS

pytestmark = pytest.mark.recorded

_ACCUSED = {
    "checkpoint-differs",
    "checksum-differs",
    "hint-differs",
    "missing-tombstones",
    "sidecar-differs",
    "sidecar-size",
    "sidecar-summary",
}
_PROPERTIES = {
    "delta.enableDeletionVectors": ("true", "false"),
    "delta.checkpointPolicy": ("classic", "v2"),
    "delta.deletedFileRetentionDuration": ("interval 0 hours", "interval 1 day", "interval 7 days"),
}


def accusations(path: Path) -> set[str]:
    """What fsck finds of checkpoints and checksums, once they are there and half a day later."""
    table = open_table(str(path))
    newest = max(file.stat().st_mtime for file in (path / "_delta_log").iterdir())
    found: set[str] = set()
    for hours in (0, 12):
        now = datetime.fromtimestamp(newest, UTC) + timedelta(hours=hours)
        found |= set(examine(table, now=now).findings.counts) & _ACCUSED
    return found


@pytest.mark.conformance("CKPT-32")
@pytest.mark.parametrize("kind", some(KINDS, 3))
def test_delta_spark_reads_the_rows_that_the_log_proves(
    recorded_spark: RecordedSpark, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "table"
    path.mkdir()
    table = scenario(kind, into=open_store(str(path)))
    query = f"SELECT count(*) FROM delta.`{path}`"
    right = str(ROWS * len(table.live))
    names = f"SELECT DISTINCT input_file_name() FROM delta.`{path}`"
    before = {name.rpartition("/")[2] for name in recorded_spark.rows(names)}
    assert "g2" in str(before) and "f0" not in str(before)

    opened = table.open()
    plan = fsck.plan(opened, REPAIR, context=RunContext.at(NOW))
    assert fsck.apply(opened, plan, RunContext.at(NOW)).status != "corrupt"
    recorded_spark.forget()

    assert right in recorded_spark.rows(query)[0]
    after = str(recorded_spark.rows(names))
    assert "g2" not in after and all(name in after for name in table.live)


@pytest.mark.parametrize("seed", range(examples(5)))
def test_checkpoints_of_delta_spark_are_not_accused(
    recorded_spark: RecordedSpark, tmp_path: Path, seed: int
) -> None:
    chance, path = random.Random(seed), tmp_path / "table"
    properties = ", ".join(
        f"'{key}' = '{chance.choice(values)}'" for key, values in _PROPERTIES.items()
    )
    recorded_spark.sql(
        f"CREATE TABLE delta.`{path}` (id LONG, part STRING) USING delta TBLPROPERTIES "
        f"({properties})"
    )
    for number in range(chance.randint(4, 10)):
        table, low = f"delta.`{path}`", chance.randint(0, 60)
        recorded_spark.sql(
            chance.choice(
                (
                    f"INSERT INTO {table} SELECT id, 'x' FROM range({number * 10}, {low + 90})",
                    f"DELETE FROM {table} WHERE id BETWEEN {low} AND {low + 9}",
                    f"UPDATE {table} SET part = 'u{number}' WHERE id % 7 = {low % 7}",
                    f"INSERT OVERWRITE {table} SELECT id, 'o' FROM range({low + 1})",
                    f"OPTIMIZE {table}",
                    f"ALTER TABLE {table} SET TBLPROPERTIES "
                    f"('delta.deletedFileRetentionDuration' = 'interval {low} hours')",
                )
            )
        )
        if chance.random() < 0.4:
            recorded_spark.checkpoint(path)
    recorded_spark.checkpoint(path)

    assert accusations(path) == set()


@pytest.mark.parametrize("seed", range(examples(8)))
def test_checkpoints_of_deltalake_are_not_accused(tmp_path: Path, seed: int) -> None:
    chance, path = random.Random(seed), str(tmp_path / "table")
    retention = chance.choice(_PROPERTIES["delta.deletedFileRetentionDuration"])

    def write(mode: Literal["append", "overwrite"]) -> None:
        rows = chance.randint(1, 30)
        data = pa.table({"id": range(rows), "part": ["x"] * rows})
        configuration = {"delta.deletedFileRetentionDuration": retention}
        deltalake.write_deltalake(path, data, mode=mode, configuration=configuration)

    write("append")
    for _ in range(chance.randint(4, 14)):
        table = deltalake.DeltaTable(path)
        match chance.choice(("append", "append", "overwrite", "delete", "optimize", "update")):
            case "delete":
                table.delete(f"id < {chance.randint(0, 20)}")
            case "update":
                table.update(updates={"part": "'u'"}, predicate="id > 3")
            case "optimize":
                table.optimize.compact()
            case "overwrite":
                write("overwrite")
            case _:
                write("append")
        if chance.random() < 0.4:
            deltalake.DeltaTable(path).create_checkpoint()
    deltalake.DeltaTable(path).create_checkpoint()

    assert accusations(Path(path)) == set()

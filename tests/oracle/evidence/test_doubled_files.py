"""Files whose removal failed, as other readers see them before and after the repair."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.storage import open_store
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import NOW, run
from tests.support.oracle.other_readers import DuckDb, duck
from tests.support.oracle.recordings import RecordedSpark
from tests.support.rewrites.data_files import DataTable, field, removed
from tests.support.tables import actions as log

pytestmark = pytest.mark.recorded

__all__ = ["duck"]

SPELLINGS = {
    "no vector": ("f", None),
    "tilde": ("a~b", "a%7Eb"),
    "plus": ("a+b", "a%2Bb"),
    "hexadecimal digits": ("a%C3%9Fb", "a%c3%9fb"),
    "composed": ("ü", "u\u0308"),
    "blank": ("a%20b", "a b"),
}


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def deltalake_ids(path: Path) -> list[int]:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return ids(pa.table(query.execute("SELECT id FROM t").read_all()))


@pytest.mark.parametrize("kind", SPELLINGS)
def test_every_reader_counts_each_row_once_after_the_repair(
    kind: str, tmp_path: Path, recorded_spark: RecordedSpark, duck: DuckDb
) -> None:
    path, removed_path = SPELLINGS[kind]
    made = DataTable(field("id", "long"), store=open_store(tmp_path), features=["deletionVectors"])
    literal = path.replace("%20", " ").replace("%C3%9F", "ß")
    made.append(pa.table({"id": [1, 2, 3]}), path=literal)
    made.live[literal]["path"] = path
    made.builder.commit([{"add": made.live[literal]}], version=1)
    remove = removed(made.live[literal])
    if removed_path is None:
        made.delete(literal, [0])
    else:
        remove["path"] = removed_path
    [copy] = made.append(pa.table({"id": [2, 3]}), commit=False)
    made.builder.commit([log.commit_info("OPTIMIZE"), {"remove": remove}, {"add": made.live[copy]}])

    def spark() -> list[int]:
        recorded_spark.forget()
        rows = recorded_spark.rows(f"SELECT id FROM delta.`{tmp_path}`")
        return [json.loads(row)["id"] for row in rows]

    kept = [2, 2, 3, 3] if kind == "no vector" else [1, 2, 2, 3, 3]
    assert ids(duck.rows(tmp_path)) == deltalake_ids(tmp_path) == kept
    if kind == "blank":
        with pytest.raises(Exception, match="CanonicalPathFunction"):
            spark()
    else:
        # Delta Spark's paths are equal if the digits of encoded bytes differ in case only.
        assert spark() == ([2, 3] if kind == "hexadecimal digits" else kept)

    result = run(Table(made.store), FsckOptions(remove_doubled_files=True), now=NOW)

    assert [(each.action, each.count) for each in result.repairs] == [("remove-doubled-files", 1)]
    assert ids(duck.rows(tmp_path)) == deltalake_ids(tmp_path) == [2, 3]
    assert kind == "blank" or spark() == [2, 3]


def test_delta_spark_reads_a_table_again_once_nulls_are_allowed(
    tmp_path: Path, recorded_spark: RecordedSpark
) -> None:
    made = DataTable(
        field("id", "long"), {**field("m", "string"), "nullable": False}, store=open_store(tmp_path)
    )
    made.append(pa.table({"id": [1, 2]}), pa.table({"id": [3], "m": ["x"]}))
    query = f"SELECT * FROM delta.`{tmp_path}`"
    kinds = {each.kind for each in run(Table(made.store), FsckOptions(deep=True)).findings}
    assert kinds == {"missing-not-null-column"}
    with pytest.raises(Exception, match="m"):
        recorded_spark.rows(query)

    recorded_spark.sql(f"ALTER TABLE delta.`{tmp_path}` ALTER COLUMN m DROP NOT NULL")

    assert len(recorded_spark.rows(query)) == 3
    before = optimize.plan(Table(made.store).snapshot(), context=RunContext.at(NOW))
    result = optimize.apply(Table(made.store), before, context=RunContext.at(NOW))
    assert (result.status, result.num_refused) == ("rewritten", 0)
    assert len(recorded_spark.rows(query)) == 3

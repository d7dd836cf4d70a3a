"""Data files with every encoding of the Parquet format, rewritten by executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from delta_maintenance.spark import job
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.submission import JobSpec
from tests.support.rewrites.encodings import FIRST, PARQUET_MR, encoded_table, encodings, rows
from tests.support.rewrites.table_rows import live_rows

pytestmark = pytest.mark.spark


def of_parquet_mr(spark: SparkSession, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files of parquet-mr with both versions of pages, with and without dictionaries."""
    pq.write_table(rows(40, FIRST), folder / "rows.parquet")
    made = spark.read.parquet(str(folder / "rows.parquet"))
    for version, timestamps in (("v1", "INT96"), ("v2", "TIMESTAMP_MICROS")):
        spark.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
        for dictionary in ("true", "false"):
            name = f"{version}-{'dictionary' if dictionary == 'true' else 'plain'}"
            made.coalesce(1).write.options(
                **{
                    "parquet.writer.version": version,
                    "parquet.enable.dictionary": dictionary,
                    "parquet.page.row.count.limit": "15",
                }
            ).parquet(str(folder / name))
            [file] = (folder / name).glob("*.parquet")
            yield f"{name}.parquet", file.read_bytes()
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


@pytest.mark.conformance("RW-08", "RW-13", "RW-42")
@pytest.mark.parametrize("operation", ["optimize", "purge"])
def test_every_encoding_of_every_type_is_rewritten(
    spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    files = dict(of_parquet_mr(spark, tmp_path))
    for name, data in files.items():
        kept = pq.read_metadata(PARQUET_MR / name)
        assert encodings(kept) == encodings(pq.read_metadata(pa.BufferReader(data)))
    store = LocalStore(str(tmp_path / "table"))
    made = encoded_table(tmp_path, [*files.values()], store=store, features=["deletionVectors"])
    for path in list(made.live):
        made.delete(path, [3, 17])
    before = live_rows(store)

    def told(operation: str, **options: object) -> dict[str, object]:
        return job.run(JobSpec(operation=operation, table=store.root, options=options), spark)

    assert told("fsck", deep=True)["counts"] == []
    result = told(operation)
    assert (result["status"], result["engine"], result["refused"]) == ("rewritten", "spark", [])
    assert live_rows(store) == before
    assert told("fsck", deep=True)["counts"] == []

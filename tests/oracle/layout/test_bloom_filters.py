"""Equality finds all rows after a rewrite of files with bloom filters.

The values of all row groups overlap, so that readers skip row groups by bloom filters alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import open_table
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.oracle.test_filtered_rows import optimized, purged
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.rewrites.other_writers import commit_file
from tests.support.rewrites.table_rows import live_adds
from tests.support.suite.play import PLAY

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

FILES, ROWS = 3, 2500
LITERALS = {
    "l": "{}",
    "i": "CAST({} AS INT)",
    "s": "'text {}'",
    "d": "CAST('{}.5' AS DOUBLE)",
    "y": "DATE '1970-01-01' + {}",
}
"""Columns, and the literal of each for a number."""
ASKED = (0, 3700, 7499)
DELETED = 4322
FILTERS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "parquet.bloom.filter.enabled": "true",
    "parquet.bloom.filter.max.bytes": "8192",
    # A column with a complete dictionary has no bloom filter.
    "parquet.enable.dictionary": "false",
    "parquet.block.size": "30000",
}


def rows(file: int) -> pa.Table:
    """Rows with every third number, in a random order."""
    numbers = random.Random(file).sample(range(file, FILES * ROWS, FILES), ROWS)
    return pa.table(
        {
            "l": pa.array(numbers, pa.int64()),
            "i": pa.array(numbers, pa.int32()),
            "s": [f"text {number}" for number in numbers],
            "d": [number + 0.5 for number in numbers],
            "y": pa.array(numbers, pa.int32()).cast(pa.date32()),
        }
    )


def by_parquet_mr(spark: DeltaSpark, path: Path, source: Path) -> None:
    with ExitStack() as settings:
        for name, value in FILTERS.items():
            settings.enter_context(spark.setting(name, value))
        spark.write(path, f"SELECT * FROM parquet.`{source}`")


def by_duckdb(spark: DeltaSpark, path: Path, source: Path) -> None:
    new = path / f"{source.stem}-duckdb.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM '{source}') TO '{new}' (FORMAT parquet, ROW_GROUP_SIZE 2048, "
            "DICTIONARY_SIZE_LIMIT 100000)"
        )
    commit_file(path, new.name, ROWS)


WRITERS: Mapping[str, Callable[[DeltaSpark, Path, Path], None]] = {
    "parquet-mr": by_parquet_mr,
    "DuckDB": by_duckdb,
}


def filters(path: Path) -> int:
    """The number of bloom filters of live files, each of which excludes most absent numbers."""
    found = 0
    with duckdb.connect() as connection:
        for name in live_adds(LocalStore(str(path))):
            file = path / name
            places = connection.execute(
                "SELECT bloom_filter_offset, bloom_filter_length, path_in_schema "
                f"FROM parquet_metadata('{file}') WHERE bloom_filter_offset IS NOT NULL"
            ).fetchall()
            assert all(4 <= at < at + size < file.stat().st_size for at, size, _ in places)
            for column in {column for _, _, column in places}:
                probes = [
                    f"SELECT bloom_filter_excludes AS x FROM parquet_bloom_probe("
                    f"'{file}', '{column}', {LITERALS[column].format(number)})"
                    for number in range(FILES * ROWS, FILES * ROWS + 10)
                ]
                answers = connection.execute(" UNION ALL ".join(probes)).fetchall()
                groups = sum(each == column for _, _, each in places)
                assert sum(excludes for (excludes,) in answers) > 8 * groups
            found += len(places)
    return found


REWRITES: Mapping[str, tuple[Callable[[Table], Any], bool]] = {
    "encoded": (optimized, False),
    "copied": (optimized, True),
    "purged": (purged, True),
}
IN_EVERY_RUN = (("parquet-mr", "purged"), ("DuckDB", "copied"), ("DuckDB", "encoded"))


@pytest.mark.conformance("RW-22", "RW-25")
@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("writer", WRITERS)
def test_equality_finds_all_rows(
    delta_spark: DeltaSpark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    rewrite: str,
) -> None:
    if PLAY != "all" and (writer, rewrite) not in IN_EVERY_RUN:
        pytest.skip("only make nightly plays this rewrite")
    require("duckdb", "duckdb_extension_delta")
    path, (rewritten, copies) = tmp_path / "table", REWRITES[rewrite]
    if copies:
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    for file in range(FILES):
        source = tmp_path / f"{file}.parquet"
        pq.write_table(rows(file), source)
        if file == 0:
            nothing = f"SELECT * FROM parquet.`{source}` WHERE false"
            delta_spark.write(path, nothing, **{"delta.enableDeletionVectors": "true"})
        WRITERS[writer](delta_spark, path, source)
    if rewrite == "purged":
        delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE l = {DELETED}")
    numbers = ASKED if rewrite == "purged" else (*ASKED, DELETED)
    wanted = dict.fromkeys(LITERALS, len(numbers))
    asked = {
        column: [f"{column} = {literal.format(number)}" for number in (*ASKED, DELETED)]
        for column, literal in LITERALS.items()
    }
    by_spark = " UNION ALL ".join(
        f"SELECT '{column}' AS c, count(*) AS n FROM delta.`{path}` WHERE {' OR '.join(texts)}"
        for column, texts in asked.items()
    )

    def answers(duck: DuckDb) -> dict[str, int]:
        delta_spark.forget()
        counted = f"SELECT count(*) FROM delta_scan('{path}') WHERE "
        by_duck = {
            column: sum(duck.number(counted + text) for text in texts)
            for column, texts in asked.items()
        }
        assert by_duck == wanted
        return {line["c"]: line["n"] for line in map(json.loads, delta_spark.rows(by_spark))}

    before = filters(path)
    with closing(DuckDb()) as duck:
        assert answers(duck) == wanted
        result = rewritten(open_table(str(path)))
        assert result.status == "rewritten", result.problem
        assert answers(duck) == wanted
    left = filters(path)
    if rewrite == "copied":
        assert left == before > 0
    else:
        # Each column of each row group has a filter, as before.
        groups = sum(
            pq.read_metadata(path / name).num_row_groups
            for name in live_adds(LocalStore(str(path)))
        )
        assert before and left == groups * len(LITERALS)

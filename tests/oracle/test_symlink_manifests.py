"""After each of our verbs, the manifests are those that Delta Spark itself generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from delta_maintenance import DeltaTable
from tests.support.oracle.delta_spark import DeltaSpark

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

VALUES = ("'a b'", "'x/y'", "'50%'", "'ü=:{[^]}'", "'it\\'s'", "'C:\\\\d'", "''", "NULL")
MANIFESTS = "_symlink_format_manifest"


def manifests(path: Path) -> dict[str, list[str]]:
    """The lines of each manifest, by its path. Checksums of Hadoop are right or absent."""
    found = {}
    for file in (path / MANIFESTS).rglob("*"):
        if file.name == "manifest":
            found[str(file.relative_to(path))] = sorted(file.read_text().splitlines())
        else:
            assert file.is_dir() or file.name == ".manifest.crc"
    return found


def generated(spark: DeltaSpark, path: Path) -> dict[str, list[str]]:
    """The manifests that Delta Spark generates of the latest version."""
    spark.forget()
    spark.sql(f"GENERATE symlink_format_manifest FOR TABLE delta.`{path}`")
    return manifests(path)


@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p, n)"], ids=["whole", "partitioned"])
def test_manifests_after_each_verb_are_those_of_delta_spark(
    delta_spark: DeltaSpark, tmp_path: Path, by: str
) -> None:
    path = tmp_path / "ta ble"
    delta_spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, d DATE, p STRING, n INT) USING delta {by} "
        "TBLPROPERTIES ('delta.compatibility.symlinkFormatManifest.enabled' = 'true')"
    )
    rows = ", ".join(f"({n}, {value}, {n % 2})" for n, value in enumerate(VALUES))
    for day in ("2020-01-01", "2100-01-01", "2100-01-02"):
        delta_spark.sql(
            f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, DATE '{day}', p, n "
            f"FROM VALUES {rows} AS given(id, p, n)"
        )
    assert sum(map(len, manifests(path).values())) == (24 if by else 3)
    table = DeltaTable(str(path))
    for step in (
        lambda: table.expire(column="d", older_than="30d", allow_large_delete=True),
        lambda: table.optimize(full=True),
        lambda: delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE p = 'x/y' OR id = 0"),
        lambda: table.recompute_stats(),
    ):
        delta_spark.forget()
        before, version = manifests(path), table.snapshot().version
        step()
        ours = manifests(path)
        assert table.snapshot().version == version or ours != before
        assert ours == generated(delta_spark, path)
        assert not any("manifest" in finding.kind for finding in table.fsck().findings)
    kept = {line.rpartition("/")[2] for lines in manifests(path).values() for line in lines}
    read = delta_spark.data_files(path, "true")
    assert kept == read
    # The checksums that Spark wrote do not contradict what the library wrote over its files.
    spark_lines = delta_spark.rows(f"SELECT value FROM text.`{path}/{MANIFESTS}`")
    assert len(spark_lines) == len(read)

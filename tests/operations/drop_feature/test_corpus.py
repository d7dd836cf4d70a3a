"""Real tables lose each of their features, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shutil import copytree

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import (
    CorruptTableError,
    RefusedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.protocol.changes.drop import feature_names
from delta_maintenance.protocol.delta_log import checksum_name
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.table.read import Table
from tests.support.logs.checkpointing import as_checkpointed, state_of
from tests.support.rewrites.table_rows import live_rows

DROPPED = [
    ("dat-check_constraints", "deletionVectors"),
    ("deltars-checkpoint-v2-table", "v2Checkpoint"),
    ("deltars-table_with_partitioning_mapping", "deletionVectors"),
    ("golden-v2-checkpoint-json", "v2Checkpoint"),
    ("kernelrs-cdf-column-mapping-name-mode-3-7", "deletionVectors"),
    ("kernelrs-cdf-table-with-dv", "deletionVectors"),
    ("kernelrs-crc-full", "rowTracking"),
    ("kernelrs-partitioned_with_materialize_feature", "materializePartitionColumns"),
    ("kernelrs-v1-multi-part-struct-stats-only", "deletionVectors"),
    ("kernelrs-v2-checkpoints-json-with-sidecars", "v2Checkpoint"),
    ("kernelrs-v2-checkpoints-parquet-with-sidecars", "v2Checkpoint"),
    ("kernelrs-v2-parquet-sidecars-struct-stats-only", "v2Checkpoint"),
]
WRONG_CHECKSUM = "kernelrs-crc-full"
REFUSED = [
    ("dat-check_constraints", "checkConstraints", "constraint const1"),
    ("dat-iceberg_compat_v1", "columnMapping", "required by icebergCompatV1"),
    ("deltars-table_with_liquid_clustering", "rowTracking", "liquid"),
    ("golden-collations-table", "domainMetadata", "required by collations"),
    ("kernel-catalog-owned-preview", "inCommitTimestamp", "required by catalogManaged"),
    ("golden-table-with-icebegCompatV2Enabled", "columnMapping", "required by icebergCompatV2"),
    ("kernelrs-table-with-geo", "geospatial", "column geom"),
]


def now() -> datetime:
    return clock.now()


def copied(corpus: Path, name: str, tmp_path: Path) -> Table:
    root = tmp_path / "table"
    copytree(corpus / name, root, copy_function=_copy)
    inner = next(root.rglob("_delta_log")).parent
    return open_table(str(inner))


def _copy(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


@pytest.mark.conformance("FEAT-14", "FEAT-15")
@pytest.mark.parametrize(("name", "feature"), DROPPED)
def test_a_real_table_loses_its_feature_and_nothing_else(
    corpus: Path, name: str, feature: str, tmp_path: Path
) -> None:
    table = copied(corpus, name, tmp_path)
    if name == WRONG_CHECKSUM:
        with pytest.raises(CorruptTableError, match="0.crc contradicts the log"):
            drop_feature.plan(
                table.snapshot(), DropFeatureOptions(feature=feature), context=RunContext.at(now())
            )
        table.store.delete(f"_delta_log/{checksum_name(0)}")  # the remedy that fsck names
    latest = table.latest_version()
    before = {}
    for version in range(latest + 1):
        with suppress(VersionNotFoundError):
            before[version] = as_checkpointed(state_of(table.snapshot(version=version)))
    plan = drop_feature.plan(
        table.snapshot(), DropFeatureOptions(feature=feature), context=RunContext.at(now())
    )
    result = drop_feature.apply(table, plan, context=RunContext.at(now))
    assert result.status == "dropped"
    snapshot = table.snapshot()
    assert feature not in supported_features(snapshot.protocol)
    assert set(state_of(snapshot).live) == set(before[latest].live)
    for version, state in before.items():
        assert as_checkpointed(state_of(table.snapshot(version=version))) == state, version
    assert len(deltalake.DeltaTable(table.uri).file_uris()) == len(before[latest].live)


REWRITTEN = [
    ("dat-deletion_vectors", "deletionVectors"),
    ("golden-type-widening-nested", "typeWidening-preview"),
    ("kernel-basic-dv-with-checkpoint", "deletionVectors"),
]


@pytest.mark.conformance("FEAT-14", "DV-15", "TW-05")
@pytest.mark.parametrize(("name", "feature"), REWRITTEN)
def test_a_real_table_whose_files_use_its_feature_keeps_its_rows(
    corpus: Path, name: str, feature: str, tmp_path: Path
) -> None:
    table = copied(corpus, name, tmp_path)
    before = sorted(str(sorted(row[0])) for row in live_rows(table.store))
    assert before
    plan = drop_feature.plan(
        table.snapshot(), DropFeatureOptions(feature=feature), context=RunContext.at(now())
    )
    assert "rewrite-files" in [step.kind for step in plan.steps]
    result = drop_feature.apply(table, plan, context=RunContext.at(now))
    assert result.status == "dropped"
    found = deltalake.DeltaTable(table.uri).to_pyarrow_table().to_pylist()
    assert sorted(str(sorted(row.items())) for row in found) == before
    assert feature not in feature_names(table.snapshot().protocol)


MAPPED = [
    "deltars-table_with_partitioning_mapping",
    "golden-table-with-columnmapping-mode-id",
    "kernel-column-mapping-id",
    "kernel-data-reader-primitives-column-mapping-name",
    "kernelrs-cdf-column-mapping-id-mode",
    "kernelrs-golden-table-with-columnmapping-mode-name",
]


@pytest.mark.conformance("FEAT-14", "RW-38")
@pytest.mark.parametrize("name", MAPPED)
def test_deltalake_reads_the_same_rows_without_column_mapping(
    corpus: Path, name: str, tmp_path: Path
) -> None:
    table = copied(corpus, name, tmp_path)
    before = queried(table)
    assert before
    options = DropFeatureOptions(feature="columnMapping")
    plan = drop_feature.plan(table.snapshot(), options, context=RunContext.at(now()))
    assert drop_feature.apply(table, plan, context=RunContext.at(now)).status == "dropped"
    assert queried(table) == before
    assert "columnMapping." not in (table.snapshot().metadata.schema_string or "")


def queried(table: Table) -> list[str]:
    """The rows of a table as `deltalake` reads them."""
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.uri))
    found = pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()
    return sorted(map(repr, found))


@pytest.mark.conformance("FEAT-14", "CM-01")
@pytest.mark.parametrize(("name", "feature", "words"), REFUSED)
def test_a_real_table_that_uses_its_feature_keeps_it_and_reports_that(
    corpus: Path, name: str, feature: str, words: str, tmp_path: Path
) -> None:
    table = copied(corpus, name, tmp_path)
    before = table.latest_version()
    with pytest.raises((RefusedError, UnsupportedFeatureError), match=words):
        drop_feature.plan(
            table.snapshot(), DropFeatureOptions(feature=feature), context=RunContext.at(now())
        )
    assert table.latest_version() == before

"""Clients that lose access through a protocol change, and the limits of what is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.changes.client_support import CLIENTS, Impact, Support, impacts
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.features import FEATURES, FeatureKind

NEW = Protocol(min_reader_version=1, min_writer_version=2)
SAFE = ["appendOnly", "rowTracking", "deletionVectors", "v2Checkpoint", "columnMapping"]


def of(*features: str, before: Protocol = NEW) -> dict[str, Impact]:
    after = upgraded_protocol(before, features=features)
    return {impact.client: impact for impact in impacts(before, after)}


@pytest.mark.conformance("FEAT-18")
@pytest.mark.parametrize(
    ("feature", "client", "reading", "writing"),
    [
        ("v2Checkpoint", "Polars 2.1", Support.NO, Support.YES),
        ("v2Checkpoint", "Trino", Support.YES, Support.NO),
        ("v2Checkpoint", "Delta Spark 2.4", Support.NO, Support.NO),
        ("columnMapping", "Polars 2.1", Support.NO, Support.YES),
        ("columnMapping", "Databricks Runtime 10.4 LTS", Support.YES, Support.NO),
        (
            "deletionVectors",
            "delta-rs 1.6, to_pyarrow_table and to_pandas",
            Support.NO,
            Support.YES,
        ),
        ("deletionVectors", "Delta Spark 2.0 to 2.2", Support.NO, Support.NO),
        ("rowTracking", "delta-rs 1.6 (deltalake)", Support.YES, Support.NO),
        ("rowTracking", "Databricks Runtime 13.3 LTS", Support.YES, Support.NO),
        ("inCommitTimestamp", "Databricks Runtime 16.4 LTS", Support.YES, Support.UNKNOWN),
        ("variantShredding", "DuckDB (delta extension, kernel 0.21)", Support.NO, Support.NO),
        ("typeWidening", "DuckDB (delta extension, kernel 0.21)", Support.YES, Support.NO),
        ("typeWidening", "Databricks Runtime 14.3 LTS", Support.NO, Support.NO),
        ("typeWidening", "Databricks Runtime 15.4 LTS", Support.UNKNOWN, Support.UNKNOWN),
        ("typeWidening", "Delta Spark 3.1", Support.NO, Support.NO),
        ("typeWidening", "Delta Spark 3.3", Support.UNKNOWN, Support.UNKNOWN),
        ("icebergCompatV2", "Databricks Runtime 13.3 LTS", Support.YES, Support.NO),
        ("collations", "Delta Spark 4.4", Support.YES, Support.NO),
        ("collations", "Delta Spark 3.3", Support.YES, Support.NO),
    ],
)
def test_clients_that_lose_access_are_listed(
    feature: str, client: str, reading: Support, writing: Support
) -> None:
    impact = of(feature)[client]
    assert impact.reading == (Support.YES, reading)
    assert impact.writing == (Support.YES, writing)
    if client != "Databricks Runtime 10.4 LTS":
        assert feature in impact.features


@pytest.mark.parametrize(
    ("feature", "client"),
    [
        ("deletionVectors", "Polars 2.1"),
        ("deletionVectors", "Trino"),
        ("v2Checkpoint", "delta-rs 1.6 (deltalake)"),
        ("rowTracking", "Delta Spark 4.4"),
        ("rowTracking", "Databricks Runtime 14.3 LTS"),
        ("rowTracking", "DuckDB (delta extension, kernel 0.21)"),
    ],
)
def test_clients_that_keep_access_are_not_listed(feature: str, client: str) -> None:
    assert client in {known.name for known in CLIENTS}
    assert client not in of(feature)


@pytest.mark.conformance("FEAT-18")
def test_a_version_alone_blocks_clients_that_do_not_support_it() -> None:
    after = upgraded_protocol(NEW, reader_version=3)
    found = {impact.client: impact for impact in impacts(NEW, after)}
    assert found.keys() == {"Delta Spark 2.0 to 2.2", "Databricks Runtime 10.4 LTS"}
    for impact in found.values():
        assert (impact.reading[1], impact.writing[1]) == (Support.NO, Support.NO)
        assert impact.features == ()


@pytest.mark.conformance("FEAT-18")
def test_listing_an_implied_feature_blocks_a_client_that_checks_use() -> None:
    """At writer version 4 Trino writes as long as no column is generated.

    A legacy version only implies `generatedColumns`; Trino refuses the feature once it is listed.
    """
    fourth = upgraded_protocol(NEW, writer_version=4)
    implied = {impact.client: impact for impact in impacts(NEW, fourth)}["Trino"]
    assert (implied.writing, implied.features) == ((Support.YES, Support.UNKNOWN), ())
    listed = of("deletionVectors", before=fourth)["Trino"]
    assert listed.writing == (Support.UNKNOWN, Support.NO)
    assert listed.features == ("generatedColumns",)


def test_clients_without_access_before_are_not_listed() -> None:
    before = upgraded_protocol(NEW, features=["typeWidening"])
    assert "Polars 2.1" in of("typeWidening")
    assert "Polars 2.1" not in of("v2Checkpoint", before=before)


def test_a_writer_feature_never_blocks_readers() -> None:
    writers = [feature.name for feature in FEATURES if feature.kind is FeatureKind.WRITER]
    listed = Protocol(min_reader_version=1, min_writer_version=7, writer_features=tuple(writers))
    for impact in impacts(NEW, listed):
        assert impact.reading == (Support.YES, Support.YES)


@given(st.lists(st.sampled_from(SAFE)), st.lists(st.sampled_from(SAFE)))
def test_more_features_never_restore_access(some: list[str], more: list[str]) -> None:
    middle = upgraded_protocol(NEW, features=some)
    after = upgraded_protocol(middle, features=more)
    first = {i.client for i in impacts(NEW, middle) if Support.NO in (i.reading[1], i.writing[1])}
    assert first <= {i.client for i in impacts(NEW, after)}
    assert not impacts(after, after)


def test_clients_name_only_known_features() -> None:
    known = {feature.name for feature in FEATURES}
    for client in CLIENTS:
        assert client.reads | client.writes | client.unknown <= known
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)

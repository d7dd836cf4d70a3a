"""Names and values of table properties, and the feature that each activates."""

from __future__ import annotations

import pytest

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.changes.property_rules import (
    RULES,
    active_properties,
    controls_protocol,
    find_rule,
    require_removable,
    require_settable,
)
from delta_maintenance.protocol.features import find_feature
from delta_maintenance.protocol.features.properties import PARSERS


@pytest.mark.conformance("FEAT-17")
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("delta.logRetentionDuration", "interval 3 days", "interval 1 month"),
        ("delta.deletedFileRetentionDuration", "2 weeks", "garbage"),
        ("delta.setTransactionRetentionDuration", "90 minutes", "-1 days"),
        ("delta.checkpointInterval", "1", "0"),
        ("delta.checkpointPolicy", "v2", "V3"),
        ("delta.appendOnly", "TRUE", "maybe"),
        ("delta.dataSkippingNumIndexedCols", "-1", "-2"),
        ("delta.randomPrefixLength", "1", "0"),
        ("delta.dataSkippingStringPrefixLength", "0", "x"),
        ("delta.isolationLevel", "Serializable", "WriteSerializable"),
        ("delta.parquet.compression.codec", "ZSTD", "rar"),
        ("delta.parquet.format.version", "2.12.0", "3.0.0"),
        ("delta.columnMapping.mode", "name", "Name"),
        ("delta.targetFileSize", "128MB", "big"),
        ("delta.autoOptimize.autoCompact", "false", "auto"),
        ("delta.castIcebergTimeType", "True", "1"),
        ("delta.ignoreIcebergBucketPartition", "false", "no"),
        ("delta.universalFormat.iceberg.atomicConversion.supported", "true", ""),
    ],
)
def test_values_are_checked(name: str, good: str, bad: str) -> None:
    require_settable(name, good)
    with pytest.raises(InvalidRequestError, match=name.replace(".", r"\.")):
        require_settable(name, bad)


@pytest.mark.conformance("FEAT-17")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("delta.appendonly", "use delta.appendOnly"),
        ("delta.logRetentionDuratoin", "use delta.logRetentionDuration"),
        ("delta.enableChangeDataCapture", "use delta.enableChangeDataFeed"),
        ("Delta.appendOnly", "use delta.appendOnly"),
        ("delta.mine", "reserved"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(name: str, remedy: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        require_settable(name, "true")
    assert remedy in str(caught.value)


def test_user_properties_are_not_checked() -> None:
    for name in ("owner", "deltas", "my.delta.thing"):
        require_settable(name, "anything at all")
        require_removable(name)


@pytest.mark.conformance("CM-07")
@pytest.mark.parametrize(
    "name",
    [
        "delta.columnMapping.maxColumnId",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.rowTracking.materializedRowIdColumnName",
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        "delta.requireCheckpointProtectionBeforeVersion",
    ],
)
def test_managed_properties_cannot_be_set_or_removed(name: str) -> None:
    with pytest.raises(RefusedError):
        require_settable(name, "1")
    with pytest.raises(RefusedError):
        require_removable(name)


def test_a_constraint_can_be_removed_but_not_set() -> None:
    with pytest.raises(RefusedError, match="add-constraint"):
        require_settable("delta.constraints.positive", "id > 0")
    require_removable("delta.constraints.positive")


@pytest.mark.conformance("ICE-06")
def test_iceberg_compatibility_v3_can_only_be_disabled() -> None:
    name = "delta.enableIcebergCompatV3"
    require_settable(name, "false")
    require_removable(name)
    with pytest.raises(RefusedError, match="Delta Spark"):
        require_settable(name, "true")


def test_an_unknown_property_can_be_removed() -> None:
    require_removable("delta.liquid.clusteringColumns")


def test_every_parsed_property_has_a_rule() -> None:
    for name in PARSERS:
        assert find_rule(name) is not None
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.feature is None or find_feature(rule.feature) is not None


@pytest.mark.conformance("FEAT-16")
@pytest.mark.parametrize(
    "name",
    [
        "delta.feature.deletionVectors",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.ignoreProtocolDefaults",
    ],
)
def test_properties_that_control_the_protocol(name: str) -> None:
    assert controls_protocol(name)
    assert find_rule(name) is None


@pytest.mark.conformance("FEAT-11")
def test_a_property_is_active_only_with_its_feature() -> None:
    configuration = {"delta.appendOnly": "True", "delta.enableDeletionVectors": "true"}
    legacy = Protocol(min_reader_version=1, min_writer_version=2)
    assert active_properties(legacy, configuration) == {"delta.appendOnly": "appendOnly"}
    assert active_properties(legacy, {"delta.appendOnly": "FALSE"}) == {}

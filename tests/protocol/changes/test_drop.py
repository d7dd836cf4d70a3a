"""Droppable features, traces of their use, and the protocol without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.changes.drop import (
    FeatureRemoval,
    downgraded_protocol,
    feature_names,
    removal_of,
    require_removable,
)
from delta_maintenance.protocol.features import (
    FEATURES,
    FeatureKind,
    Operation,
    check_protocol,
    find_feature,
    misplaced_features,
    require_supported,
    supported_features,
)

DROPPABLE = {
    "checkConstraints",
    "checkpointProtection",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "geospatial",
    "inCommitTimestamp",
    "materializePartitionColumns",
    "rowTracking",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
WRITABLE = [feature.name for feature in FEATURES if Operation.CHANGE_METADATA in feature.operations]
BOTH = {feature.name for feature in FEATURES if feature.kind is FeatureKind.READER_WRITER}
SCHEMA = '{"type":"struct","fields":[]}'


def listed(names: set[str]) -> Protocol:
    readers = names & BOTH
    reader = 3 if readers - {"columnMapping"} else 2 if readers else 1
    return Protocol(
        min_reader_version=reader,
        min_writer_version=7,
        reader_features=tuple(sorted(readers)) if reader == 3 else None,
        writer_features=tuple(sorted(names)),
    )


legacy = st.sampled_from(
    [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (1, 5), (1, 6), (2, 2), (2, 4)]
).map(lambda pair: Protocol(min_reader_version=pair[0], min_writer_version=pair[1]))
protocols = st.one_of(legacy, st.sets(st.sampled_from(WRITABLE)).map(listed))


@pytest.mark.conformance("FEAT-07", "FEAT-14")
@given(protocols, st.data())
def test_all_other_features_stay_supported(protocol: Protocol, data: st.DataObject) -> None:
    before = supported_features(protocol)
    if not before:
        return
    name = data.draw(st.sampled_from(sorted(before)))
    adds = data.draw(st.sampled_from([(), ("checkpointProtection",)]))
    after = downgraded_protocol(protocol, name, adds=adds)
    assert supported_features(after) == (before - {name}) | set(adds)
    check_protocol(after)
    assert not misplaced_features(after)
    for operation in (Operation.READ, Operation.COMMIT):
        require_supported(after, operation)
    assert after.min_reader_version <= max(protocol.min_reader_version, 1)


@pytest.mark.conformance("FEAT-03", "FEAT-04")
@given(protocols, st.data())
def test_the_protocol_is_minimal(protocol: Protocol, data: st.DataObject) -> None:
    before = supported_features(protocol)
    if not before:
        return
    after = downgraded_protocol(protocol, data.draw(st.sampled_from(sorted(before))))
    left = supported_features(after)
    needed = [find_feature(name) for name in left]
    readers = [f.legacy_reader_version or 3 for f in needed if f and f.name in BOTH]
    assert after.min_reader_version == max(readers, default=1)
    if after.min_writer_version == 7:
        pairs = [(r, w) for w in range(1, 7) for r in range(1, 3)]
        assert all(
            supported_features(Protocol(min_reader_version=r, min_writer_version=w)) != left
            for r, w in pairs
        )
    else:
        lower = replace(after, min_writer_version=after.min_writer_version - 1)
        assert after.min_writer_version == 1 or supported_features(lower) != left


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (Protocol(min_reader_version=1, min_writer_version=4), "checkConstraints", {
            "appendOnly", "changeDataFeed", "generatedColumns", "invariants"}),
        (Protocol(min_reader_version=2, min_writer_version=5), "checkConstraints", {
            "appendOnly", "changeDataFeed", "columnMapping", "generatedColumns", "invariants"}),
    ],
)  # fmt: skip
def test_legacy_versions_become_feature_lists_if_needed(
    before: Protocol, name: str, after: set[str]
) -> None:
    found = downgraded_protocol(before, name)
    assert found.min_writer_version == 7
    assert found.min_reader_version == before.min_reader_version
    assert set(found.writer_features or ()) == after and found.reader_features is None


def test_unknown_fields_and_features_are_kept() -> None:
    before = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("timestampNTZ", "typeWidening-preview"),
        writer_features=("typeWidening-preview", "timestampNTZ", "columnInvariants"),
        extra={"note": 1},
    )
    after = downgraded_protocol(before, "typeWidening-preview")
    assert after.writer_features == ("timestampNTZ", "columnInvariants")
    assert after.reader_features == ("timestampNTZ",) and after.extra == {"note": 1}
    assert feature_names(before) == {"timestampNTZ", "typeWidening-preview", "columnInvariants"}


def test_droppable_features_are_those_of_delta_spark() -> None:
    for feature in FEATURES:
        if feature.name in DROPPABLE:
            removal = removal_of(feature.name)
            assert removal.feature == feature.name
            assert removal.protects_history == (feature.kind is FeatureKind.READER_WRITER)
            for alias in feature.aliases:
                assert removal_of(alias) is removal
        else:
            with pytest.raises(RefusedError, match="cannot be dropped"):
                removal_of(feature.name)
    with pytest.raises(UnsupportedFeatureError):
        removal_of("delta.enableDeletionVectors")


KEYS = [
    "delta.enableDeletionVectors",
    "delta.enableTypeWidening",
    "delta.checkpointPolicy",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.enableRowTracking",
    "delta.rowTrackingSuspended",
    "delta.requireCheckpointProtectionBeforeVersion",
    "delta.enableMaterializePartitionColumnsFeature",
    "user.own",
]
VALUES = ["true", "TRUE", "false", "False", "v2", "classic", "7", "", "maybe"]


@pytest.mark.conformance("FEAT-11", "FEAT-14")
@given(
    st.sampled_from(sorted(DROPPABLE)),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)),
)
def test_a_disabled_feature_leaves_no_trace(name: str, configuration: dict[str, str]) -> None:
    removal = removal_of(name)
    before = Metadata(id="t", schema_string=SCHEMA, configuration=configuration)
    after = removal.prepared(before)
    assert removal.metadata_trace(after) is None
    assert removal.prepared(after).configuration == after.configuration
    gone = removal.without(after).configuration
    touched = {key for key in KEYS if gone.get(key) != configuration.get(key)}
    assert "user.own" not in touched
    assert all(_belongs(key, removal) for key in touched), touched
    if removal.metadata_trace(before) is None and removal.history_trace(before) is not None:
        raise AssertionError("a history trace without a trace in the current metadata")


def _belongs(key: str, removal: FeatureRemoval) -> bool:
    own = {
        "deletionVectors": ("DeletionVectors",),
        "typeWidening": ("TypeWidening",),
        "v2Checkpoint": ("checkpointPolicy",),
        "inCommitTimestamp": ("InCommitTimestamp", "inCommitTimestamp"),
        "rowTracking": ("owTracking",),
        "checkpointProtection": ("requireCheckpointProtection",),
        "materializePartitionColumns": ("MaterializePartition",),
    }
    return any(part in key for part in own.get(removal.feature, ()))


@pytest.mark.conformance("FEAT-11")
@pytest.mark.parametrize("name", ["deletionVectors", "typeWidening", "v2Checkpoint"])
def test_unreadable_metadata_counts_as_use(name: str) -> None:
    key = {"v2Checkpoint": "delta.checkpointPolicy", "deletionVectors": KEYS[0]}.get(name, KEYS[1])
    metadata = Metadata(id="t", schema_string=SCHEMA, configuration={key: "maybe"})
    assert removal_of(name).metadata_trace(metadata) is not None


def test_a_missing_schema_counts_as_use() -> None:
    protocol = Protocol(min_reader_version=2, min_writer_version=5)
    with pytest.raises(RefusedError, match="schema"):
        require_removable("columnMapping", protocol, Metadata(id="t", schema_string=None), ())


@pytest.mark.parametrize(
    ("feature", "dependant"),
    [
        (required, feature.name)
        for feature in FEATURES
        for required in feature.requires
        if required in DROPPABLE
    ],
)
def test_only_a_droppable_dependant_must_be_dropped_first(feature: str, dependant: str) -> None:
    with pytest.raises(RefusedError, match=f"required by {dependant}") as refused:
        require_removable(
            feature, listed({feature, dependant}), Metadata(id="t", schema_string=SCHEMA), ()
        )
    if dependant in DROPPABLE:
        assert refused.value.remedy == f"drop {dependant} first"
    else:
        assert refused.value.remedy == f"keep {feature}, because {dependant} cannot be dropped"

"""Protocols: validity, supported features, and the operations allowed under them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.features import (
    FEATURES,
    FeatureKind,
    Operation,
    check_protocol,
    find_feature,
    misplaced_features,
    require_supported,
    supported_features,
    supports,
    with_requirements,
)

WRITES = [operation for operation in Operation if operation is not Operation.READ]


def protocol(
    reader: int, writer: int, readers: list[str] | None = None, writers: list[str] | None = None
) -> Protocol:
    return Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=None if readers is None else tuple(readers),
        writer_features=None if writers is None else tuple(writers),
    )


def listing(*names: str) -> Protocol:
    """A (3, 7) protocol that lists each name where it belongs; unknown ones are for writers."""
    readers = [
        name
        for name in names
        if (feature := find_feature(name)) is not None and feature.kind is FeatureKind.READER_WRITER
    ]
    return protocol(3, 7, readers, list(names))


LEGACY = {
    1: set(),
    2: {"appendOnly", "invariants"},
    3: {"appendOnly", "invariants", "checkConstraints"},
    4: {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"},
}
LEGACY[5] = LEGACY[4]
LEGACY[6] = LEGACY[4] | {"identityColumns"}


@pytest.mark.conformance("FEAT-03")
@pytest.mark.parametrize("reader", [1, 2])
@pytest.mark.parametrize("writer", [1, 2, 3, 4, 5, 6])
def test_legacy_pair_implies_its_features(reader: int, writer: int) -> None:
    expected = LEGACY[writer] | ({"columnMapping"} if reader == 2 and writer >= 5 else set())
    assert supported_features(protocol(reader, writer)) == expected
    for operation in Operation:
        require_supported(protocol(reader, writer), operation)


@pytest.mark.conformance("FEAT-03")
def test_writer_version_seven_implies_nothing() -> None:
    assert supported_features(protocol(1, 7, None, [])) == frozenset()
    assert supported_features(protocol(3, 7, [], [])) == frozenset()


@pytest.mark.conformance("FEAT-03", "FEAT-05", "CM-01")
@pytest.mark.parametrize(
    ("given_protocol", "expected"),
    [
        (protocol(2, 7, None, ["columnMapping"]), True),
        (protocol(3, 7, ["columnMapping"], ["columnMapping"]), True),
        (protocol(3, 7, [], ["columnMapping"]), True),
        (protocol(1, 7, None, ["columnMapping"]), False),
        (protocol(2, 7, None, []), False),
        (protocol(2, 4), False),
        (protocol(1, 5), False),
    ],
)
def test_column_mapping_requires_reader_version_2(given_protocol: Protocol, expected: bool) -> None:
    assert supports(given_protocol, "columnMapping") is expected


@pytest.mark.conformance("FEAT-10", "DRAFT-01")
@pytest.mark.parametrize(
    ("draft", "final"),
    [
        ("timestampNTZ", "timestampNtz"),
        ("columnInvariants", "invariants"),
        ("typeWidening-preview", "typeWidening"),
        ("variantType-preview", "variantType"),
        ("catalogOwned-preview", "catalogManaged"),
    ],
)
def test_draft_name_counts_as_its_final_feature_once(draft: str, final: str) -> None:
    assert supported_features(listing(draft, final)) == {final}
    assert supports(listing(draft), final)


@pytest.mark.conformance("FEAT-10")
@pytest.mark.parametrize("name", ["TimestampNtz", "deletionvectors", "appendonly", " appendOnly"])
def test_name_in_another_spelling_is_unknown(name: str) -> None:
    assert find_feature(name) is None
    with pytest.raises(UnsupportedFeatureError, match=name):
        require_supported(protocol(3, 7, [name], [name]), Operation.READ)


@pytest.mark.conformance("FEAT-04")
@pytest.mark.parametrize(
    "legal",
    [
        protocol(1, 1),
        protocol(2, 6),
        protocol(1, 7, None, ["appendOnly"]),
        protocol(2, 7, None, ["columnMapping"]),
        protocol(3, 7, [], []),
        protocol(99, 7, [], []),
        protocol(99, 99),
    ],
)
def test_valid_protocols_pass(legal: Protocol) -> None:
    check_protocol(legal)


@pytest.mark.conformance("FEAT-04")
@pytest.mark.parametrize(
    ("illegal", "named"),
    [
        (protocol(0, 2), "below 1"),
        (protocol(1, 0), "below 1"),
        (protocol(3, 6, []), "requires writer version 7"),
        (protocol(3, 7, None, []), "lacks readerFeatures"),
        (protocol(3, 7, [], None), "lacks writerFeatures"),
        (protocol(1, 7), "lacks writerFeatures"),
        (protocol(2, 7, [], []), "must not have readerFeatures"),
        (protocol(1, 2, None, []), "must not have writerFeatures"),
        (protocol(4, 6), "requires writer version 7"),
    ],
)
def test_invalid_protocols_are_corruption(illegal: Protocol, named: str) -> None:
    with pytest.raises(CorruptTableError, match=named):
        check_protocol(illegal)
    for operation in Operation:
        with pytest.raises(CorruptTableError, match=r"table t, version 4: .*"):
            require_supported(illegal, operation, table="t", version=4)


@pytest.mark.conformance("FEAT-01")
def test_higher_versions_are_refused_where_they_matter() -> None:
    with pytest.raises(UnsupportedFeatureError, match="reader version 99"):
        require_supported(protocol(99, 7, [], []), Operation.READ)
    require_supported(protocol(3, 8, [], []), Operation.READ)
    for operation in WRITES:
        with pytest.raises(UnsupportedFeatureError, match="writer version 8"):
            require_supported(protocol(3, 8, [], []), operation)


@pytest.mark.conformance("FEAT-02", "CKPT-31", "VAC-01", "CLEAN-16")
def test_an_unknown_writer_feature_allows_only_reading() -> None:
    for version in (1, 3):
        unknown = protocol(version, 7, [] if version == 3 else None, ["fromTheFuture"])
        require_supported(unknown, Operation.READ)
        for operation in WRITES:
            with pytest.raises(UnsupportedFeatureError, match=r"fromTheFuture \(unknown\)"):
                require_supported(unknown, operation)


@pytest.mark.conformance("FEAT-01")
def test_a_refusal_names_all_missing_features_and_a_remedy() -> None:
    bad = protocol(3, 7, ["zeta", "v2Checkpoint", "alpha"], ["zeta", "v2Checkpoint", "alpha"])
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(bad, Operation.READ, table="s3://b/t", version=12)
    assert str(caught.value) == (
        "table s3://b/t, version 12: read is not supported with table features alpha (unknown), "
        "zeta (unknown); use an engine or a newer release that supports this operation on such "
        "tables"
    )
    assert caught.value.exit_status == 3


@pytest.mark.conformance("FEAT-05")
def test_a_reader_feature_not_listed_for_writers_allows_only_reading() -> None:
    lopsided = protocol(3, 7, ["deletionVectors"], ["appendOnly"])
    require_supported(lopsided, Operation.READ)
    assert supports(lopsided, "deletionVectors")
    for operation in (Operation.CHECKPOINT, Operation.COMMIT):
        with pytest.raises(UnsupportedFeatureError, match="deletionVectors and writerFeatures"):
            require_supported(lopsided, operation)


@pytest.mark.conformance("FEAT-05")
@pytest.mark.parametrize(
    ("lists", "misplaced"),
    [
        (protocol(2, 7, None, ["columnMapping"]), set()),
        (protocol(3, 7, ["columnMapping"], ["columnMapping", "appendOnly"]), set()),
        (protocol(3, 7, [], ["columnMapping"]), {"columnMapping"}),
        (protocol(1, 7, None, ["columnMapping"]), {"columnMapping"}),
        (protocol(2, 7, None, ["deletionVectors"]), {"deletionVectors"}),
        (protocol(3, 7, ["deletionVectors"], []), {"deletionVectors"}),
        (protocol(3, 7, ["appendOnly"], ["appendOnly"]), {"appendOnly"}),
        (protocol(3, 7, ["new"], ["new", "newer"]), set()),
        (protocol(1, 2), set()),
    ],
)
def test_features_in_the_wrong_lists_are_found(lists: Protocol, misplaced: set[str]) -> None:
    assert misplaced_features(lists) == misplaced


READS_ONLY = [
    "rowIds",
    "delta.rowIds",
    "liquid",
    "coordinatedCommits-preview",
    "managedCommit-preview",
    "managed-commit-dev",
    "inCommitTimestamp-preview",
    "columnMappingUsageTracking",
    "redirectWriterOnly-preview",
]


@pytest.mark.conformance("DRAFT-03", "FEAT-02")
@pytest.mark.parametrize("name", READS_ONLY)
def test_read_only_features_refuse_writes_with_a_reason(name: str) -> None:
    require_supported(listing(name), Operation.READ)
    feature = find_feature(name)
    assert feature is not None
    for operation in WRITES:
        with pytest.raises(UnsupportedFeatureError) as caught:
            require_supported(listing(name), operation)
        assert f"{name} ({feature.note})" in str(caught.value)


@pytest.mark.conformance("DRAFT-03")
def test_draft_row_ids_name_the_migration() -> None:
    with pytest.raises(UnsupportedFeatureError, match="migrate to rowTracking"):
        require_supported(listing("delta.rowIds"), Operation.CHECKPOINT)


@pytest.mark.parametrize(
    "name",
    [
        "adaptiveMetadata-preview",
        "adaptiveMetadata",
        "redirectReaderWriter-preview",
        "timestampNanos",
    ],
)
def test_features_with_state_elsewhere_refuse_reading(name: str) -> None:
    for lists in (listing(name), protocol(1, 7, None, [name])):
        for operation in Operation:
            with pytest.raises(UnsupportedFeatureError, match=name):
                require_supported(lists, operation)


@pytest.mark.conformance("CAT-01")
@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned-preview"])
def test_what_a_catalog_managed_table_can_have_without_a_commit(name: str) -> None:
    allowed = {
        Operation.READ,
        Operation.CHECKPOINT,
        Operation.CHECKSUM,
        Operation.COMPACT_LOG,
        Operation.CLEAN_STAGED,
    }
    for operation in Operation:
        if operation in allowed:
            require_supported(listing(name), operation)
        else:
            with pytest.raises(UnsupportedFeatureError, match="catalog"):
                require_supported(listing(name), operation)


@pytest.mark.conformance("FEAT-01")
def test_the_former_name_of_catalog_managed_is_unknown() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"catalogOwned \(unknown\)"):
        require_supported(protocol(3, 7, ["catalogOwned"], ["catalogOwned"]), Operation.READ)


@pytest.mark.conformance("ICE-06")
@pytest.mark.parametrize("name", ["icebergCompatV3", "icebergWriterCompatV1"])
def test_iceberg_compatibility_v3_forbids_data_and_property_changes(name: str) -> None:
    for operation in (Operation.CHECKPOINT, Operation.COMPACT_LOG, Operation.VACUUM):
        require_supported(listing(name), operation)
    for operation in (Operation.REWRITE_DATA, Operation.CHANGE_METADATA):
        with pytest.raises(UnsupportedFeatureError, match=name):
            require_supported(listing(name), operation)


CHECKPOINTABLE = [
    "allowColumnDefaults",
    "appendOnly",
    "catalogManaged",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",
    "clustering",
    "collations",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "geospatial",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "icebergWriterCompatV1",
    "icebergWriterCompatV3",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "rowTracking",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantShredding",
    "variantType",
]


@pytest.mark.conformance("CKPT-31", "VAC-02")
def test_features_with_copied_state_allow_checkpoints() -> None:
    allowed = {f.name for f in FEATURES if Operation.CHECKPOINT in f.operations}
    assert sorted(allowed) == CHECKPOINTABLE


@pytest.mark.conformance("FEAT-09")
@pytest.mark.parametrize(
    ("name", "closure"),
    [
        ("appendOnly", {"appendOnly"}),
        ("rowTracking", {"rowTracking", "domainMetadata"}),
        ("clustering", {"clustering", "domainMetadata"}),
        ("variantShredding", {"variantShredding", "variantType"}),
        (
            "icebergWriterCompatV3",
            {
                "icebergWriterCompatV3",
                "icebergCompatV3",
                "rowTracking",
                "domainMetadata",
                "columnMapping",
            },
        ),
    ],
)
def test_requirements_are_transitive(name: str, closure: set[str]) -> None:
    assert with_requirements([name]) == closure


def test_the_table_of_features_is_consistent() -> None:
    names = [name for feature in FEATURES for name in (feature.name, *feature.aliases)]
    assert len(names) == len(set(names))
    for feature in FEATURES:
        assert {f for f in feature.requires if find_feature(f) is None} == set()
        assert bool(feature.note) == (feature.operations != frozenset(Operation))
        # A writer must be able to read what it writes to.
        assert not feature.operations or Operation.READ in feature.operations


names = st.sampled_from(
    [name for feature in FEATURES for name in (feature.name, *feature.aliases)] + ["x", "y"]
)


@given(st.sets(names, max_size=6), st.sampled_from(Operation))
def test_an_operation_is_allowed_iff_every_listed_feature_allows_it(
    listed: set[str], operation: Operation
) -> None:
    lists = listing(*sorted(listed))
    binding = lists.reader_features if operation is Operation.READ else lists.writer_features
    allowed = all(
        (feature := find_feature(name)) is not None and operation in feature.operations
        for name in binding or ()
    )
    if allowed:
        require_supported(lists, operation)
    else:
        with pytest.raises(UnsupportedFeatureError):
            require_supported(lists, operation)


@pytest.mark.conformance("FEAT-01", "FEAT-04")
def test_protocols_of_the_corpus(corpus: Path) -> None:
    refused = set()
    for path in corpus.rglob("_delta_log/*.json"):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if '"protocol"' not in line or "min" not in line:
                continue
            try:
                value = json.loads(line).get("protocol")
            except ValueError:
                continue
            if value is not None:
                read = Protocol.from_json(value)
                check_protocol(read)
                try:
                    require_supported(read, Operation.READ)
                except UnsupportedFeatureError:
                    refused.add(path.relative_to(corpus).parts[0])
    assert refused == {
        "deltars-err-table_d",
        "deltars-err-table_e",
        "deltars-err-table_h",
        "golden-deltalog-invalid-protocol-version",
    }

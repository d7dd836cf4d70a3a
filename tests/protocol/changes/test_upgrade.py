"""Protocol upgrades: they only add, and keep what a legacy version implied."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.changes.upgrade import (
    added_features,
    require_addable,
    upgraded_protocol,
)
from delta_maintenance.protocol.features import (
    FEATURES,
    FeatureKind,
    check_protocol,
    find_feature,
    misplaced_features,
    supported_features,
    supports,
    with_requirements,
)

LEGACY = [(1, 1), (1, 2), (1, 3), (2, 3), (1, 4), (2, 4), (1, 5), (2, 5), (1, 6), (2, 6)]
NAMES = [feature.name for feature in FEATURES]


def protocol(reader: int, writer: int, readers: object = None, writers: object = None) -> Protocol:
    return Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=None if readers is None else tuple(readers),  # type: ignore[arg-type]
        writer_features=None if writers is None else tuple(writers),  # type: ignore[arg-type]
    )


def is_addable(name: str) -> bool:
    try:
        require_addable(name, protocol(1, 1))
    except UnsupportedFeatureError:
        return False
    return True


ADDABLE = [name for name in NAMES if is_addable(name)]
legacy_protocols = st.sampled_from(LEGACY).map(lambda pair: protocol(*pair))


@st.composite
def listed_protocols(draw: st.DrawFn) -> Protocol:
    names = with_requirements(draw(st.sets(st.sampled_from(ADDABLE))))
    both = {
        name
        for name in names
        if (feature := find_feature(name)) and feature.kind is FeatureKind.READER_WRITER
    }
    least = 3 if both - {"columnMapping"} else 2 if both else 1
    reader = draw(st.integers(least, 3))
    return protocol(reader, 7, sorted(both) if reader == 3 else None, sorted(names))


protocols = legacy_protocols | listed_protocols()
asked_features = st.lists(st.sampled_from(ADDABLE), max_size=4)
asked_versions = st.fixed_dictionaries(
    {},
    optional={
        "reader_version": st.none() | st.integers(1, 3),
        "writer_version": st.none() | st.integers(1, 7),
    },
)


@pytest.mark.conformance("FEAT-04", "FEAT-05", "FEAT-06", "FEAT-07", "FEAT-09")
@given(protocols, asked_features, asked_versions)
def test_an_upgrade_adds_the_request_and_loses_nothing(
    before: Protocol, features: list[str], versions: dict[str, int | None]
) -> None:
    after = upgraded_protocol(before, features=features, **versions)
    check_protocol(after)
    assert supported_features(after) >= supported_features(before) | with_requirements(features)
    assert with_requirements(supported_features(after)) == supported_features(after)
    assert after.min_reader_version >= before.min_reader_version
    assert after.min_writer_version >= before.min_writer_version
    assert not misplaced_features(after)
    for listed in (after.reader_features or (), after.writer_features or ()):
        assert len(listed) == len(set(listed))
    if (versions.get("reader_version") or 1) == 3:
        assert after.min_reader_version == 3
    if (versions.get("writer_version") or 1) == 7:
        assert after.min_writer_version == 7


@example(protocol(1, 4), ["identityColumns"], {"reader_version": 2})
@given(protocols, asked_features, asked_versions)
def test_repeating_an_upgrade_changes_nothing(
    before: Protocol, features: list[str], versions: dict[str, int | None]
) -> None:
    after = upgraded_protocol(before, features=features, **versions)
    assert upgraded_protocol(after, features=features, **versions) is after
    assert upgraded_protocol(after) is after


@given(protocols, asked_features)
def test_an_upgrade_adds_nothing_unrequested(before: Protocol, features: list[str]) -> None:
    after = upgraded_protocol(before, features=features)
    assert set(added_features(before, after)) == with_requirements(features) - supported_features(
        before
    )
    binding = {
        name
        for name in supported_features(after)
        if (feature := find_feature(name)) and feature.kind is FeatureKind.READER_WRITER
    }
    needed = 3 if binding - {"columnMapping"} else 2 if binding else 1
    assert after.min_reader_version == max(needed, before.min_reader_version)


@given(protocols, asked_features, asked_features)
def test_the_order_of_two_requests_does_not_matter(
    before: Protocol, one: list[str], other: list[str]
) -> None:
    def both(first: list[str], second: list[str]) -> frozenset[str]:
        step = upgraded_protocol(before, features=first)
        return supported_features(upgraded_protocol(step, features=second))

    assert both(one, other) == both(other, one)


@pytest.mark.conformance("FEAT-06")
@pytest.mark.parametrize(
    ("before", "features", "after"),
    [
        # As in Delta Spark, except that the lists are sorted here.
        ((1, 2), ["changeDataFeed"], (1, 7, None, "appendOnly changeDataFeed invariants")),
        ((1, 2), ["invariants"], (1, 2)),
        ((1, 3), ["changeDataFeed", "generatedColumns"], (1, 4)),
        ((1, 2), ["columnMapping"], (2, 7, None, "appendOnly columnMapping invariants")),
        ((1, 4), ["columnMapping"], (2, 5)),
        (
            (2, 5),
            ["deletionVectors"],
            (
                3,
                7,
                "columnMapping deletionVectors",
                "appendOnly changeDataFeed checkConstraints columnMapping deletionVectors "
                "generatedColumns invariants",
            ),
        ),
        ((1, 1), ["rowTracking"], (1, 7, None, "domainMetadata rowTracking")),
        (
            (1, 2),
            ["icebergCompatV1"],
            (2, 7, None, "appendOnly columnMapping icebergCompatV1 invariants"),
        ),
    ],
)
def test_known_answers(
    before: tuple[int, int], features: list[str], after: tuple[object, ...]
) -> None:
    lists = [None if names is None else str(names).split() for names in after[2:]]
    expected = protocol(*after[:2], *lists)  # type: ignore[arg-type]
    assert upgraded_protocol(protocol(*before), features=features) == expected


@pytest.mark.parametrize(
    ("before", "versions", "after"),
    [
        ((1, 2), {"reader_version": 2, "writer_version": 5}, protocol(2, 5)),
        ((1, 2), {"writer_version": 5}, protocol(1, 4)),
        ((1, 5), {"writer_version": 5}, protocol(1, 5)),
        ((1, 5), {"reader_version": 2}, protocol(2, 5)),
        ((1, 2), {"reader_version": 2}, protocol(1, 2)),
        ((1, 2), {"writer_version": 1}, protocol(1, 2)),
        ((1, 2), {"writer_version": 7}, protocol(1, 7, None, ["appendOnly", "invariants"])),
        ((1, 1), {"reader_version": 3}, protocol(3, 7, [], [])),
    ],
)
def test_requested_versions_add_the_features_they_imply(
    before: tuple[int, int], versions: dict[str, int], after: Protocol
) -> None:
    assert upgraded_protocol(protocol(*before), **versions) == after  # type: ignore[arg-type]


def test_a_requested_version_lists_what_it_implies() -> None:
    before = protocol(1, 7, None, ["domainMetadata"])
    after = upgraded_protocol(before, reader_version=2, writer_version=3)
    assert after.writer_features == (
        "domainMetadata",
        "appendOnly",
        "checkConstraints",
        "invariants",
    )
    assert after.min_reader_version == 1


@pytest.mark.parametrize(
    "versions", [{"reader_version": 4}, {"writer_version": 8}, {"reader_version": 0}]
)
def test_nonexistent_versions_are_refused(versions: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="does not exist"):
        upgraded_protocol(protocol(1, 2), **versions)  # type: ignore[arg-type]


@pytest.mark.conformance("FEAT-10")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deletionvectors", "use deletionVectors"),
        ("rowtracking", "use rowTracking"),
        ("fooBar", "unknown table feature"),
        ("timestampNTZ", "use timestampNtz"),
        ("typeWidening-preview", "use typeWidening"),
        ("delta.rowIds", "use rowIds"),
        ("rowIds", "use rowTracking"),
        ("clustering", "set-clustering"),
        ("catalogManaged", "cannot be added"),
        ("icebergWriterCompatV1", "cannot be added"),
    ],
)
def test_other_names_are_refused_with_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        upgraded_protocol(protocol(1, 2), features=[name])
    assert message in str(caught.value)


def test_a_supported_feature_may_be_one_that_cannot_be_added() -> None:
    before = protocol(1, 7, None, ["clustering", "domainMetadata"])
    assert upgraded_protocol(before, features=["clustering"]) is before
    with pytest.raises(UnsupportedFeatureError, match="checkpoint|Iceberg"):
        require_addable("icebergCompatV3", before)


def test_every_feature_can_be_added_or_has_a_reason() -> None:
    for name in NAMES:
        try:
            after = upgraded_protocol(protocol(1, 2), features=[name])
        except DeltaMaintenanceError as error:
            assert isinstance(error, UnsupportedFeatureError) and error.remedy
        else:
            assert supports(after, name)
    assert len(ADDABLE) >= 22


@pytest.mark.conformance("DRAFT-01", "FEAT-10")
@pytest.mark.parametrize(
    ("draft", "final"), [("timestampNTZ", "timestampNtz"), ("columnInvariants", "invariants")]
)
def test_draft_names_are_replaced_when_a_protocol_is_written(draft: str, final: str) -> None:
    readers = [draft] if final == "timestampNtz" else []
    before = protocol(3, 7, readers, [draft, "appendOnly"])
    assert upgraded_protocol(before, features=["appendOnly"]) is before
    for asked in (final, "deletionVectors"):
        after = upgraded_protocol(before, features=[asked])
        assert draft not in {*(after.reader_features or ()), *(after.writer_features or ())}
        assert (after.writer_features or ()).count(final) == 1
        assert upgraded_protocol(after, features=[asked]) is after


def test_preview_names_are_kept() -> None:
    before = protocol(3, 7, ["typeWidening-preview"], ["typeWidening-preview"])
    after = upgraded_protocol(before, features=["typeWidening", "deletionVectors"])
    assert after.reader_features == ("typeWidening-preview", "deletionVectors")
    misplaced = protocol(1, 7, None, ["typeWidening-preview"])
    both = upgraded_protocol(misplaced, features=["deletionVectors"])
    assert both.reader_features == ("deletionVectors", "typeWidening-preview")


def test_feature_lists_keep_order_and_unknown_names() -> None:
    before = protocol(3, 7, ["zeta", "deletionVectors"], ["zeta", "deletionVectors", "appendOnly"])
    after = upgraded_protocol(before, features=["domainMetadata"])
    assert after.reader_features == before.reader_features
    assert after.writer_features == ("zeta", "deletionVectors", "appendOnly", "domainMetadata")


def test_a_listed_feature_without_effect_is_not_activated() -> None:
    before = protocol(1, 7, None, ["columnMapping"])
    with pytest.raises(RefusedError, match="lists columnMapping at reader version 1"):
        upgraded_protocol(before, features=["deletionVectors"])
    assert upgraded_protocol(before, features=["domainMetadata"]).min_reader_version == 1


# Cases from peers, which would produce a different protocol there.


@pytest.mark.conformance("FEAT-06", "CONS-02")
def test_d3_change_data_feed_keeps_the_constraints_of_writer_version_3() -> None:
    after = upgraded_protocol(protocol(1, 3), features=["changeDataFeed"])
    assert supported_features(after) == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
    }


@pytest.mark.conformance("FEAT-09")
@pytest.mark.parametrize("name", ADDABLE)
def test_d11_required_features_are_added(name: str) -> None:
    after = upgraded_protocol(protocol(1, 1), features=[name])
    assert supported_features(after) >= with_requirements([name])

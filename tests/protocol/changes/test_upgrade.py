"""The protocol a table gets: it only ever adds, and loses nothing that a version implied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.changes.upgrade import (
    added_features,
    require_addable,
    upgraded_protocol,
)
from delta_maintenance.protocol.features.registry import (
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
def test_whatever_is_asked_nothing_is_lost_and_all_of_it_is_there(
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


@given(protocols, asked_features, asked_versions)
def test_asking_again_changes_nothing(
    before: Protocol, features: list[str], versions: dict[str, int | None]
) -> None:
    after = upgraded_protocol(before, features=features, **versions)
    assert upgraded_protocol(after, features=features, **versions) is after
    assert upgraded_protocol(after) is after


@given(protocols, asked_features)
def test_only_what_was_asked_for_comes_and_no_version_without_need(
    before: Protocol, features: list[str]
) -> None:
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
        # As Delta Spark does, but that lists are sorted here.
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
def test_versions_are_asked_for_what_they_imply(
    before: tuple[int, int], versions: dict[str, int], after: Protocol
) -> None:
    assert upgraded_protocol(protocol(*before), **versions) == after  # type: ignore[arg-type]


def test_a_version_asked_of_listed_features_adds_what_it_implies() -> None:
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
def test_versions_that_do_not_exist_are_no_request(versions: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="there is no"):
        upgraded_protocol(protocol(1, 2), **versions)  # type: ignore[arg-type]


@pytest.mark.conformance("FEAT-10")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deletionvectors", "write deletionVectors"),
        ("rowtracking", "write rowTracking"),
        ("fooBar", "is unknown"),
        ("timestampNTZ", "ask for timestampNtz"),
        ("typeWidening-preview", "ask for typeWidening"),
        ("delta.rowIds", "ask for rowIds"),
        ("rowIds", "ask for rowTracking"),
        ("clustering", "CLUSTER BY"),
        ("catalogManaged", "cannot be added"),
        ("icebergWriterCompatV1", "cannot be added"),
    ],
)
def test_other_names_are_refused_with_the_right_one(name: str, said: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        upgraded_protocol(protocol(1, 2), features=[name])
    assert said in str(caught.value)


def test_a_feature_that_cannot_be_added_may_be_there() -> None:
    before = protocol(1, 7, None, ["clustering", "domainMetadata"])
    assert upgraded_protocol(before, features=["clustering"]) is before
    with pytest.raises(UnsupportedFeatureError, match="checkpoint|Iceberg"):
        require_addable("icebergCompatV3", before)


def test_every_feature_of_the_table_either_can_be_added_or_says_why_not() -> None:
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
def test_a_draft_spelling_stays_until_a_protocol_is_written_and_never_after(
    draft: str, final: str
) -> None:
    readers = [draft] if final == "timestampNtz" else []
    before = protocol(3, 7, readers, [draft, "appendOnly"])
    assert upgraded_protocol(before, features=["appendOnly"]) is before
    for asked in (final, "deletionVectors"):
        after = upgraded_protocol(before, features=[asked])
        assert draft not in {*(after.reader_features or ()), *(after.writer_features or ())}
        assert (after.writer_features or ()).count(final) == 1
        assert upgraded_protocol(after, features=[asked]) is after


def test_a_preview_keeps_the_name_its_readers_know() -> None:
    before = protocol(3, 7, ["typeWidening-preview"], ["typeWidening-preview"])
    after = upgraded_protocol(before, features=["typeWidening", "deletionVectors"])
    assert after.reader_features == ("typeWidening-preview", "deletionVectors")
    misplaced = protocol(1, 7, None, ["typeWidening-preview"])
    both = upgraded_protocol(misplaced, features=["deletionVectors"])
    assert both.reader_features == ("deletionVectors", "typeWidening-preview")


def test_lists_keep_their_order_and_what_is_unknown() -> None:
    before = protocol(3, 7, ["zeta", "deletionVectors"], ["zeta", "deletionVectors", "appendOnly"])
    after = upgraded_protocol(before, features=["domainMetadata"])
    assert after.reader_features == before.reader_features
    assert after.writer_features == ("zeta", "deletionVectors", "appendOnly", "domainMetadata")


def test_column_mapping_that_nobody_obeyed_is_not_turned_on_in_passing() -> None:
    before = protocol(1, 7, None, ["columnMapping"])
    with pytest.raises(RefusedError, match="lists columnMapping at reader version 1"):
        upgraded_protocol(before, features=["deletionVectors"])
    assert upgraded_protocol(before, features=["domainMetadata"]).min_reader_version == 1


# What the peers do, as cases: each of these would end in another protocol there.


@pytest.mark.conformance("FEAT-06", "CONS-02")
def test_d3_a_change_data_feed_keeps_the_constraints_of_writer_version_3() -> None:
    after = upgraded_protocol(protocol(1, 3), features=["changeDataFeed"])
    assert supported_features(after) == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
    }


@pytest.mark.conformance("FEAT-09")
@pytest.mark.parametrize("name", ADDABLE)
def test_d11_whatever_a_feature_needs_comes_with_it(name: str) -> None:
    after = upgraded_protocol(protocol(1, 1), features=[name])
    assert supported_features(after) >= with_requirements([name])

"""The protocol a table has when it supports less.

Implements the downward half of "Table Features for New and Existing Tables". Whether a feature may
go is a question to `feature_removal`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    FeatureKind,
    find_feature,
    supported_features,
)


def feature_names(protocol: Protocol) -> frozenset[str]:
    """The features of a protocol as they are spelled there, those implied by versions included."""
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version >= MAX_WRITER_VERSION:
        return frozenset(listed)
    return frozenset(listed | supported_features(protocol))


def downgraded_protocol(protocol: Protocol, name: str, *, adds: Collection[str] = ()) -> Protocol:
    """The least protocol that supports what is left without `name`, and what it `adds`.

    Least as Delta Spark has it: the versions alone where they imply exactly what is left, else
    writer version 7 and the least reader version. So the writer version may rise.
    """
    left = (feature_names(protocol) - {name}).union(adds)
    features = [feature for item in left if (feature := find_feature(item)) is not None]
    reader = max((_least_reader(item) for item in left), default=1)
    legacy = [feature.legacy_writer_version for feature in features]
    if len(features) == len(left) and None not in legacy:
        pair = replace(
            protocol,
            min_reader_version=reader,
            min_writer_version=max((version or 1 for version in legacy), default=1),
            reader_features=None,
            writer_features=None,
        )
        if supported_features(pair) == {feature.name for feature in features}:
            return pair
    before = (*(protocol.writer_features or ()), *(protocol.reader_features or ()))
    ordered = dict.fromkeys([*(item for item in before if item in left), *sorted(left)])
    readers = tuple(item for item in ordered if _binds_readers(item))
    return replace(
        protocol,
        min_reader_version=reader,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=readers if reader >= MAX_READER_VERSION else None,
        writer_features=tuple(ordered),
    )


def _binds_readers(name: str) -> bool:
    feature = find_feature(name)
    return feature is not None and feature.kind is FeatureKind.READER_WRITER


def _least_reader(name: str) -> int:
    feature = find_feature(name)
    if feature is None or feature.kind is not FeatureKind.READER_WRITER:
        return 1
    return feature.legacy_reader_version or MAX_READER_VERSION

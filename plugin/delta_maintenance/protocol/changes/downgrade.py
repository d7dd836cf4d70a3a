"""The protocol of a table after a feature is removed.

Implements the downgrade in "Table Features for New and Existing Tables".
`delta_maintenance.protocol.changes.drop` decides whether a feature may be removed.
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
    """The supported features as the protocol spells them, including those that versions imply."""
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version >= MAX_WRITER_VERSION:
        return frozenset(listed)
    return frozenset(listed | supported_features(protocol))


def downgraded_protocol(protocol: Protocol, name: str, *, adds: Collection[str] = ()) -> Protocol:
    """The minimal protocol that supports the features of `protocol` except `name`, plus `adds`.

    Minimal as in Delta Spark: legacy versions without lists if they imply exactly these features,
    otherwise writer version 7 and the lowest reader version. The writer version can therefore rise.
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

"""The protocol of a table after features are added or versions are raised.

Implements "Table Features for New and Existing Tables" and "Supported Features": an upgrade never
removes a feature. A feature that a legacy version implies counts as used, because the log cannot
prove that no version within time travel used it. It is listed when the table moves to feature
lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
    closest,
)
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    FEATURES,
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    Operation,
    TableFeature,
    binds_readers,
    check_protocol,
    find_feature,
    misplaced_features,
    supported_features,
    with_requirements,
)


def upgraded_protocol(
    current: Protocol,
    *,
    features: Iterable[str] = (),
    reader_version: int | None = None,
    writer_version: int | None = None,
    met: Collection[str] = (),
) -> Protocol:
    """The minimal protocol above `current` that supports `features` and what the versions imply.

    Minimal as in Delta Spark: legacy versions without lists if they imply exactly the supported
    features, otherwise writer version 7 and the lowest reader version. Versions never decrease. If
    nothing is missing, the result is `current`. Reader version 3 and writer version 7 are set if
    requested, even if no feature needs them. `met` are features whose other requirements the same
    commit meets.

    Raises `UnsupportedFeatureError` for a feature that this release cannot add,
    `InvalidRequestError` for a version that does not exist, and `RefusedError` if a higher version
    would put a feature into effect that is listed but had no effect so far.
    """
    check_protocol(current)
    features = tuple(features)
    supported = supported_features(current)
    added = with_requirements(require_addable(name, current, met=met).name for name in features)
    requested = _asked_versions(current, reader_version, writer_version)
    names = supported | added | supported_features(requested)
    reader = max(current.min_reader_version, 3 if requested.reader_features is not None else 1)
    lists = requested.writer_features is not None or current.writer_features is not None
    if names == supported and reader == current.min_reader_version:
        misspelt = {_DRAFT_SPELLINGS[name] for name in _drafts(current)} & added
        misplaced = misplaced_features(current) & added
        if lists == (current.writer_features is not None) and not misspelt | misplaced:
            return current
    legacy = None if lists else _legacy(names, current)
    upgraded = legacy or _listing(names, current, reader)
    activated = sorted(supported_features(upgraded) - names)
    if activated:
        raise RefusedError(
            f"the protocol lists {activated[0]} at reader version {current.min_reader_version}, "
            "where it has no effect, and the upgrade would put it into effect",
            remedy="repair the protocol with the engine that wrote it",
        )
    # The meaning of a requested version depends on the other version, which may have increased.
    return upgraded_protocol(
        upgraded,
        features=features,
        reader_version=reader_version,
        writer_version=writer_version,
        met=met,
    )


def require_addable(name: str, current: Protocol, *, met: Collection[str] = ()) -> TableFeature:
    """The feature of that exact name, if it can be added to a table or the table supports it.

    Draft and preview names are understood in existing tables and cannot be requested.
    """
    feature = find_feature(name)
    if feature is None or name != feature.name:
        raise _unknown(name, feature)
    missing = sorted(with_requirements([name]) - supported_features(current))
    for needed in missing:
        reason = None if needed in met else _reason_against(needed)
        if reason is not None:
            subject = name if needed == name else f"{name}, which requires {needed},"
            raise UnsupportedFeatureError(
                f"the table feature {subject} cannot be added to an existing table: {reason}",
                remedy=_REMEDIES.get(needed, "use an engine that supports it"),
            )
    return feature


def added_features(before: Protocol, after: Protocol) -> tuple[str, ...]:
    """The features that `after` supports and `before` does not, sorted."""
    return tuple(sorted(supported_features(after) - supported_features(before)))


_NOT_ADDABLE = {
    "clustering": "the clustering columns must be set in the same commit",
    "catalogManaged": "the catalog must take part in the change",
    "adaptiveMetadata-preview": "only new tables can have it",
    "liquid": "it was never specified",
    "rowIds": "it is a draft of rowTracking",
    "inCommitTimestamp-preview": "it is a preview of inCommitTimestamp",
}
_REMEDIES = {
    "clustering": "use set-clustering",
    "rowIds": "use rowTracking",
    "inCommitTimestamp-preview": "use inCommitTimestamp",
}
_NEEDED = (Operation.COMMIT, Operation.CHANGE_METADATA)
_DRAFT_SPELLINGS = {"timestampNTZ": "timestampNtz", "columnInvariants": "invariants"}
"""Names in draft texts, which Delta Spark treats as unknown features. Preview names are not in this
table: released engines listed them, and their readers know no other name."""


def _reason_against(name: str) -> str | None:
    if name in _NOT_ADDABLE:
        return _NOT_ADDABLE[name]
    feature = find_feature(name)
    if feature is None or all(operation in feature.operations for operation in _NEEDED):
        return None
    return feature.note or "its rules for writers are not implemented"


def _unknown(name: str, feature: TableFeature | None) -> UnsupportedFeatureError:
    if feature is not None:
        return UnsupportedFeatureError(
            f"{name} is a draft or preview name of the table feature {feature.name}",
            remedy=f"use {feature.name}",
        )
    meant = closest(name, (table_feature.name for table_feature in FEATURES))
    return UnsupportedFeatureError(
        f"unknown table feature {name!r}",
        remedy=f"use {meant}" if meant is not None else "see the reference of upgrade-protocol",
    )


def _asked_versions(current: Protocol, reader: int | None, writer: int | None) -> Protocol:
    for version, highest, kind in (
        (reader, MAX_READER_VERSION, "reader"),
        (writer, MAX_WRITER_VERSION, "writer"),
    ):
        if version is not None and not 1 <= version <= highest:
            raise InvalidRequestError(
                f"{kind} version {version} does not exist",
                remedy=f"use a version from 1 to {highest}",
            )
    # What a version implies depends on the other version, which defaults to the table's.
    legacy_reader = current.reader_features is None
    least_reader = reader or (current.min_reader_version if legacy_reader else 1)
    legacy_writer = current.writer_features is None
    least_writer = writer or (current.min_writer_version if legacy_writer else 1)
    if least_reader == MAX_READER_VERSION:
        least_writer = MAX_WRITER_VERSION
    return Protocol(
        min_reader_version=least_reader,
        min_writer_version=least_writer,
        reader_features=() if least_reader == MAX_READER_VERSION else None,
        writer_features=() if least_writer == MAX_WRITER_VERSION else None,
    )


def _drafts(protocol: Protocol) -> set[str]:
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    return listed & _DRAFT_SPELLINGS.keys()


def _legacy(names: Collection[str], current: Protocol) -> Protocol | None:
    """The lowest versions that imply exactly `names`, or None if feature lists are needed."""
    readers, writers = [current.min_reader_version], [current.min_writer_version]
    for name in names:
        feature = find_feature(name)
        if feature is None or feature.legacy_writer_version is None:
            return None
        readers.append(feature.legacy_reader_version or 1)
        writers.append(feature.legacy_writer_version)
    pair = replace(current, min_reader_version=max(readers), min_writer_version=max(writers))
    return pair if supported_features(pair) == names else None


def _listing(names: Collection[str], current: Protocol, least_reader: int) -> Protocol:
    """The lowest versions with lists that contain `names` and are not lower than `current`."""
    reader_features = {name for name in names if binds_readers(name)}
    needed = 3 if reader_features - {"columnMapping"} else 2 if reader_features else 1
    reader = max(least_reader, needed)
    spelling = {}
    for listed in (*(current.writer_features or ()), *(current.reader_features or ())):
        feature = find_feature(listed)
        if feature is not None:
            spelling[feature.name] = _DRAFT_SPELLINGS.get(listed, listed)
    return replace(
        current,
        min_reader_version=reader,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=_extend_list(
            reader_features,
            [
                n
                for n in current.reader_features or ()
                if find_feature(n) is None or binds_readers(n)
            ],
            spelling,
        )
        if reader == MAX_READER_VERSION
        else None,
        writer_features=_extend_list(names, current.writer_features, spelling),
    )


def _extend_list(
    names: Iterable[str], before: Iterable[str] | None, spelling: Mapping[str, str]
) -> tuple[str, ...]:
    """The list `before`, in its order and spelling, followed by the new names, sorted."""
    spelt = dict.fromkeys(_DRAFT_SPELLINGS.get(name, name) for name in before or ())
    listed = {feature.name for name in spelt if (feature := find_feature(name)) is not None}
    added = (spelling.get(name, name) for name in names if name not in listed)
    return tuple(dict.fromkeys((*spelt, *sorted(added))))

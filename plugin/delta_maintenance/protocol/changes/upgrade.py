"""The protocol a table gets when it is asked to support more.

Implements "Table Features for New and Existing Tables" and "Supported Features": a change only ever
adds. What a legacy version implies counts as used, for no look at the log can prove that no version
reachable by time travel used it, and is listed when a table goes over to listed features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from delta_maintenance.errors import InvalidRequestError, RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    FEATURES,
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    FeatureKind,
    Operation,
    TableFeature,
    check_protocol,
    find_feature,
    supported_features,
    with_requirements,
)


def upgraded_protocol(
    current: Protocol,
    *,
    features: Iterable[str] = (),
    reader_version: int | None = None,
    writer_version: int | None = None,
) -> Protocol:
    """The least protocol above `current` that supports `features` and what the versions imply.

    Least as Delta Spark has it: versions without lists where they imply exactly what is supported,
    else writer version 7 and the least reader version; but no version ever falls, and where nothing
    is missing `current` is returned as it stands. Reader version 3 and writer version 7 are reached
    where they are asked for, even if no feature needs them.

    `UnsupportedFeatureError` for a feature that this release cannot add to a table,
    `InvalidRequestError` for versions that do not exist, `RefusedError` where a higher version
    would turn on a listed feature that nobody had to obey so far.
    """
    check_protocol(current)
    supported = supported_features(current)
    wanted = with_requirements(require_addable(name, current).name for name in features)
    asked = _asked_versions(current, reader_version, writer_version)
    names = supported | wanted | supported_features(asked)
    reader = max(current.min_reader_version, 3 if asked.reader_features is not None else 1)
    lists = asked.writer_features is not None or current.writer_features is not None
    if names == supported and reader == current.min_reader_version:
        misspelt = {_DRAFT_SPELLINGS[name] for name in _drafts(current)} & wanted
        if lists == (current.writer_features is not None) and not misspelt:
            return current
    legacy = None if lists else _legacy(names, current)
    upgraded = legacy or _listing(names, current, reader)
    awakened = sorted(supported_features(upgraded) - names)
    if awakened:
        raise RefusedError(
            f"the protocol lists {awakened[0]} at reader version {current.min_reader_version}, "
            "where it means nothing, and the change would give it a meaning",
            remedy="repair the protocol with the engine that wrote it",
        )
    return upgraded


def require_addable(name: str, current: Protocol) -> TableFeature:
    """The feature of that exact name, if it can be added to a table or is there already.

    Names of drafts and previews are read, never asked for.
    """
    feature = find_feature(name)
    if feature is None or name != feature.name:
        raise _unknown(name, feature)
    missing = sorted(with_requirements([name]) - supported_features(current))
    for needed in missing:
        reason = _reason_against(needed)
        if reason is not None:
            what = name if needed == name else f"{name}, which needs {needed},"
            raise UnsupportedFeatureError(
                f"the table feature {what} cannot be added to an existing table: {reason}",
                remedy=_REMEDIES.get(needed, "use the engine that offers it"),
            )
    return feature


def added_features(before: Protocol, after: Protocol) -> tuple[str, ...]:
    """What `after` supports and `before` does not, sorted."""
    return tuple(sorted(supported_features(after) - supported_features(before)))


_NOT_ADDABLE = {
    "clustering": "its columns have to be named with it",
    "catalogManaged": "its catalog has to know of it",
    "adaptiveMetadata-preview": "only new tables have it",
    "liquid": "it was never described",
    "rowIds": "it is a draft of rowTracking",
    "inCommitTimestamp-preview": "it is a preview of inCommitTimestamp",
}
_REMEDIES = {
    "clustering": "use ALTER TABLE … CLUSTER BY in Delta Spark",
    "rowIds": "ask for rowTracking",
    "inCommitTimestamp-preview": "ask for inCommitTimestamp",
}
_NEEDED = (Operation.COMMIT, Operation.CHANGE_METADATA)
_DRAFT_SPELLINGS = {"timestampNTZ": "timestampNtz", "columnInvariants": "invariants"}
"""Spellings of draft texts, which Delta Spark takes for unknown features. Previews are none: where
a released engine listed a preview, its readers know it under that name alone."""


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
            remedy=f"ask for {feature.name}",
        )
    by_case = {known.name.lower(): known.name for known in FEATURES}
    close = get_close_matches(name.lower(), by_case, n=1)
    return UnsupportedFeatureError(
        f"the table feature {name!r} is unknown",
        remedy=f"write {by_case[close[0]]}" if close else "see docs/cli.md, upgrade-protocol",
    )


def _asked_versions(current: Protocol, reader: int | None, writer: int | None) -> Protocol:
    for version, most, what in (
        (reader, MAX_READER_VERSION, "reader"),
        (writer, MAX_WRITER_VERSION, "writer"),
    ):
        if version is not None and not 1 <= version <= most:
            raise InvalidRequestError(
                f"there is no {what} version {version}", remedy=f"give one from 1 to {most}"
            )
    # What a version implies depends on the other one, which is the table's where none is asked.
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
    """The least versions that imply exactly `names`, or None where lists are needed."""
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
    """The least versions with lists that hold `names` and are no lower than `current`."""
    both = {name for name in names if _binds_readers(name)}
    needed = 3 if both - {"columnMapping"} else 2 if both else 1
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
        reader_features=_listed(both, current.reader_features, spelling)
        if reader == MAX_READER_VERSION
        else None,
        writer_features=_listed(names, current.writer_features, spelling),
    )


def _binds_readers(name: str) -> bool:
    feature = find_feature(name)
    return feature is not None and feature.kind is FeatureKind.READER_WRITER


def _listed(
    names: Iterable[str], before: Iterable[str] | None, spelling: Mapping[str, str]
) -> tuple[str, ...]:
    """The list before, in its order and spelling, and behind it what of `names` is new."""
    kept = dict.fromkeys(_DRAFT_SPELLINGS.get(name, name) for name in before or ())
    known = {feature.name for name in kept if (feature := find_feature(name)) is not None}
    new = (spelling.get(name, name) for name in names if name not in known)
    return tuple(dict.fromkeys((*kept, *sorted(new))))

"""How each table feature is dropped: traces of its use, how to remove them, what stays.

Implements the downgrade in "Table Features for New and Existing Tables": a feature can be dropped
when nothing uses it any more. The droppable features and their conditions are those of Delta Spark,
so that either tool can finish a removal that the other one started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from delta_maintenance.errors import RefusedError, UnsupportedFeatureError, closest
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes.usage import (
    MetadataChange,
    MetadataTrace,
    commit_times,
    constraint,
    first_of,
    geometry_column,
    is_on,
    mapped_column,
    name_that_needs_mapping,
    row_ids,
    v2_policy,
    widened_column,
    with_classic_policy,
    without_commit_times,
    without_mapping,
    without_properties,
    without_row_ids,
    without_type_changes,
)
from delta_maintenance.protocol.commit.rules import UNDERSTOOD_DOMAINS
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.features.registry import (
    FEATURES,
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    FeatureKind,
    binds_readers,
    find_feature,
    supported_features,
)
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking


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
    remaining = (feature_names(protocol) - {name}).union(adds)
    features = [feature for item in remaining if (feature := find_feature(item)) is not None]
    reader = max((_least_reader(item) for item in remaining), default=1)
    legacy = [feature.legacy_writer_version for feature in features]
    if len(features) == len(remaining) and None not in legacy:
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
    ordered = dict.fromkeys([*(item for item in before if item in remaining), *sorted(remaining)])
    readers = tuple(item for item in ordered if binds_readers(item))
    return replace(
        protocol,
        min_reader_version=reader,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=readers if reader >= MAX_READER_VERSION else None,
        writer_features=tuple(ordered),
    )


def _least_reader(name: str) -> int:
    feature = find_feature(name)
    if feature is None or feature.kind is not FeatureKind.READER_WRITER:
        return 1
    return feature.legacy_reader_version or MAX_READER_VERSION


CHECKPOINT_PROTECTION = "checkpointProtection"
PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"


def _no_trace(_: Metadata) -> str | None:
    return None


def _same(metadata: Metadata) -> Metadata:
    return metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRemoval:
    """How one table feature is dropped.

    A *trace* is anything in the table that uses the feature. See `changes.usage` for its format.
    """

    feature: str
    """The final name of the feature, not a draft name."""
    protects_history: bool = False
    """Whether a client without the feature would misread older versions that used it."""
    needs_truncation: bool = False
    """Whether the history before the protected version must be truncated in the same step."""
    metadata_trace: MetadataTrace = _no_trace
    """Finds a trace in the current metadata."""
    history_trace: MetadataTrace = _no_trace
    """Finds a trace in the metadata of an older version that such a client would misread."""
    file_fields: tuple[str, ...] = ()
    """Fields of `add` that belong to the feature; a value in one of them is a trace."""
    rewrites: Literal["deleted-rows", "old-types", "physical-names"] | None = None
    """The data files that are rewritten before the feature is dropped, as the reason for it."""
    strips_files: bool = False
    """Whether committing the files again without these fields is enough, without a rewrite."""
    v2_checkpoints: bool = False
    """Whether a V2 checkpoint is a trace."""
    leaked_domains: bool = False
    """Whether all domains are removed first, because no remaining feature can own one."""
    own_domain: str | None = None
    """The metadata domain that is removed in the same commit as the feature."""
    prepared: MetadataChange = _same
    """Switches the feature off, in a separate commit, so that no writer starts to use it again."""
    rewritten: MetadataChange = _same
    """Removes metadata that describes rewritten files: for `physical-names` in the commit of these
    files, otherwise in a separate commit after that.
    """
    obstacle: MetadataTrace = _no_trace
    """Finds an obstacle that the user must remove first, as a clause."""
    without: MetadataChange = _same
    """Removes properties that mean nothing without the feature, in the commit that drops it."""
    remedy: str = "use Delta Spark"
    """What the user has to do about traces that this library cannot remove."""
    leaves: str | None = None
    """What stays in the table after the feature is dropped, as a clause."""

    @property
    def may_truncate(self) -> bool:
        """Whether dropping the feature can require truncating the history."""
        return self.protects_history or self.needs_truncation


def removal_of(name: str) -> FeatureRemoval:
    """How to drop the feature of that exact name, or of a draft name of it.

    Raises `UnsupportedFeatureError` for an unknown name and `RefusedError` for a feature that
    cannot be dropped.
    """
    feature = find_feature(name)
    if feature is None:
        meant = closest(name, (known_feature.name for known_feature in FEATURES))
        remedy = "use a name from the protocol of the table" if meant is None else f"use {meant}"
        raise UnsupportedFeatureError(f"unknown table feature {name!r}", remedy=remedy)
    removal = _REMOVALS.get(feature.name)
    if removal is None:
        raise RefusedError(
            f"the table feature {name} cannot be dropped, as in Delta Spark",
            remedy="disable it with its table property if it has one, or copy the table",
        )
    return removal


def require_removable(
    name: str, protocol: Protocol, metadata: Metadata, domains: Collection[str]
) -> FeatureRemoval:
    """How to drop a feature that the table supports, after checking that nothing depends on it.

    Raises `RefusedError` if another feature requires it, or if it has a trace that can only be
    removed by rewriting data files.
    """
    removal = removal_of(name)
    names = feature_names(protocol)
    dependants = sorted(
        dependant
        for dependant in names
        if removal.feature in _requirements(dependant) and dependant != name
    )
    if dependants:
        raise RefusedError(
            f"{name} is required by {', '.join(dependants)}",
            remedy=_remedy_for_dependants(name, dependants),
        )
    obstacle = removal.obstacle(metadata)
    if obstacle is not None:
        raise RefusedError(obstacle, remedy=removal.remedy)
    trace = removal.metadata_trace(removal.rewritten(removal.prepared(metadata)))
    if trace is not None:
        raise RefusedError(f"{trace} still uses {name}", remedy=removal.remedy)
    foreign = sorted(
        domain
        for domain in domains
        if domain.startswith("delta.") and domain not in UNDERSTOOD_DOMAINS
    )
    if removal.leaked_domains and foreign:
        raise RefusedError(
            f"the domain {foreign[0]!r} belongs to a feature that this release does not know",
            remedy="remove the domain with the engine that wrote it",
        )
    return removal


def _remedy_for_dependants(name: str, dependants: Sequence[str]) -> str:
    features = {dependant: find_feature(dependant) for dependant in dependants}
    permanent = [o for o, feature in features.items() if feature and feature.name not in _REMOVALS]
    if permanent:
        return f"keep {name}, because {permanent[0]} cannot be dropped"
    return f"drop {dependants[0]} first"


def _requirements(name: str) -> tuple[str, ...]:
    feature = find_feature(name)
    return () if feature is None else feature.requires


_ENABLE_VECTORS = "delta.enableDeletionVectors"
_ENABLE_WIDENING = "delta.enableTypeWidening"

_REMOVALS: Mapping[str, FeatureRemoval] = {
    removal.feature: removal
    for removal in (
        FeatureRemoval(
            feature="checkConstraints",
            metadata_trace=constraint,
            remedy="drop the constraints first, with set-properties --unset delta.constraints.NAME",
        ),
        FeatureRemoval(
            feature=CHECKPOINT_PROTECTION,
            needs_truncation=True,
            without=without_properties(PROTECTED_BEFORE),
        ),
        FeatureRemoval(
            feature="columnMapping",
            protects_history=True,
            metadata_trace=mapped_column,
            history_trace=mapped_column,
            rewrites="physical-names",
            rewritten=without_mapping,
            obstacle=name_that_needs_mapping,
            remedy="rename it first, to a name that is unique whatever its case and has no space "
            "and none of the characters ,;{}()=",
        ),
        FeatureRemoval(
            feature="deletionVectors",
            protects_history=True,
            metadata_trace=is_on(_ENABLE_VECTORS),
            history_trace=is_on(_ENABLE_VECTORS),
            file_fields=("deletionVector",),
            rewrites="deleted-rows",
            prepared=without_properties(_ENABLE_VECTORS),
            leaves="deletion vector files of older versions stay until vacuum deletes them",
        ),
        FeatureRemoval(
            feature="domainMetadata",
            leaked_domains=True,
            leaves="the log keeps the last configuration of each removed domain",
        ),
        FeatureRemoval(
            feature="geospatial",
            protects_history=True,
            metadata_trace=geometry_column,
            history_trace=geometry_column,
            remedy="drop these columns first",
        ),
        FeatureRemoval(
            feature=in_commit_timestamps.FEATURE,
            metadata_trace=commit_times,
            prepared=without_commit_times,
            leaves="older commits keep their in-commit timestamps; new commits are dated by the "
            "modification times of their files",
        ),
        FeatureRemoval(
            feature="materializePartitionColumns",
            without=without_properties("delta.enableMaterializePartitionColumnsFeature"),
            leaves="data files keep the partition columns that were written into them",
        ),
        FeatureRemoval(
            feature=row_tracking.FEATURE,
            metadata_trace=row_ids,
            file_fields=("baseRowId", "defaultRowCommitVersion"),
            strips_files=True,
            own_domain=row_tracking.DOMAIN,
            prepared=without_row_ids,
            without=without_properties(
                row_tracking.ENABLED_PROPERTY,
                row_tracking.SUSPENDED_PROPERTY,
                "delta.rowTracking.materializedRowIdColumnName",
                "delta.rowTracking.materializedRowCommitVersionColumnName",
            ),
            leaves="data files keep the hidden row ID columns, which no client reads",
        ),
        FeatureRemoval(
            feature="typeWidening",
            protects_history=True,
            metadata_trace=first_of(is_on(_ENABLE_WIDENING), widened_column),
            # Before the first type change, old versions read the same without the feature.
            history_trace=widened_column,
            rewrites="old-types",
            prepared=without_properties(_ENABLE_WIDENING),
            rewritten=without_type_changes,
        ),
        FeatureRemoval(
            feature="v2Checkpoint",
            protects_history=True,
            metadata_trace=v2_policy,
            history_trace=v2_policy,
            v2_checkpoints=True,
            prepared=with_classic_policy,
            leaves="sidecars stay until clean-log deletes those that no checkpoint refers to",
        ),
        FeatureRemoval(feature="vacuumProtocolCheck", protects_history=True),
    )
}

"""What it takes for a table feature to go: its traces, how they go, and the protocol without it.

Implements the downward half of "Table Features for New and Existing Tables": a feature is dropped
once nothing uses it any more. Which features that is possible for, and what stands in the way of
each, is as in Delta Spark, so that either can end what the other began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from delta_maintenance.errors import RefusedError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes.downgrade import feature_names
from delta_maintenance.protocol.changes.usage import (
    MetadataChange,
    MetadataTrace,
    commit_times,
    constraint,
    first_of,
    geometry_column,
    is_on,
    mapped_column,
    row_ids,
    v2_policy,
    widened_column,
    with_classic_policy,
    without_commit_times,
    without_properties,
    without_row_ids,
)
from delta_maintenance.protocol.commit.rules import UNDERSTOOD_DOMAINS
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.features.registry import find_feature
from delta_maintenance.protocol.row_tracking import domain as row_tracking

CHECKPOINT_PROTECTION = "checkpointProtection"
PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"


def _no_trace(_: Metadata) -> str | None:
    return None


def _same(metadata: Metadata) -> Metadata:
    return metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRemoval:
    """How one feature goes."""

    feature: str
    """Its final name."""
    protects_history: bool = False
    """Whether a client without the feature would misread versions that used it."""
    needs_truncation: bool = False
    """Whether it goes only together with the history before the version that it protects."""
    metadata_trace: MetadataTrace = _no_trace
    """What of the metadata uses it now."""
    history_trace: MetadataTrace = _no_trace
    """What of an older version's metadata such a client would misread."""
    file_fields: tuple[str, ...] = ()
    """Fields of `add` that the feature owns: a value in one of them is a trace."""
    strips_files: bool = False
    """Whether files lose these fields by being committed again; otherwise they need a rewrite."""
    v2_checkpoints: bool = False
    """Whether a V2 checkpoint is a trace."""
    leaked_domains: bool = False
    """Whether every domain goes before it: no feature is left that one could belong to."""
    own_domain: str | None = None
    """The domain that goes in the same commit as the feature."""
    prepared: MetadataChange = _same
    """Switches the feature off, in a commit of its own: nobody may begin to use it again."""
    without: MetadataChange = _same
    """Takes away what means nothing without the feature, in the commit that drops it."""
    remedy: str = "use Delta Spark"
    """What to do first about traces that only somebody else can take away."""
    leaves: str | None = None
    """What stays of it although it is gone, as a sentence."""

    @property
    def may_truncate(self) -> bool:
        """Whether dropping it can have anything to do with history."""
        return self.protects_history or self.needs_truncation


def removal_of(name: str) -> FeatureRemoval:
    """How the feature of that exact name goes, an alias included.

    `UnsupportedFeatureError` where the name is unknown, `RefusedError` where such a feature stays
    for good.
    """
    feature = find_feature(name)
    if feature is None:
        raise UnsupportedFeatureError(
            f"the table feature {name!r} is unknown",
            remedy="give a name as the protocol of the table has it",
        )
    removal = _REMOVALS.get(feature.name)
    if removal is None:
        raise RefusedError(
            f"the table feature {name} cannot be dropped, as in Delta Spark",
            remedy="switch it off by its table property if it has one, or copy the table",
        )
    return removal


def require_removable(
    name: str, protocol: Protocol, metadata: Metadata, domains: Collection[str]
) -> FeatureRemoval:
    """The same for a feature that the table has, unless something else of it needs the feature.

    `RefusedError` where another feature depends on it, and for traces that no commit without new
    data files can take away.
    """
    removal = removal_of(name)
    names = feature_names(protocol)
    dependants = sorted(
        other for other in names if removal.feature in _requirements(other) and other != name
    )
    if dependants:
        raise RefusedError(
            f"{name} is needed by {', '.join(dependants)}",
            remedy=f"drop {dependants[0]} first",
        )
    trace = removal.metadata_trace(removal.prepared(metadata))
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
            remedy="remove it with the engine that wrote it",
        )
    return removal


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
            remedy="drop it with Delta Spark, which writes all data files anew",
        ),
        FeatureRemoval(
            feature="deletionVectors",
            protects_history=True,
            metadata_trace=is_on(_ENABLE_VECTORS),
            history_trace=is_on(_ENABLE_VECTORS),
            file_fields=("deletionVector",),
            prepared=without_properties(_ENABLE_VECTORS),
            remedy="set delta.enableDeletionVectors to false and run purge",
            leaves="vector files of older versions stay until vacuum finds that nothing needs them",
        ),
        FeatureRemoval(
            feature="domainMetadata",
            leaked_domains=True,
            leaves="the log keeps the last configuration of each domain, as its protocol asks",
        ),
        FeatureRemoval(
            feature="geospatial",
            protects_history=True,
            metadata_trace=geometry_column,
            history_trace=geometry_column,
            remedy="drop such columns first",
        ),
        FeatureRemoval(
            feature=in_commit_timestamps.FEATURE,
            metadata_trace=commit_times,
            prepared=without_commit_times,
            leaves="older commits keep their times, but from now on those of the files count",
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
            leaves="data files keep hidden columns of row IDs, which nobody reads any more",
        ),
        FeatureRemoval(
            feature="typeWidening",
            protects_history=True,
            metadata_trace=first_of(is_on(_ENABLE_WIDENING), widened_column),
            # Until a type has changed, old versions read the same with and without the feature.
            history_trace=widened_column,
            prepared=without_properties(_ENABLE_WIDENING),
            remedy="drop it with Delta Spark, which writes the files of the old types anew",
        ),
        FeatureRemoval(
            feature="v2Checkpoint",
            protects_history=True,
            metadata_trace=v2_policy,
            history_trace=v2_policy,
            v2_checkpoints=True,
            prepared=with_classic_policy,
            leaves="sidecars stay until clean-log finds that no checkpoint refers to them",
        ),
        FeatureRemoval(feature="vacuumProtocolCheck", protects_history=True),
    )
}

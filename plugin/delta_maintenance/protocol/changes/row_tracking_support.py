"""Protocol, property and domain changes before and after files get row IDs.

Implements "Row Tracking": a table must support the feature before a file can get row IDs, and may
enable it when every file has them. `support_change` also converts tables that follow the drafts of
row tracking of 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata, Protocol
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.features.registry import supports, without_features
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.schema.types import parse_schema

ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"

_DRAFT_FEATURE = "rowIds"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTrackingSources:
    """The parts of a snapshot's state, other than files, that row tracking depends on."""

    protocol: Protocol
    metadata: Metadata
    domain: DomainMetadata | None
    """The domain `delta.rowTracking`."""
    draft_high_water_mark: Json | None
    """The last `rowIdHighWaterMark` action, which only a draft of 2023 has."""

    @property
    def state(self) -> RowTrackingState:
        """What row tracking currently requires of writers."""
        return row_tracking_state(self.protocol, self.metadata.configuration)

    @property
    def is_enabled(self) -> bool:
        """Whether row tracking is enabled, and the table names the columns that keep row IDs."""
        names_columns = _MATERIALISED.keys() <= self.metadata.configuration.keys()
        return self.state is RowTrackingState.ENABLED and names_columns

    @property
    def high_water_mark(self) -> int:
        """The higher one of the marks of the domain and of the draft's action."""
        marks = [row_tracking.high_water_mark(self.domain.configuration if self.domain else None)]
        if self.draft_high_water_mark is not None:
            draft = row_tracking.draft_high_water_mark(self.draft_high_water_mark)
            marks.append(row_tracking.NO_ROW_ID if draft is None else draft)
        return max(marks)

    @property
    def draft(self) -> str | None:
        """The part of a draft that is still in effect, as a noun phrase, or None."""
        if supports(self.protocol, _DRAFT_FEATURE):
            return "the table feature rowIds"
        if self.domain is not None:
            return "a map for its high-water mark" if self.domain.draft_map else None
        return "the action rowIdHighWaterMark" if self.draft_high_water_mark is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportChange:
    """A commit after which every new file gets row IDs."""

    protocol: Protocol | None
    """The new protocol, or None if the current one is sufficient."""
    drops: tuple[str, ...]
    """Draft features that the new protocol no longer lists."""
    metadata: Metadata | None
    """The metadata without the properties in `unset`, or None if `unset` is empty."""
    unset: tuple[str, ...]
    """Properties that would contradict support for row tracking."""
    high_water_mark: int | None
    """Written to the domain if a draft stored it elsewhere; None if the domain is correct."""


def support_change(
    sources: RowTrackingSources, *, convert_draft: bool, lift_suspension: bool
) -> SupportChange | None:
    """The change that makes the table support row tracking, or None if it already does.

    Raises `RefusedError` for a draft unless `convert_draft`, for a suspended table unless
    `lift_suspension`, and for a table where row tracking is both enabled and suspended.
    """
    if sources.state is RowTrackingState.CONTRADICTORY:
        raise RefusedError(
            "row tracking is enabled and suspended at the same time, which forbids every write",
            remedy=f"set {row_tracking.ENABLED_PROPERTY} to false with set-properties",
        )
    draft = sources.draft
    if draft is not None and not convert_draft:
        raise RefusedError(
            f"the log contains {draft}, which belongs to a 2023 draft of row tracking",
            remedy="request the conversion of the draft with --convert-draft",
        )
    configuration = sources.metadata.configuration
    contradicting = [row_tracking.SUSPENDED_PROPERTY] if _is_true(configuration, _SUSPENDED) else []
    if contradicting and not lift_suspension:
        raise RefusedError(
            "row tracking is suspended, so files cannot get row IDs",
            remedy="request that the suspension is lifted, unless the feature is being dropped",
        )
    if sources.state is RowTrackingState.UNSUPPORTED and row_tracking.ENABLED_PROPERTY in (
        configuration
    ):
        # Without the feature the property has no effect. With it, it would claim that all files
        # have row IDs.
        contradicting.append(row_tracking.ENABLED_PROPERTY)
    protocol = _supporting(sources.protocol)
    if protocol == sources.protocol and not contradicting and draft is None:
        return None
    return SupportChange(
        protocol=protocol if protocol != sources.protocol else None,
        drops=(_DRAFT_FEATURE,) if supports(sources.protocol, _DRAFT_FEATURE) else (),
        metadata=_without(sources.metadata, contradicting) if contradicting else None,
        unset=tuple(contradicting),
        high_water_mark=sources.high_water_mark if draft is not None else None,
    )


def enable_row_tracking(metadata: Metadata, *, new_id: Callable[[], str]) -> Metadata:
    """The metadata with row tracking enabled.

    Existing names of the materialised columns do not change. New names differ from all column names
    of the table, compared case-insensitively. Raises `RefusedError` if the metadata has no schema.
    """
    if metadata.schema_string is None:
        raise RefusedError(
            "the table has no schema, so names for the row tracking columns cannot be chosen",
            remedy="repair the metadata with the engine that wrote it",
        )
    configuration = {**metadata.configuration, row_tracking.ENABLED_PROPERTY: "true"}
    used_names = _column_names(metadata.schema_string)
    for key, prefix in _MATERIALISED.items():
        if key not in configuration:
            configuration[key] = _free_name(prefix, used_names, new_id)
    return replace(metadata, configuration=configuration)


_SUSPENDED = row_tracking.SUSPENDED_PROPERTY
_MATERIALISED = {
    ROW_ID_COLUMN: "_row-id-col-",
    ROW_COMMIT_VERSION_COLUMN: "_row-commit-version-col-",
}


def _supporting(protocol: Protocol) -> Protocol:
    """The protocol with row tracking and without its drafts; other features stay."""
    with_feature = upgraded_protocol(protocol, features=[row_tracking.FEATURE])
    return without_features(with_feature, [_DRAFT_FEATURE])


def _without(metadata: Metadata, properties: list[str]) -> Metadata:
    configuration = {
        key: value for key, value in metadata.configuration.items() if key not in properties
    }
    return replace(metadata, configuration=configuration)


def _is_true(configuration: Mapping[str, str], name: str) -> bool:
    return configuration.get(name, "false").lower() == "true"


def _column_names(schema_string: str) -> frozenset[str]:
    """The logical and physical column names, in lower case."""
    names = set()
    for column in parse_schema(schema_string).fields:
        physical = column.metadata.get("delta.columnMapping.physicalName")
        names |= {column.name.lower(), str(physical or column.name).lower()}
    return frozenset(names)


def _free_name(prefix: str, used_names: frozenset[str], new_id: Callable[[], str]) -> str:
    while True:
        name = f"{prefix}{new_id()}"
        if name.lower() not in used_names:
            return name

"""What has to change in a table's small state before and after its files get row IDs.

Implements "Row Tracking" as far as protocol, properties and domain go: a table must support it
before a file can be given row IDs, and may enable it once every file has them. Tables of the
drafts of 2023 are converted by the first of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata, Protocol
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.features.registry import supports, without_features
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.protocol.row_tracking.domain import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.schema.types import parse_schema

ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"

_DRAFT_FEATURE = "rowIds"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTrackingSources:
    """Everything in the small state of a snapshot that row tracking depends on."""

    protocol: Protocol
    metadata: Metadata
    domain: DomainMetadata | None
    """`delta.rowTracking`."""
    draft_high_water_mark: Json | None
    """The last action `rowIdHighWaterMark` of a draft."""

    @property
    def state(self) -> RowTrackingState:
        """What a writer owes to row tracking now."""
        return row_tracking_state(self.protocol, self.metadata.configuration)

    @property
    def high_water_mark(self) -> int:
        """The highest mark of the domain and of a draft's action."""
        marks = [row_tracking.high_water_mark(self.domain.configuration if self.domain else None)]
        if self.draft_high_water_mark is not None:
            draft = row_tracking.draft_high_water_mark(self.draft_high_water_mark)
            marks.append(row_tracking.NO_ROW_ID if draft is None else draft)
        return max(marks)

    @property
    def draft(self) -> str | None:
        """What of a draft is still in force, as a noun phrase."""
        if supports(self.protocol, _DRAFT_FEATURE):
            return "the table feature rowIds"
        if self.domain is not None:
            return "a map for its high-water mark" if self.domain.draft_map else None
        return "the action rowIdHighWaterMark" if self.draft_high_water_mark is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportChange:
    """One commit after which every new file gets row IDs."""

    protocol: Protocol | None
    """None where the table's will do."""
    drops: tuple[str, ...]
    """Draft features that the protocol loses."""
    metadata: Metadata | None
    """Without the properties in `unset`; None where there are none."""
    unset: tuple[str, ...]
    """Properties that would contradict it."""
    high_water_mark: int | None
    """To be written because a draft kept it elsewhere; None where the domain is as it should be."""


def support_change(
    sources: RowTrackingSources, *, convert_draft: bool, lift_suspension: bool
) -> SupportChange | None:
    """What makes the table support row tracking; None where it does already.

    `RefusedError` for a draft or a suspended table unless the argument says to change that, and for
    one that is enabled and suspended at once.
    """
    if sources.state is RowTrackingState.CONTRADICTORY:
        raise RefusedError(
            "row tracking is enabled and suspended at once, which forbids every write",
            remedy=f"set {row_tracking.SUSPENDED_PROPERTY} or {row_tracking.ENABLED_PROPERTY} to "
            "false with Delta Spark",
        )
    draft = sources.draft
    if draft is not None and not convert_draft:
        raise RefusedError(
            f"the log holds {draft}, from a draft of row tracking of 2023",
            remedy="ask for its conversion to today's row tracking",
        )
    configuration = sources.metadata.configuration
    contradicting = [row_tracking.SUSPENDED_PROPERTY] if _is_true(configuration, _SUSPENDED) else []
    if contradicting and not lift_suspension:
        raise RefusedError(
            "row tracking is suspended, so that no file may be given row IDs",
            remedy="ask for the suspension to be lifted, if nobody is about to drop the feature",
        )
    if sources.state is RowTrackingState.UNSUPPORTED and row_tracking.ENABLED_PROPERTY in (
        configuration
    ):
        # It means nothing yet, and would be a lie from the moment the feature is there.
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


def enabled(metadata: Metadata, *, new_id: Callable[[], str]) -> Metadata:
    """The metadata of a table whose rows keep their IDs.

    Names for the materialised columns that are there already stay; new ones differ from every
    column of the table, whatever the case. `RefusedError` where the schema cannot be read.
    """
    if metadata.schema_string is None:
        raise RefusedError(
            "the table has no schema, so that no column name is known to be free",
            remedy="repair the metadata with the engine that wrote it",
        )
    configuration = {**metadata.configuration, row_tracking.ENABLED_PROPERTY: "true"}
    taken = _column_names(metadata.schema_string)
    for key, prefix in _MATERIALISED.items():
        if key not in configuration:
            configuration[key] = _free_name(prefix, taken, new_id)
    return replace(metadata, configuration=configuration)


_SUSPENDED = row_tracking.SUSPENDED_PROPERTY
_MATERIALISED = {
    ROW_ID_COLUMN: "_row-id-col-",
    ROW_COMMIT_VERSION_COLUMN: "_row-commit-version-col-",
}


def _supporting(protocol: Protocol) -> Protocol:
    """The protocol with row tracking and all it has, drafts of it left out."""
    with_feature = upgraded_protocol(protocol, features=[row_tracking.FEATURE])
    return without_features(with_feature, [_DRAFT_FEATURE])


def _without(metadata: Metadata, properties: list[str]) -> Metadata:
    kept = {key: value for key, value in metadata.configuration.items() if key not in properties}
    return replace(metadata, configuration=kept)


def _is_true(configuration: Mapping[str, str], name: str) -> bool:
    return configuration.get(name, "false").lower() == "true"


def _column_names(schema_string: str) -> frozenset[str]:
    """Logical and physical names, in lower case."""
    names = set()
    for column in parse_schema(schema_string).fields:
        physical = column.metadata.get("delta.columnMapping.physicalName")
        names |= {column.name.lower(), str(physical or column.name).lower()}
    return frozenset(names)


def _free_name(prefix: str, taken: frozenset[str], new_id: Callable[[], str]) -> str:
    while True:
        name = f"{prefix}{new_id()}"
        if name.lower() not in taken:
            return name

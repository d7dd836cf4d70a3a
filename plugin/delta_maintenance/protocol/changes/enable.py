"""The protocol and metadata that result from a request for properties and features.

Implements the rules for adding and activating features: "Supported Features", "Active Features",
and the requirements in the section of each feature. A property without a feature never changes the
protocol, and a refused request changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.changes import iceberg_compat
from delta_maintenance.protocol.changes.property_rules import (
    CONSTRAINT_PREFIX,
    FEATURE_PREFIX,
    READER_VERSION,
    WRITER_VERSION,
    active_properties,
    controls_protocol,
    find_rule,
    require_removable,
    require_settable,
)
from delta_maintenance.protocol.changes.row_tracking_support import enable_row_tracking
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.features.properties import integer_parser, parse_boolean
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.schema import column_mapping
from delta_maintenance.protocol.schema.types import (
    StructType,
    column_mapping_mode,
    parse_schema,
    walk,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """The properties and features that one commit should set."""

    features: tuple[str, ...] = ()
    reader_version: int | None = None
    writer_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties to set; none of them controls the protocol (`controls_protocol`)."""
    removed: tuple[str, ...] = ()
    """Properties to remove."""

    @classmethod
    def of_properties(
        cls, properties: Mapping[str, str], removed: Collection[str]
    ) -> ChangeRequest:
        """The request that `SET TBLPROPERTIES` and `UNSET TBLPROPERTIES` make.

        `delta.feature.NAME=supported` and the two version properties request a protocol change.
        Raises `InvalidRequestError` for invalid names and values, and `RefusedError` for properties
        that users cannot set.
        """
        features = []
        versions: dict[str, int] = {}
        table_properties = {}
        for name, value in properties.items():
            if name in removed:
                raise InvalidRequestError(f"{name} cannot be set and removed in one request")
            if name.startswith(FEATURE_PREFIX):
                if value != "supported":
                    raise InvalidRequestError(f"{name} can only be set to 'supported'")
                features.append(name.removeprefix(FEATURE_PREFIX))
            elif name in (READER_VERSION, WRITER_VERSION):
                versions[name] = integer_parser(minimum=1)(value)
            elif controls_protocol(name):
                parse_boolean(value)
            else:
                require_settable(name, value)
                table_properties[name] = value
        for name in removed:
            if controls_protocol(name):
                raise RefusedError(
                    f"{name} is not stored as a property, so it cannot be removed",
                    remedy="use drop-feature to remove a table feature",
                )
            require_removable(name)
        return cls(
            features=tuple(features),
            reader_version=versions.get(READER_VERSION),
            writer_version=versions.get(WRITER_VERSION),
            properties=table_properties,
            removed=tuple(removed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A condition on the live files of the table that makes a change invalid."""

    problem: str
    """One clause that names what is not allowed."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """Protocol and metadata after a change; equal to the current ones if nothing changes."""

    protocol: Protocol
    metadata: Metadata
    forbids_files: Obstacle | None = None
    """Set if the change is only valid for a table without live files."""
    forbids_vectors: Obstacle | None = None
    """Set if the change is only valid for a table whose live files have no deletion vectors."""

    @property
    def depends_on_files(self) -> bool:
        """Whether files that other writers add or change can make the change invalid."""
        return self.forbids_files is not None or self.forbids_vectors is not None


def changed_table(
    protocol: Protocol, metadata: Metadata, request: ChangeRequest, *, new_id: Callable[[], str]
) -> TableChange:
    """The protocol and metadata after the request, including all changes that it entails.

    `new_id` makes the names of the hidden columns of row tracking. The properties that record when
    in-commit timestamps were enabled depend on the version of the commit and are added there.

    Raises `UnsupportedFeatureError`, `InvalidRequestError` or `RefusedError` if this table cannot
    meet the request.
    """
    before = metadata.configuration
    configuration = {key: value for key, value in before.items() if key not in request.removed}
    configuration |= request.properties
    after = upgraded_protocol(
        protocol,
        features=[*request.features, *_activated_features(protocol, request.properties)],
        reader_version=request.reader_version,
        writer_version=request.writer_version,
    )
    change = TableChange(protocol=after, metadata=replace(metadata, configuration=configuration))
    if change.metadata != metadata:
        _require_complete(metadata)
    requested = {*request.properties, *request.removed}
    _require_no_dormant_properties(protocol, change, requested)
    for require in _RULES:
        require(change, requested)
    change = _with_column_mapping(protocol, metadata, change)
    change = _with_iceberg_compatibility(protocol, metadata, change)
    return _with_row_tracking(protocol, metadata, change, new_id)


def _require_complete(metadata: Metadata) -> None:
    """Refuses to write metadata again that lacks a required field."""
    for name, value in (("id", metadata.id), ("schemaString", metadata.schema_string)):
        if value is None:
            raise RefusedError(
                f"the metadata of the table has no {name}, which is required",
                remedy="repair the metadata with the engine that wrote it",
            )


def _activated_features(protocol: Protocol, properties: Mapping[str, str]) -> list[str]:
    """The features that these property values activate and the table does not support yet."""
    return [
        rule.feature
        for name, value in properties.items()
        if (rule := find_rule(name)) is not None
        and rule.feature is not None
        and rule.activates(value)
        and not supports(protocol, rule.feature)
    ]


def _require_no_dormant_properties(
    protocol: Protocol, change: TableChange, requested: Collection[str]
) -> None:
    """Refuses features that would activate a property that is set but was not requested."""
    configuration = change.metadata.configuration
    active = active_properties(change.protocol, configuration)
    activated = active.keys() - active_properties(protocol, configuration).keys()
    dormant = [(name, active[name]) for name in sorted(activated - set(requested))]
    if supports(change.protocol, "checkConstraints") and not supports(protocol, "checkConstraints"):
        dormant += [
            (name, "checkConstraints")
            for name in sorted(configuration)
            if name.startswith(CONSTRAINT_PREFIX) and name not in requested
        ]
    if dormant:
        name, feature = dormant[0]
        raise RefusedError(
            f"the feature {feature} would activate the property {name}, which the table already "
            "has",
            remedy=f"set {name} with set-properties --set, which adds the feature, or remove it "
            "first with set-properties --unset",
        )


def _with_column_mapping(protocol: Protocol, before: Metadata, change: TableChange) -> TableChange:
    before_mode = column_mapping_mode(protocol, before.configuration)
    after = column_mapping_mode(change.protocol, change.metadata.configuration)
    if before_mode == after:
        return change
    if before_mode != "none":
        raise RefusedError(
            f"the column mapping mode cannot change from {before_mode} to {after}: the data files "
            "contain the physical names or IDs of the columns",
            remedy="keep the mode, or drop the feature columnMapping with drop-feature, which "
            "rewrites the files",
        )
    if after == "id":
        raise RefusedError(
            "the column mapping mode cannot change from none to id: the data files contain no "
            "column IDs",
            remedy="set it to name",
        )
    highest_id = before.configuration.get(column_mapping.MAX_COLUMN_ID, "0")
    schema_string, highest = column_mapping.mapped_by_name(
        before.schema_string or "", max_column_id=integer_parser(minimum=0)(highest_id)
    )
    configuration = {**change.metadata.configuration, column_mapping.MAX_COLUMN_ID: str(highest)}
    metadata = replace(change.metadata, schema_string=schema_string, configuration=configuration)
    return replace(change, metadata=metadata)


def _with_iceberg_compatibility(
    protocol: Protocol, before: Metadata, change: TableChange
) -> TableChange:
    was = active_properties(protocol, before.configuration)
    active = active_properties(change.protocol, change.metadata.configuration)
    _require_uniform(was, active, change.metadata)
    gets_vectors = supports(change.protocol, "deletionVectors") and not supports(
        protocol, "deletionVectors"
    )
    for version, name in iceberg_compat.PROPERTIES.items():
        if name not in active:
            continue
        if name not in was or gets_vectors:
            iceberg_compat.require_compatible(
                version, change.protocol, change.metadata, active=active
            )
        if name not in was:
            change = _iceberg_compatible(version, change)
    return change


def _iceberg_compatible(version: iceberg_compat.CompatVersion, change: TableChange) -> TableChange:
    feature, metadata = iceberg_compat.FEATURES[version], change.metadata
    rewrite = (
        "enable it with REORG TABLE … APPLY (UPGRADE UNIFORM "
        f"(ICEBERG_COMPAT_VERSION={version})) in Delta Spark, which rewrites these files"
    )
    vectors = Obstacle(problem=f"{feature} allows no deletion vectors", remedy=rewrite)
    if version == 1:
        unpartitioned = not metadata.partition_columns
        files = Obstacle(
            problem=f"{feature} requires the partition columns in all data files", remedy=rewrite
        )
        return replace(
            change, forbids_vectors=vectors, forbids_files=None if unpartitioned else files
        )
    highest = integer_parser(minimum=0)(metadata.configuration[column_mapping.MAX_COLUMN_ID])
    schema_string, highest = iceberg_compat.with_nested_ids(
        metadata.schema_string or "", max_column_id=highest
    )
    configuration = {**metadata.configuration, column_mapping.MAX_COLUMN_ID: str(highest)}
    metadata = replace(metadata, schema_string=schema_string, configuration=configuration)
    return replace(change, metadata=metadata, forbids_vectors=vectors)


def _require_uniform(was: Mapping[str, str], active: Mapping[str, str], after: Metadata) -> None:
    """Refuses to disable the Iceberg compatibility that the table's Iceberg metadata requires."""
    versions = [name for name in was if name.startswith("delta.enableIcebergCompat")]
    formats = after.configuration.get(_FORMATS, "").lower()
    if (
        versions
        and "iceberg" in formats
        and not any(name.startswith("delta.enableIcebergCompat") for name in active)
    ):
        raise RefusedError(
            f"{_FORMATS} requires {versions[0]}", remedy=f"remove {_FORMATS} as well"
        )


def _with_row_tracking(
    protocol: Protocol, before: Metadata, change: TableChange, new_id: Callable[[], str]
) -> TableChange:
    configuration = change.metadata.configuration
    state = row_tracking_state(change.protocol, configuration)
    if state is RowTrackingState.CONTRADICTORY:
        raise RefusedError(
            "row tracking cannot be enabled and suspended at the same time",
            remedy=f"set {row_tracking.SUSPENDED_PROPERTY} or {row_tracking.ENABLED_PROPERTY} to "
            "false as well",
        )
    was = row_tracking_state(protocol, before.configuration)
    if state is not RowTrackingState.ENABLED or was is RowTrackingState.ENABLED:
        return change
    metadata = enable_row_tracking(change.metadata, new_id=new_id)
    obstacle = Obstacle(
        problem="row tracking cannot be enabled directly on a table that has files",
        remedy="use backfill-row-ids, which assigns row IDs to the files and then enables it",
    )
    return replace(change, metadata=metadata, forbids_files=obstacle)


def _require_vectors_allowed(change: TableChange, requested: Collection[str]) -> None:
    configuration = change.metadata.configuration
    active = active_properties(change.protocol, configuration)
    if "delta.enableDeletionVectors" not in active:
        return
    conflicting = {
        "icebergCompatV1": supports(change.protocol, "icebergCompatV1"),
        "icebergCompatV2": "delta.enableIcebergCompatV2" in active,
        _MANIFESTS: configuration.get(_MANIFESTS, "false").lower() == "true",
    }
    for name, present in conflicting.items():
        if present and {"delta.enableDeletionVectors", _MANIFESTS} & set(requested):
            raise RefusedError(
                f"a table with {name} cannot have deletion vectors, because clients that read "
                "through it would ignore them",
                remedy=f"keep either deletion vectors or {name}",
            )


def _require_unused_change_columns(change: TableChange, requested: Collection[str]) -> None:
    name = "delta.enableChangeDataFeed"
    if name not in requested or name not in active_properties(
        change.protocol, change.metadata.configuration
    ):
        return
    reserved = {column.name.lower() for column in _schema(change.metadata).fields} & _CHANGE_COLUMNS
    if reserved:
        raise RefusedError(
            f"the column name {min(reserved)!r} is reserved by the change data feed",
            remedy="rename the column",
        )


def _require_stats_columns(change: TableChange, requested: Collection[str]) -> None:
    name = "delta.dataSkippingStatsColumns"
    text = change.metadata.configuration.get(name)
    if name not in requested or text is None:
        return
    column_texts = {
        ".".join(path).lower()
        for path, _ in walk(_schema(change.metadata))
        if not {"element", "key", "value"} & set(path[:-1])
    }
    for column in text.split(","):
        if column.strip().replace("`", "").lower() not in column_texts:
            raise InvalidRequestError(
                f"{name}: the table has no column {column.strip()!r}",
                remedy="use column names of the schema",
            )


def _schema(metadata: Metadata) -> StructType:
    return parse_schema(metadata.schema_string or "")


_FORMATS = "delta.universalFormat.enabledFormats"
_MANIFESTS = "delta.compatibility.symlinkFormatManifest.enabled"
_CHANGE_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
_RULES: tuple[Callable[[TableChange, Collection[str]], None], ...] = (
    _require_vectors_allowed,
    _require_unused_change_columns,
    _require_stats_columns,
)
"""Conditions for the changed table that the request can violate."""

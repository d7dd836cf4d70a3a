"""What a request for properties and features makes of the protocol and the metadata of a table.

Implements the rules by which features are added and become active: "Supported Features", "Active
Features", and for each feature what its section asks of whoever enables it. Nothing else changes: a
property without a feature never touches the protocol, and one that is refused changes nothing.
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
    find_rule,
    require_removable,
    require_settable,
    steers_protocol,
)
from delta_maintenance.protocol.changes.row_tracking_support import enabled
from delta_maintenance.protocol.changes.upgrade import upgraded_protocol
from delta_maintenance.protocol.features.properties import integer_parser, parse_boolean
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.protocol.row_tracking.domain import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.schema import column_mapping
from delta_maintenance.protocol.schema.types import (
    StructType,
    column_mapping_mode,
    parse_schema,
    walk,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """What is asked of a table, all of it in one commit."""

    features: tuple[str, ...] = ()
    reader_version: int | None = None
    writer_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """To be set; none that steers the protocol."""
    removed: tuple[str, ...] = ()
    """Properties to be removed."""

    @classmethod
    def of_properties(
        cls, properties: Mapping[str, str], removed: Collection[str]
    ) -> ChangeRequest:
        """The request of `SET` and `UNSET TBLPROPERTIES`.

        `delta.feature.NAME`, which must be `supported`, and the two versions ask for a protocol.
        `InvalidRequestError` for values and names that cannot be, `RefusedError` for properties
        that users do not set.
        """
        features = []
        versions: dict[str, int] = {}
        kept = {}
        for name, value in properties.items():
            if name in removed:
                raise InvalidRequestError(f"{name} is to be set and to be removed")
            if name.startswith(FEATURE_PREFIX):
                if value != "supported":
                    raise InvalidRequestError(f"{name} can only be set to 'supported'")
                features.append(name.removeprefix(FEATURE_PREFIX))
            elif name in (READER_VERSION, WRITER_VERSION):
                versions[name] = integer_parser(least=1)(value)
            elif steers_protocol(name):
                parse_boolean(value)
            else:
                require_settable(name, value)
                kept[name] = value
        for name in removed:
            if steers_protocol(name):
                raise RefusedError(
                    f"{name} is no property that is stored", remedy="use drop-feature"
                )
            require_removable(name)
        return cls(
            features=tuple(features),
            reader_version=versions.get(READER_VERSION),
            writer_version=versions.get(WRITER_VERSION),
            properties=kept,
            removed=tuple(removed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a change is right only while a table has none of something."""

    problem: str
    """Ends with the name of what it must have none of."""
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """Protocol and metadata as they are to be; equal to those before where nothing changes."""

    protocol: Protocol
    metadata: Metadata
    forbids_files: Obstacle | None = None
    """Stands in the way of a table that has live files."""
    forbids_vectors: Obstacle | None = None
    """Stands in the way of a table whose live files have deletion vectors."""

    @property
    def depends_on_files(self) -> bool:
        """Whether it may be wrong once other files are live."""
        return self.forbids_files is not None or self.forbids_vectors is not None


def changed_table(
    protocol: Protocol, metadata: Metadata, request: ChangeRequest, *, new_id: Callable[[], str]
) -> TableChange:
    """The table with everything that was asked for, and what follows from it.

    The hidden columns of row tracking are named by `new_id`. What in-commit timestamps record of
    themselves is left to the commit, on whose version it depends.

    `UnsupportedFeatureError`, `InvalidRequestError` and `RefusedError` where the request is not to
    be met on this table.
    """
    before = metadata.configuration
    configuration = {key: value for key, value in before.items() if key not in request.removed}
    configuration |= request.properties
    after = upgraded_protocol(
        protocol,
        features=[*request.features, *_activated(protocol, request.properties)],
        reader_version=request.reader_version,
        writer_version=request.writer_version,
    )
    change = TableChange(protocol=after, metadata=replace(metadata, configuration=configuration))
    if change.metadata != metadata:
        _require_whole(metadata)
    asked = {*request.properties, *request.removed}
    _require_nothing_awakened(protocol, change, asked)
    for require in _RULES:
        require(change, asked)
    change = _with_column_mapping(protocol, metadata, change)
    change = _with_iceberg_compatibility(protocol, metadata, change)
    return _with_row_tracking(protocol, metadata, change, new_id)


def _require_whole(metadata: Metadata) -> None:
    """Refuses to write metadata anew that lacks what every metadata must have."""
    for name, value in (("id", metadata.id), ("schemaString", metadata.schema_string)):
        if value is None:
            raise RefusedError(
                f"the metadata of the table has no {name}, and would have none when written anew",
                remedy="repair it with the engine that wrote it",
            )


def _activated(protocol: Protocol, properties: Mapping[str, str]) -> list[str]:
    """The features that the values of these properties need and the table lacks."""
    return [
        rule.feature
        for name, value in properties.items()
        if (rule := find_rule(name)) is not None
        and rule.feature is not None
        and rule.activates(value)
        and not supports(protocol, rule.feature)
    ]


def _require_nothing_awakened(
    protocol: Protocol, change: TableChange, asked: Collection[str]
) -> None:
    """Refuses features that give a meaning to properties which had none and were not asked for."""
    configuration = change.metadata.configuration
    awake = active_properties(change.protocol, configuration)
    asleep = awake.keys() - active_properties(protocol, configuration).keys()
    dormant = [(name, awake[name]) for name in sorted(asleep - set(asked))]
    if supports(change.protocol, "checkConstraints") and not supports(protocol, "checkConstraints"):
        dormant += [
            (name, "checkConstraints")
            for name in sorted(configuration)
            if name.startswith(CONSTRAINT_PREFIX) and name not in asked
        ]
    if dormant:
        name, feature = dormant[0]
        raise RefusedError(
            f"the table has the property {name}, which {feature} would put into force unasked",
            remedy="set it by name, or remove it first",
        )


def _with_column_mapping(protocol: Protocol, before: Metadata, change: TableChange) -> TableChange:
    old = column_mapping_mode(protocol, before.configuration)
    new = column_mapping_mode(change.protocol, change.metadata.configuration)
    if old == new:
        return change
    if old != "none":
        raise RefusedError(
            f"column mapping cannot go from {old} to {new}: the data files hold the columns under "
            "their physical names or ids",
            remedy="keep the mode, or remove column mapping with Delta Spark, which rewrites them",
        )
    if new == "id":
        raise RefusedError(
            "column mapping cannot go from none to id: the data files hold no ids",
            remedy="set it to name",
        )
    given = before.configuration.get(column_mapping.MAX_COLUMN_ID, "0")
    schema_string, highest = column_mapping.mapped_by_name(
        before.schema_string or "", max_column_id=integer_parser(least=0)(given)
    )
    configuration = {
        **change.metadata.configuration,
        column_mapping.MAX_COLUMN_ID: str(highest),
    }
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
        "let Delta Spark enable it by REORG TABLE … APPLY (UPGRADE UNIFORM "
        f"(ICEBERG_COMPAT_VERSION={version})), which writes such files anew"
    )
    vectors = Obstacle(problem=f"{feature} allows no deletion vectors", remedy=rewrite)
    if version == 1:
        unpartitioned = not metadata.partition_columns
        files = Obstacle(
            problem=f"{feature} wants the values of partition columns in all data files",
            remedy=rewrite,
        )
        return replace(
            change,
            forbids_vectors=vectors,
            forbids_files=None if unpartitioned else files,
        )
    highest = integer_parser(least=0)(metadata.configuration[column_mapping.MAX_COLUMN_ID])
    schema_string, highest = iceberg_compat.with_nested_ids(
        metadata.schema_string or "", max_column_id=highest
    )
    configuration = {**metadata.configuration, column_mapping.MAX_COLUMN_ID: str(highest)}
    metadata = replace(metadata, schema_string=schema_string, configuration=configuration)
    return replace(change, metadata=metadata, forbids_vectors=vectors)


def _require_uniform(was: Mapping[str, str], active: Mapping[str, str], after: Metadata) -> None:
    """Refuses to take away the compatibility that Iceberg metadata of the table rests on."""
    versions = [name for name in was if name.startswith("delta.enableIcebergCompat")]
    formats = after.configuration.get(_FORMATS, "").lower()
    if (
        versions
        and "iceberg" in formats
        and not any(name.startswith("delta.enableIcebergCompat") for name in active)
    ):
        raise RefusedError(
            f"{versions[0]} is what {_FORMATS} rests on", remedy=f"remove {_FORMATS} as well"
        )


def _with_row_tracking(
    protocol: Protocol, before: Metadata, change: TableChange, new_id: Callable[[], str]
) -> TableChange:
    configuration = change.metadata.configuration
    state = row_tracking_state(change.protocol, configuration)
    if state is RowTrackingState.CONTRADICTORY:
        raise RefusedError(
            "row tracking cannot be enabled and suspended at once",
            remedy=f"set {row_tracking.SUSPENDED_PROPERTY} or {row_tracking.ENABLED_PROPERTY} to "
            "false as well",
        )
    was = row_tracking_state(protocol, before.configuration)
    if state is not RowTrackingState.ENABLED or was is RowTrackingState.ENABLED:
        return change
    metadata = enabled(change.metadata, new_id=new_id)
    obstacle = Obstacle(
        problem="row tracking cannot be enabled at once on a table that has files",
        remedy="use backfill-row-ids, which gives them row IDs and enables it in the end",
    )
    return replace(change, metadata=metadata, forbids_files=obstacle)


def _require_vectors_allowed(change: TableChange, asked: Collection[str]) -> None:
    configuration = change.metadata.configuration
    active = active_properties(change.protocol, configuration)
    if "delta.enableDeletionVectors" not in active:
        return
    against = {
        "icebergCompatV1": supports(change.protocol, "icebergCompatV1"),
        "icebergCompatV2": "delta.enableIcebergCompatV2" in active,
        _MANIFESTS: configuration.get(_MANIFESTS, "false").lower() == "true",
    }
    for name, present in against.items():
        if present and {"delta.enableDeletionVectors", _MANIFESTS} & set(asked):
            raise RefusedError(
                f"deletion vectors cannot be written to a table with {name}, whose readers would "
                "not see them",
                remedy=f"keep one of the two: deletion vectors or {name}",
            )


def _require_unused_change_columns(change: TableChange, asked: Collection[str]) -> None:
    name = "delta.enableChangeDataFeed"
    if name not in asked or name not in active_properties(
        change.protocol, change.metadata.configuration
    ):
        return
    taken = {column.name.lower() for column in _schema(change.metadata).fields} & _CHANGE_COLUMNS
    if taken:
        raise RefusedError(
            f"the table has a column {min(taken)!r}, which the change data feed gives a meaning",
            remedy="rename the column",
        )


def _require_stats_columns(change: TableChange, asked: Collection[str]) -> None:
    name = "delta.dataSkippingStatsColumns"
    text = change.metadata.configuration.get(name)
    if name not in asked or text is None:
        return
    known = {
        ".".join(path).lower()
        for path, _ in walk(_schema(change.metadata))
        if not {"element", "key", "value"} & set(path[:-1])
    }
    for column in text.split(","):
        if column.strip().replace("`", "").lower() not in known:
            raise InvalidRequestError(f"{name}: there is no column {column.strip()!r}")


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
"""What must be true of the table afterwards, as far as the request is about it."""

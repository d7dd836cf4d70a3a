"""Checks protocol, metadata and schema of one version against the rules of the protocol.

Implements the requirements of "Protocol Evolution", "Table Features", "Change Metadata", "Column
Mapping" and "Schema Serialization Format" that can be checked with the actions alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    find_feature,
    misplaced_features,
    supported_features,
    with_requirements,
)
from delta_maintenance.protocol.schema.clustering import DOMAIN as CLUSTERING
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DeltaType,
    MapType,
    StructType,
    column_mapping_mode,
    duplicate_names,
    parse_schema,
    walk,
)
from delta_maintenance.table.read.snapshot import Snapshot

_NEEDED = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Types that a schema may use only with a table feature."""
_ID = "delta.columnMapping.id"
_PHYSICAL = "delta.columnMapping.physicalName"


def check_state(snapshot: Snapshot, findings: Findings) -> None:
    """Adds the problems of a snapshot, except those of its files."""
    version = snapshot.version
    for kind, problem in (
        *_of_protocol(snapshot.protocol),
        *_of_metadata(snapshot),
        *_of_schema(snapshot),
    ):
        findings.add(kind, problem, version=version)


def _of_protocol(protocol: Protocol) -> Iterator[tuple[str, str]]:
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for name in sorted(misplaced_features(protocol)):
        yield "misplaced-feature", f"the table feature {name} is in the wrong lists of the protocol"
    supported = supported_features(protocol)
    for name in sorted(with_requirements(supported) - supported):
        yield (
            "missing-feature",
            f"the table feature {name} is missing, but other features require it",
        )
    for name in sorted(listed):
        feature = find_feature(name)
        if feature is not None and feature.name != name:
            final = feature.name
            yield "draft-feature", f"the table feature {name} is a draft name of {final}"


def _of_metadata(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for problem in snapshot.properties.problems:
        yield "unreadable-property", problem
    state = snapshot.state
    if state.draft_high_water_mark is not None:
        yield "draft-row-ids", "the log contains the action rowIdHighWaterMark of a draft from 2023"
    for name, domain in sorted(state.domains.items()):
        if domain.draft_map:
            yield "draft-row-ids", f"the configuration of the domain {name} is a map, as in a draft"
    if CLUSTERING in state.domains and snapshot.metadata.partition_columns:
        yield "clustered-and-partitioned", "the table is both clustered and partitioned"


def _of_schema(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    metadata = snapshot.metadata
    if metadata.schema_string is None:
        return
    try:
        schema = parse_schema(metadata.schema_string)
        mapped = column_mapping_mode(snapshot.protocol, metadata.configuration) != "none"
    except (CorruptTableError, UnsupportedFeatureError) as error:
        yield "unreadable-schema", error.problem
        return
    for name in metadata.partition_columns:
        if schema.find(name) is None:
            yield "unknown-partition-column", f"the partition column {name} is not in the schema"
    yield from _of_layout(snapshot, schema, mapped=mapped)
    for path in duplicate_names(schema):
        yield "repeated-column", f"the column {'.'.join(path)} differs from another only by case"
    if mapped:
        yield from _of_mapping(schema)
    supported = supported_features(snapshot.protocol)
    used = {name for _, field in walk(schema) for name in _names(field.type)}
    for name, feature in _NEEDED.items():
        if name in used and feature not in supported:
            yield "type-without-feature", f"the schema uses {name} without the feature {feature}"


def _of_layout(
    snapshot: Snapshot, schema: StructType, *, mapped: bool
) -> Iterator[tuple[str, str]]:
    """Yields partition and clustering columns of type variant, which have no order ("Variant Data
    Type").
    """
    by_name = {(name,) for name in snapshot.metadata.partition_columns}
    clustered = set(clustering_columns(snapshot.domain_metadata) or ())
    physical: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path, field in walk(schema):
        name = str(field.metadata.get(_PHYSICAL, field.name)) if mapped else field.name
        physical[path] = (*physical.get(path[:-1], path[:-1]), name)
        if str(field.type) != "variant":
            continue
        if path in by_name:
            yield "variant-layout", f"the table is partitioned by {path[0]}, a variant"
        if physical[path] in clustered:
            yield "variant-layout", f"the table is clustered by {'.'.join(path)}, a variant"


def _of_mapping(schema: StructType) -> Iterator[tuple[str, str]]:
    """Yields duplicate IDs in the schema, and duplicate physical names in a struct ("Field
    Path").
    """
    ids: Counter[object] = Counter()
    physical: Counter[tuple[tuple[str, ...], object]] = Counter()
    for path, field in walk(schema):
        ids[field.metadata.get(_ID)] += 1
        physical[path[:-1], field.metadata.get(_PHYSICAL)] += 1
    for number, count in ids.items():
        if number is None:
            yield "repeated-column-id", f"{count} columns have no ID"
        elif count > 1:
            yield "repeated-column-id", f"{count} columns have the ID {number}"
    for (_, name), count in physical.items():
        if name is None:
            yield "repeated-column-id", f"{count} columns have no physical name"
        elif count > 1:
            yield "repeated-column-id", f"{count} columns have the physical name {name}"


def _names(kind: DeltaType) -> Iterator[str]:
    match kind:
        case ArrayType(element=element):
            yield from _names(element)
        case MapType(key=key, value=value):
            yield from _names(key)
            yield from _names(value)
        case StructType():
            return
        case _:
            yield str(kind)

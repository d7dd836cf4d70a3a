"""Checks protocol, metadata and schema of one version against the rules of the protocol.

Implements the requirements of "Protocol Evolution", "Table Features", "Change Metadata", "Column
Mapping" and "Schema Serialization Format" that can be checked with the actions alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    find_feature,
    misplaced_features,
    supported_features,
    with_requirements,
)
from delta_maintenance.protocol.schema.clustering import DOMAIN as CLUSTERING
from delta_maintenance.protocol.schema.contradictions import contradictions
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DeltaType,
    MapType,
    StructType,
    parse_schema,
    walk,
)
from delta_maintenance.table.read.snapshot import Snapshot

_NEEDED = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Types that a schema may use only with a table feature."""
_EMPTY = '{"type":"struct","fields":[]}'


def check_state(snapshot: Snapshot, findings: Findings) -> None:
    """Adds the problems of a snapshot, except those of its files."""
    version = snapshot.version
    for kind, problem in (
        *_of_protocol(snapshot.protocol),
        *_of_metadata(snapshot),
        *contradictions(snapshot.protocol, snapshot.metadata, snapshot.domain_metadata),
        *_of_types(snapshot),
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


def _of_types(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    try:
        schema = parse_schema(snapshot.metadata.schema_string or _EMPTY)
    except CorruptTableError:
        return
    supported = supported_features(snapshot.protocol)
    used = {name for _, field in walk(schema) for name in _names(field.type)}
    for name, feature in _NEEDED.items():
        if name in used and feature not in supported:
            yield "type-without-feature", f"the schema uses {name} without the feature {feature}"


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

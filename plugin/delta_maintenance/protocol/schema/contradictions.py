"""Metadata that contradicts itself or its protocol, so that readers refuse the table or disagree.

Implements requirements of "Change Metadata", "Schema Serialization Format", "Column Mapping" and
"Variant Data Type".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.schema.column_mapping import COLUMN_ID, PHYSICAL_NAME
from delta_maintenance.protocol.schema.types import (
    StructType,
    column_mapping_mode,
    duplicate_names,
    parse_schema,
    walk,
)


def contradictions(
    protocol: Protocol, metadata: Metadata, domains: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields each contradiction: the kind of finding that `fsck` reports for it, and a clause.

    `domains` are the configurations of the domains by name.
    """
    if metadata.schema_string is None:
        return
    try:
        schema = parse_schema(metadata.schema_string)
    except CorruptTableError as error:
        yield "unreadable-schema", error.problem
        return
    try:
        mapped = column_mapping_mode(protocol, metadata.configuration) != "none"
    except UnsupportedFeatureError as error:
        yield "unreadable-schema", error.problem
        return
    names = {field.name for field in schema.fields}
    for name in metadata.partition_columns:
        if name not in names:
            yield "unknown-partition-column", f"the partition column {name} is not in the schema"
    yield from _of_layout(schema, metadata.partition_columns, domains, mapped=mapped)
    for path in duplicate_names(schema):
        yield "repeated-column", f"the column {'.'.join(path)} differs from another only by case"
    if mapped:
        yield from _of_mapping(schema)


def _of_layout(
    schema: StructType,
    partition_columns: tuple[str, ...],
    domains: Mapping[str, str],
    *,
    mapped: bool,
) -> Iterator[tuple[str, str]]:
    """Yields partition and clustering columns of type variant, which have no order ("Variant Data
    Type").
    """
    by_name = {(name,) for name in partition_columns}
    clustered = set(clustering_columns(domains) or ())
    physical: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path, field in walk(schema):
        name = str(field.metadata.get(PHYSICAL_NAME, field.name)) if mapped else field.name
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
    ids: Counter[int | None] = Counter()
    physical: Counter[tuple[tuple[str, ...], str | None]] = Counter()
    for path, field in walk(schema):
        number, name = field.metadata.get(COLUMN_ID), field.metadata.get(PHYSICAL_NAME)
        ids[number if isinstance(number, int) else None] += 1
        physical[path[:-1], name if isinstance(name, str) else None] += 1
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

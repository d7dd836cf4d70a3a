"""The columns by which a table can be clustered ("Clustered Table")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.schema.types import (
    DeltaType,
    StructField,
    StructType,
    column_mapping_mode,
    is_skipped_by,
    parse_schema,
    physical_name,
)
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, column_names

MOST_COLUMNS = 4
"""The number of columns that Delta Spark allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringColumn:
    """A column of the table, which can be a field of a struct at any depth."""

    name: str
    """The logical names, joined by dots."""
    path: tuple[str, ...]
    """The physical names."""
    type: DeltaType


def named_columns(
    names: Sequence[str], protocol: Protocol, metadata: Metadata
) -> tuple[ClusteringColumn, ...]:
    """Finds columns by their names, ignoring case.

    Dots separate the names of nested columns; names with dots are in backticks.
    `InvalidRequestError` if a name is invalid, unknown, repeated, or that of a struct.
    """
    mode = column_mapping_mode(protocol, metadata.configuration)
    schema = parse_schema(metadata.schema_string or "")
    found = []
    for text in names:
        parsed = column_names(text)
        if parsed is None or len(parsed) != 1:
            raise InvalidRequestError(
                f"{text!r} is not the name of a column",
                remedy="name each column by itself, with backticks around dots and commas in names",
            )
        fields: list[StructField] = []
        inside: DeltaType = schema
        for part in parsed[0]:
            field = _member(inside, part)
            if field is None:
                raise InvalidRequestError(
                    f"the table has no column {text}", remedy="name a column of the table"
                )
            fields.append(field)
            inside = field.type
        if isinstance(inside, StructType):
            raise InvalidRequestError(f"the column {text} is a struct", remedy="name its fields")
        found.append(
            ClusteringColumn(
                name=".".join(field.name for field in fields),
                path=tuple(physical_name(field, mode) for field in fields),
                type=inside,
            )
        )
    repeated = {column.path for column in found}
    if len(repeated) < len(found):
        raise InvalidRequestError("a column is named twice", remedy="name each column once")
    return tuple(found)


def current_columns(
    protocol: Protocol, metadata: Metadata, domains: Mapping[str, str]
) -> tuple[ClusteringColumn, ...]:
    """Returns the clustering columns of a table; empty if it is not clustered.

    `RefusedError` if they cannot be determined.
    """
    mode = column_mapping_mode(protocol, metadata.configuration)
    schema = parse_schema(metadata.schema_string or "")
    paths = clustering_columns(domains)
    found = []
    # A domain of another writer can name a column twice.
    for path in dict.fromkeys(paths or ()):
        names: list[str] = []
        inside: DeltaType = schema
        for physical in path:
            fields = inside.fields if isinstance(inside, StructType) else ()
            field = next((each for each in fields if physical_name(each, mode) == physical), None)
            if field is None:
                paths = None
                break
            names.append(field.name)
            inside = field.type
        found.append(ClusteringColumn(name=".".join(names), path=path, type=inside))
    if paths is None:
        raise RefusedError(
            "the clustering columns of the table cannot be determined",
            remedy="set them again with set-clustering --by",
        )
    return tuple(found)


def require_allowed(
    columns: Sequence[ClusteringColumn], protocol: Protocol, metadata: Metadata
) -> None:
    """Raises the refusals of Delta Spark for new clustering columns."""
    if not columns:
        return
    if metadata.partition_columns:
        raise RefusedError(
            "the table is partitioned, and a table is either partitioned or clustered",
            remedy="cluster a copy of the table without partitions, or use cluster --by to order "
            "the rows within partitions, after set-clustering --none if it is clustered now",
        )
    if len(columns) > MOST_COLUMNS:
        raise InvalidRequestError(
            f"a table can be clustered by at most {MOST_COLUMNS} columns, not {len(columns)}",
            remedy="name those that most queries filter by",
        )
    collected = {leaf.path for leaf in StatisticsColumns.of(protocol, metadata, {}).leaves}
    for column in columns:
        if not is_skipped_by(column.type):
            raise InvalidRequestError(
                f"the table cannot be clustered by {column.name}: statistics have no bounds of "
                f"this type ({column.type})",
                remedy="name columns of numbers, texts, dates or timestamps",
            )
        if column.path not in collected:
            raise RefusedError(
                f"the table cannot be clustered by {column.name}: no statistics of this column are "
                "collected",
                remedy="add it to delta.dataSkippingStatsColumns, or raise "
                "delta.dataSkippingNumIndexedCols",
            )


def _member(inside: DeltaType, name: str) -> StructField | None:
    if not isinstance(inside, StructType):
        return None
    exact = inside.find(name)
    by_case = (field for field in inside.fields if field.name.lower() == name.lower())
    return exact if exact is not None else next(by_case, None)

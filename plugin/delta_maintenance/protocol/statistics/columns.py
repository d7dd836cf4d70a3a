"""The columns of a data file that have statistics ("Per-file Statistics", "Clustered Table").

A table may name these columns, or limit the number of leaves in the order of the schema. Clustering
columns always have statistics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from delta_maintenance.errors import RefusedError, shorten
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.schema.types import (
    PrimitiveType,
    StructField,
    StructType,
    column_mapping_mode,
    has_bounds,
    parse_schema,
    physical_name,
)

_NAME = re.compile(r"\s*(`(?:[^`]|``)*`|[^.,`]+?)\s*(?=[.,]|$)")
_VOID = PrimitiveType(name="void")
_SHOWN = 200
"""The bytes of names that a message shows."""
STATS_COLUMNS = "delta.dataSkippingStatsColumns"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsLeaf:
    """One column with statistics, or a field of a struct at any depth."""

    path: tuple[str, ...]
    """Physical names."""
    bounded: bool
    """Whether it has a minimum and a maximum, in addition to the null count."""
    clustered: bool = False
    """Whether rows are clustered by it."""
    name: str = ""
    """The logical names, separated by dots, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsColumns:
    """The statistics that a new data file must have."""

    leaves: tuple[StatisticsLeaf, ...]
    tight_bounds: bool
    """Whether to write `tightBounds`: on tables that support deletion vectors, which make bounds
    inexact.
    """

    @classmethod
    def of(
        cls,
        protocol: Protocol,
        metadata: Metadata,
        domains: Mapping[str, str],
        *,
        joining: Collection[tuple[str, ...]] = (),
    ) -> StatisticsColumns:
        """Returns the columns that the table requires. `domains` are its domains by name.

        `joining` are columns by which rows are to be clustered, by physical names.

        `RefusedError` if the clustering columns cannot be determined, unless some are joining.
        """
        properties = TableProperties.from_configuration(metadata.configuration)
        mode = column_mapping_mode(protocol, metadata.configuration)
        clustered = clustering_columns(domains)
        if clustered is None and joining:
            clustered = ()
        if clustered is None:
            raise RefusedError(
                "the clustering columns of the table cannot be determined",
                remedy="set them again with set-clustering --by",
            )
        every = []
        for fields in _leaves(_data_columns(metadata)):
            path = tuple(physical_name(item, mode) for item in fields)
            leaf = StatisticsLeaf(
                path=path,
                bounded=has_bounds(fields[-1].type),
                clustered=path in clustered or path in joining,
                name=".".join(item.name for item in fields),
            )
            every.append((_lower(item.name for item in fields), leaf))
        listed_columns = column_names(properties.data_skipping_stats_columns)
        limit = properties.data_skipping_num_indexed_columns
        if listed_columns is not None:
            chosen = {
                leaf.path
                for logical, leaf in every
                if any(_below(logical, _lower(name)) for name in listed_columns)
            }
        else:
            chosen = {leaf.path for _, leaf in (every if limit < 0 else every[:limit])}
        chosen |= {*clustered, *joining}
        return cls(
            leaves=tuple(leaf for _, leaf in every if leaf.path in chosen),
            tight_bounds=supports(protocol, "deletionVectors"),
        )


def stats_columns_problem(metadata: Metadata) -> str | None:
    """Returns what is wrong with the columns that the table names, as a clause; None if nothing is.

    `ALTER TABLE … DROP COLUMN` can leave a list behind that names nothing, or cannot be parsed.
    """
    text = metadata.configuration.get(STATS_COLUMNS)
    if text is None:
        return None
    listed_columns = column_names(text)
    if listed_columns is None:
        fault = "cannot be parsed" if text.strip() else "names no column"
        return f"{STATS_COLUMNS} {fault}, so readers and writers disagree about the columns"
    leaves = [_lower(item.name for item in fields) for fields in _leaves(_data_columns(metadata))]
    unknown = [
        ".".join(name)
        for name in listed_columns
        if not any(_below(leaf, _lower(name)) for leaf in leaves)
    ]
    if not unknown:
        return None
    return (
        f"{STATS_COLUMNS} names {shorten(', '.join(unknown), _SHOWN)}, which no data column is "
        "called; columns that it does not name get no statistics"
    )


def column_names(text: str | None) -> list[tuple[str, ...]] | None:
    """Parses a list of columns, as in `delta.dataSkippingStatsColumns`.

    Commas separate columns, dots the names of nested ones; a name in backticks can contain both.
    None for an empty or an invalid list.
    """
    if text is None or not text.strip():
        return None
    columns: list[tuple[str, ...]] = []
    at, steps = 0, []
    while at < len(text):
        name_match = _NAME.match(text, at)
        if name_match is None:
            # An invalid list is ignored, and the number of leaves decides.
            return None
        step = name_match[1]
        quoted = step.startswith("`")
        steps.append(step[1:-1].replace("``", "`") if quoted else step)
        at = name_match.end() + 1
        if text[name_match.end() : at] in (",", ""):
            columns.append(tuple(steps))
            steps = []
    return columns


def _data_columns(metadata: Metadata) -> StructType:
    partitioned = {name.lower() for name in metadata.partition_columns}
    schema = parse_schema(metadata.schema_string or "")
    data = tuple(item for item in schema.fields if item.name.lower() not in partitioned)
    return StructType(fields=data)


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _leaves(
    struct: StructType, above: tuple[StructField, ...] = ()
) -> Iterator[tuple[StructField, ...]]:
    """Yields every leaf with the structs around it, outermost first."""
    for item in struct.fields:
        if isinstance(item.type, StructType):
            yield from _leaves(item.type, (*above, item))
        elif item.type != _VOID:
            yield (*above, item)


def _below(path: tuple[str, ...], name: tuple[str, ...]) -> bool:
    return path[: len(name)] == name

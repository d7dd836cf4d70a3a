"""The columns by which a table can be clustered ("Clustered Table"), and tags of clustered files.

Tags never affect the rows of a reader. `ZCUBE_ID` and `ZCUBE_ZORDER_BY` are the tags of Delta
Spark: files with the same ID are clustered together by the named columns, which are logical names.
Delta Spark leaves cubes of 100 GiB and more alone, and clusters all smaller ones and all files
without a cube again, unless only one smaller cube is left. All new files of a clustered table
therefore get the ID of the smaller cube, also if it reaches 100 GiB by them: a second smaller cube
would make Delta Spark cluster both.

Files that were sorted together are a group, which a tag of this library identifies: within a group,
the bounds of files overlap little. Groups decide which files are clustered again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

CUBE, CUBE_COLUMNS = "ZCUBE_ID", "ZCUBE_ZORDER_BY"
PROVIDER = "liquid"
"""The clustering provider of files that Delta Spark may cluster again."""
GROUP, GROUP_COLUMNS = "delta-maintenance.group", "delta-maintenance.groupedBy"
CUBE_BYTES = 100 << 30
"""The size in bytes from which Delta Spark leaves a cube alone."""


CLUSTERING_TAGS = (CUBE, CUBE_COLUMNS, GROUP, GROUP_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringTags:
    """The tags of the new files of a run."""

    group_columns: str
    """The physical names of the columns, as in a tag."""
    cube: str | None = None
    """The cube of the files; None for a table without clustering columns."""
    cube_columns: str = ""
    """The logical names of the columns, as in a tag."""

    def of(self, group: str, *, is_clustered: bool) -> dict[str, str]:
        """Returns the tags of files of a group. Only clustered files belong to the cube."""
        tags = {GROUP: group, GROUP_COLUMNS: self.group_columns}
        if is_clustered and self.cube is not None:
            tags |= {CUBE: self.cube, CUBE_COLUMNS: self.cube_columns}
        return tags

    def provider(self, *, is_clustered: bool) -> str | None:
        """Returns the clustering provider of the files."""
        return PROVIDER if is_clustered and self.cube is not None else None


def columns_text(columns: Sequence[str]) -> str:
    """Returns the form of column names in a tag; nested names are joined by dots."""
    return json.dumps(list(columns), ensure_ascii=False, separators=(",", ":"))


def newest_cube(
    cubes: Sequence[str], sizes: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> str | None:
    """Returns the cube that new files join, given the newest file of each cube and the size in
    bytes of its files that stay.

    None if there is no cube below `CUBE_BYTES`.
    """
    joinable = sizes < CUBE_BYTES
    is_candidate = joinable & (sizes > 0)
    rows = np.flatnonzero(is_candidate if is_candidate.any() else joinable)
    return cubes[int(rows[np.argmax(times[rows])])] if len(rows) else None


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
    columns = []
    for text in names:
        parsed = column_names(text)
        if parsed is None or len(parsed) != 1:
            raise InvalidRequestError(
                f"{text!r} is not the name of a column",
                remedy="name each column by itself, with backticks around dots and commas in names",
            )
        fields: list[StructField] = []
        inside: DeltaType = schema
        for step in parsed[0]:
            field = _member(inside, step)
            if field is None:
                raise InvalidRequestError(
                    f"the table has no column {text}", remedy="name a column of the table"
                )
            fields.append(field)
            inside = field.type
        if isinstance(inside, StructType):
            raise InvalidRequestError(f"the column {text} is a struct", remedy="name its fields")
        columns.append(
            ClusteringColumn(
                name=".".join(field.name for field in fields),
                path=tuple(physical_name(field, mode) for field in fields),
                type=inside,
            )
        )
    repeated = {column.path for column in columns}
    if len(repeated) < len(columns):
        raise InvalidRequestError("a column is named twice", remedy="name each column once")
    return tuple(columns)


def current_columns(
    protocol: Protocol, metadata: Metadata, domains: Mapping[str, str]
) -> tuple[ClusteringColumn, ...]:
    """Returns the clustering columns of a table; empty if it is not clustered.

    `RefusedError` if they cannot be determined.
    """
    mode = column_mapping_mode(protocol, metadata.configuration)
    schema = parse_schema(metadata.schema_string or "")
    paths = clustering_columns(domains)
    columns = []
    # A domain of another writer can name a column twice.
    for path in dict.fromkeys(paths or ()):
        names: list[str] = []
        inside: DeltaType = schema
        for physical in path:
            fields = inside.fields if isinstance(inside, StructType) else ()
            field = next(
                (candidate for candidate in fields if physical_name(candidate, mode) == physical),
                None,
            )
            if field is None:
                paths = None
                break
            names.append(field.name)
            inside = field.type
        columns.append(ClusteringColumn(name=".".join(names), path=path, type=inside))
    if paths is None:
        raise RefusedError(
            "the clustering columns of the table cannot be determined",
            remedy="set them again with set-clustering --by",
        )
    return tuple(columns)


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

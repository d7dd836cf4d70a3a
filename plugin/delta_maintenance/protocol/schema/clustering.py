"""The clustering columns of a table, in its domain ("Clustered Table").

Only `set-clustering` writes the domain, and the removal of column mapping, after which its columns
have logical names. Every other operation keeps its configuration unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    StructField,
    StructType,
    physical_name,
)

DOMAIN = "delta.clustering"


def clustering_columns(domains: Mapping[str, str]) -> tuple[tuple[str, ...], ...] | None:
    """The physical names of each clustering column, from the outermost struct inwards.

    Empty if the table is not clustered or has no clustering columns at present; None if the domain
    cannot be understood. The protocol describes a column as a string; engines write a list of
    names, or an object with such a list.
    """
    try:
        value = json.loads(domains.get(DOMAIN) or "{}")
        columns = value.get("clusteringColumns", []) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(columns, list):
        return None
    paths = [_path(column) for column in columns]
    return None if None in paths else tuple(path for path in paths if path)


def clustering_configuration(columns: Sequence[Sequence[str]]) -> str:
    """Returns the configuration of the domain in the form of Delta Spark.

    `columns` are as in `clustering_columns`.
    """
    value = {"clusteringColumns": [list(column) for column in columns], "domainName": DOMAIN}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def with_logical_names(configuration: str, schema: StructType, mode: ColumnMappingMode) -> str:
    """Replaces physical by logical names in the configuration of the domain.

    `schema` is the logical schema. Raises `RefusedError` if a column cannot be determined.
    """
    try:
        value = json.loads(configuration)
        columns = value.get("clusteringColumns")
        if columns is None:
            return configuration
        renamed = [_rename_column(column, schema, mode) for column in columns]
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        raise RefusedError(
            "the clustering columns of the table cannot be determined",
            remedy="set them again with set-clustering --by",
        ) from None
    if renamed == columns:
        return configuration
    return json.dumps({**value, "clusteringColumns": renamed}, separators=(",", ":"))


def _rename_column(column: Any, schema: StructType, mode: ColumnMappingMode) -> Any:
    path = _path(column)
    if path is None:
        raise LookupError(column)
    names, struct = [], schema
    for at, physical in enumerate(path):
        field = _by_physical_name(struct, mode)[physical]
        names.append(field.name)
        if at + 1 < len(path):
            if not isinstance(field.type, StructType):
                raise LookupError(column)
            struct = field.type
    match column:
        case str():
            return names[0]
        case {"physicalName": _}:
            return {**column, "physicalName": names}
    return names


def _by_physical_name(struct: StructType, mode: ColumnMappingMode) -> dict[str, StructField]:
    return {physical_name(item, mode): item for item in struct.fields}


def _path(column: Any) -> tuple[str, ...] | None:
    match column:
        case str():
            names: Any = [column]
        case {"physicalName": names}:
            pass
        case _:
            names = column
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        return None
    return tuple(names)

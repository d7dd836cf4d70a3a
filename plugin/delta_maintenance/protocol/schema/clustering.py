"""The clustering columns of a table, read from its domain ("Clustered Table").

This library never writes the domain, and copies its configuration unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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

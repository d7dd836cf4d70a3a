"""The columns by which a table is clustered, as its domain names them ("Clustered Table").

The domain is carried as the text that it is; nothing here writes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DOMAIN = "delta.clustering"


def clustering_columns(domains: Mapping[str, str]) -> tuple[tuple[str, ...], ...] | None:
    """Each column by its physical names, from the outermost struct on.

    Empty where the table is not clustered, or by no column for now; None where the domain cannot be
    understood. The protocol has a column as a text, writers as a list of names, and some as an
    object with that list.
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

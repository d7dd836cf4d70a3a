"""Conversion of paths in the log to names in the store."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root, locations
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path

_PLAIN = re.compile(r"[\w=-][\w=.-]*(?:/[\w=-][\w=.-]*)*", re.ASCII)
"""Relative paths that need no conversion: no encoded characters, no scheme, no `.` or `..`."""


def place_of(store: Store, path: str) -> str:
    """Returns the name in the store of a data file or a deletion vector file.

    `RefusedError` for a path that is not below the table's root.
    """
    if _PLAIN.fullmatch(path):
        return check_path(path)
    paths = pa.array([path], pa.string())
    roots = [store.root]
    if pc.match_substring_regex(paths, ABSOLUTE)[0].as_py():
        roots = [root for root in store.addresses if below_root(paths, root=root)[0].is_valid]
    try:
        if roots:
            return check_path(locations(paths, root=roots[0])[0].as_py().decode())
    except (UnicodeDecodeError, InvalidRequestError):
        pass
    raise RefusedError(
        f"{path} is not below the table's root, and this release reads data only there",
        remedy="let the engine that cloned the table do it",
    )

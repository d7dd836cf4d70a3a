"""The tags of clustered data files. They never affect the rows of a reader.

`ZCUBE_ID` and `ZCUBE_ZORDER_BY` are the tags of Delta Spark: files with the same ID are clustered
together by the named columns, which are logical names. Delta Spark leaves a table alone if all of
its files have the ID of one cube below 100 GiB, and otherwise clusters all files of such cubes
again. All new files of a clustered table therefore get the ID of its newest cube below that size.

Files that were sorted together are a group, which a tag of this library identifies: within a group,
the bounds of files overlap little. Groups decide which files are clustered again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

CUBE, CUBE_COLUMNS = "ZCUBE_ID", "ZCUBE_ZORDER_BY"
PROVIDER = "liquid"
"""The clustering provider of files that Delta Spark may cluster again."""
GROUP, GROUP_COLUMNS = "delta-maintenance.group", "delta-maintenance.groupedBy"
CUBE_BYTES = 100 << 30
"""The size in bytes from which Delta Spark leaves a cube alone."""


def columns_text(columns: Sequence[str]) -> str:
    """Returns the form of column names in a tag; nested names are joined by dots."""
    return json.dumps(list(columns), ensure_ascii=False, separators=(",", ":"))


def group_tags(group: str, columns: Sequence[str]) -> dict[str, str]:
    """Returns the tags of files that were sorted together."""
    return {GROUP: group, GROUP_COLUMNS: columns_text(columns)}


def cube_tags(cube: str, columns: Sequence[str]) -> dict[str, str]:
    """Returns the tags of files of a cube."""
    return {CUBE: cube, CUBE_COLUMNS: columns_text(columns)}


def newest_cube(cubes: Mapping[str, tuple[int, int]]) -> str | None:
    """Returns the cube that new files join, given the bytes and the newest time of each cube.

    None if there is no cube below `CUBE_BYTES`.
    """
    open_cubes = [(time, cube) for cube, (size, time) in cubes.items() if size < CUBE_BYTES]
    return max(open_cubes)[1] if open_cubes else None

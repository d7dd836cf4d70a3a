"""The tags of clustered data files. They never affect the rows of a reader.

`ZCUBE_ID` and `ZCUBE_ZORDER_BY` are the tags of Delta Spark: files with the same ID are clustered
together by the named columns, which are logical names. Delta Spark leaves cubes of 100 GiB and more
alone, and clusters all smaller ones and all files without a cube again, unless only one smaller
cube is left. All new files of a clustered table therefore get the ID of the smaller cube, also if
it reaches 100 GiB by them: a second smaller cube would make Delta Spark cluster both.

Files that were sorted together are a group, which a tag of this library identifies: within a group,
the bounds of files overlap little. Groups decide which files are clustered again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    kept = joinable & (sizes > 0)
    rows = np.flatnonzero(kept if kept.any() else joinable)
    return cubes[int(rows[np.argmax(times[rows])])] if len(rows) else None

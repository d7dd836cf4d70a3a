"""The choice of files to cluster, by levels.

Files that were sorted together are a group, whose files overlap little. New files form a new group
in each run. An earlier group is sorted again, together with the new files, if it has at most
`RATIO` times the bytes of all files of the run that are smaller or new. The group of a row
therefore grows by at least 1/8 each time the row is written again: a row is written at most
log(N/n) / log(9/8) times while a table grows from n to N bytes, about 20 times for a tenfold
growth. A reader of one value opens about one file of each group, of which there are at most
log(N/n) / log(9).

Of such a group, files that are large enough stay as they are if they have no value in common with
the other files of the run: a table whose rows arrive in the order of a clustering column is not
written twice.

All functions are pure and work on columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.rewriting.choice import (
    ARCHIVED,
    CLUSTERED,
    DOUBLED,
    WRITTEN_LATELY,
    Choice,
    known_ratio,
)
from delta_maintenance.operations.rewriting.live_columns import LiveColumns, Mask, Numbers
from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.statistics.clustering import (
    CUBE,
    CUBE_COLUMNS,
    GROUP,
    GROUP_COLUMNS,
    PROVIDER,
    ClusteringTags,
)

NOT_CLUSTERED, GROWN, OTHER_COLUMNS = "not-clustered", "group-grew", "other-columns"
NO_OVERLAP = "no-overlap"
RATIO = 8
"""A group is sorted again with at least 1/8 of its bytes."""
BIN_BYTES = 64 << 30
"""The maximum bytes of the files that are sorted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """The limits that decide which files are clustered."""

    tags: ClusteringTags
    """The tags of files that are clustered by the same columns; of any group and cube."""
    bin_bytes: int = BIN_BYTES
    bin_files: int | None = None
    """The maximum number of files that are sorted together."""
    target_bytes: int
    """The size of new files. Files of half this size are large enough to stay."""
    full: bool = False
    """Whether files of other columns and other providers may be chosen."""


Apart = Callable[[Numbers, Numbers], Mask]
"""Returns which of some files have no value in common with files of other units, given the files
and the unit of each.
"""


def choose(
    files: LiveColumns,
    rules: ClusterRules,
    *,
    partitions: Mask,
    written_lately: Mask,
    apart: Apart,
    taken: Mask | None = None,
    archived: Mask | None = None,
) -> Choice:
    """Chooses the files to cluster, and groups them into bins.

    `partitions` marks the partitions that the options select; `written_lately` marks those that
    are skipped because writers are active there. Files that `taken` marks are left alone,
    and so are those that cannot be read at once, which `archived` marks.
    """
    group = _groups(files, rules.tags)
    stale = _clustered_otherwise(files, rules.tags) & (group < 0)
    foreign = to_bools(
        pc.fill_null(
            pc.not_equal(files.provider.cast(pa.string()), PROVIDER), False
        ).combine_chunks()
    )
    asked = partitions[files.partition]
    if taken is not None:
        asked = asked & ~taken
    fresh = asked & (group < 0)
    left_alone: dict[str, Mask] = {}
    obstacles = [(WRITTEN_LATELY, written_lately[files.partition])]
    if archived is not None and archived.any():
        obstacles.append((ARCHIVED, archived))
    if files.doubled.any():
        obstacles.append((DOUBLED, files.doubled))
    if not rules.full:
        obstacles += [(CLUSTERED, foreign), (OTHER_COLUMNS, stale & ~foreign)]
    allowed = asked.copy()
    for name, mask in obstacles:
        left_alone[name] = fresh & mask
        allowed &= ~mask
    fresh &= allowed
    ratio = known_ratio(files) or 1.0
    partition_count = len(files.last_write)
    new_bytes = np.bincount(files.partition[fresh], files.size[fresh], partition_count)
    new_files = np.bincount(files.partition[fresh], minlength=partition_count)
    bin_files = max(1, files.count if rules.bin_files is None else rules.bin_files)
    grouped = (group >= 0) & allowed
    new = np.stack([np.ceil(new_bytes * ratio), new_files])
    grown = _grown(files, group, grouped, new, np.array([rules.bin_bytes, bin_files]))
    left_alone[NO_OVERLAP] = _left_apart(files, fresh, grown, group, rules.target_bytes, apart)
    grown &= ~left_alone[NO_OVERLAP]
    rows, bins = _bins(files, fresh | grown, rules.bin_bytes, bin_files)
    reasons = {NOT_CLUSTERED: fresh, GROWN: grown}
    return Choice(rows=rows, bins=bins, reasons=reasons, left=left_alone, ratio=ratio)


def _groups(files: LiveColumns, tags: ClusteringTags) -> Numbers:
    """Returns the number of the group of each file; -1 for a file in no group of these columns.

    The files of a cube of Delta Spark are a group as well.
    """
    own_groups = _tag(files, GROUP, GROUP_COLUMNS, tags.group_columns)
    cube = _tag(files, CUBE, CUBE_COLUMNS, tags.cube_columns)
    if not tags.cube_columns:
        cube = pa.nulls(files.count, pa.string())
    provided = pc.equal(files.provider.cast(pa.string()).combine_chunks(), PROVIDER)
    cube = pc.if_else(pc.fill_null(provided, False), cube, pa.scalar(None, pa.string()))
    codes = pc.coalesce(own_groups, cube).dictionary_encode().indices
    numbers: Numbers = pc.fill_null(codes, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _tag(files: LiveColumns, name: str, columns: str, value: str) -> pa.Array:
    """Returns a tag of each file; null for files of other columns."""
    is_wanted = pc.equal(files.tags[columns].cast(pa.string()), value)
    tag_values = files.tags[name].cast(pa.string())
    return pc.if_else(is_wanted, tag_values, pa.scalar(None, pa.string())).combine_chunks()


def _clustered_otherwise(files: LiveColumns, tags: ClusteringTags) -> Mask:
    """Returns which files were clustered, by any columns.

    Without clustering columns, the order of rows is a matter of each request, so that no file must
    be kept as it is.
    """
    if not tags.cube_columns:
        return np.zeros(files.count, np.bool_)
    clustered = pc.or_(pc.is_valid(files.tags[CUBE]), pc.is_valid(files.tags[GROUP]))
    return to_bools(clustered.combine_chunks())


def _grown(
    files: LiveColumns, group: Numbers, grouped: Mask, new: npt.NDArray[np.float64], most: Numbers
) -> Mask:
    """Selects the files of the groups that are sorted again with the new files.

    `new` is the expected size of the new files of each partition once they are clustered, and
    their number now; `most` limits both for the files that are sorted together.
    """
    rows = np.flatnonzero(grouped & (new[0, files.partition] > 0))
    grown_files = np.zeros(files.count, np.bool_)
    if not len(rows):
        return grown_files
    # A group has files of one partition only; its number and its partition identify it anyway.
    key = files.partition[rows] * (int(group.max()) + 1) + group[rows]
    _, first_rows, unit = np.unique(key, return_index=True, return_inverse=True)
    sizes = np.stack([np.bincount(unit, files.size[rows]), np.bincount(unit)])
    partitions = files.partition[rows][first_rows]
    order = np.lexsort((sizes[0], partitions))
    partitions, sizes = partitions[order], sizes[:, order]
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    partition = np.cumsum(np.diff(partitions, prepend=-1) != 0) - 1
    before = np.cumsum(sizes, axis=1) - sizes
    before += new[:, partitions] - before[:, starts][:, partition]
    # Ascending sizes within each partition: if a group is too large, so are all that follow.
    fits = (sizes[0] <= RATIO * before[0]) & (sizes + before <= most[:, None]).all(axis=0)
    misfits = np.cumsum(~fits)
    taken = misfits == (misfits - ~fits)[starts][partition]
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = taken
    grown_files[rows[chosen[unit]]] = True
    return grown_files


def _left_apart(
    files: LiveColumns, fresh: Mask, grown: Mask, group: Numbers, target_bytes: int, apart: Apart
) -> Mask:
    """Returns the files of groups that need not be sorted with the other files of the run."""
    files_left_apart = np.zeros(files.count, np.bool_)
    large = grown & (2 * files.size >= target_bytes)
    if not large.any():
        return files_left_apart
    rows = np.flatnonzero(fresh | grown)
    # The new files of a partition are a unit, and so is each group.
    unit = np.where(fresh, files.partition, group + len(files.last_write))[rows]
    files_left_apart[rows] = apart(rows, unit)
    return files_left_apart & large


def _bins(
    files: LiveColumns, chosen: Mask, bin_bytes: int, bin_files: int
) -> tuple[Numbers, Numbers]:
    """Returns the chosen files by bin, and the bin of each.

    The files of a partition are one bin, or several if they exceed `bin_bytes` or `bin_files`.
    """
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((files.modified[rows], files.partition[rows]))]
    if not len(rows):
        return rows.astype(np.int64), rows.astype(np.int64)
    partitions, size = files.partition[rows], files.size[rows]
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    partition = np.cumsum(np.diff(partitions, prepend=-1) != 0) - 1
    before = np.cumsum(size) - size
    # A bin takes files up to the last one that begins within this width.
    width = max(1, bin_bytes - int(size[size <= bin_bytes].max(initial=0)))
    share = (before - before[starts][partition]) // width
    count = (np.arange(len(rows)) - starts[partition]) // bin_files
    changed = np.logical_or.reduce([np.diff(n, prepend=-1) != 0 for n in (partition, share, count)])
    return rows.astype(np.int64), (np.cumsum(changed) - 1).astype(np.int64)

"""The choice of live files to rewrite, and their grouping into bins.

A file is chosen for at least one of these reasons: it is small and can be merged with other files
of its partition; too many of its rows are deleted; or its footer shows a property that the caller
asked to remove. One rewrite serves all reasons of a file. Files are merged in the order in which
they were added, in bins of about equal size, each of which becomes one new file. Larger files are
rewritten individually.

The size of a file is the size of its rows that are not deleted. Bins are filled by the size that
these rows are expected to have in a new file: the size, times the ratio of bytes after to bytes
before in earlier rewrites of this table or in a sample of its files.

A file is not small if a rewrite created it with at least half of the current target size. Such a
file is merged again only with new files that contain at least a quarter of its bytes. The file of
a row therefore grows by a quarter each time the row is rewritten because of its file's size.

All functions are pure and work on columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.rewriting.live_columns import LiveColumns, Mask, Numbers
from delta_maintenance.operations.rewriting.models import DELETED_ROWS
from delta_maintenance.protocol.columns import to_bools

SMALL = "small"
CLUSTERED, WRITTEN_LATELY, OFTEN = "clustered", "written-lately", "rewritten-often"
ARCHIVED = "archived"
DOUBLED = "doubled"
"""The obstacle of files whose removal failed: a rewrite would make their rows permanent."""
_TIER = 4
"""A file of an earlier rewrite is merged again with files that have at least 1/4 of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRules:
    """The limits that decide which files are rewritten."""

    target_bytes: int
    """The size of new files in bytes."""
    small_bytes: int
    """Files with fewer live bytes are small."""
    merge_small: bool = True
    deleted_share: float | None = 0.05
    """Files with a larger share of deleted rows are rewritten. None: no file; 0: every file with a
    deletion vector.
    """
    min_files: int = 2
    """The minimum number of small files in a partition for merging them."""
    full: bool = False
    """Whether files with a clustering provider may be chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The files to rewrite, as row numbers of `LiveColumns`."""

    rows: Numbers
    """The files, by bin and then in the order of reading."""
    bins: Numbers
    """The bin of each element of `rows`, ascending from 0."""
    reasons: Mapping[str, Mask]
    """For each reason, the live files that are rewritten for it."""
    left: Mapping[str, Mask] = field(default_factory=dict)
    """For each obstacle, the live files that have a reason but are not rewritten because of it."""
    ratio: float = 1.0
    """The expected ratio of bytes after to bytes before."""

    @property
    def bin_count(self) -> int:
        """The number of bins."""
        return int(self.bins[-1]) + 1 if len(self.bins) else 0

    def rows_of(self, bin_number: int) -> Numbers:
        """Returns the files of one bin."""
        start, end = np.searchsorted(self.bins, [bin_number, bin_number + 1])
        return self.rows[start:end]

    def has_neighbours(self, files: LiveColumns) -> bool:
        """Whether two bins of merged files have the same partition, so that they could be one."""
        sizes = np.bincount(self.bins, minlength=self.bin_count)
        first_rows = np.cumsum(sizes) - sizes
        merged = files.partition[self.rows[first_rows[sizes > 1]]]
        return len(np.unique(merged)) < len(merged)

    def kept(self, bins: Mask) -> Choice:
        """Returns a choice with only the selected bins, which are renumbered."""
        is_kept = bins[self.bins] if len(self.bins) else np.zeros(0, np.bool_)
        numbers = np.cumsum(bins) - 1
        return Choice(
            rows=self.rows[is_kept],
            bins=numbers[self.bins[is_kept]].astype(np.int64),
            reasons=self.reasons,
            left=self.left,
            ratio=self.ratio,
        )

    def reasons_of(self, row: int) -> tuple[str, ...]:
        """Returns the reasons for rewriting one file."""
        return tuple(name for name, mask in self.reasons.items() if mask[row])


def choose(
    files: LiveColumns,
    rules: ChoiceRules,
    *,
    partitions: Mask | None = None,
    written_lately: Mask | None = None,
    taken: Mask | None = None,
    archived: Mask | None = None,
    footers: Mapping[str, Mask] | None = None,
    ratio: float = 1.0,
) -> Choice:
    """Chooses the files to rewrite and groups them into bins.

    `partitions` marks the partitions that the options select; `written_lately` marks those that
    are skipped because writers are active there. `taken` marks files that have already been chosen,
    and `archived` those that cannot be read at once.
    `footers` contains the reasons found in footers. `ratio` is the expected ratio of bytes after to
    bytes before, at most 1.
    """
    count = files.count
    asked = np.ones(count, np.bool_) if partitions is None else partitions[files.partition]
    if taken is not None:
        asked &= ~taken
    size = files.live_bytes
    deleted = _has_deleted_rows(files, rules)
    own_reason = deleted.copy()
    reasons: dict[str, Mask] = {DELETED_ROWS: deleted}
    for name, mask in (footers or {}).items():
        reasons[name] = mask
        own_reason |= mask
    small = (size < rules.small_bytes) & rules.merge_small
    made = (files.target * 2 >= rules.target_bytes) & ~own_reason
    left_alone: dict[str, Mask] = {}
    allowed = asked.copy()
    for why, mask in _left_alone(files, rules, written_lately, archived):
        left_alone[why] = asked & mask & (own_reason | (small & ~made))
        allowed &= ~mask
    small &= allowed
    own_reason &= allowed
    joined = _select_small(files, size, small & ~made, small & made, rules)
    after = np.ceil(size * ratio).astype(np.int64)
    order, bins = _merge_bins(files, after, joined & (small | own_reason), own_reason, rules)
    alone = np.flatnonzero(own_reason & ~joined)
    first_bin = int(bins[-1]) + 1 if len(bins) else 0
    rows = np.concatenate([order, alone]).astype(np.int64)
    numbers = np.concatenate([bins, first_bin + np.arange(len(alone))]).astype(np.int64)
    rows, numbers = _by_partition(files, rows, numbers)
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    reasons[SMALL] = small & joined
    return Choice(
        rows=rows,
        bins=numbers,
        reasons={name: mask & chosen for name, mask in reasons.items()},
        left=left_alone,
        ratio=ratio,
    )


def known_ratio(files: LiveColumns) -> float | None:
    """Returns the ratio of bytes per row in files of rewrites to bytes per row in other files.

    None if there are too few rows of either.
    """
    is_counted = (files.rows > 0) & (files.size > 0)
    made, other = is_counted & (files.target > 0), is_counted & (files.target == 0)
    if files.rows[made].sum() < 1000 or files.rows[other].sum() < 1000:
        return None
    after = files.size[made].sum() / files.rows[made].sum()
    before = files.size[other].sum() / files.rows[other].sum()
    return limited_ratio(after / before)


def limited_ratio(ratio: float) -> float:
    """Limits an estimated ratio to values with which bins can be filled.

    Two small files always fit into a bin with a ratio of at most 1, so that the next run finds at
    most one that is left over.
    """
    return float(np.clip(ratio, 0.1, 1.0))


def limited(
    files: LiveColumns, choice: Choice, *, max_bytes: int | None, max_files: int | None
) -> Choice:
    """Keeps the bins that remove the most files per byte, within the limits for one run.

    `max_bytes` and `max_files` limit the source files of all bins. A bin that exceeds a limit by
    itself is left out.
    """
    if max_bytes is None and max_files is None or not choice.bin_count:
        return choice
    sizes = np.bincount(choice.bins, files.size[choice.rows], choice.bin_count)
    counts = np.bincount(choice.bins, minlength=choice.bin_count)
    order = np.argsort(-(counts / np.maximum(sizes, 1)), kind="stable")
    is_kept = np.zeros(choice.bin_count, np.bool_)
    spent_bytes = spent_files = 0.0
    fits_bytes = np.inf if max_bytes is None else max_bytes
    fits_files = np.inf if max_files is None else max_files
    for at in order.tolist():
        if spent_bytes + sizes[at] <= fits_bytes and spent_files + counts[at] <= fits_files:
            is_kept[at] = True
            spent_bytes += sizes[at]
            spent_files += counts[at]
    return choice.kept(is_kept)


def not_too_often(files: LiveColumns, choice: Choice, *, budget: float) -> Choice:
    """Leaves out bins that would rewrite too many bytes of earlier rewrites again.

    `budget` is the limit in bytes. Bins with the fewest such bytes are kept first. Files with a
    reason other than their size do not count.
    """
    is_due = np.ones(files.count, np.bool_)
    for name, mask in choice.reasons.items():
        if name != SMALL:
            is_due &= ~mask
    again = files.size * ((files.target > 0) & is_due)
    if not choice.bin_count or not again[choice.rows].any():
        return choice
    per_bin = np.bincount(choice.bins, again[choice.rows], choice.bin_count)
    order = np.argsort(per_bin, kind="stable")
    is_kept = np.zeros(choice.bin_count, np.bool_)
    is_kept[order] = (np.cumsum(per_bin[order]) <= budget) | (per_bin[order] == 0)
    if is_kept.all():
        return choice
    late = np.zeros(files.count, np.bool_)
    late[choice.rows[~is_kept[choice.bins]]] = True
    fewer = choice.kept(is_kept)
    return replace(fewer, left={**fewer.left, OFTEN: late})


def _left_alone(
    files: LiveColumns, rules: ChoiceRules, written_lately: Mask | None, archived: Mask | None
) -> list[tuple[str, Mask]]:
    reasons = []
    if not rules.full:
        reasons.append((CLUSTERED, files.clustered))
    if written_lately is not None:
        reasons.append((WRITTEN_LATELY, written_lately[files.partition]))
    if archived is not None and archived.any():
        reasons.append((ARCHIVED, archived))
    if files.doubled.any():
        reasons.append((DOUBLED, files.doubled))
    return reasons


def _has_deleted_rows(files: LiveColumns, rules: ChoiceRules) -> Mask:
    if rules.deleted_share is None:
        return np.zeros(files.count, np.bool_)
    if rules.deleted_share == 0:
        # A vector that marks no row needs the feature, too.
        return to_bools(pc.is_valid(files.vector).combine_chunks())
    has_vector = files.deleted > 0
    unknown = has_vector & (files.rows < 0)
    beyond: Mask = files.deleted > rules.deleted_share * np.maximum(files.rows, 0)
    return unknown | (has_vector & beyond)


def _select_small(
    files: LiveColumns, size: Numbers, fresh: Mask, made: Mask, rules: ChoiceRules
) -> Mask:
    """Selects the small files that are merged: new files, and files of earlier rewrites."""
    enough = np.bincount(files.partition[fresh], minlength=len(files.last_write)) >= rules.min_files
    enough_of = enough[files.partition]
    if not (made & enough_of).any():
        return fresh & enough_of
    small = np.flatnonzero((fresh | made) & enough_of)
    # Ascending sizes within each partition, so that all files before a file are smaller.
    small = small[np.lexsort((size[small], files.partition[small]))]
    partitions, sizes, taken = files.partition[small], size[small], fresh[small].copy()
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    group = np.cumsum(np.diff(partitions, prepend=-1) != 0) - 1
    while len(small):
        before = np.cumsum(sizes * taken) - sizes * taken
        before -= before[starts][group]
        more = taken | (sizes <= _TIER * before)
        if (more == taken).all():
            break
        taken = more
    joined = np.zeros(files.count, np.bool_)
    joined[small[taken]] = True
    return joined


def _merge_bins(
    files: LiveColumns, size: Numbers, joined: Mask, own_reason: Mask, rules: ChoiceRules
) -> tuple[Numbers, Numbers]:
    """Returns the merged files, by bin, and the bin of each."""
    waiting = _by_age(files, np.flatnonzero(joined))
    merged_files: list[Numbers] = []
    numbers: list[Numbers] = []
    first_bin = 0
    while len(waiting):
        bins = _shares(files.partition[waiting], np.maximum(size[waiting], 1), rules)
        alone = np.bincount(bins)[bins] == 1
        is_last = not (~alone).any()
        # Files that are alone in their bins are grouped again. In the last round, such a file is
        # kept only if it has a reason of its own.
        is_kept = own_reason[waiting] if is_last else ~alone
        merged_files.append(waiting[is_kept])
        numbers.append(first_bin + _renumber_bins(bins[is_kept]))
        first_bin += len(np.unique(bins[is_kept]))
        waiting = waiting[:0] if is_last else waiting[alone]
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *merged_files]), np.concatenate([nothing, *numbers])


def _shares(partitions: Numbers, sizes: Numbers, rules: ChoiceRules) -> Numbers:
    """Returns the bin of each file. The bins of a partition have about the same number of bytes.

    Two files that are both small always share a bin if their sizes do not grow.
    """
    starts = np.flatnonzero(np.diff(partitions, prepend=-1))
    group = np.cumsum(np.diff(partitions, prepend=-1) != 0) - 1
    total = np.add.reduceat(sizes, starts)
    shares = np.maximum(1, np.floor(total / rules.target_bytes + 0.5)).astype(np.int64)
    before = np.cumsum(sizes) - sizes
    before -= before[starts][group]
    middle = before + sizes / 2
    share = np.minimum((middle * shares[group] / total[group]).astype(np.int64), shares[group] - 1)
    return _renumber_bins(group * (int(shares.max()) + 1) + share)


def _by_age(files: LiveColumns, rows: Numbers) -> Numbers:
    """Sorts rows by partition, modification time and path, because the log does not order files."""
    keys = pa.table(
        {
            "partition": files.partition[rows],
            "modified": files.modified[rows],
            "path": files.path.take(pa.array(rows)),
        }
    )
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    sorted_rows: Numbers = rows[order.to_numpy()]
    return sorted_rows


def _by_partition(files: LiveColumns, rows: Numbers, bins: Numbers) -> tuple[Numbers, Numbers]:
    """Sorts the bins by partition, so that the bins of a partition are committed together."""
    if not len(rows):
        return rows, bins
    first_rows = np.searchsorted(bins, np.arange(int(bins[-1]) + 1))
    order = np.argsort(files.partition[rows[first_rows]], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    by_rank = np.argsort(rank[bins], kind="stable")
    return rows[by_rank], rank[bins][by_rank]


def _renumber_bins(bins: Numbers) -> Numbers:
    return (np.cumsum(np.diff(bins, prepend=-1) != 0) - 1).astype(np.int64)

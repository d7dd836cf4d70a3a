"""Columns to cluster by, ranked by what filters would no longer read, with the cost.

With conditions of queries, these are the filters; the candidates are the columns that they compare,
alone and together. Without, each column is its own candidate, for a range with 1% of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.layout import ColumnLayout, KeyProposal
from delta_maintenance.operations.layout.measuring import Measured, bytes_read
from delta_maintenance.operations.layout.queries import Query
from delta_maintenance.operations.layout.reading import Column
from delta_maintenance.protocol.schema.condition import columns_of
from delta_maintenance.protocol.statistics.bounds import Path
from delta_maintenance.protocol.statistics.skipping import column_in

SMALL_TABLE_BYTES = 10 << 30
"""Below this size clustering seldom pays, because a whole table is read in seconds."""
LEAST_GAIN = 0.2
"""The share of the table's bytes that a filter must save."""
LEAST_GAIN_OF_SMALL = 0.5
"""The same for a small table, which must also save `LEAST_BYTES_OF_SMALL`."""
LEAST_BYTES_OF_SMALL = 1 << 30
_BETTER = 0.05
"""The gain by which new keys must surpass the old ones to replace them."""
_EQUAL = 0.02
"""Gains that differ by less are equal; then fewer keys are better."""
_MOST_COLUMNS = 4
_SHOWN = 5


def propose(
    measured: Measured,
    layouts: Sequence[ColumnLayout],
    columns: Mapping[str, Column],
    queries: Sequence[Query],
    old_keys: Sequence[Path],
) -> tuple[KeyProposal, ...]:
    """Returns the best keys first. `columns` are the measured columns by name."""
    if not measured.files.count:
        return ()
    paths = {column.path: column.name for column in columns.values()}
    old = tuple(old_keys) if all(path in paths for path in old_keys) else ()
    candidates = _of_queries(queries, old, paths) if queries else _of_columns(layouts, columns, old)
    reads = (
        _query_reads(measured, queries)
        if queries
        else {columns[each.name].path: each.range for each in layouts}
    )
    proposals = []
    for keys in dict.fromkeys(candidates):
        if isinstance(reads, dict):
            now = float(np.mean([reads[path].bytes for path in keys]))
            after = float(
                np.mean([reads[path].bytes_after for path in keys])
                if len(keys) == 1
                else np.mean(measured.range_reads(keys))
            )
        else:
            now = reads
            after = _weighted_mean(queries, bytes_read(queries, measured.cluster_by(keys)))
        proposals.append((keys, now, min(now, after)))
    best_gain = max((now - after for keys, now, after in proposals if keys == old), default=0.0)
    best = sorted(
        proposals, key=lambda each: (-round((each[1] - each[2]) / _EQUAL), len(each[0]), each[2])
    )
    return tuple(
        _proposal(measured, paths, old, keys, now, after, best_gain)
        for keys, now, after in best[:_SHOWN]
    )


def _query_reads(measured: Measured, queries: Sequence[Query]) -> float:
    return _weighted_mean(queries, bytes_read(queries, measured.files))


def _weighted_mean(queries: Sequence[Query], shares: Sequence[float]) -> float:
    return float(np.average(shares, weights=[query.runs for query in queries]))


def _of_queries(
    queries: Sequence[Query], old: tuple[Path, ...], paths: Mapping[Path, str]
) -> Iterator[tuple[Path, ...]]:
    counts: Counter[Path] = Counter()
    for query in queries:
        if query.condition is not None:
            named = {column_in(name, paths) for name in columns_of(query.condition)}
            counts.update({path: query.runs for path in named if path is not None})
    usual = [path for path, _ in counts.most_common(_MOST_COLUMNS)]
    if old:
        yield old
    for size in range(1, len(usual) + 1):
        yield from combinations(usual, size)


def _of_columns(
    layouts: Sequence[ColumnLayout], columns: Mapping[str, Column], old: tuple[Path, ...]
) -> Iterator[tuple[Path, ...]]:
    if old:
        yield old
    for layout in layouts:
        yield (columns[layout.name].path,)


def _proposal(
    measured: Measured,
    paths: Mapping[Path, str],
    old: tuple[Path, ...],
    keys: tuple[Path, ...],
    now: float,
    after: float,
    gain_of_old: float,
) -> KeyProposal:
    gain, total = now - after, int(measured.files.size.sum())
    cost = measured.bytes_to_rewrite(keys)
    why_not = _why_not(gain, total, cost)
    change = f"a filter reads {now:.1%} of the bytes now, {after:.1%} after"
    changed = keys != old and why_not is None and gain >= gain_of_old + _BETTER
    if why_not is not None:
        reason = f"not worth it: {why_not}; {change}"
    elif keys == old:
        reason = f"{change}, with the same keys; {size_text(cost)} to rewrite"
    elif changed:
        reason = f"{change}; {size_text(cost)} to rewrite"
    else:
        reason = f"{change}; the old keys gain as much"
    return KeyProposal(
        old_keys=tuple(paths[path] for path in old),
        new_keys=tuple(paths[path] for path in keys),
        changed=changed,
        pays=why_not is None,
        reason=reason,
        bytes_read=round(now, 6),
        bytes_read_after=round(after, 6),
        bytes_to_rewrite=cost,
    )


def _why_not(gain: float, total: int, cost: int) -> str | None:
    if not cost:
        return "no two files of a partition overlap"
    if total < SMALL_TABLE_BYTES:
        if gain >= LEAST_GAIN_OF_SMALL and gain * total >= LEAST_BYTES_OF_SMALL:
            return None
        return f"the table has {size_text(total)}, below {size_text(SMALL_TABLE_BYTES)}"
    return None if gain >= LEAST_GAIN else f"a filter saves less than {LEAST_GAIN:.0%} of the bytes"

"""Row IDs: the state of row tracking in the log, new IDs for files, and IDs of more than one row.

Implements "Row Tracking" and "Writer Requirements for Row Tracking", including the drafts of 2023,
which stored the high-water mark in an action of its own. Used row IDs are kept as ranges of
consecutive numbers. Files that were written at once have one range, and rewritten files have a few.
A file with many ranges is handled in parts, so that no array grows with the rows of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.model import Json, Protocol
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.statistics.as_json import num_records

FEATURE = "rowTracking"
DOMAIN = "delta.rowTracking"
ENABLED_PROPERTY = "delta.enableRowTracking"
SUSPENDED_PROPERTY = "delta.rowTrackingSuspended"

NO_ROW_ID = -1
"""The high-water mark of a table that never assigned a row ID; the first one is 0."""


class RowTrackingState(Enum):
    """What row tracking requires of writers of a table."""

    UNSUPPORTED = "unsupported"
    """The protocol does not list the feature, and the properties have no effect."""
    SUPPORTED = "supported"
    """New files get row IDs; rewritten rows may get new ones."""
    ENABLED = "enabled"
    """New files get row IDs; rewritten rows keep theirs."""
    SUSPENDED = "suspended"
    """New files get no row IDs."""
    CONTRADICTORY = "contradictory"
    """Both enabled and suspended, which is invalid; every write is refused."""


def row_tracking_state(protocol: Protocol, configuration: Mapping[str, str]) -> RowTrackingState:
    """The state according to the protocol and the table properties.

    Raises `CorruptTableError` if one of the two properties is neither true nor false.
    """
    if not supports(protocol, FEATURE):
        return RowTrackingState.UNSUPPORTED
    enabled = _is_set(configuration, ENABLED_PROPERTY)
    suspended = _is_set(configuration, SUSPENDED_PROPERTY)
    if enabled and suspended:
        return RowTrackingState.CONTRADICTORY
    if suspended:
        return RowTrackingState.SUSPENDED
    return RowTrackingState.ENABLED if enabled else RowTrackingState.SUPPORTED


def high_water_mark(domain_configuration: str | None) -> int:
    """The mark in the configuration of the domain `delta.rowTracking`.

    None stands for a table without the domain and returns `NO_ROW_ID`. Raises `CorruptTableError`
    if the text contains no mark, because starting at 0 would assign row IDs twice.
    """
    if domain_configuration is None:
        return NO_ROW_ID
    try:
        value = json.loads(domain_configuration)
    except (ValueError, RecursionError):
        value = None
    # The key is `highWaterMark` in the protocol of early 2024.
    mark = _mark(value, "rowIdHighWaterMark", "highWaterMark") if isinstance(value, dict) else None
    if mark is None:
        raise CorruptTableError(f"the domain {DOMAIN} contains no high-water mark of row IDs")
    return mark


def draft_high_water_mark(action: Json) -> int | None:
    """The mark in a `rowIdHighWaterMark` action of the drafts of 2023.

    The first draft has `highWaterMark` and `preservedRowIds`, the second one only `highWaterMark`;
    early Databricks checkpoints have `value`. None if all fields are null, as in checkpoint columns
    without such an action.
    """
    return _mark(action, "highWaterMark", "value")


def render_domain_configuration(mark: int) -> str:
    """The configuration of the domain `delta.rowTracking`, with the key of the protocol."""
    return json.dumps({"rowIdHighWaterMark": mark}, separators=(",", ":"))


def highest_assigned_row_id(
    base_row_id: pa.Array | pa.ChunkedArray, num_records: pa.Array | pa.ChunkedArray
) -> int:
    """The highest default row ID of these files, `NO_ROW_ID` if none has a base row ID.

    Both arguments are int64 and have one element per file; `num_records` counts physical rows,
    including deleted ones. A file without a row count counts as one row, so the result is then a
    lower bound. Raises `CorruptTableError` if an ID exceeds 64 bits.
    """
    last_row = pc.subtract(pc.fill_null(num_records, 1), 1)
    try:
        highest = pc.max(pc.add_checked(base_row_id, last_row)).as_py()
    except pa.ArrowInvalid:
        raise CorruptTableError("a row ID of a file exceeds 64 bits") from None
    return NO_ROW_ID if highest is None else int(highest)


def _mark(value: Json, *keys: str) -> int | None:
    mark = next((value[key] for key in keys if value.get(key) is not None), None)
    if mark is None:
        return None
    # Domains with a map as configuration store every value as text.
    if isinstance(mark, str) and re.fullmatch(r"-?[0-9]{1,19}", mark):
        mark = int(mark)
    if not _is_mark(mark):
        raise CorruptTableError(f"the high-water mark of row IDs is not a row ID: {mark!r}")
    return int(mark)


def _is_mark(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and NO_ROW_ID <= value < 2**63


def _is_set(configuration: Mapping[str, str], name: str) -> bool:
    text = configuration.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise CorruptTableError(f"the property {name} is neither true nor false: {text!r}")
    return text.lower() == "true"


_MAX_ROW_ID = 2**63 - 1


def assign_row_ids(adds: pa.Table, *, high_water_mark: int, version: int) -> tuple[pa.Table, int]:
    """The adds with base row IDs and row commit versions, and the new high-water mark.

    A file with a base row ID was committed before and keeps it. Other files get ranges above the
    mark, one ID for each physical row, including deleted rows. Raises `RefusedError` if the
    statistics of such a file do not contain its number of rows, or if the IDs exceed 64 bits.
    """
    fresh = pc.is_null(adds["baseRowId"]).to_numpy()
    ids, mark = adds["baseRowId"], high_water_mark
    if fresh.any():
        new_files = adds.filter(pa.array(fresh))
        counts = num_records(new_files["stats"])
        if counts.null_count:
            path = new_files["path"].filter(pc.is_null(counts))[0].as_py()
            raise RefusedError(
                "the statistics of a file without row IDs do not contain its number of rows",
                file=path,
                remedy="take numRecords from the footer of the data file",
            )
        rows = counts.to_numpy()
        if mark + sum(rows.tolist()) > _MAX_ROW_ID:
            raise RefusedError(
                "the new row IDs would exceed 64 bits",
                remedy="check the high-water mark of the table with fsck",
            )
        ends = mark + np.cumsum(rows)
        filled = ids.to_numpy() if not ids.null_count else pc.fill_null(ids, 0).to_numpy()
        filled = filled.copy()
        filled[fresh] = ends - rows + 1
        ids, mark = pa.chunked_array([pa.array(filled, pa.int64())]), int(ends[-1])
    versions = pc.fill_null(adds["defaultRowCommitVersion"], version)
    for name, column in (("baseRowId", ids), ("defaultRowCommitVersion", versions)):
        adds = adds.set_column(adds.column_names.index(name), name, column)
    return adds, mark


Numbers = npt.NDArray[np.int64]
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class IdRanges:
    """Disjoint ranges in ascending order; adjacent ones are joined."""

    firsts: Numbers
    lasts: Numbers
    """The last row ID of each range, which belongs to it."""
    repeated: int | None = None
    """The smallest row ID that occurs more than once."""

    @classmethod
    def of(cls, row_ids: Numbers) -> IdRanges:
        """Returns the ranges of row IDs in any order."""
        return cls.union(row_ids, row_ids)

    @classmethod
    def join(cls, pieces: Sequence[IdRanges]) -> IdRanges:
        """Returns the ranges of several sets of row IDs."""
        union = cls.union(
            np.concatenate([_NONE, *(piece.firsts for piece in pieces)]),
            np.concatenate([_NONE, *(piece.lasts for piece in pieces)]),
        )
        repeated = [
            piece_ranges.repeated
            for piece_ranges in (union, *pieces)
            if piece_ranges.repeated is not None
        ]
        return cls(union.firsts, union.lasts, min(repeated, default=None))

    @classmethod
    def union(cls, firsts: Numbers, lasts: Numbers) -> IdRanges:
        """Returns the ranges of ranges in any order, which may overlap."""
        if len(firsts) > 1 and not bool((firsts[1:] > firsts[:-1]).all()):
            order = np.argsort(firsts, kind="stable")
            firsts, lasts = firsts[order], lasts[order]
            del order
        if not len(firsts):
            return cls(_NONE, _NONE)
        ends = np.maximum.accumulate(lasts)
        overlaps = firsts[1:] <= ends[:-1]
        at = int(overlaps.argmax()) if len(overlaps) else 0
        repeated = int(firsts[at + 1]) if len(overlaps) and overlaps[at] else None
        # Not `ends + 1`, which can be too large.
        begins = np.concatenate([[True], firsts[1:] - 1 > ends[:-1]])
        stops = np.concatenate([begins[1:], [True]])
        return cls(firsts[begins], ends[stops], repeated)

    def __len__(self) -> int:
        return len(self.firsts)

    def in_parts(self) -> IdParts:
        """Returns these row IDs as one part."""
        repeated = np.array([0, self.repeated] if self.repeated is not None else [], np.int64)
        return IdParts(
            self.firsts, self.lasts, np.array([len(self)]), repeated[::2], repeated[1::2]
        )


@dataclass(frozen=True, slots=True)
class IdParts:
    """Some sets of row IDs, one after another. Different sets may have common row IDs."""

    firsts: Numbers
    lasts: Numbers
    """The ranges of all parts; those of a part are disjoint and in ascending order."""
    counts: Numbers
    """The number of ranges of each part."""
    repeating: Numbers
    """The parts in which a row ID occurs more than once, counted from 0 and in ascending order."""
    repeated: Numbers
    """The smallest such row ID of each."""

    def __iter__(self) -> Iterator[IdRanges]:
        repeated_ids = dict(zip(self.repeating.tolist(), self.repeated.tolist(), strict=True))
        end = 0
        for number, count in enumerate(self.counts.tolist()):
            begin, end = end, end + count
            yield IdRanges(self.firsts[begin:end], self.lasts[begin:end], repeated_ids.get(number))

    def chosen(self, numbers: Numbers) -> IdParts:
        """Returns some parts, given in ascending order, without their repeated row IDs."""
        is_chosen = np.zeros(len(self.counts), np.bool_)
        is_chosen[numbers] = True
        ranges = np.repeat(is_chosen, self.counts)
        return IdParts(self.firsts[ranges], self.lasts[ranges], self.counts[numbers], _NONE, _NONE)


def overlapping(firsts: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the files whose range of row IDs starts within the range of another file, and the
    file before each of them in the order of the row IDs.

    `firsts` are base row IDs, and `rows` numbers of rows. A file without rows has no row IDs.
    """
    order = np.argsort(firsts, kind="stable")
    order = order[rows[order] > 0]
    ends = np.maximum.accumulate(firsts[order] + rows[order])
    overlap = firsts[order][1:] < ends[:-1]
    return order[1:][overlap], order[:-1][overlap]


class UsedRowIds:
    """All row IDs so far, with 16 bytes for each range. A merge needs twice as much in addition."""

    def __init__(self) -> None:
        self._levels: list[IdRanges] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(map(len, self._levels))

    def add(self, id_parts: IdParts) -> tuple[Numbers, Numbers]:
        """Adds the row IDs of parts.

        Returns the parts with a row ID that another row has too, in the same part or in an earlier
        one, in ascending order; and the smallest such row ID of each.
        """
        shared_ids = [(id_parts.repeating, id_parts.repeated)]
        owners = np.repeat(np.arange(len(id_parts.counts)), id_parts.counts)
        for level in self._levels:
            rows, ids = _shared_ids(id_parts, level)
            shared_ids.append((owners[rows], ids))
        union = IdRanges.union(id_parts.firsts, id_parts.lasts)
        if union.repeated is not None:
            shared_ids.append(_shared_among(id_parts, owners))
        self._push(union)
        return smallest(shared_ids)

    def _push(self, union: IdRanges) -> None:
        levels = self._levels
        levels.append(IdRanges(union.firsts, union.lasts))
        while len(levels) > 1 and len(levels[-2]) <= 2 * len(levels[-1]):
            levels[-2:] = [_merge_levels(levels)]


def parts_of(batches: Iterable[Numbers], limit: int) -> Iterator[IdRanges]:
    """Yields the row IDs of a file as parts of at most `limit` ranges, at least one part."""
    held: list[IdRanges] = []
    count = 0
    for row_ids in batches:
        for start in range(0, len(row_ids), limit):
            ranges = IdRanges.of(row_ids[start : start + limit])
            if count + len(ranges) > limit:
                held = [IdRanges.join(held)]
                count = len(held[0])
            if count + len(ranges) > limit:
                yield held[0]
                held, count = [], 0
            held.append(ranges)
            count += len(ranges)
    yield IdRanges.join(held)


def _shared_ids(id_parts: IdParts, level: IdRanges) -> tuple[Numbers, Numbers]:
    """Returns the ranges with a row ID of `level`, and the smallest such row ID of each."""
    if not len(level):
        return _NONE, _NONE
    # Of the ranges that end at or after the beginning of this one, only the first is needed.
    at = np.searchsorted(level.lasts, id_parts.firsts)
    rows = np.flatnonzero(at < len(level))
    at = at[rows]
    reached = level.firsts[at] <= id_parts.lasts[rows]
    rows, at = rows[reached], at[reached]
    return rows, np.maximum(id_parts.firsts[rows], level.firsts[at])


def _shared_among(id_parts: IdParts, owners: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the parts with a row ID of an earlier one of these parts, and the smallest of each.

    Goes through the parts that have a row ID in common with another one, and no others.
    """
    order = np.argsort(id_parts.firsts, kind="stable")
    firsts, lasts = id_parts.firsts[order], id_parts.lasts[order]
    overlapping = np.zeros(len(order), np.bool_)
    overlapping[1:] = firsts[1:] <= np.maximum.accumulate(lasts)[:-1]
    overlapping[:-1] |= firsts[1:] <= lasts[:-1]
    involved = np.unique(owners[order[overlapping]])
    earlier = UsedRowIds()
    shared_ids = []
    for number, ranges in zip(involved, id_parts.chosen(involved), strict=True):
        none_or_first, ids = earlier.add(ranges.in_parts())
        shared_ids.append((none_or_first + number, ids))
    return smallest(shared_ids)


def smallest(pairs: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Returns the distinct parts or files in ascending order, and the smallest row ID of each."""
    numbers = np.concatenate([_NONE, *(numbers for numbers, _ in pairs)])
    ids = np.concatenate([_NONE, *(ids for _, ids in pairs)])
    order = np.lexsort((ids, numbers))
    numbers, ids = numbers[order], ids[order]
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = numbers[1:] != numbers[:-1]
    return numbers[is_first], ids[is_first]


def _merge_levels(levels: list[IdRanges]) -> IdRanges:
    """Returns the union of the last two levels, and empties these to need less memory."""
    ranges = [np.concatenate([level.firsts for level in levels[-2:]])]
    ranges.append(np.concatenate([level.lasts for level in levels[-2:]]))
    levels[-2:] = [IdRanges(_NONE, _NONE)] * 2
    union = IdRanges.union(ranges.pop(0), ranges.pop(0))
    return IdRanges(union.firsts, union.lasts)

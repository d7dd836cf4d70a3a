"""The bounds of columns in data files, as readers compare them with conditions.

Implements the reading side of "Per-file Statistics": strings may be truncated, timestamps are cut
to milliseconds and their offsets to minutes, and a maximum may be the text `NaN`. Bounds of files
with deletion vectors may be wider than their live rows (`tightBounds` false), which skips fewer
files but is right.

Bounds also prove which files have only rows, some rows or no rows with values less than a limit.
For deleting whole files a wrong answer loses rows: bounds only count where they prove that every
row is less than the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.schema.types import DeltaType

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnBounds:
    """The bounds of one column in each file. Texts are binary, and compared byte by byte."""

    kind: DeltaType
    least: pa.Array
    """Null where the log states no bound."""
    greatest: pa.Array
    nulls: Numbers
    """The number of nulls in each file; -1 if it is unknown."""
    all_null: Mask
    """Files in which the column has no value."""
    is_partition: bool = False
    """Whether all rows of a file have the same value, as in a partition column."""
    is_indexed: bool = True
    """Whether the table asks for bounds of the column, so that a file without them lacks them."""

    @property
    def known(self) -> Mask:
        """Files with both bounds."""
        has_bounds: Mask = to_bools(pc.and_(pc.is_valid(self.least), pc.is_valid(self.greatest)))
        return has_bounds & ~self.all_null

    @property
    def unknown(self) -> Mask:
        """Files that a reader cannot skip by the bounds of this column, for it has none."""
        return ~self.known & ~self.all_null

    def take(self, rows: Numbers) -> ColumnBounds:
        """Returns the bounds of some files."""
        at = pa.array(rows)
        return ColumnBounds(
            kind=self.kind,
            least=self.least.take(at),
            greatest=self.greatest.take(at),
            nulls=self.nulls[rows],
            all_null=self.all_null[rows],
            is_partition=self.is_partition,
            is_indexed=self.is_indexed,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileBounds:
    """Files, real or planned, with the bounds of some columns."""

    size: Numbers
    """Bytes."""
    rows: Numbers
    """The number of physical rows; -1 if it is unknown."""
    partition: Numbers
    """The number of the partition of each file, from 0 on."""
    columns: Mapping[Path, ColumnBounds]
    """By logical name in lower case, from the outermost struct inwards."""

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self.size)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return int(self.partition.max(initial=-1)) + 1


def column_bounds(
    kind: DeltaType,
    *,
    least: pa.Array,
    greatest: pa.Array,
    nulls: pa.Array,
    rows: Numbers,
    is_indexed: bool = True,
) -> ColumnBounds:
    """The bounds that statistics state, as readers use them. `rows` is -1 where it is unknown."""
    counts = np.asarray(pc.fill_null(nulls, -1), np.int64)
    return ColumnBounds(
        kind=kind,
        least=_shorten_texts(_readable(moved_by_cut_offset(least, -1)), b""),
        greatest=_shorten_texts(
            _readable(moved_by_cut_offset(with_cut_microseconds(greatest), 1)), b"\xff"
        ),
        nulls=counts,
        all_null=(rows >= 0) & (counts >= 0) & (counts >= rows),
        is_indexed=is_indexed,
    )


def partition_bounds(kind: DeltaType, values: pa.Array, partition: Numbers) -> ColumnBounds:
    """A partition column, whose values the log states exactly. `values` are those of each
    partition.
    """
    file_values = _readable(values).take(pa.array(partition))
    absent: Mask = to_bools(pc.is_null(file_values))
    return ColumnBounds(
        kind=kind,
        least=file_values,
        greatest=file_values,
        nulls=absent.astype(np.int64),
        all_null=absent,
        is_partition=True,
    )


def order_keys(*columns: pa.Array) -> list[Keys]:
    """Numbers with the order of the values of all columns, which have the same type and no nulls.

    NaN is the greatest value, as in Spark.
    """
    kind = columns[0].type
    if pa.types.is_floating(kind):
        values = [np.asarray(column, np.float64) for column in columns]
        return [np.where(np.isnan(column_keys), np.inf, column_keys) for column_keys in values]
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS_OF_64_BITS:
        return [_low_words(column) for column in columns]
    if not (pa.types.is_decimal(kind) or pa.types.is_binary(kind)):
        return [
            column.cast(_integer_type(kind)).to_numpy(zero_copy_only=False).astype(np.int64)
            for column in columns
        ]
    joined = pa.concat_arrays(columns)
    ranks: Numbers = (
        _text_keys(joined)
        if pa.types.is_binary(kind)
        else pc.rank(joined, tiebreaker="dense").to_numpy().astype(np.int64)
    )
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return list(np.split(ranks, ends))


def sort_order(keys: Keys, partition: Numbers) -> Numbers:
    """Returns the order by partition, then by order key; equal ones stay in their order."""
    if keys.dtype.kind == "f":
        # Positive doubles have the order of their bits, negative ones the reverse; -0 becomes 0.
        bits = (keys + 0.0).view(np.int64)
        keys = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    values = keys.view(np.uint64) ^ np.uint64(1 << 63)
    values -= values.min(initial=2**64 - 1)
    width = int(values.max(initial=0)).bit_length()
    words = [values, partition.astype(np.uint64)]
    if width + int(partition.max(initial=0)).bit_length() <= 64:
        values |= words.pop() << np.uint64(width)
    return radix_order(*words)


def radix_order(*words: npt.NDArray[np.uint64]) -> Numbers:
    """Returns the order by the last word, then by those before it; equal ones stay in their order.

    Takes a pass for every 16 bits up to the highest one, which is faster than comparing values.
    """
    order: Numbers | None = None
    for word in words:
        for shift in range(0, int(word.max(initial=0)).bit_length(), 16):
            digits = (word >> np.uint64(shift)).astype(np.uint16)
            if order is None:
                order = np.argsort(digits, kind="stable")
            else:
                order = order[np.argsort(digits[order], kind="stable")]
    return np.arange(len(words[0])) if order is None else order


_DIGITS_OF_64_BITS = 18
_LAST_MICROSECOND = 999
_MINUTE = 60_000_000
_LAST_SECONDS_IN_OFFSETS = 63_676_800_000_000
"""1972-01-08 in UTC, in microseconds: the day after Liberia gave up its offset of -00:44:30."""
_MOST_TEXT_BYTES = 1024
"""Bounds of texts are cut to this length, so that thousands of values drawn between them fit into
memory.
"""
_BYTES_OF_A_NUMBER = 7
"""With their length, the bytes of a text that 64 bits hold."""


def _readable(values: pa.Array) -> pa.Array:
    return values.cast(pa.binary()) if pa.types.is_string(values.type) else values


def _shorten_texts(values: pa.Array, end: bytes) -> pa.Array:
    """Cuts long texts, which some writers do not. `end` follows a text that was cut; a byte that
    is in no text makes it greater than every text with the same beginning.
    """
    if not pa.types.is_binary(values.type):
        return values
    long = pc.greater(pc.binary_length(values), _MOST_TEXT_BYTES)
    if not pc.any(long).as_py():
        return values
    cut = pc.binary_join_element_wise(pc.binary_slice(values, 0, _MOST_TEXT_BYTES), end, b"")
    return pc.if_else(long, cut, values)


def may_have_cut_offset(bounds: pa.Array) -> pa.BooleanArray:
    """Returns which bounds can be false by less than a minute; null for nulls.

    Delta Spark writes an instant as local time with an offset in whole minutes. Until 1972 the
    offsets of some zones had seconds, such as +00:53:28 of Berlin before 1893.
    """
    if not pa.types.is_timestamp(bounds.type) or bounds.type.tz is None:
        return booleans(np.zeros(len(bounds), np.bool_))
    return pc.less(bounds.view(pa.int64()), pa.scalar(_LAST_SECONDS_IN_OFFSETS))


def moved_by_cut_offset(bounds: pa.Array, sign: int) -> pa.Array:
    """Returns bounds a minute earlier or later where their offset can have been cut."""
    cut = may_have_cut_offset(bounds)
    if not pc.any(cut).as_py():
        return bounds
    micros = bounds.view(pa.int64())
    room = pc.greater(micros, pa.scalar(_MINUTE - 2**63))
    moved = pc.add(micros, pc.if_else(pc.and_(cut, room), sign * _MINUTE, 0))
    return moved.view(bounds.type)


def with_cut_microseconds(greatest: pa.Array) -> pa.Array:
    """Writers cut timestamps to milliseconds, so the greatest value may be later."""
    kind = greatest.type
    if not pa.types.is_timestamp(kind):
        return greatest
    micros = greatest.view(pa.int64())
    cut = pc.equal(pc.subtract(micros, pc.multiply(pc.divide(micros, 1000), 1000)), 0)
    room = pc.less(micros, pa.scalar(2**63 - 1 - _LAST_MICROSECOND))
    later = pc.if_else(room, pc.add(pc.if_else(room, micros, 0), _LAST_MICROSECOND), micros)
    return pc.if_else(cut, later, micros).view(kind)


def _integer_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _low_words(values: pa.Array) -> Numbers:
    """The unscaled values of decimals with at most 18 digits."""
    if not len(values):
        return np.zeros(0, np.int64)
    words = np.frombuffer(values.buffers()[1], np.int64, 2 * len(values), 16 * values.offset)
    unscaled_values: Numbers = words[::2].copy()
    return unscaled_values


def _text_keys(texts: pa.BinaryArray) -> Numbers:
    """Numbers with the order of texts, which are compared by seven bytes at a time: in the first
    ones that differ, and further only those that are equal so far.
    """
    if not len(texts):
        return np.zeros(0, np.int64)
    first_texts = texts.slice(0, len(texts) // 16)
    if 2 * len(pc.unique(first_texts)) < len(first_texts):
        encoded = texts.dictionary_encode()
        ranks: Numbers = _text_keys(encoded.dictionary)[encoded.indices.to_numpy()]
        return ranks
    lowest, highest = pc.min_max(texts).as_py().values()
    differ = (
        at for at, (low, high) in enumerate(zip(lowest, highest, strict=False)) if low != high
    )
    _, offsets, data = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    at, ends = edges[:-1] + next(differ, min(len(lowest), len(highest))), edges[1:]
    padded = np.zeros(int(ends[-1]) + 8, np.uint8)
    padded[:-8] = np.frombuffer(data or b"", np.uint8, int(ends[-1]))
    words = np.ndarray(len(padded) - 7, ">u8", padded.data, strides=(1,))
    rows = np.arange(len(texts))
    keys = _seven_bytes(words, at, ends)
    if (keys & 15 <= _BYTES_OF_A_NUMBER).all():
        return keys
    # The rank of a text is the number of lesser ones, as far as they have been compared.
    ranks = np.zeros(len(texts), np.int64)
    while len(rows):
        order = sort_order(keys, ranks[rows])
        rows, keys = rows[order], keys[order]
        ranks_before, places = ranks[rows], np.arange(len(rows))
        is_first = np.diff(ranks_before, prepend=-1) != 0
        first = np.maximum.accumulate(np.where(is_first, places, 0))
        is_first |= np.diff(keys, prepend=-1) != 0
        ranks[rows] = ranks_before + np.maximum.accumulate(np.where(is_first, places, 0)) - first
        is_alone = is_first & np.append(is_first[1:], True)
        rows = rows[~is_alone & (keys & 15 > _BYTES_OF_A_NUMBER)]
        at[rows] += _BYTES_OF_A_NUMBER
        keys = _seven_bytes(words, at[rows], ends[rows])
    return ranks


def _seven_bytes(words: npt.NDArray[np.uint64], at: Numbers, ends: Numbers) -> Numbers:
    """Up to seven bytes of texts, and how many they are; 8 if more follow.

    Of texts that differ only in zero bytes at the end, the shorter one is less.
    """
    left = np.minimum(ends - at, _BYTES_OF_A_NUMBER + 1)
    unused = np.uint64(8) * (8 - np.minimum(left, _BYTES_OF_A_NUMBER)).astype(np.uint64)
    numbers_of_texts = words[at].astype(np.uint64) >> unused << unused >> np.uint64(4)
    keys: Numbers = numbers_of_texts.astype(np.int64) | left
    return keys


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SURE = {
    # Writers with the hybrid calendar of Spark 2 state other days before.
    "date": (datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH).days,
    "timestamp_ntz": int((datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000,
    # Bounds can be local times with an offset in whole minutes. Until 1972 some offsets were not.
    "timestamp": int((datetime(1973, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAges:
    """A judgement on each file. Files in no mask have no row that is less than the limit."""

    whole: Mask
    """All rows are less."""
    mixed: Mask
    """Some rows may be less, and others, or nulls, are not."""
    unknown: Mask
    """The log does not prove anything."""


def ages(column: ColumnBounds, limit: int | Numbers) -> RowAges:
    """Judges files by the bounds of a column of dates, timestamps or integers.

    `limit` is in the unit of the column, days or microseconds since 1970, or a limit for each file.
    A null is never less.
    """
    lowest, highest = numbers(column.least), numbers(column.greatest)
    low, high = to_bools(pc.is_valid(column.least)), to_bools(pc.is_valid(column.greatest))
    if column.is_partition:
        all_expired = high & (highest < limit)
        none: Mask = np.zeros(len(all_expired), np.bool_)
        return RowAges(whole=all_expired, mixed=none, unknown=none)
    # Bounds that contradict each other prove nothing.
    sound = ~(low & high & (lowest > highest))
    has_values = ~column.all_null & ~(sound & low & (lowest >= limit))
    sure = _FIRST_SURE.get(str(column.kind))
    below = sound & high & (highest < limit)
    if sure is not None:
        below &= highest >= sure
    all_expired = has_values & below & (column.nulls == 0)
    is_known = sound & low & high & (column.nulls >= 0)
    return RowAges(
        whole=all_expired,
        mixed=has_values & ~all_expired & is_known,
        unknown=has_values & ~all_expired & ~is_known,
    )


def has_ages(kind: DeltaType) -> bool:
    """Whether values of a type are instants, times or days."""
    return str(kind) in _FIRST_SURE


def numbers(values: pa.Array) -> Numbers:
    """Returns dates as days, timestamps as microseconds, and integers as they are; 0 for nulls."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    integers_of_values: Numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(
        zero_copy_only=False
    )
    return integers_of_values

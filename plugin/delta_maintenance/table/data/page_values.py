"""Reads from pages how many values each row has and how long texts are, without decoding values.

Implements "Run Length Encoding / Bit-Packing Hybrid", "Delta Encoding", "Delta-length byte array"
and "Delta Strings" of the Parquet format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from delta_maintenance.table.compact_protocol import MalformedThriftError, varint
from delta_maintenance.table.read.parquet_pages import (
    DELTA_BYTE_ARRAY,
    DELTA_LENGTH_BYTE_ARRAY,
    PLAIN,
    MalformedPageError,
    longest_text,
)

_PACKED_GROUPS = 1 << 16
"""The number of groups of 8 levels that are unpacked together."""
_MOST_LENGTHS = 1 << 20
"""The maximum number of lengths of a page that are decoded."""
_UNPACKED = 1 << 14
"""The number of lengths that are unpacked together."""


@dataclass(slots=True)
class PageRows:
    """The rows of a page of a column whose rows may have several values."""

    begun: int = 0
    """The number of rows that begin in the page."""
    continues: bool = False
    """Whether the first value belongs to a row of the previous page."""
    longest: int = 0
    """The maximum number of values that a row has in the page."""
    _current: int = 0

    def _end_row(self) -> None:
        self.longest, self._current = max(self.longest, self._current), 0

    def add_run(self, count: int, *, begins: bool) -> None:
        """Adds values, each of which begins a row, or none of which does."""
        if not begins:
            self.continues |= not self.begun
            self._current += count
        elif count:
            self._end_row()
            self.begun += count
            self._current = self.longest = max(self.longest, 1)
            self._current = 1

    def add_levels(self, begins: npt.NDArray[np.bool_]) -> None:
        """Adds values, each with whether it begins a row."""
        starts = np.flatnonzero(begins)
        if not len(starts):
            self.add_run(len(begins), begins=False)
            return
        if starts[0]:
            self.add_run(int(starts[0]), begins=False)
        self._end_row()
        self.begun += len(starts)
        self.longest = max(self.longest, int(np.diff(starts).max(initial=1)))
        self._current = len(begins) - int(starts[-1])

    def finished(self) -> PageRows:
        """Returns the rows after the last value."""
        self._end_row()
        return self


def rows_of(levels: memoryview, count: int, *, most: int) -> PageRows:
    """Counts the rows in the `count` repetition levels of a page.

    `most` is the maximum repetition level of the column. `MalformedPageError` for other bytes.
    """
    found, width, at = PageRows(), most.bit_length(), 0
    while count > 0:
        head, at = _varint(levels, at)
        if not head & 1:
            size = -(-width // 8)
            value = int.from_bytes(levels[at : at + size], "little")
            at += size
            found.add_run(min(head >> 1, count), begins=not value)
            count -= head >> 1
            continue
        groups = head >> 1
        while groups and count > 0:
            taken = min(groups, _PACKED_GROUPS)
            packed = np.frombuffer(levels[at : at + taken * width], np.uint8)
            if not len(packed):
                raise MalformedPageError("the levels of a page are truncated")
            bits = np.unpackbits(packed, bitorder="little", count=taken * 8 * width)
            found.add_levels((bits.reshape(-1, width).max(axis=1) == 0)[:count])
            at, groups, count = at + taken * width, groups - taken, count - taken * 8
    return found.finished()


def text_sizes(values: memoryview, encoding: int, count: int) -> tuple[int, int] | None:
    """Returns the size of all texts of a page and of the longest one in bytes, or upper bounds.

    `values` are the bytes after the levels, and `count` is the number of texts including nulls.
    None for an encoding other than PLAIN, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY, or for
    too many values. `MalformedPageError` for other bytes.
    """
    size = len(values)
    if encoding == PLAIN:
        return size, longest_text(values)
    if encoding not in (DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY) or count > _MOST_LENGTHS:
        return None
    lengths, at = delta_integers(values)
    if encoding == DELTA_BYTE_ARRAY:
        suffixes, _ = delta_integers(values[at:])
        if len(suffixes) != len(lengths):
            raise MalformedPageError("a page has other prefixes than suffixes")
        lengths = lengths + suffixes
    return int(lengths.sum()), int(lengths.max(initial=0))


def delta_integers(data: memoryview) -> tuple[npt.NDArray[np.int64], int]:
    """Decodes integers from 0 to 2³¹ with the encoding DELTA_BINARY_PACKED, for example lengths.

    Returns them and the position after them. `MalformedPageError` for other numbers, and for more
    than the limit of a page.
    """
    block, at = _varint(data, 0)
    parts, at = _varint(data, at)
    count, at = _varint(data, at)
    first, at = _zigzag(data, at)
    if not 0 < parts <= block or block % parts or (block // parts) % 8 or count > _MOST_LENGTHS:
        raise MalformedPageError("a page has invalid lengths")
    each = block // parts
    widths, places, least = [], [], []
    missing = count - 1
    while missing > 0:
        smallest, at = _zigzag(data, at)
        stated = data[at : at + parts].tolist()
        at += parts
        for width in stated[: -(-min(missing, block) // each)]:
            widths.append(width)
            places.append(at)
            least.append(smallest)
            at += width * each // 8
        missing -= block
    if at > len(data) or max(widths, default=0) > 64 or len(widths) * each > 2 * _MOST_LENGTHS:
        raise MalformedPageError("the lengths of a page are truncated")
    values = np.empty(max(count, 0), np.int64)
    if count:
        deltas = np.zeros((len(widths), each), np.int64)
        for width in set(widths) - {0}:
            chosen = [number for number, found in enumerate(widths) if found == width]
            deltas[chosen] = _unpacked(data, [places[number] for number in chosen], width, each)
        deltas += np.array(least, np.int64)[:, None]
        values[0] = first
        values[1:] = first + np.cumsum(deltas.reshape(-1)[: count - 1])
        if values.min() < 0 or values.max() >= 1 << 31:
            raise MalformedPageError("a page has invalid lengths")
    return values, at


def _unpacked(data: memoryview, places: list[int], width: int, each: int) -> npt.NDArray[np.int64]:
    """Unpacks `each` numbers of `width` bits from each of these positions."""
    stored = np.frombuffer(data, np.uint8)
    found = np.empty((len(places), each), np.int64)
    step = max(1, _UNPACKED // each)
    for first in range(0, len(places), step):
        at = np.array(places[first : first + step])[:, None] + np.arange(width * each // 8)
        bits = np.unpackbits(stored[at], axis=1, bitorder="little").reshape(-1, each, width)
        wide = np.pad(bits, ((0, 0), (0, 0), (0, 64 - width)))
        numbers = np.packbits(wide, axis=2, bitorder="little").view(np.int64)
        found[first : first + step] = numbers[:, :, 0]
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    try:
        return varint(data, at)
    except (IndexError, MalformedThriftError):
        raise MalformedPageError("a number in a page is truncated") from None


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at

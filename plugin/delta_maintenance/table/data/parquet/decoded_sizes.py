"""Bounds the memory that rows of a data file take, before anything of them is decoded.

A few bytes of Parquet can decode to gigabytes: each of a million rows may refer to one long entry
of a dictionary, a list may repeat one number millions of times, texts may share prefixes, and pages
of equal bytes shrink a thousandfold. All bounds are derived from the pages, because sizes in a
footer may be wrong.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import RefusedError
from delta_maintenance.table.data.parquet.pages import (
    DELTA_BYTE_ARRAY,
    SMALL_ENTRY,
    MalformedPageError,
    PageBytes,
    StoredPage,
    longest_entry,
    most_of_entry,
    pages_of,
    rows_of,
    text_sizes,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

READING_BYTES = 192 << 20
"""The maximum memory of a footer, and of the pages, dictionaries and rows that are decoded at a
time.
"""
MOST_ROW = 32 << 20
"""The maximum size of a row in memory, in bytes. Each step of a rewrite holds a copy."""
MOST_DICTIONARY = 8 << 20
"""The maximum size in bytes of a dictionary that rows keep."""
_OVERHEAD = 8
"""The size in bytes of the offset, levels and null bits of a value."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 8, "INT64": 8, "INT96": 16, "FLOAT": 8, "DOUBLE": 8}
"""The size of values in memory in bytes, at least that of small values in a row digest."""
_DECIMAL = 16
_SMALL = 64 << 10
"""Adjacent pages with values of at most this size in bytes are regarded as one."""


class Leaf(NamedTuple):
    """A leaf column of a row group."""

    column: pq.ColumnSchema
    chunk: pq.ColumnChunkMetaData
    rows: int
    """The number of rows of the row group."""

    @property
    def width(self) -> int | None:
        """The size of a value in memory in bytes; None for texts."""
        if self.column.physical_type == "BYTE_ARRAY":
            return None
        width = _WIDTHS.get(self.column.physical_type) or 2 * self.column.length
        return max(width, _DECIMAL) if self.column.logical_type.type == "DECIMAL" else width


class LeafSizes(NamedTuple):
    """The sizes of the values of a leaf column, by page."""

    first: array[int]
    """The number of the first row with a value in the page, which may have begun in another one."""
    last: array[int]
    """The number of the last row with a value in the page, which may go on in the next one."""
    total: array[float]
    """The maximum size of the values in bytes."""
    most: array[float]
    """The maximum size of the values of one row in bytes."""
    expected: float
    """The likely size of all values in bytes."""
    held: int
    """The size of a decompressed page and of the dictionary in bytes."""
    dictionary: int
    """The size of the dictionary in bytes, 0 if there is none."""
    entry: int
    """The maximum size of a dictionary entry in bytes, if they are texts; an upper bound from the
    header of the page, unless the sizes are exact."""
    encodings: frozenset[int]
    """The encodings of all values that are not indices of dictionary entries."""
    is_rough: bool
    """Whether `leaf_sizes` with `exact` may find smaller sizes."""

    def within(self, rows: int) -> float:
        """Returns the maximum size of this number of consecutive rows in bytes."""
        if not len(self.first):
            return 0
        return min(self._in_pages(rows), rows * self._in_pages(1))

    def _in_pages(self, rows: int) -> float:
        """The maximum size of as many rows in the pages that can have their values."""
        sizes = np.minimum(self.total, np.multiply(self.most, rows))
        sums = np.concatenate(([0.0], np.cumsum(sizes)))
        # The rows begin at the latest with the last row of a page.
        after = np.searchsorted(self.first, np.add(self.last, rows), side="left")
        return float((sums[after] - sums[:-1]).max())

    def kept(self) -> LeafSizes:
        """Returns the sizes if rows keep the dictionary, to which all values refer."""
        share = _OVERHEAD / (self.entry + _OVERHEAD)
        return self._replace(
            total=array("d", [size * share for size in self.total]),
            most=array("d", [_OVERHEAD]) * len(self.total),
            expected=sum(self.total) * share,
            held=self.held + 2 * self.dictionary,
            is_rough=False,
        )


def leaf_sizes(
    leaf: Leaf,
    chunk: PageBytes,
    *,
    exact: bool = False,
    exact_dictionary: bool = False,
    start: bool = False,
    max_bytes: int = READING_BYTES,
) -> LeafSizes:
    """Computes the sizes of a column from its page headers and its dictionary.

    With `exact_dictionary`, the dictionary of texts is decompressed; with `exact`, the pages of
    repeated values and of texts as well. With `start`, only the first page with values is examined.
    `RefusedError` for pages of more than `max_bytes`, `MalformedPageError` for invalid ones.
    """
    sums = _Sums(leaf, exact=exact, exact_dictionary=exact or exact_dictionary)
    try:
        for page in pages_of(chunk, values=leaf.chunk.num_values):
            size = max(page.size, page.stored)
            if size > max_bytes:
                raise too_large(
                    f"a page of the column {leaf.column.path}", size, max_bytes=max_bytes
                )
            sums.add(chunk, page)
            if start and sums.has_values:
                break
    except MalformedPageError as error:
        raise pa.ArrowInvalid(f"the column {leaf.column.path}: {error}") from None
    return sums.result()


def rows_together(
    sizes: Sequence[LeafSizes],
    *,
    rows: int,
    most_rows: int,
    likely: int,
    max_bytes: int = READING_BYTES,
) -> int:
    """Returns how many of `rows` rows may be decoded together, 0 if not even one row may be.

    `sizes` are those of all columns. These rows likely take at most `likely` bytes, and fit in
    `max_bytes` in any case.
    """
    remaining = max_bytes - sum(leaf.held for leaf in sizes)
    expected = sum(leaf.expected for leaf in sizes) / max(rows, 1)
    count = max(1, min(most_rows, int(likely / max(expected, 1))))
    if sum(sum(leaf.total) for leaf in sizes) <= remaining:
        return count
    while count and sum(leaf.within(count) for leaf in sizes) > remaining:
        count //= 2
    return count


def one_row(sizes: Iterable[LeafSizes]) -> int:
    """Returns the maximum memory for decoding one row of these columns in bytes."""
    return int(sum(leaf.held + leaf.within(1) for leaf in sizes))


def require_row(size: int) -> None:
    """Raises `RefusedError` for a row of this size in bytes."""
    if size > MOST_ROW:
        raise too_large("a row of the data file", size, max_bytes=MOST_ROW)


def too_large(subject: str, size: int, *, max_bytes: int) -> RefusedError:
    """Returns the error for a part of a data file that needs more than `max_bytes` of memory."""
    return RefusedError(
        f"{subject} may take {size} bytes of memory, and this release decodes at most {max_bytes} "
        "together",
        remedy="rewrite the file with smaller values or pages, with the engine that wrote it",
    )


class _Sums:
    """The sizes of the pages of a column so far."""

    def __init__(self, leaf: Leaf, *, exact: bool, exact_dictionary: bool) -> None:
        self._leaf = leaf
        self._exact_dictionary = exact_dictionary
        self._width = leaf.width
        self._repeats = leaf.column.max_repetition_level > 0
        self._exact = exact
        self._row = self._page = self._dictionary = self._entry = 0
        self._mean = self._expected = 0.0
        self._is_rough = False
        self._rows_known = not self._repeats or exact
        self._encodings: set[int] = set()
        self._first, self._last = array("q"), array("q")
        self._total, self._most = array("d"), array("d")

    def add(self, chunk: PageBytes, page: StoredPage) -> None:
        codec = self._leaf.chunk.compression
        self._page = max(self._page, page.size, page.stored)
        if page.is_dictionary:
            self._dictionary = page.size
            self._mean = page.size / max(page.values, 1)
            if self._width is None:
                self._entry = (
                    longest_entry(chunk, page, codec)
                    if self._exact_dictionary
                    else most_of_entry(page)
                )
                self._is_rough |= self._entry > SMALL_ENTRY
        elif page.encoding is not None and page.values:
            levels, values = self._open_page(chunk, page, codec)
            total, largest = self._sizes(page, values)
            self._count(page, levels, total, largest)

    @property
    def has_values(self) -> bool:
        return len(self._total) > 0

    def result(self) -> LeafSizes:
        total, largest = self._total, self._most
        first_rows, last_rows = self._first, self._last
        if not self._rows_known:
            # All values could belong to one row.
            total = largest = array("d", [sum(total)][: len(total)])
            first_rows = last_rows = array("q", [0] * len(total))
        return LeafSizes(
            first=first_rows,
            last=last_rows,
            total=total,
            most=largest,
            expected=self._expected,
            held=self._page + 2 * self._dictionary,
            dictionary=self._dictionary,
            entry=self._entry,
            encodings=frozenset(self._encodings),
            is_rough=(self._is_rough or self._repeats) and not self._exact,
        )

    def _open_page(
        self, chunk: PageBytes, page: StoredPage, codec: str
    ) -> tuple[memoryview | None, memoryview | None]:
        """Returns the repetition levels and the values of a page, as far as they are needed."""
        texts = self._width is None and not page.refers_to_dictionary
        # Little is known of texts that share prefixes without their lengths.
        exact = self._exact or (texts and page.encoding == DELTA_BYTE_ARRAY)
        if not exact or not (texts or self._repeats):
            return None, None
        try:
            separate, body = page.body(chunk, codec)
        except (pa.ArrowException, ValueError, OSError):
            # Damage, which Arrow reports, or a codec without a separate decompressor.
            return None, None
        column = self._leaf.column
        if page.levels is not None:
            return separate[: page.levels[0]], body
        levels = []
        for max_level in (column.max_repetition_level, column.max_definition_level):
            size = int.from_bytes(body[:4], "little") if max_level else 0
            levels.append(body[4 : 4 + size])
            body = body[4 + size :] if max_level else body
        return (levels[0], body) if page.has_rle_levels else (None, None)

    def _sizes(self, page: StoredPage, values: memoryview | None) -> tuple[float, float]:
        """Returns the maximum size of the values of a page and of one value in bytes."""
        count = page.values
        if self._width is not None:
            size: float = self._width + _OVERHEAD * self._repeats
            self._expected += count * size
            if not page.refers_to_dictionary:
                self._encodings.add(page.encoding or 0)
            return count * size, size
        if page.refers_to_dictionary:
            self._expected += count * (self._mean + _OVERHEAD)
            return count * (self._entry + _OVERHEAD), self._entry + _OVERHEAD
        self._encodings.add(page.encoding or 0)
        shared = page.encoding == DELTA_BYTE_ARRAY
        total = page.size * (count if shared else 1)
        longest = page.size
        self._is_rough = True
        if values is not None:
            with suppress(MalformedPageError):
                total, longest = text_sizes(values, page.encoding or 0, count) or (total, longest)
        if shared:
            # Arrow builds texts in a buffer before it copies them.
            total, longest = 2 * total, 2 * longest
        self._expected += (total if shared else page.size) + count * _OVERHEAD
        return total + count * _OVERHEAD, longest + _OVERHEAD

    def _count(
        self, page: StoredPage, levels: memoryview | None, total: float, largest: float
    ) -> None:
        begun, longest, first_row = page.values, 1, self._row
        if self._repeats:
            longest = page.values
            try:
                largest_total = self._leaf.column.max_repetition_level
                rows = (
                    None
                    if levels is None
                    else rows_of(levels, page.values, max_level=largest_total)
                )
            except MalformedPageError:
                rows = None
            self._rows_known &= rows is not None
            if rows is not None:
                begun, longest = rows.begun, rows.longest
                first_row -= rows.continues and first_row > 0
        self._row += begun
        # A page in which no row begins, at the start of a column, is malformed.
        last_row = max(self._row - 1, first_row)
        largest_total = min(total, longest * largest)
        if self._total and self._total[-1] + total < _SMALL:
            # Many small pages take less memory as one.
            self._total[-1] += total
            self._most[-1] = (
                largest_total + self._most[-1]
                if self._repeats
                else max(largest_total, self._most[-1])
            )
            self._last[-1] = last_row
            return
        self._first.append(first_row)
        self._last.append(last_row)
        self._total.append(total)
        self._most.append(largest_total)

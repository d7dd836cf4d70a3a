"""The pages of a Parquet column chunk: their headers, and the sizes of rows and texts in them.

The footer of a file also contains sizes, but they are not reliable: a decoder allocates the size in
the header of a page. Dictionaries are another trap, because each of a million rows may refer to one
long string. Values are not decoded.

Implements "Page Header", "Run Length Encoding / Bit-Packing Hybrid", "Delta Encoding",
"Delta-length byte array" and "Delta Strings" of the Parquet format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.checksums import crc32
from delta_maintenance.table.data.parquet.thrift import (
    FALSE,
    I16,
    I64,
    STOP,
    STRUCT,
    TRUE,
    MalformedThriftError,
    field_head,
    skip,
    varint,
    zigzag,
)

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_INNER = {_DATA_PAGE: (5, 2), _DICTIONARY_PAGE: (7, 2), _DATA_PAGE_V2: (8, 4)}
"""The numbers of the inner header and of the encoding in it, by the type of the page."""
_RLE = 3
PLAIN, PLAIN_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 2, 6, 7, 8
SMALL_ENTRY = 1 << 10
"""If no entry of a dictionary can be longer than this, the longest one is not determined."""
_PACKED_GROUPS = 1 << 16
"""The number of groups of 8 levels that are unpacked together."""
_MOST_LENGTHS = 1 << 20
"""The maximum number of lengths of a page that are decoded."""
_UNPACKED = 1 << 14
"""The number of lengths that are unpacked together."""


@dataclass(slots=True)
class ChunkPages:
    """Sums over the pages of one column chunk."""

    values: int = 0
    """The number of values, including nulls."""
    size: int = 0
    """The size of the pages and their headers in the file, in bytes."""
    has_dictionary: bool = False
    largest: int = 0
    """The size of the largest page after decompression, in bytes."""
    indexed: int = 0
    """The number of values that refer to the dictionary."""
    plain_bytes: int = 0
    """The total size of the pages without a dictionary after decompression, in bytes."""
    density: float = 0
    """The maximum number of bytes per value in any page without a dictionary."""
    shares_prefixes: bool = False
    """Whether a value may repeat any prefix of the previous one."""
    entry: int = 0
    """An upper bound of the size of a dictionary entry, in bytes."""


class MalformedPageError(ValueError):
    """The bytes are not the pages of a column chunk."""


class StoredPage(NamedTuple):
    """A page according to its header. A tuple, which costs a third of a dataclass to create."""

    header: dict[int, object]
    is_dictionary: bool
    encoding: int | None
    """The encoding of the values; None for pages that hold neither values nor a dictionary."""
    values: int
    """The number of values, including nulls, or of dictionary entries."""
    start: int
    """The position of the page after its header."""
    stored: int
    """The size in the file, in bytes."""
    size: int
    """The size after decompression, in bytes."""
    levels: tuple[int, int] | None
    """The sizes of the repetition and definition levels in bytes, if the header contains them."""
    is_compressed: bool

    @property
    def has_rle_levels(self) -> bool:
        """Whether all levels have the encoding that has replaced BIT_PACKED."""
        inner = self.header.get(_INNER[_DATA_PAGE][0])
        header = inner if isinstance(inner, dict) else {}
        return all(header.get(field, _RLE) == _RLE for field in (3, 4))

    @property
    def refers_to_dictionary(self) -> bool:
        """Whether the values are indices of dictionary entries."""
        return self.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY)

    def body(self, chunk: PageBytes, codec: str) -> tuple[memoryview, memoryview]:
        """Returns the levels that are stored separately, and the rest of the page, decompressed.

        Errors are those of pyarrow, also for a codec that it cannot decompress separately.
        """
        body = memoryview(chunk[self.start : self.start + self.stored])
        before = sum(self.levels or ())
        if self.is_compressed and codec != "UNCOMPRESSED" and self.size > before:
            return body[:before], _decompress_body(body[before:], self.size - before, codec)
        return body[:before], body[before:]


class PageBytes(Protocol):
    """The bytes of a column chunk, in memory or not."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> bytes | memoryview: ...


def pages_of(chunk: PageBytes, *, values: int) -> Iterator[StoredPage]:
    """Yields the pages of a chunk with this number of values, from their headers only.

    `MalformedPageError` for invalid or truncated headers.
    """
    at = values_before = 0
    while values_before < values:
        header, at = _header(chunk, at)
        kind, size, stored = _size(header, 1), _size(header, 2), _size(header, 3)
        if at + stored > len(chunk):
            raise MalformedPageError("a page is longer than its column")
        inner, encoding, count, levels, compressed = header, None, 0, None, True
        if kind in _INNER:
            field, encoding_field = _INNER[kind]
            inner = _inner(header, field)
            count, encoding = _size(inner, 1), _size(inner, encoding_field)
        if kind == _DATA_PAGE_V2:
            levels = _size(inner, 6), _size(inner, 5)
            compressed = inner.get(7) is not False
            if sum(levels) > min(size, stored):
                raise MalformedPageError("the levels of a page are longer than the page")
        values_before += 0 if kind == _DICTIONARY_PAGE else count
        yield StoredPage(
            header=header,
            is_dictionary=kind == _DICTIONARY_PAGE,
            encoding=encoding,
            values=count,
            start=at,
            stored=stored,
            size=size,
            levels=levels,
            is_compressed=compressed,
        )
        at += stored


def read_pages(
    chunk: memoryview, *, values: int, codec: str, texts: bool, checksums: bool = False
) -> ChunkPages:
    """Reads the page headers of a chunk with this number of values. Decompresses only its
    dictionary.

    `texts` says whether the values have individual lengths. With `checksums`, pages that have a
    CRC-32 are compared with it. `MalformedPageError` for invalid or truncated headers and for other
    bytes than the CRC-32 is of.
    """
    chunk_pages = ChunkPages()
    for page in pages_of(chunk, values=values):
        chunk_pages.size = page.start + page.stored
        crc = page.header.get(4) if checksums else None
        if isinstance(crc, int) and crc32(chunk[page.start : chunk_pages.size]) != crc & 0xFFFFFFFF:
            raise MalformedPageError("a page does not have its checksum")
        chunk_pages.largest = max(chunk_pages.largest, page.size)
        if page.is_dictionary:
            chunk_pages.has_dictionary = True
            if texts:
                chunk_pages.entry = longest_entry(chunk, page, codec)
        elif page.refers_to_dictionary:
            chunk_pages.values += page.values
            chunk_pages.indexed += page.values
        elif page.encoding is not None:
            chunk_pages.values += page.values
            chunk_pages.plain_bytes += page.size
            chunk_pages.density = max(chunk_pages.density, page.size / max(page.values, 1))
            chunk_pages.shares_prefixes |= page.encoding == DELTA_BYTE_ARRAY
    return chunk_pages


def most_of_entry(page: StoredPage) -> int:
    """Returns an upper bound of the size of a text of such a page, from its header only."""
    return max(page.size - 4 * page.values, 0)


def longest_entry(chunk: PageBytes, page: StoredPage, codec: str) -> int:
    """Returns the size of the longest text of a page with the encoding PLAIN and without levels,
    or an upper bound that is cheaper to determine.

    Each text is stored as its length in four bytes, followed by its bytes.
    """
    longest = most_of_entry(page)
    if longest <= SMALL_ENTRY or not 0 < page.values <= page.size // 4:
        return longest
    try:
        _, body = page.body(chunk, codec)
    except (pa.ArrowException, ValueError, OSError):
        # pyarrow has no separate decompressor for this codec; the size of the dictionary is an
        # upper bound.
        return longest
    return longest_text(body)


def longest_text(body: memoryview) -> int:
    """Returns the size of the longest of some texts with the encoding PLAIN, in bytes."""
    longest, at, end = 0, 0, len(body)
    try:
        while at < end:
            (length,) = _LENGTH(body, at)
            at += 4 + length
            if length > longest:
                longest = length
    except struct.error:
        raise MalformedPageError("a page ends within a text") from None
    return longest


_LENGTH = struct.Struct("<I").unpack_from


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

    def finish(self) -> PageRows:
        """Returns the rows after the last value."""
        self._end_row()
        return self


def rows_of(levels: memoryview, count: int, *, max_level: int) -> PageRows:
    """Counts the rows in the `count` repetition levels of a page.

    `max_level` is the maximum repetition level of the column. `MalformedPageError` for other bytes.
    """
    page_rows, width, at = PageRows(), max_level.bit_length(), 0
    while count > 0:
        head, at = _varint(levels, at)
        if not head & 1:
            size = -(-width // 8)
            value = int.from_bytes(levels[at : at + size], "little")
            at += size
            page_rows.add_run(min(head >> 1, count), begins=not value)
            count -= head >> 1
            continue
        groups = head >> 1
        while groups and count > 0:
            group_count = min(groups, _PACKED_GROUPS)
            packed = np.frombuffer(levels[at : at + group_count * width], np.uint8)
            if not len(packed):
                raise MalformedPageError("the levels of a page are truncated")
            bits = np.unpackbits(packed, bitorder="little", count=group_count * 8 * width)
            page_rows.add_levels((bits.reshape(-1, width).max(axis=1) == 0)[:count])
            at, groups, count = (
                at + group_count * width,
                groups - group_count,
                count - group_count * 8,
            )
    return page_rows.finish()


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
    miniblocks, at = _varint(data, at)
    count, at = _varint(data, at)
    first_value, at = _zigzag(data, at)
    if (
        not 0 < miniblocks <= block
        or block % miniblocks
        or (block // miniblocks) % 8
        or count > _MOST_LENGTHS
    ):
        raise MalformedPageError("a page has invalid lengths")
    block_values = block // miniblocks
    widths, starts, smallest_deltas = [], [], []
    missing = count - 1
    while missing > 0:
        smallest, at = _zigzag(data, at)
        stated = data[at : at + miniblocks].tolist()
        at += miniblocks
        for width in stated[: -(-min(missing, block) // block_values)]:
            widths.append(width)
            starts.append(at)
            smallest_deltas.append(smallest)
            at += width * block_values // 8
        missing -= block
    if (
        at > len(data)
        or max(widths, default=0) > 64
        or len(widths) * block_values > 2 * _MOST_LENGTHS
    ):
        raise MalformedPageError("the lengths of a page are truncated")
    values = np.empty(max(count, 0), np.int64)
    if count:
        deltas = np.zeros((len(widths), block_values), np.int64)
        for width in set(widths) - {0}:
            chosen = [number for number, other_width in enumerate(widths) if other_width == width]
            deltas[chosen] = _unpack_numbers(
                data, [starts[number] for number in chosen], width, block_values
            )
        deltas += np.array(smallest_deltas, np.int64)[:, None]
        values[0] = first_value
        values[1:] = first_value + np.cumsum(deltas.reshape(-1)[: count - 1])
        if values.min() < 0 or values.max() >= 1 << 31:
            raise MalformedPageError("a page has invalid lengths")
    return values, at


def _decompress_body(body: memoryview, size: int, codec: str) -> memoryview:
    name = "lz4_raw" if codec == "LZ4" else codec.lower()
    data = pa.decompress(pa.py_buffer(body), decompressed_size=size, codec=name)
    return memoryview(data).cast("B")


def _size(fields: dict[int, object], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise MalformedPageError("a page header lacks a size")
    return value


def _inner(fields: dict[int, object], field: int) -> dict[int, object]:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise MalformedPageError("a page header lacks its inner header")
    return value


def _header(data: PageBytes, at: int) -> tuple[dict[int, object], int]:
    """Reads the numbers, booleans and inner headers of a page header by their field numbers. Other
    fields are skipped. Returns them and the position after the header.
    """
    try:
        return _fields(data, at, inner_headers=True)
    except IndexError:
        raise MalformedPageError("a page header is truncated") from None
    except MalformedThriftError as error:
        raise MalformedPageError(f"a page header is malformed: {error}") from None


def _fields(
    data: PageBytes, at: int, *, inner_headers: bool = False
) -> tuple[dict[int, object], int]:
    fields: dict[int, object] = {}
    number = 0
    while (head := data[at]) != STOP:
        if head < 16:
            number, kind, at = field_head(data, at, number)
        else:  # the usual form, without the call
            number, kind, at = number + (head >> 4), head & 15, at + 1
        if I16 <= kind <= I64:
            value = data[at]
            if value < 128:
                fields[number], at = (value >> 1) ^ -(value & 1), at + 1
            else:
                fields[number], at = zigzag(data, at)
        elif TRUE <= kind <= FALSE:
            fields[number] = kind == TRUE
        elif kind == STRUCT and inner_headers:
            fields[number], at = _fields(data, at)
        else:
            at = skip(data, at, kind)
    return fields, at + 1


def _unpack_numbers(
    data: memoryview, starts: list[int], width: int, count: int
) -> npt.NDArray[np.int64]:
    """Unpacks `count` numbers of `width` bits from each of these positions."""
    stored = np.frombuffer(data, np.uint8)
    numbers_read = np.empty((len(starts), count), np.int64)
    step = max(1, _UNPACKED // count)
    for start in range(0, len(starts), step):
        at = np.array(starts[start : start + step])[:, None] + np.arange(width * count // 8)
        bits = np.unpackbits(stored[at], axis=1, bitorder="little").reshape(-1, count, width)
        wide = np.pad(bits, ((0, 0), (0, 0), (0, 64 - width)))
        numbers = np.packbits(wide, axis=2, bitorder="little").view(np.int64)
        numbers_read[start : start + step] = numbers[:, :, 0]
    return numbers_read


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    try:
        return varint(data, at)
    except (IndexError, MalformedThriftError):
        raise MalformedPageError("a number in a page is truncated") from None


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at

"""Computes the decoded size of the pages of a Parquet column chunk from their headers.

The footer of a file also contains sizes, but they are not reliable: a decoder allocates the size in
the header of a page. Dictionaries are another trap, because each of a million rows may refer to one
long string.

Implements "Page Header" of the Parquet format and the necessary parts of Thrift's compact protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, overload

import pyarrow as pa

from delta_maintenance.checksums import crc32
from delta_maintenance.table.compact_protocol import MalformedThriftError, varint, zigzag

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_INNER = {_DATA_PAGE: (5, 2), _DICTIONARY_PAGE: (7, 2), _DATA_PAGE_V2: (8, 4)}
"""The numbers of the inner header and of the encoding in it, by the type of the page."""
_RLE = 3
PLAIN, PLAIN_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 2, 6, 7, 8
_MOST_DEPTH = 8
_SMALL_ENTRY = 1 << 10
"""If no entry of a dictionary can be longer than this, the longest one is not determined."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page according to its header."""

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
        found = inner if isinstance(inner, dict) else {}
        return all(found.get(field, _RLE) == _RLE for field in (3, 4))

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
            return body[:before], _decompressed(body[before:], self.size - before, codec)
        return body[:before], body[before:]


class PageBytes(Protocol):
    """The bytes of a column chunk, in memory or not."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> bytes | memoryview: ...


def pages_of(chunk: PageBytes, *, values: int) -> Iterator[Page]:
    """Yields the pages of a chunk with this number of values, from their headers only.

    `MalformedPageError` for invalid or truncated headers.
    """
    at = seen = 0
    while seen < values:
        header, at = _struct(chunk, at, _MOST_DEPTH)
        kind, size, stored = (_size(header, field) for field in (1, 2, 3))
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
        seen += 0 if kind == _DICTIONARY_PAGE else count
        yield Page(
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
    found = ChunkPages()
    for page in pages_of(chunk, values=values):
        found.size = page.start + page.stored
        crc = page.header.get(4) if checksums else None
        if isinstance(crc, int) and crc32(chunk[page.start : found.size]) != crc & 0xFFFFFFFF:
            raise MalformedPageError("a page does not have its checksum")
        found.largest = max(found.largest, page.size)
        if page.is_dictionary:
            found.has_dictionary = True
            if texts:
                found.entry = longest_entry(chunk, page, codec)
        elif page.refers_to_dictionary:
            found.values += page.values
            found.indexed += page.values
        elif page.encoding is not None:
            found.values += page.values
            found.plain_bytes += page.size
            found.density = max(found.density, page.size / max(page.values, 1))
            found.shares_prefixes |= page.encoding == DELTA_BYTE_ARRAY
    return found


def longest_entry(chunk: PageBytes, page: Page, codec: str) -> int:
    """Returns the size of the longest text of a page with the encoding PLAIN and without levels,
    or an upper bound that is cheaper to determine.

    Each text is stored as its length in four bytes, followed by its bytes.
    """
    most = max(page.size - 4 * page.values, 0)
    if most <= _SMALL_ENTRY or not 0 < page.values <= page.size // 4:
        return most
    try:
        _, body = page.body(chunk, codec)
    except (pa.ArrowException, ValueError, OSError):
        # pyarrow has no separate decompressor for this codec; the size of the dictionary is an
        # upper bound.
        return most
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


def _decompressed(body: memoryview, size: int, codec: str) -> memoryview:
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


def _struct(data: PageBytes, at: int, depth: int) -> tuple[dict[int, object], int]:
    """Reads the fields of a struct by their IDs; only numbers and structs keep their values."""
    if not depth:
        raise MalformedPageError("a page header is nested too deeply")
    fields: dict[int, object] = {}
    field = 0
    try:
        while True:
            head = data[at]
            at += 1
            if not head:
                return fields, at
            if head >> 4:
                field += head >> 4
            else:
                field, at = zigzag(data, at)
            fields[field], at = _value(data, at, head & 15, depth)
    except IndexError:
        raise MalformedPageError("a page header is truncated") from None
    except MalformedThriftError as error:
        raise MalformedPageError(f"a page header is malformed: {error}") from None


def _value(data: PageBytes, at: int, kind: int, depth: int) -> tuple[object, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return None, at + 1
    if kind in (4, 5, 6):
        return zigzag(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = varint(data, at)
        return None, at + length
    if kind == 12:
        return _struct(data, at, depth - 1)
    raise MalformedPageError("a page header contains an unknown type")

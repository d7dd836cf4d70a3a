"""Computes the decoded size of the pages of a Parquet column chunk from their headers.

The footer of a file also contains sizes, but they are not reliable: a decoder allocates the size in
the header of a page. Dictionaries are another trap, because each of a million rows may refer to one
long string.

Implements "Page Header" of the Parquet format and the necessary parts of Thrift's compact protocol.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from delta_maintenance.checksums import crc32
from delta_maintenance.table.compact_protocol import MalformedThriftError, varint, zigzag

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 7, 8
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
    at = 0
    while found.values < values:
        header, at = _struct(chunk, at, _MOST_DEPTH)
        kind, size, stored = (_size(header, field) for field in (1, 2, 3))
        if at + stored > len(chunk):
            raise MalformedPageError("a page is longer than its column")
        body = chunk[at : at + stored]
        at += stored
        crc = header.get(4) if checksums else None
        if isinstance(crc, int) and crc32(body) != crc & 0xFFFFFFFF:
            raise MalformedPageError("a page does not have its checksum")
        found.largest = max(found.largest, size)
        if kind == _DICTIONARY_PAGE:
            found.has_dictionary = True
            entries = _size(_inner(header, 7), 1)
            if texts:
                found.entry = _longest_entry(body, size, entries, codec)
        elif kind == _DATA_PAGE:
            _count_page(found, _inner(header, 5), size, encoding_field=2)
        elif kind == _DATA_PAGE_V2:
            _count_page(found, _inner(header, 8), size, encoding_field=4)
    found.size = at
    return found


def _count_page(
    found: ChunkPages, header: dict[int, object], size: int, *, encoding_field: int
) -> None:
    count, encoding = _size(header, 1), _size(header, encoding_field)
    found.values += count
    if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        found.indexed += count
        return
    found.plain_bytes += size
    found.density = max(found.density, size / max(count, 1))
    found.shares_prefixes |= encoding == _DELTA_BYTE_ARRAY


def _longest_entry(body: memoryview, size: int, entries: int, codec: str) -> int:
    """Returns the size of the longest dictionary entry, or an upper bound that is cheaper to
    determine.

    Each entry is stored as its length in four bytes, followed by its bytes.
    """
    most = max(size - 4 * entries, 0)
    if most <= _SMALL_ENTRY or not 0 < entries <= size // 4:
        return most
    try:
        page = body if codec == "UNCOMPRESSED" else _decompressed(body, size, codec)
    except (pa.ArrowException, ValueError, OSError):
        # pyarrow has no separate decompressor for this codec; the size of the dictionary is an
        # upper bound.
        return most
    longest = at = 0
    try:
        for _ in range(entries):
            (length,) = _LENGTH(page, at)
            at += 4 + length
            if length > longest:
                longest = length
    except struct.error:
        raise MalformedPageError("a dictionary ends within an entry") from None
    return longest


_LENGTH = struct.Struct("<I").unpack_from


def _decompressed(body: memoryview, size: int, codec: str) -> memoryview:
    name = "lz4_raw" if codec == "LZ4" else codec.lower()
    return memoryview(pa.decompress(pa.py_buffer(body), decompressed_size=size, codec=name))


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


def _struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, object], int]:
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


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[object, int]:
    if kind in (1, 2):
        return None, at
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

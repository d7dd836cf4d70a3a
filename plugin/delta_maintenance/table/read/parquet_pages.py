"""What the pages of a Parquet column chunk take once decoded, by their headers.

The footer of a file tells sizes, too, but nothing holds its writer to them: a decoder allocates
what the header of a page says. A dictionary is the other trap, since each of a million rows may
stand for one long text.

Implements "Page Header" of the Parquet format and as much of Thrift's compact protocol as that
takes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from delta_maintenance.table.compact_protocol import MalformedThriftError, varint, zigzag

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 7, 8
_MOST_DEPTH = 8
_SMALL_ENTRY = 1 << 10
"""Where no entry of a dictionary can be longer, the longest one is not looked for."""


@dataclass(slots=True)
class ChunkPages:
    """The pages of one column chunk, added up."""

    values: int = 0
    """Nulls among them."""
    largest: int = 0
    """Bytes of the largest page after decompression."""
    indexed: int = 0
    """Values that stand in the dictionary, some perhaps many times."""
    plain_bytes: int = 0
    """Bytes of all pages without a dictionary after decompression."""
    density: float = 0
    """The most bytes per value of any page without a dictionary."""
    shares_prefixes: bool = False
    """Whether a value may repeat any part of the one before it."""
    entry: int = 0
    """No entry of the dictionary has more bytes."""


class MalformedPageError(ValueError):
    """The bytes are no pages of a column chunk."""


def read_pages(chunk: memoryview, *, values: int, codec: str, texts: bool) -> ChunkPages:
    """Walks over the pages of a chunk that has so many values, decompressing its dictionary only.

    `texts` says whether the values have a length of their own. `MalformedPageError` where the
    headers are none, or end too early.
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
        found.largest = max(found.largest, size)
        if kind == _DICTIONARY_PAGE:
            entries = _size(_inner(header, 7), 1)
            if texts:
                found.entry = _longest_entry(body, size, entries, codec)
        elif kind == _DATA_PAGE:
            _count_page(found, _inner(header, 5), size, encoding_field=2)
        elif kind == _DATA_PAGE_V2:
            _count_page(found, _inner(header, 8), size, encoding_field=4)
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
    """The bytes of the longest entry of a dictionary, or more where that is not worth finding out.

    Each entry is its length in four bytes and then itself.
    """
    most = max(size - 4 * entries, 0)
    if most <= _SMALL_ENTRY or not 0 < entries <= size // 4:
        return most
    try:
        page = body if codec == "UNCOMPRESSED" else _decompressed(body, size, codec)
    except (pa.ArrowException, ValueError, OSError):
        # A codec of Parquet's own; the dictionary as a whole is a bound, too.
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
    """The fields of a struct by their ids; only numbers and structs keep their values."""
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
        raise MalformedPageError("a page header is cut off") from None
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
    raise MalformedPageError("a page header holds what none does")

"""Bounds the memory that a footer takes once it is decoded, before anything of it is.

pyarrow takes 700 bytes for a column chunk of three bytes, and the number of column chunks is not
limited by the schema.
"""

from __future__ import annotations

from contextlib import suppress

from delta_maintenance.parquet.thrift import (
    BINARY,
    LIST,
    MAP,
    SET,
    STOP,
    STRUCT,
    MalformedThriftError,
    field_head,
    list_head,
    skip,
    skip_elements,
)

_CHUNK = 768
"""The size of a column chunk in memory in bytes; the other sizes likewise."""
_STRUCTS = {(2,): 3072, (4,): 192, (4, 1): _CHUNK}
"""The size of an element of the schema, in several forms, of a row group, and of a column chunk, by
the numbers of the fields.
"""
_OTHER_STRUCT, _TEXT, _NUMBER = 128, 40, 8
MEMORY_PER_BYTE = 4
"""The memory for each byte of a footer in addition: it is held a few times."""
_MOST_DEPTH = 16


def footer_memory(footer: bytes, *, exact_above: int, max_bytes: int = 1 << 62) -> int:
    """Returns the maximum memory of a decoded footer in bytes; larger than needed, up to
    `exact_above`. Counting ends above `max_bytes`.

    `footer` are its bytes, without its length and the magic number. Invalid bytes, which pyarrow
    reports, count up to their position.
    """
    # Every struct ends with a zero. To count zeros takes far less time than to read the structs.
    rough = _CHUNK * footer.count(0) + (_TEXT // 2 + MEMORY_PER_BYTE) * len(footer)
    rough += _STRUCTS[2,] * _elements_of_schema(footer)
    if rough <= exact_above:
        return rough
    sizes = _Sizes(footer, max_bytes)
    with suppress(IndexError, MalformedThriftError, _EnoughError):
        sizes.fields(0, (), _MOST_DEPTH)
    return sizes.found + MEMORY_PER_BYTE * len(footer)


def _elements_of_schema(footer: bytes) -> int:
    """Returns their number if the schema is where all writers put it, otherwise a maximum."""
    with suppress(IndexError, MalformedThriftError):
        number, kind, at = field_head(footer, 0, 0)
        number, kind, at = field_head(footer, skip(footer, at, kind), number)
        if (number, kind) == (2, LIST):
            return min(list_head(footer, at)[0], len(footer))
    return len(footer)


class _EnoughError(Exception):
    """More than the limit has been counted."""


class _Sizes:
    """One pass over a footer."""

    def __init__(self, data: bytes, max_bytes: int) -> None:
        self._data = data
        self._most = max_bytes
        self.found = 0

    def fields(self, at: int, path: tuple[int, ...], depth: int) -> int:
        """Returns the position after a struct."""
        data, number = self._data, 0
        while data[at] != STOP:
            number, kind, at = field_head(data, at, number)
            if kind in (STRUCT, LIST, SET, MAP):
                at = self._value(kind, at, (*path, number), depth - 1)
            else:
                at = skip(data, at, kind)
        return at + 1

    def _value(self, kind: int, at: int, path: tuple[int, ...], depth: int) -> int:
        if not depth:
            raise MalformedThriftError("values are nested too deeply")
        if kind == STRUCT:
            return self.fields(at, path, depth)
        if kind == MAP:
            # The format has none, and pyarrow skips it.
            return skip(self._data, at, kind)
        count, element, at = list_head(self._data, at)
        if element == STRUCT:
            size = _STRUCTS.get(path, _OTHER_STRUCT)
            for _ in range(count):
                at = self.fields(at, path, depth)
                self.found += size
                if self.found > self._most:
                    raise _EnoughError
            return at
        if count > len(self._data) - at:
            raise MalformedThriftError("a list is truncated")
        self.found += count * (_TEXT if element == BINARY else _NUMBER)
        return skip_elements(self._data, count, element, at, depth=depth)

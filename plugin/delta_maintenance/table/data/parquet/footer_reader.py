"""Reads footers, and bounds the memory that a footer takes before it is decoded.

pyarrow takes 700 bytes for a column chunk of three bytes, and the number of column chunks is not
limited by the schema.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.table.data.parquet.decoded_sizes import too_large
from delta_maintenance.table.data.parquet.files import ReadAhead
from delta_maintenance.table.data.parquet.footers import (
    END_BYTES,
    MAGIC,
    footer_size,
    require_readable_columns,
)
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    LIST,
    MAP,
    SET,
    STOP,
    STRUCT,
    MalformedThriftError,
    Struct,
    field_head,
    list_head,
    read_struct,
    skip,
    skip_elements,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

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


TAIL_BYTES = 64 << 10
"""The number of bytes of a file that are read first, as in pyarrow: most footers are shorter."""
SMALL_FOOTER = 16 << 20
"""The maximum memory of a small footer in bytes."""
_SMALL_BYTES = 1 << 20
MOST_ROWS = 1 << 36
"""To pass so many rows takes minutes, even without a column."""
_WHAT = "the footer of the data file"


class StoredFooter:
    """The footer of a file. Reads it at once if it is small, and otherwise to decode it."""

    def __init__(self, source: BinaryIO) -> None:
        """Errors are those of the file."""
        self.file_size = source.seek(0, io.SEEK_END)
        """The size of the file in bytes."""
        self.ahead = ReadAhead(source)
        """The file, with the end that has been read in memory."""
        self._tail = b""
        self._load(min(self.file_size, TAIL_BYTES))
        self.size = footer_size(self._tail)
        """The number of bytes from the footer to the end of the file; 0 if there is no footer."""
        if not self._tail.endswith(MAGIC) or self.size > self.file_size:
            # pyarrow says what else the file is.
            self._tail, self.size = b"", 0
        elif len(self._tail) < self.size <= _SMALL_BYTES:
            self._load(self.size)

    @property
    def data(self) -> bytes:
        """The bytes of the footer, without its length. `pa.ArrowInvalid` if there is none."""
        if self.size <= END_BYTES:
            raise pa.ArrowInvalid("the file has no footer")
        if len(self._tail) < self.size:
            self._load(self.size)
        return self._tail[-self.size : -END_BYTES]

    @property
    def start(self) -> int:
        """The position of the footer in the file."""
        return self.file_size - self.size

    @property
    def tree(self) -> Struct:
        """The values of the footer. Raises the errors of `data`, and `MalformedThriftError`."""
        return read_struct(self.data)[0]

    @property
    def in_short_tail(self) -> bytes | None:
        """The bytes of the footer, without its length; None if it is not in the last `TAIL_BYTES`
        bytes of the file.
        """
        return self.data if END_BYTES < self.size <= TAIL_BYTES else None

    @property
    def is_large(self) -> bool:
        """Whether it may take more than `SMALL_FOOTER` bytes of memory."""
        return self.size > _SMALL_BYTES or self.memory(exact_above=1 << 62) > SMALL_FOOTER

    def decode(
        self, *, max_bytes: int, exact_above: int = SMALL_FOOTER
    ) -> tuple[pq.FileMetaData, int]:
        """Returns the decoded footer and the memory that it takes at most in bytes.

        Its columns are not checked; see `require_readable_columns`. `RefusedError`, before any
        memory is taken, if that could be more than `max_bytes`; `CorruptTableError` for an absurd
        number of rows; otherwise the errors of pyarrow. Less than `exact_above` may be estimated.
        """
        if self.size * MEMORY_PER_BYTE > max_bytes:
            raise too_large(_WHAT, self.size * MEMORY_PER_BYTE, max_bytes=max_bytes)
        memory = self.memory(exact_above=exact_above, max_bytes=max_bytes)
        if memory > max_bytes:
            raise too_large(_WHAT, memory, max_bytes=max_bytes)
        # Imported here because compacting a log reads footers without it.
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(self.ahead)
        if metadata.num_rows > MOST_ROWS:
            raise CorruptTableError(f"the data file claims to have {metadata.num_rows} rows")
        return metadata, memory

    def require_readable_columns(self, schema: pq.ParquetSchema) -> None:
        """See the function of this name."""
        require_readable_columns(self.data, schema)

    def memory(self, *, exact_above: int, max_bytes: int = 1 << 62) -> int:
        """Returns the `footer_memory`; 0 if there is no footer."""
        footer = self.data if self.size > END_BYTES else b""
        return footer_memory(footer, exact_above=exact_above, max_bytes=max_bytes)

    def _load(self, size: int) -> None:
        start, end = self.file_size - size, self.file_size
        self.ahead.load([(start, end)])
        self._tail = bytes(self.ahead.held(start, end) or b"")


def largest_group(metadata: pq.FileMetaData) -> int:
    """Returns the size in bytes of the largest row group, decoded or stored.

    A footer may understate one of the two.
    """
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    return max(
        (
            max(
                group.total_byte_size,
                sum(group.column(at).total_compressed_size for at in range(group.num_columns)),
            )
            for group in groups
        ),
        default=0,
    )

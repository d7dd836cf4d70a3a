"""Reads footers of data files in bounded memory."""

from __future__ import annotations

import io
from typing import BinaryIO

import pyarrow.parquet as pq

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.parquet.decoded_sizes import too_large
from delta_maintenance.parquet.files import ReadAhead
from delta_maintenance.parquet.footer_sizes import MEMORY_PER_BYTE, footer_memory
from delta_maintenance.parquet.footers import (
    END_BYTES,
    MAGIC,
    TAIL_BYTES,
    footer_size,
    require_readable_columns,
)

SMALL_FOOTER = 16 << 20
"""The maximum memory of a small footer in bytes."""
_SMALL_BYTES = 1 << 20
MOST_ROWS = 1 << 36
"""To pass so many rows takes minutes, even without a column."""
_WHAT = "the footer of the data file"


class DataFileFooter:
    """The footer of a data file. Reads it at once if it is small, and otherwise to decode it."""

    def __init__(self, source: BinaryIO) -> None:
        """Errors are those of the file."""
        self.file_size = source.seek(0, io.SEEK_END)
        """The size of the file in bytes."""
        self._ahead = ReadAhead(source)
        self._tail = b""
        self._load(min(self.file_size, TAIL_BYTES))
        self._size = footer_size(self._tail)
        if not self._tail.endswith(MAGIC) or self._size > self.file_size:
            # pyarrow says what else the file is.
            self._tail, self._size = b"", 0
        elif len(self._tail) < self._size <= _SMALL_BYTES:
            self._load(self._size)

    @property
    def in_short_tail(self) -> bytes | None:
        """The bytes of the footer, without its length; None if it is not in the last `TAIL_BYTES`
        bytes of the file.
        """
        short = END_BYTES < self._size <= min(len(self._tail), TAIL_BYTES)
        return self._tail[-self._size : -END_BYTES] if short else None

    @property
    def is_large(self) -> bool:
        """Whether it may take more than `SMALL_FOOTER` bytes of memory."""
        return self._size > _SMALL_BYTES or self._memory(exact_above=1 << 62) > SMALL_FOOTER

    def decoded(
        self, *, max_bytes: int, exact_above: int = SMALL_FOOTER
    ) -> tuple[pq.FileMetaData, int]:
        """Returns the decoded footer and the memory that it takes at most in bytes.

        Its columns are not checked; see `require_readable_columns`. `RefusedError`, before any
        memory is taken, if that could be more than `max_bytes`; `CorruptTableError` for an absurd
        number of rows; otherwise the errors of pyarrow. Less than `exact_above` may be estimated.
        """
        if self._size * MEMORY_PER_BYTE > max_bytes:
            raise too_large(_WHAT, self._size * MEMORY_PER_BYTE, max_bytes=max_bytes)
        if len(self._tail) < self._size:
            self._load(self._size)
        memory = self._memory(exact_above=exact_above, max_bytes=max_bytes)
        if memory > max_bytes:
            raise too_large(_WHAT, memory, max_bytes=max_bytes)
        metadata = pq.read_metadata(self._ahead)
        if metadata.num_rows > MOST_ROWS:
            raise CorruptTableError(f"the data file claims to have {metadata.num_rows} rows")
        return metadata, memory

    def require_readable_columns(self, schema: pq.ParquetSchema) -> None:
        """See the function of this name."""
        require_readable_columns(self._tail, schema)

    def _memory(self, *, exact_above: int, max_bytes: int = 1 << 62) -> int:
        footer = self._tail[-self._size : -END_BYTES]
        return footer_memory(footer, exact_above=exact_above, max_bytes=max_bytes)

    def _load(self, size: int) -> None:
        start, end = self.file_size - size, self.file_size
        self._ahead.load([(start, end)])
        self._tail = bytes(self._ahead.held(start, end) or b"")


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

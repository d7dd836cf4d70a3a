"""Column chunks and their footers as trees of Thrift values.

A footer is read, changed and written as a tree, so that fields that this release does not use are
kept. Implements "File Metadata" of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance.table.compact_protocol import MalformedThriftError, Struct, read_struct
from delta_maintenance.table.parquet_footer import read_footer
from delta_maintenance.table.read.parquet_pages import MalformedPageError

MOST_CHUNK = 64 << 20
"""The maximum size of a column chunk in bytes; one chunk is held in memory."""
MAGIC = b"PAR1"

# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and KeyValue.
VERSION, SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)
COLUMNS, GROUP_BYTES, GROUP_ROWS, GROUP_OFFSET, GROUP_COMPRESSED, ORDINAL = 1, 2, 3, 5, 6, 7
FILE_PATH, CHUNK_OFFSET, CHUNK_METADATA = 1, 2, 3
OFFSET_INDEX, OFFSET_INDEX_SIZE, COLUMN_INDEX, COLUMN_INDEX_SIZE = 4, 5, 6, 7
NUM_VALUES, TOTAL_DECODED, TOTAL_COMPRESSED = 5, 6, 7
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, STATISTICS = 9, 10, 11, 12
BLOOM_FILTER, BLOOM_FILTER_SIZE = 14, 15
KEY, KEY_VALUE = 1, 2


class NotCopiedError(Exception):
    """The rows of a source must be decoded. If a new file was created, no version refers to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A column chunk as it is stored."""

    tree: Struct
    metadata: Struct
    start: int
    size: int

    @classmethod
    def of(cls, tree: Struct) -> Chunk:
        """Parses a column chunk. `MalformedThriftError` if its metadata is incomplete."""
        metadata = tree.get(CHUNK_METADATA)
        if not isinstance(metadata, Struct):
            raise MalformedThriftError("a column chunk has no metadata")
        data, size = metadata.number(DATA_PAGE), metadata.number(TOTAL_COMPRESSED)
        if data is None or size is None:
            raise MalformedThriftError("a column chunk has no position")
        # Some writers store 0 if there is no dictionary.
        return cls(
            tree=tree,
            metadata=metadata,
            start=metadata.number(DICTIONARY_PAGE) or data,
            size=size,
        )

    def range_of(self, offset: int, size: int, tree: Struct) -> tuple[int, int] | None:
        """Returns the position and the size from two fields of a struct; None if one is absent."""
        at, length = tree.number(offset), tree.number(size)
        return None if at is None or length is None else (at, length)


@contextmanager
def reading_sources() -> Iterator[None]:
    """Converts errors of a source to `NotCopiedError`; decoding the source then reports them."""
    try:
        yield
    except StorageError:
        raise
    except (
        pa.ArrowException,
        DeltaMaintenanceError,
        OSError,
        MalformedThriftError,
        MalformedPageError,
        UnicodeDecodeError,
    ) as error:
        raise NotCopiedError(str(error)) from None


def footer_of(file: BinaryIO) -> tuple[Struct, int]:
    """Returns the footer and its position in the file."""
    footer, end = read_footer(file)
    return read_struct(footer)[0], end

"""Decodes flat columns of a row group with Polars.

Polars takes half of the time of pyarrow for texts and decimals, and less memory for texts that
share a dictionary: its arrays refer to the pages. For a new file that pyarrow encoded, it is also
the decoder of another library.

Only columns are decoded whose values both libraries return bit for bit, which is tested for each
type; the installed version has to pass a check at first use. In all other cases, and after any
error, the caller decodes with pyarrow.
"""

from __future__ import annotations

import functools
import io
import logging
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.checksums import crc32
from delta_maintenance.parquet.excerpts import excerpt
from delta_maintenance.parquet.pages import (
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    MalformedPageError,
    pages_of,
)
from delta_maintenance.parquet.thrift import Struct, read_struct

WORTHWHILE_BYTES = 32 << 20
"""The size of Parquet files from which Polars is loaded, which takes as long as decoding them."""
_RLE = 3
_ENCODINGS = frozenset({PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, _RLE})
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "ZSTD", "GZIP"})
_CRC = 4
_MISREAD = re.compile(r"[*^.]")
"""Polars interprets such names as expressions."""
_OVERHEAD = 16
"""The size of a text in bytes, besides the page that contains it, and of a decimal."""
_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_decoded = 0


def is_worthwhile(size: int) -> bool:
    """Whether to decode with Polars, now that this process decodes `size` more bytes of files.

    False as long as that is less than `WORTHWHILE_BYTES` in all, and if Polars is not installed or
    does not pass the check.
    """
    global _decoded
    with _lock:
        _decoded += size
        return _decoded >= WORTHWHILE_BYTES and _passes()


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column chunk of a top-level column without children."""

    leaf: int
    """The number of the leaf in the file."""
    field: pa.Field
    column: pq.ColumnSchema
    chunk: pq.ColumnChunkMetaData
    stored: memoryview
    """The bytes of the chunk."""

    @property
    def is_supported(self) -> bool:
        """Whether its values are the same with both libraries."""
        physical, kind = self.column.physical_type, self.field.type
        return (
            self.column.path == self.field.name
            and not _MISREAD.search(self.field.name)
            and self.column.max_repetition_level == 0
            and self.column.max_definition_level <= 1
            and self.chunk.compression in _CODECS
            and any(physical in types and matches(kind) for types, matches in _TYPES)
            and self.column.logical_type.type in _LOGICAL
        )

    def memory(self, rows: int) -> int | None:
        """Returns the maximum memory for decoding it in bytes; None for pages that are left to
        pyarrow: of other encodings, of another number of rows, or with a wrong checksum.
        """
        size = seen = 0
        try:
            for page in pages_of(self.stored, values=rows):
                crc = page.header.get(_CRC)
                if isinstance(crc, int):
                    data = self.stored[page.start : page.start + page.stored]
                    if crc32(data) != crc & 0xFFFFFFFF:
                        return None
                if page.encoding is not None and page.encoding not in _ENCODINGS:
                    return None
                size += max(page.size, page.stored)
                seen += 0 if page.is_dictionary else page.values
        except MalformedPageError:
            return None
        return size + rows * _OVERHEAD if seen == rows else None


class PolarsDecoder:
    """Decodes columns of one file. Not thread-safe."""

    def __init__(self, footer: bytes, whole: bytes | None) -> None:
        """`whole` is the content of a file with one row group, if it is in memory."""
        self._footer = footer
        self._whole = whole
        self._tree: Struct | None = None

    def columns(
        self, candidates: Iterable[FlatColumn], group: int, *, rows: int, most: int
    ) -> dict[str, pa.Array]:
        """Returns those columns of a row group that are supported and fit in `most` bytes, by name.

        Empty after an error, which pyarrow reports.
        """
        chosen = []
        for each in candidates:
            memory = each.memory(rows) if each.is_supported else None
            if memory is not None and memory <= most:
                most -= memory
                chosen.append(each)
        if not chosen:
            return {}
        data = self._whole
        if data is None:
            if self._tree is None:
                self._tree, _ = read_struct(self._footer)
            leaves, chunks = [each.leaf for each in chosen], [each.stored for each in chosen]
            data = excerpt(self._tree, group, leaves, chunks)
        found = decode(data, [each.field for each in chosen])
        if found is None or any(len(values) != rows for values in found.values()):
            return {}
        return found


def decode(data: bytes, fields: Sequence[pa.Field]) -> dict[str, pa.Array] | None:
    """Returns columns of a Parquet file by name, with the types of `fields`; None if that fails."""
    import polars as pl

    names = [field.name for field in fields]
    options: dict[str, Any] = {"use_statistics": False, "hive_partitioning": False, "glob": False}
    try:
        rows = pl.read_parquet(data, columns=names, **options)
        return {field.name: _array(rows.get_column(field.name), field.type) for field in fields}
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        # A panic of Polars is no `Exception`.
        _logger.debug("Polars does not decode a file: %s", error)
        return None


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    import polars as pl

    found = values.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    if found.type == kind:
        return found
    if not _is_text(kind):
        raise TypeError(f"{found.type} instead of {kind}")
    return found.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_micros(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "us" and kind.tz in (None, "UTC")


_TYPES = (
    (("BOOLEAN",), pa.types.is_boolean),
    (("INT32",), lambda kind: kind in (pa.int8(), pa.int16(), pa.int32(), pa.date32())),
    (("INT64",), lambda kind: kind == pa.int64() or _is_micros(kind)),
    (("FLOAT",), pa.types.is_float32),
    (("DOUBLE",), pa.types.is_float64),
    (("BYTE_ARRAY",), _is_text),
    (("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"), pa.types.is_decimal128),
)
_LOGICAL = frozenset({"NONE", "INT", "DATE", "TIMESTAMP", "STRING", "DECIMAL"})


@functools.cache
def _passes() -> bool:
    """Whether the installed version decodes the values below like pyarrow."""
    try:
        import polars as pl
    except ImportError:
        return False
    for use_dictionary in (False, True):
        data = io.BytesIO()
        pq.write_table(_CHECK, data, compression="snappy", use_dictionary=use_dictionary)
        found = decode(data.getvalue(), list(_CHECK.schema))
        if found is None or any(
            _bits(found[name]) != _bits(_CHECK[name].chunk(0)) for name in _CHECK.schema.names
        ):
            _logger.warning(
                "Polars %s does not decode Parquet like pyarrow, so it is not used", pl.__version__
            )
            return False
    return True


def _bits(values: pa.Array) -> Any:
    """Returns what distinguishes values, including signs of zeros and bits of NaN."""
    kind = values.type
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return kind, values.to_pylist()


def _checked() -> Mapping[str, pa.Array]:
    numbers = [0, 1, -1, None, 2**31 - 1, -(2**31)]
    floats = [0.0, -0.0, math.nan, None, math.inf, 5e-324]
    texts = ["", "a", None, "ä€😀", "x" * 200, "a\0"]
    return {
        "bool": pa.array([True, False, None, True, True, False]),
        "byte": pa.array([0, 127, None, -128, 1, 2], pa.int8()),
        "short": pa.array([0, 2**15 - 1, None, -(2**15), 1, 2], pa.int16()),
        "int": pa.array(numbers, pa.int32()),
        "long": pa.array([0, 2**63 - 1, None, -(2**63), 1, 2]),
        "float": pa.array(floats, pa.float32()),
        "double": pa.array(floats),
        "date": pa.array(numbers, pa.int32()).view(pa.date32()),
        "instant": pa.array([0, -1, None, 2**62, -(2**62), 1]).view(pa.timestamp("us", "UTC")),
        "local": pa.array([0, -1, None, 2**62, -(2**62), 1]).view(pa.timestamp("us")),
        "text": pa.array(texts),
        "binary": pa.array([each and each.encode() + b"\xff" for each in texts], pa.binary()),
        **{
            f"decimal {precision}": pa.array(
                [Decimal(10**precision - 1), Decimal(1 - 10**precision), None, 0, 1, -1],
                pa.decimal128(precision, 0),
            )
            for precision in (9, 18, 38)
        },
    }


_CHECK = pa.table(_checked())

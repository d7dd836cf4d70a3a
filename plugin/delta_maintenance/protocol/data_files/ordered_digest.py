"""A digest of rows in their order, to prove that two sequences of rows are equal.

Each column is hashed by itself with XXH3 in 128 bits, over three streams of bytes: the values that
are not null, the lengths of texts and lists, and the positions of nulls. A nested column has the
streams of each of its levels. Names, types and partition values are part of the digest, as are the
bits of every value: positive and negative zero and different NaNs have different digests. The
streams depend on values and types only, not on batches, dictionaries, offsets or the bytes under
nulls, so the results of two Parquet readers can be compared.

A bin whose rows keep their order and lose none is proved by this digest; any other by
`row_digest`, whose sums can be subtracted. Digests are stored together with the `VERSION` of this
algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from delta_maintenance.protocol.columns import is_large, numbers_of

VERSION = 2
"""Follows that of `row_digest`, so that a digest says which of the two it is."""

_LONG = 4 << 10
"""Of texts with more bytes, the digest is hashed. Otherwise a dictionary with one long text would
have to be expanded for each row."""
_PIECE = 8 << 20
"""The size in bytes up to which a dictionary is expanded."""
_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class OrderedSum:
    """The digest of some rows in their order, or the sum of the digests of several bins."""

    rows: int = 0
    digest: int = 0
    """128 bits."""

    def __add__(self, addend: OrderedSum) -> OrderedSum:
        return OrderedSum(self.rows + addend.rows, (self.digest + addend.digest) % _MODULUS)

    def __str__(self) -> str:
        return f"v{VERSION}:{self.rows}:{self.digest:032x}"


class OrderedDigest:
    """Hashes the rows of batches with one schema, in the order of the calls. Not thread-safe, but
    different threads may add to different `columns`.
    """

    def __init__(self, schema: pa.Schema, partition: Mapping[str, str | None]) -> None:
        """Creates a digest for values of the types in `schema`. `partition` are the partition
        values of the log, which are hashed too.

        Batches may use other Arrow layouts, such as dictionaries, views or larger offsets.
        """
        self.columns: Sequence[ColumnDigest] = [
            ColumnDigest(field.name, field.type) for field in schema
        ]
        """In the order of the schema."""
        self._partition = sorted(partition.items())

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a batch. `pyarrow.ArrowInvalid` if values cannot be cast to their
        type.
        """
        if batch.num_columns != len(self.columns):
            raise pa.ArrowInvalid(f"{batch.num_columns} columns instead of {len(self.columns)}")
        for column, values in zip(self.columns, batch.columns, strict=True):
            column.add(values)

    def result(self, rows: int) -> OrderedSum:
        """Returns the digest of the rows so far. `pyarrow.ArrowInvalid` if a column has another
        number of values than `rows`.
        """
        total = xxhash.xxh3_128(repr((self._partition, rows)).encode())
        for column in self.columns:
            if column.rows != rows:
                raise pa.ArrowInvalid(f"{column.name} has {column.rows} values instead of {rows}")
            total.update(column.digest())
        return OrderedSum(rows, total.intdigest())


class ColumnDigest:
    """Hashes the values of one column."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name = name
        self._root = _level(kind)

    @property
    def rows(self) -> int:
        """The number of values so far."""
        return self._root.count

    def add(self, values: pa.Array) -> None:
        """Adds values. `pyarrow.ArrowInvalid` if they cannot be cast to the type of the column."""
        self._root.add(values)

    def digest(self) -> bytes:
        """Returns 128 bits for the values so far, and for the name and the type."""
        column_hash = xxhash.xxh3_128(self.name.encode("utf-8", "surrogatepass"))
        for level in self._root.levels():
            column_hash.update(level.digest())
        return column_hash.digest()


class _Level:
    """One level of a column. Subclasses add the values that are not null."""

    def __init__(self, kind: pa.DataType, tag: str) -> None:
        self.count = 0
        self._kind = kind
        self._tag = tag
        self._values = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()
        self._nulls = xxhash.xxh3_128()

    def add(self, values: pa.Array) -> None:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_dictionary(values.type) and values.dictionary.null_count:
            values = values.dictionary.take(values.indices)
        if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
            # Arrow cannot filter views.
            values = values.cast(pa.large_binary())
        rows = len(values)
        if pa.types.is_null(values.type):
            self._nulls.update(np.arange(self.count, self.count + rows).data)
        elif rows:
            missing = values.null_count
            if missing:
                absent = values.is_null().to_numpy(zero_copy_only=False)
                self._nulls.update((np.flatnonzero(absent) + self.count).data)
            if missing < rows:
                self.add_present(values.drop_null() if missing else values)
        self.count += rows

    def add_present(self, values: pa.Array) -> None:
        """Adds at least one value, none of which is null."""
        raise NotImplementedError  # each kind of level has its own

    def levels(self) -> Iterator[_Level]:
        """Yields this level, and those below it."""
        yield self

    def digest(self) -> bytes:
        """Returns the digest of the three streams of this level."""
        streams = (column.digest() for column in (self._values, self._lengths, self._nulls))
        return xxhash.xxh3_128_digest(b"".join((repr((self._tag, self.count)).encode(), *streams)))


class _Fixed(_Level):
    """Numbers, dates, timestamps and decimals: their bits."""

    def add_present(self, values: pa.Array) -> None:
        values = _plain(values)
        if values.type != self._kind:
            values = values.cast(self._kind)
        width = int(self._kind.bit_width) // 8
        start = values.offset * width
        self._values.update(memoryview(values.buffers()[1])[start : start + len(values) * width])


class _Boolean(_Level):
    def add_present(self, values: pa.Array) -> None:
        values = _plain(values)
        if values.type != self._kind:
            values = values.cast(self._kind)
        first_byte, start = divmod(values.offset, 8)
        size = -(-(start + len(values)) // 8)
        stored = np.frombuffer(values.buffers()[1], np.uint8, size, first_byte)
        bits = np.unpackbits(stored, bitorder="little")[start : start + len(values)]
        self._values.update(bits.data)


class _Text(_Level):
    """Texts and binary values: their bytes and their lengths."""

    _dictionary: tuple[pa.Array, pa.Array, npt.NDArray[np.int32], int] | None = None

    def add_present(self, values: pa.Array) -> None:
        if pa.types.is_dictionary(values.type):
            self._add_indices(values)
            return
        ends = _offsets(values)
        lengths = np.diff(ends).astype(np.int32, copy=False)
        self._lengths.update(lengths.data)
        self._add_bytes(values, ends, lengths)

    def _add_indices(self, values: pa.DictionaryArray) -> None:
        """Adds the texts that indices refer to."""
        prepared = self._dictionary
        if prepared is None or not prepared[0].equals(values.dictionary):
            short, lengths = _shorten_entries(values.dictionary)
            longest = int(pc.max(pc.binary_length(short)).as_py() or 0)
            rows = max(1, _PIECE // max(1, longest))
            prepared = self._dictionary = values.dictionary, short, lengths, rows
        _, short, lengths, rows = prepared
        indices = values.indices
        self._lengths.update(lengths.take(numbers_of(indices)).data)
        for at in range(0, len(indices), rows):
            piece = short.take(indices.slice(at, rows))
            ends = _offsets(piece)
            self._values.update(_bytes_between(piece, int(ends[0]), int(ends[-1])))

    def _add_bytes(
        self, values: pa.Array, ends: npt.NDArray[Any], lengths: npt.NDArray[np.int32]
    ) -> None:
        start = int(ends[0])
        if int(lengths.max()) > _LONG:
            for at in np.flatnonzero(lengths > _LONG).tolist():
                text_start, end = int(ends[at]), int(ends[at + 1])
                self._values.update(_bytes_between(values, start, text_start))
                self._values.update(xxhash.xxh3_128_digest(_bytes_between(values, text_start, end)))
                start = end
        self._values.update(_bytes_between(values, start, int(ends[-1])))


class _Struct(_Level):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, f"struct {[field.name for field in kind]}")
        self._children = {field.name: _level(field.type) for field in kind}

    def add_present(self, values: pa.Array) -> None:
        names = [field.name for field in values.type]
        if set(names) != set(self._children) or len(names) != len(self._children):
            raise pa.ArrowInvalid(f"a struct of {names} instead of {list(self._children)}")
        for at, name in enumerate(names):
            # `field` slices the child like its parent.
            self._children[name].add(values.field(at))

    def levels(self) -> Iterator[_Level]:
        yield self
        for child in self._children.values():
            yield from child.levels()


class _List(_Level):
    """Lists, and maps as lists of their entries."""

    def __init__(self, kind: pa.DataType, element: pa.DataType) -> None:
        super().__init__(kind, "map" if pa.types.is_map(kind) else "list")
        self._element = _level(element)

    def add_present(self, values: pa.Array) -> None:
        if pa.types.is_fixed_size_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        ends = _offsets(values)
        self._lengths.update(np.diff(ends).astype(np.int32, copy=False).data)
        start, end = int(ends[0]), int(ends[-1])
        self._element.add(values.values.slice(start, end - start))

    def levels(self) -> Iterator[_Level]:
        yield self
        yield from self._element.levels()


def _level(kind: pa.DataType) -> _Level:
    if pa.types.is_struct(kind):
        return _Struct(kind)
    if pa.types.is_map(kind):
        # Other readers return a map as a list of structs.
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _List(kind, entry)
    if pa.types.is_list(kind):
        return _List(kind, kind.value_type)
    if pa.types.is_boolean(kind):
        return _Boolean(kind, "boolean")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _Text(kind, str(kind))
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return _Fixed(kind, str(kind))
    raise TypeError(f"rows with values of {kind} have no digest")


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _offsets(values: pa.Array) -> npt.NDArray[Any]:
    kind = values.type
    wide = is_large(kind) or pa.types.is_large_list(kind)
    width = np.dtype(np.int64 if wide else np.int32)
    return np.frombuffer(
        values.buffers()[1], width, len(values) + 1, values.offset * width.itemsize
    )


def _bytes_between(values: pa.Array, start: int, end: int) -> memoryview:
    data = values.buffers()[2]
    return memoryview(b"" if data is None or start == end else data)[start:end]


def _shorten_entries(dictionary: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Returns the entries of a dictionary, long ones replaced by their digests, and the lengths of
    all of them.
    """
    if not len(dictionary):
        return dictionary, np.zeros(0, np.int32)
    ends = _offsets(dictionary)
    lengths = np.diff(ends).astype(np.int32, copy=False)
    if int(lengths.max()) <= _LONG:
        return dictionary, lengths
    is_long = lengths > _LONG
    digests = [
        xxhash.xxh3_128_digest(_bytes_between(dictionary, int(ends[at]), int(ends[at + 1])))
        for at in np.flatnonzero(is_long).tolist()
    ]
    binary = pa.large_binary() if is_large(dictionary.type) else pa.binary()
    short = pc.replace_with_mask(
        dictionary.cast(binary), pa.array(is_long), pa.array(digests, binary)
    )
    return short, lengths

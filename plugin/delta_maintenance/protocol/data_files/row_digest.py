"""An order-independent digest of rows, to prove that two sets of rows are equal.

Each row is hashed to 64 bits from the bits of every value of every column. Positive and negative
zero and different NaNs have different hashes, and so do nulls, empty values and different nesting;
column names and types are part of the hash. The digest consists of the number of rows and two sums
of differently mixed hashes, modulo 2^64. Sums can be added for several files and subtracted for
deleted rows. The digest depends on values and types only, not on their Arrow layout, so the results
of two Parquet readers can be compared.

Sums are stored (in `commitInfo` and in reports) together with the `VERSION` of this algorithm.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import Hashes, is_large, numbers_of

VERSION = 1

_ROWS = 1 << 15
"""Rows per step; their hashes stay in the processor's cache."""
_JOINED = 1 << 13
"""Batches of at least this many rows are not joined, because copying them costs more than it saves.
"""
_JOINED_BYTES = 4 << 20
_TEXTS = 1 << 12
"""Strings per step."""
_BLOCK = 64
"""Bytes of each string per step."""
_LONG = 4 << 10
"""Strings with more bytes are hashed one after another."""
_LONG_STEP = 256 << 10
"""Bytes of a long string per step."""
_MODULUS = 1 << 64
_SHIFT = np.uint64(32)
_LIST_POSITION = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_LIST_LENGTH = np.uint64(0xC2B2AE3D27D4EB4F)
_FIRST = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SECOND = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_WORDS: Mapping[int, np.dtype[Any]] = {
    8: np.dtype("<i1"),
    16: np.dtype("<i2"),
    32: np.dtype("<i4"),
    64: np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class RowSums:
    """The digest of a set of rows."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, addend: RowSums) -> RowSums:
        return RowSums(
            self.rows + addend.rows,
            (self.first + addend.first) % _MODULUS,
            (self.second + addend.second) % _MODULUS,
        )

    def __sub__(self, subtrahend: RowSums) -> RowSums:
        return RowSums(
            self.rows - subtrahend.rows,
            (self.first - subtrahend.first) % _MODULUS,
            (self.second - subtrahend.second) % _MODULUS,
        )

    def __str__(self) -> str:
        return f"v{VERSION}:{self.rows}:{self.first:016x}:{self.second:016x}"


class RowDigest:
    """Hashes the rows of batches with one schema. Not thread-safe."""

    def __init__(self, schema: pa.Schema) -> None:
        """Creates a digest for values of the types in `schema`.

        Batches may use other Arrow layouts, such as dictionaries, views or larger offsets.
        """
        self._columns = [_column((field.name,), field.type) for field in schema]
        self._names = list(schema.names)

    def hashes(
        self, batch: pa.RecordBatch, partition: Mapping[str, str | None] | None = None
    ) -> Hashes:
        """Returns the hash of each row. `partition` are the partition values of the log, which are
        hashed too.

        `pyarrow.ArrowInvalid` if values cannot be cast to their type.
        """
        if batch.num_columns != len(self._columns):
            raise pa.ArrowInvalid(f"{batch.num_columns} columns instead of {len(self._columns)}")
        start = _partition_seed(partition or {})
        row_hashes = np.full(batch.num_rows, start, np.uint64)
        for at in range(0, batch.num_rows, _ROWS):
            piece = batch.slice(at, _ROWS)
            rows_of_piece = row_hashes[at : at + _ROWS]
            for column, values in zip(self._columns, piece.columns, strict=True):
                column.add_to(rows_of_piece, values)
        return row_hashes


class LiveRowSums:
    """Sums the hashes of live rows; joins small batches, because hashing large ones is faster.

    Holds fewer than 8,192 rows and 4 MiB in addition to the last batch, and does not copy large
    batches.
    """

    def __init__(self, digest: RowDigest, partition: Mapping[str, str | None]) -> None:
        self._digest = digest
        self._partition = partition
        self._batches: list[pa.RecordBatch] = []
        self._deleted: list[npt.NDArray[np.int64]] = []
        self._rows = self._bytes = 0
        self._sums = RowSums()

    def add(self, batch: pa.RecordBatch, deleted: npt.NDArray[np.int64]) -> None:
        """Adds a batch, without the rows at the positions `deleted`."""
        size = batch.nbytes
        is_large = batch.num_rows >= _JOINED or size >= _JOINED_BYTES
        if self._batches and (is_large or not self._batches[0].schema.equals(batch.schema)):
            self._hash()
        self._batches.append(batch)
        self._deleted.append(deleted + self._rows)
        self._rows += batch.num_rows
        self._bytes += size
        if self._rows >= _JOINED or self._bytes >= _JOINED_BYTES:
            self._hash()

    def total(self) -> RowSums:
        """Returns the sums of all live rows so far."""
        self._hash()
        return self._sums

    def _hash(self) -> None:
        if self._rows:
            batch = self._batches[0]
            if len(self._batches) > 1:
                batch = pa.concat_batches(self._batches)
            hashes, deleted = (
                self._digest.hashes(batch, self._partition),
                np.concatenate(self._deleted),
            )
            self._sums += row_sums(hashes) - row_sums(hashes[deleted])
        self._batches, self._deleted = [], []
        self._rows = self._bytes = 0


def row_sums(hashes: Hashes) -> RowSums:
    """Sums the hashes of rows."""
    first = second = 0
    for at in range(0, len(hashes), _ROWS):
        piece = hashes[at : at + _ROWS]
        first += int(_finish_hashes(piece, _FIRST, 33).sum(dtype=np.uint64))
        second += int(_finish_hashes(piece, _SECOND, 29).sum(dtype=np.uint64))
    return RowSums(len(hashes), first % _MODULUS, second % _MODULUS)


def _finish_hashes(hashes: Hashes, by: tuple[np.uint64, np.uint64], shift: int) -> Hashes:
    distance = np.uint64(shift)
    mixed = hashes ^ (hashes >> distance)
    mixed *= by[0]
    mixed ^= mixed >> distance
    mixed *= by[1]
    mixed ^= mixed >> distance
    return mixed


def _partition_seed(partition: Mapping[str, str | None]) -> np.uint64:
    text = "\0".join(
        f"{len(name)}:{name}={'-' if value is None else f'{len(value)}:{value}'}"
        for name, value in sorted(partition.items())
    )
    return _constants(("partition", text), 1)[0]


def _constants(names: tuple[str, ...], count: int) -> list[np.uint64]:
    text = "\0".join(name.replace("\0", "\0\0") for name in names)
    data = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8 * count).digest()
    return [np.uint64(number) for number in np.frombuffer(data, np.dtype("<u8"))]


class _Column:
    """Hashes one column, or one level of a nested column. Subclasses convert values to words."""

    def __init__(self, path: tuple[str, ...], kind: pa.DataType, tag: str) -> None:
        self._kind = kind
        factor, second, self._null = _constants((tag, *path), 3)
        # Multiplication by an odd factor is a bijection.
        self._first, self._second = factor | np.uint64(1), second | np.uint64(1)
        self._dictionary: tuple[pa.Array, Hashes] | None = None

    def add_to(self, hashes: Hashes, values: pa.Array) -> None:
        """Adds the hash of each value to `hashes`, which has the same length."""
        hashes += self.hash_values(values)

    def hash_values(self, values: pa.Array) -> Hashes:
        """Returns the hash of each value; nulls have a fixed hash."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_dictionary(values.type):
            return self._from_dictionary(values)
        if pa.types.is_null(values.type) or not len(values):
            return np.full(len(values), self._null, np.uint64)
        mixed = np.multiply(self.words(values), self._first)
        mixed ^= mixed >> _SHIFT
        mixed *= self._second
        if values.null_count:
            mixed[_absent(values)] = self._null
        return mixed

    def words(self, values: pa.Array) -> Hashes:
        """Returns 64 bits for each value; arbitrary for nulls."""
        raise NotImplementedError  # each kind of column has its own

    def _from_dictionary(self, values: pa.DictionaryArray) -> Hashes:
        indices = values.indices
        dictionary = self._mixed_dictionary(values.dictionary)
        if not len(dictionary):
            return np.full(len(values), self._null, np.uint64)
        if indices.null_count:
            mixed: Hashes = dictionary.take(numbers_of(pc.fill_null(indices, 0)))
            mixed[_absent(indices)] = self._null
            return mixed
        # Faster than an index, for which the positions are also converted.
        value_hashes: Hashes = dictionary.take(numbers_of(indices))
        return value_hashes

    def _mixed_dictionary(self, values: pa.Array) -> Hashes:
        """Returns the hashes of a dictionary, and caches them for the next chunk with it."""
        dictionary_hashes = self._dictionary
        if dictionary_hashes is None or not _is_same(dictionary_hashes[0], values):
            dictionary_hashes = self._dictionary = values, self.hash_values(values)
        return dictionary_hashes[1]


class _Fixed(_Column):
    """Integers, floating-point numbers, dates and timestamps: their bits."""

    def words(self, values: pa.Array) -> Hashes:
        if values.type != self._kind:
            values = values.cast(self._kind)
        width = int(self._kind.bit_width)
        numbers = _fixed_words(values, _WORDS[width])
        return numbers if width == 64 else numbers.astype(np.int64).view(np.uint64)


class _Boolean(_Column):
    def words(self, values: pa.Array) -> Hashes:
        if values.type != self._kind:
            values = values.cast(self._kind)
        first_byte, start = divmod(values.offset, 8)
        size = -(-(start + len(values)) // 8)
        bits = np.unpackbits(
            np.frombuffer(values.buffers()[1], np.uint8, size, first_byte), bitorder="little"
        )
        return bits[start : start + len(values)].astype(np.uint64)


class _Decimal(_Column):
    """The unscaled value, in one word if the precision permits."""

    def words(self, values: pa.Array) -> Hashes:
        if values.type != self._kind:
            values = values.cast(self._kind)
        start = values.offset
        pairs = np.frombuffer(values.buffers()[1], np.dtype("<u8"), 2 * len(values), 16 * start)
        low: Hashes = pairs[::2]
        if self._kind.precision <= 18:
            return low
        high = pairs[1::2] * self._second
        high ^= high >> _SHIFT
        high *= _LIST_POSITION
        return high + low


class _Bytes(_Column):
    """Strings and binary values: a hash of their bytes and their length."""

    def words(self, values: pa.Array) -> Hashes:
        kind = values.type
        if not (is_large(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
            values = values.cast(pa.large_binary())
        width = np.dtype(np.int64 if is_large(values.type) else np.int32)
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, width, len(values) + 1, values.offset * width.itemsize)
        text_words = np.empty(len(values), np.uint64)
        for at in range(0, len(values), _TEXTS):
            bounds = ends[at : at + _TEXTS + 1].astype(np.int64)
            start, end = int(bounds[0]), int(bounds[-1])
            # Whole blocks are read at every start, also beyond the last value.
            size = end - start + _BLOCK
            if data is not None and start + size <= data.size:
                piece = np.frombuffer(data, np.uint8, size, start)
            else:
                piece = np.zeros(size, np.uint8)
                if end > start:
                    piece[:-_BLOCK] = np.frombuffer(data, np.uint8, end - start, start)
            bounds -= start
            text_words[at : at + _TEXTS] = _text_hashes(piece, bounds[:-1], np.diff(bounds))
        return text_words


class _Struct(_Column):
    def __init__(self, path: tuple[str, ...], kind: pa.DataType) -> None:
        super().__init__(path, kind, "struct")
        self._children = {field.name: _column((*path, field.name), field.type) for field in kind}

    def words(self, values: pa.Array) -> Hashes:
        names = [field.name for field in values.type]
        if set(names) != set(self._children) or len(names) != len(self._children):
            raise pa.ArrowInvalid(f"a struct of {names} instead of {list(self._children)}")
        words = np.full(len(values), self._null, np.uint64)
        for at, name in enumerate(names):
            # `field` slices the child like its parent.
            self._children[name].add_to(words, values.field(at))
        return words


class _List(_Column):
    """Lists, and maps as lists of their entries."""

    def __init__(self, path: tuple[str, ...], kind: pa.DataType, element: pa.DataType) -> None:
        super().__init__(path, kind, "map" if pa.types.is_map(kind) else "list")
        self._element = _column((*path, "element"), element)

    def words(self, values: pa.Array) -> Hashes:
        if pa.types.is_fixed_size_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        width = np.dtype(np.int64 if pa.types.is_large_list(values.type) else np.int32)
        ends = np.frombuffer(
            values.buffers()[1], width, len(values) + 1, values.offset * width.itemsize
        ).astype(np.int64)
        start, end = int(ends[0]), int(ends[-1])
        starts, lengths = ends[:-1] - start, np.diff(ends)
        elements = np.zeros(end - start, np.uint64)
        entries = values.values.slice(start, end - start)
        for at in range(0, end - start, _ROWS):
            piece = entries.slice(at, _ROWS)
            self._element.add_to(elements[at : at + _ROWS], piece)
        positions = np.arange(end - start) - np.repeat(starts, lengths)
        elements += (positions.astype(np.uint64) + np.uint64(1)) * _LIST_POSITION
        elements *= self._first
        elements ^= elements >> _SHIFT
        elements *= self._second
        totals = np.zeros(end - start + 1, np.uint64)
        np.cumsum(elements, out=totals[1:])
        words = totals[ends[1:] - start] - totals[starts]
        return words + lengths.astype(np.uint64) * _LIST_LENGTH


def _text_hashes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Hashes:
    """Sums the hashes of the eight-byte words of each string; the last word is padded with zeros.

    The position of a word determines its factors. A word of zeros adds nothing.
    """
    hashes = lengths.astype(np.uint64) * _LIST_LENGTH
    long = np.flatnonzero(lengths > _LONG)
    for at in long:
        hashes[at : at + 1] += _long_text_hash(data[starts[at] : starts[at] + lengths[at]])
    if len(long):
        lengths = np.where(lengths > _LONG, 0, lengths)
    longest, shortest = int(lengths.max()), int(lengths.min())
    rows: npt.NDArray[np.int64] | None = None
    for begin in range(0, longest, _BLOCK):
        if begin and begin >= shortest:
            rows = np.flatnonzero(lengths > begin)
            starts_here, lengths_here = starts[rows] + begin, lengths[rows] - begin
        else:
            starts_here, lengths_here = starts + begin, lengths - begin
        words = -(-min(_BLOCK, longest - begin) // 8)
        # Copying a block per string is much faster than copying its words separately.
        block = np.dtype((np.void, 8 * words))
        blocks: npt.NDArray[Any] = np.ndarray(
            (len(data) - 8 * words + 1,), block, data, strides=(1,)
        )
        text_words = blocks[starts_here].view(np.uint64)
        if int(lengths_here.min()) < 8 * words:
            text_words &= _masks(words).take(lengths_here, mode="clip").view(np.uint64)
        factors, second = _text_factors(begin // 8, words)
        # Faster than broadcasting, whose inner loop would cover only the words of one string.
        text_words *= factors[: len(text_words)]
        text_words ^= text_words >> _SHIFT
        total = text_words.reshape(len(starts_here), words) @ second
        if rows is None:
            hashes += total
        else:
            hashes[rows] += total
    return hashes


def _long_text_hash(text: npt.NDArray[np.uint8]) -> Hashes:
    """Sums the hashes of the words of one string, like `_text_hashes`."""
    text_hash = np.zeros(1, np.uint64)
    for begin in range(0, len(text), _LONG_STEP):
        piece = text[begin : begin + _LONG_STEP]
        words = np.zeros(-(-len(piece) // 8), np.uint64)
        words.view(np.uint8)[: len(piece)] = piece
        factors, second = _long_text_factors(begin // 8)
        words *= factors[: len(words)]
        words ^= words >> _SHIFT
        words *= second[: len(words)]
        text_hash += words.sum(dtype=np.uint64)
    return text_hash


@functools.lru_cache(4)
def _long_text_factors(position: int) -> tuple[Hashes, Hashes]:
    positions = (np.arange(position, position + _LONG_STEP // 8, dtype=np.uint64) << _ONE) + _ONE
    return positions * _FIRST[0], positions * _SECOND[0]


@functools.cache
def _masks(words: int) -> npt.NDArray[Any]:
    """Returns, for each length up to `words` words, the masks that clear the bits beyond it."""
    is_kept = np.arange(8 * words) < np.arange(8 * words + 1)[:, np.newaxis]
    masks = np.where(is_kept, np.uint8(255), np.uint8(0))
    return masks.view(np.dtype((np.void, 8 * words)))[:, 0]


@functools.lru_cache(_BLOCK // 8)
def _text_factors(position: int, words: int) -> tuple[Hashes, Hashes]:
    """Returns the factors of the words from a position on, `_TEXTS` times and once."""
    positions = (np.arange(position, position + words, dtype=np.uint64) << _ONE) + _ONE
    return np.tile(positions * _FIRST[0], _TEXTS), positions * _SECOND[0]


def _column(path: tuple[str, ...], kind: pa.DataType) -> _Column:
    if pa.types.is_struct(kind):
        return _Struct(path, kind)
    if pa.types.is_map(kind):
        # Other readers return a map as a list of structs.
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _List(path, kind, entry)
    if pa.types.is_list(kind):
        return _List(path, kind, kind.value_type)
    if pa.types.is_boolean(kind):
        return _Boolean(path, kind, "boolean")
    if pa.types.is_decimal(kind):
        return _Decimal(path, kind, str(kind))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _Bytes(path, kind, str(kind))
    if kind.bit_width in _WORDS:
        return _Fixed(path, kind, str(kind))
    raise TypeError(f"rows with values of {kind} have no digest")


def _fixed_words(values: pa.Array, word: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(values.buffers()[1], word, len(values), values.offset * word.itemsize)


def _is_same(before: pa.Array, values: pa.Array) -> bool:
    """Whether two arrays share their memory, which `before` keeps alive."""
    if before.type != values.type or (len(before), before.offset) != (len(values), values.offset):
        return False
    return [_address(buffer) for buffer in before.buffers()] == [
        _address(buffer) for buffer in values.buffers()
    ]


def _address(buffer: pa.Buffer | None) -> int | None:
    return None if buffer is None else buffer.address


def _absent(values: pa.Array) -> npt.NDArray[np.bool_]:
    absent: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return absent

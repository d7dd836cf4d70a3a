"""Helpers for columns: Arrow and NumPy arrays, hashes of texts, and sets of them as filters."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError


def integers(values: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Wraps integers as an array without nulls, mainly for indices; not a copy."""
    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Converts booleans to an array without nulls, mainly for masks."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def to_bools(values: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Returns the values of an array without nulls."""
    if not len(values):
        return np.empty(0, np.bool_)
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    end = values.offset + len(values)
    return np.unpackbits(bits, count=end, bitorder="little")[values.offset :].view(np.bool_)


def numbers_of(integers: pa.Array) -> npt.NDArray[Any]:
    """Returns integers of any width, none of them null, from their own memory."""
    # Not `to_pandas_dtype`, which needs pandas before PyArrow 26.
    sign = "i" if pa.types.is_signed_integer(integers.type) else "u"
    word = np.dtype(f"{sign}{integers.type.bit_width // 8}")
    start = integers.offset * word.itemsize
    return np.frombuffer(integers.buffers()[1], word, len(integers), start)


def text_bytes(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Returns the concatenated texts of a string or binary array with 32-bit offsets; not a copy.

    A search in all bytes takes a fraction of the time of a search in each text.
    """
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[1]]


def column_of(batch: pa.Table, name: str, types: Mapping[str, pa.DataType]) -> pa.ChunkedArray:
    """Returns a column of a batch; nulls of its type if the batch does not have it."""
    if name in batch.column_names:
        return batch[name]
    return pa.chunked_array([pa.nulls(batch.num_rows, types[name])])


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array."""
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def is_large(kind: pa.DataType) -> bool:
    """Whether texts or bytes have offsets of 64 bits."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def rows_by_group(
    group: npt.NDArray[np.int64], count: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields each of the groups from 0 to `count` that has rows, and their numbers."""
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=count))
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if end > start:
            yield number, order[start:end]


def valid_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Returns the values that are valid UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([value.decode(errors="ignore") for value in values.to_pylist()])
        return texts.filter(pc.equal(texts.cast(pa.binary()), values))


Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_ROWS = 1 << 15  # small enough for intermediate results to stay in the processor's cache
_FEW = 32
"""Up to this number of strings, a loop over words in Python takes less time than NumPy's calls."""
_BLOCK = 1 << 19


def hash_texts(texts: pa.StringArray) -> Hashes:
    """Returns the hash of each string, equal in every process; different strings may collide.

    Each string is read as little-endian words of eight bytes, the last one padded with zeros. The
    cost is a few vector operations per word; of the longest strings, a few Python operations.
    """
    hashes = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), _ROWS):
        piece = texts.slice(start, _ROWS)
        hashes[start : start + len(piece)] = _hash_piece(piece)
    return hashes


def hash_between(
    data: bytes | memoryview | npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> Hashes:
    """Returns the hashes of substrings of `data`, none of which may extend into its last eight
    bytes.
    """
    words: npt.NDArray[np.uint64] = np.ndarray(
        (len(data) - 7,), np.dtype("<u8"), data, strides=(1,)
    )
    lengths = ends - starts
    hashes = lengths.astype(np.uint64) * _MULTIPLIER
    common_bytes = int(lengths.min()) // 8 * 8 if len(lengths) > _FEW else 0
    for at in range(0, common_bytes, 8):
        _mix(hashes, words[starts + at])
    rows = np.flatnonzero(lengths > common_bytes)
    at = common_bytes
    while len(rows) > _FEW:
        tail_bytes = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
        word = words[starts[rows] + at] & (
            np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - tail_bytes * np.uint64(8))
        )
        mixed = hashes[rows]
        _mix(mixed, word)
        hashes[rows] = mixed
        at += 8
        rows = rows[lengths[rows] > at]
    for row in rows.tolist():
        text = data[int(starts[row]) + at : int(ends[row])]
        hashes[row] = _mix_words(int(hashes[row]), text)
    hashes *= _FINAL
    return hashes ^ (hashes >> np.uint64(32))


def _hash_piece(texts: pa.StringArray) -> Hashes:
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    offsets = np.frombuffer(
        texts.buffers()[1], width, len(texts) + 1, texts.offset * width.itemsize
    ).astype(np.int64)
    start, end = int(offsets[0]), int(offsets[-1])
    data = texts.buffers()[2]
    buffer = np.zeros(end - start + 8, np.uint8)
    if data is not None:
        buffer[:-8] = np.frombuffer(data, np.uint8)[start:end]
    offsets -= start
    return hash_between(buffer, offsets[:-1], offsets[1:])


def _mix_words(number: int, text: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Mixes the words of one string into its hash, as `_mix` does for many."""
    multiplier, mask = int(_MULTIPLIER), (1 << 64) - 1
    for at in range(0, len(text), _BLOCK):
        block = bytes(text[at : at + _BLOCK])
        words = np.frombuffer(block + bytes(-len(block) % 8), "<u8")
        for word in words.tolist():
            number = ((number ^ word) * multiplier) & mask
            number ^= number >> 29
    return number


def _mix(hashes: Hashes, words: npt.NDArray[np.uint64]) -> None:
    hashes ^= words
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint64(29)


_MAGIC = b"DMF1"
"""Identifies the format and the hash function (`key_hash.hash_texts`); change it with either."""
_HEADER = struct.Struct("<4sIBI")
"""The magic number, the number of members, the bits of a bucket number, and the CRC-32 of the rest.
"""
_LOW_BITS = 24
_MOST_BUCKET_BITS = 40
_MOST_IN_BUCKET = 64
"""Uniform hashes put about one member into a bucket; large buckets slow down every query."""


@dataclass(frozen=True, slots=True, eq=False)
class MembershipFilter:
    """A set of truncated hashes."""

    bucket_bits: int
    ends: npt.NDArray[np.int64]
    """For each bucket, the number of members up to its end."""
    low: npt.NDArray[np.uint8]
    """The lower bits of each member, little-endian, in rows of three bytes."""

    @classmethod
    def of(cls, hashes: Hashes) -> Self:
        """Builds the set of these hashes, which may contain duplicates."""
        bits = len(hashes).bit_length()
        members = np.unique(_cut(hashes, bits))
        buckets = (members >> np.uint64(_LOW_BITS)).astype(np.int64)
        counts = np.bincount(buckets, minlength=1 << bits)
        low = members.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _LOW_BITS // 8]
        return cls(bits, np.cumsum(counts), np.ascontiguousarray(low))

    @property
    def is_even(self) -> bool:
        """Whether no bucket is too large; `from_bytes` refuses other filters."""
        return int(np.diff(self.ends, prepend=0).max()) <= _MOST_IN_BUCKET

    def may_hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Whether each hash may be a member; true for all members."""
        is_possible = np.zeros(len(hashes), np.bool_)
        if not len(self.low) or not len(hashes):
            return is_possible
        cut_hashes = _cut(hashes, self.bucket_bits)
        buckets = (cut_hashes >> np.uint64(_LOW_BITS)).astype(np.int64)
        low = cut_hashes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _LOW_BITS // 8]
        at = np.where(buckets > 0, self.ends[buckets - 1], 0)
        rows = np.flatnonzero(at < self.ends[buckets])
        while len(rows):
            is_possible[rows] |= (self.low[at[rows]] == low[rows]).all(axis=1)
            at[rows] += 1
            rows = rows[(at[rows] < self.ends[buckets[rows]]) & ~is_possible[rows]]
        return is_possible

    @classmethod
    def most_bytes(cls, members: int) -> int:
        """Returns the maximum size of a serialised filter of this number of hashes, in bytes."""
        marks = members + (1 << members.bit_length())
        return _HEADER.size + (marks + 7) // 8 + members * _LOW_BITS // 8

    def to_bytes(self) -> bytes:
        """Serialises the filter."""
        members, buckets = len(self.low), len(self.ends)
        # One set bit for each member, followed by a zero bit at the end of its bucket.
        marks = np.ones(members + buckets, np.bool_)
        marks[self.ends + np.arange(buckets)] = False
        content = np.packbits(marks, bitorder="little").tobytes() + self.low.tobytes()
        return _HEADER.pack(_MAGIC, members, self.bucket_bits, zlib.crc32(content)) + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads `to_bytes` back. `CorruptTableError` for bytes that it cannot have written."""
        if len(data) < _HEADER.size:
            raise _damaged_filter("it is truncated")
        magic, members, bits, checksum = _HEADER.unpack_from(data)
        content = memoryview(data)[_HEADER.size :]
        if magic != _MAGIC:
            raise _damaged_filter("it has an unknown format")
        if bits > _MOST_BUCKET_BITS or members >> bits or zlib.crc32(content) != checksum:
            raise _damaged_filter("its checksum is wrong")
        buckets = 1 << bits
        map_bytes = (members + buckets + 7) // 8
        if len(content) != map_bytes + members * _LOW_BITS // 8:
            raise _damaged_filter("it has the wrong length")
        marks = np.unpackbits(
            np.frombuffer(content, np.uint8, map_bytes), count=members + buckets, bitorder="little"
        )
        ends = np.flatnonzero(marks == 0)
        if len(ends) != buckets:
            raise _damaged_filter("its buckets do not add up")
        low = np.frombuffer(content, np.uint8, offset=map_bytes).reshape(-1, _LOW_BITS // 8)
        membership = cls(bits, ends - np.arange(buckets), low)
        if not membership.is_even:
            raise _damaged_filter("a bucket is too full")
        return membership


def _cut(hashes: Hashes, bucket_bits: int) -> Hashes:
    return hashes >> np.uint64(64 - _LOW_BITS - bucket_bits)


def _damaged_filter(problem: str) -> CorruptTableError:
    return CorruptTableError(f"the filter of a sidecar is invalid: {problem}")

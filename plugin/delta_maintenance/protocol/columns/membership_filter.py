"""A compact approximate set of hashes: false positives are possible, false negatives are not.

A sidecar contains the filter of the locations of its files, so that a later checkpoint can tell
which sidecars a commit may have touched without reading their paths. Hashes are truncated so that a
query of one sidecar is a false positive with a probability of about 2^-24. They are stored sorted:
the upper bits as a bitmap that counts the members of each bucket, the lower 24 bits as three bytes
each, about 27 bits per member in total. A Bloom filter of the same precision takes 35 bits.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.columns.key_hash import Hashes

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
        found = np.zeros(len(hashes), np.bool_)
        if not len(self.low) or not len(hashes):
            return found
        wanted = _cut(hashes, self.bucket_bits)
        buckets = (wanted >> np.uint64(_LOW_BITS)).astype(np.int64)
        low = wanted.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : _LOW_BITS // 8]
        at = np.where(buckets > 0, self.ends[buckets - 1], 0)
        rows = np.flatnonzero(at < self.ends[buckets])
        while len(rows):
            found[rows] |= (self.low[at[rows]] == low[rows]).all(axis=1)
            at[rows] += 1
            rows = rows[(at[rows] < self.ends[buckets[rows]]) & ~found[rows]]
        return found

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
            raise _damaged("it is truncated")
        magic, members, bits, checksum = _HEADER.unpack_from(data)
        content = memoryview(data)[_HEADER.size :]
        if magic != _MAGIC:
            raise _damaged("it has an unknown format")
        if bits > _MOST_BUCKET_BITS or members >> bits or zlib.crc32(content) != checksum:
            raise _damaged("its checksum is wrong")
        buckets = 1 << bits
        map_bytes = (members + buckets + 7) // 8
        if len(content) != map_bytes + members * _LOW_BITS // 8:
            raise _damaged("it has the wrong length")
        marks = np.unpackbits(
            np.frombuffer(content, np.uint8, map_bytes), count=members + buckets, bitorder="little"
        )
        ends = np.flatnonzero(marks == 0)
        if len(ends) != buckets:
            raise _damaged("its buckets do not add up")
        low = np.frombuffer(content, np.uint8, offset=map_bytes).reshape(-1, _LOW_BITS // 8)
        found = cls(bits, ends - np.arange(buckets), low)
        if not found.is_even:
            raise _damaged("a bucket is too full")
        return found


def _cut(hashes: Hashes, bucket_bits: int) -> Hashes:
    return hashes >> np.uint64(64 - _LOW_BITS - bucket_bits)


def _damaged(how: str) -> CorruptTableError:
    return CorruptTableError(f"the filter of a sidecar is invalid: {how}")
